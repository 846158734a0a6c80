#include "tokenizer/chat_template.h"

#include "tokenizer/jinja/interp.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/jinja/words.h"

namespace vayu {
namespace {

class JinjaTemplate : public ChatTemplate {
 public:
  JinjaTemplate(std::string source, jinja::Template code)
      : source_(std::move(source)), code_(std::move(code)), words_(jinja::collect_words(code_)) {}

  Result<RenderedPrompt> render(const nlohmann::ordered_json& context) const override {
    if (!context.is_object()) return make_error(ErrorKind::kInvalidArgument, "chat template: context is not an object");
    jinja::Interp interp(code_, context);
    try {
      jinja::Text out = interp.run();
      std::string text = out.str();
      return RenderedPrompt{std::move(text), std::move(out).take_marks()};
    } catch (const jinja::Fault& fault) {
      if (fault.verbatim) return Error{fault.kind, fault.message, "messages"};
      return make_error(fault.kind, "chat template, line {}: {}", interp.line(), fault.message);
    } catch (const std::bad_alloc&) {
      return make_error(ErrorKind::kTooLarge, "chat template, line {}: out of memory", interp.line());
    }
  }

  const std::string& source() const override { return source_; }
  const TemplateWords& words() const override { return words_; }

 private:
  const std::string source_;
  const jinja::Template code_;
  const TemplateWords words_;
};

}  // namespace

const TemplateWords& ChatTemplate::words() const {
  static const TemplateWords kNone;
  return kNone;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::parse(std::string source) {
  try {
    jinja::Template code = jinja::parse_template(source);
    return std::shared_ptr<const ChatTemplate>(std::make_shared<JinjaTemplate>(std::move(source), std::move(code)));
  } catch (const jinja::Fault& fault) {
    return make_error(fault.kind, "chat template, {}", fault.message);
  }
}

}  // namespace vayu
