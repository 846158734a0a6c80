#include "tokenizer/pipeline/pattern.h"

namespace vayu {

Result<Pattern> Pattern::regex(std::string_view source) {
  if (const auto scanner = find_scanner(source)) return scanned(*scanner);
  VAYU_ASSIGN_OR_RETURN(Regex compiled, Regex::compile(source));
  Pattern pattern;
  pattern.regex_ = std::make_shared<const Regex>(std::move(compiled));
  return pattern;
}

Result<Pattern> Pattern::read(const JsonNode& node) {
  VAYU_ASSIGN_OR_RETURN(const JsonNode pattern, node.get("pattern"));
  if (const auto text = pattern.find("String")) {
    VAYU_ASSIGN_OR_RETURN(const std::string_view literal_text, text->string());
    if (literal_text.empty()) return text->corrupt("empty");
    return literal(std::string(literal_text));
  }
  VAYU_ASSIGN_OR_RETURN(const JsonNode source, pattern.get("Regex"));
  VAYU_ASSIGN_OR_RETURN(const std::string_view text, source.string());
  auto made = regex(text);
  if (!made.ok()) return source.error(made.error().kind, made.error().message);
  return made;
}

}  // namespace vayu
