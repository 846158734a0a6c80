#include "tokenizer/pipeline/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "tokenizer/utf8.h"

namespace vayu {
namespace {

// A pattern that scans ahead from every position costs the square of the text on the JIT compiler, whose step limit
// does not see such scans; at this length that is about 0.1 s.
constexpr size_t kMaxJitBytes = 16 << 10;
constexpr uint32_t kStepsPerByte = 64;
constexpr uint32_t kMinSteps = 1 << 20;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kMaxPatternBytes = 64 << 10;

// Classes as Oniguruma defines them; PCRE2's \w lacks the marks that every Indic word has, its \s has U+180E.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

// Oniguruma's (Ruby's) syntax to PCRE2's, where both know the construct under different names. What PCRE2 would take in
// another sense is refused.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (pos_ < pattern_.size()) {
      const std::string_view rest = pattern_.substr(pos_);
      if (rest[0] == '\\' && rest.size() > 1) {
        VAYU_RETURN_IF_ERROR(escape(rest));
      } else if (!in_class_ && rest[0] == '[') {
        open_class(rest);
      } else {
        if (in_class_) VAYU_RETURN_IF_ERROR(inside_class(rest));
        take(1);
      }
    }
    return std::move(out_);
  }

 private:
  void take(size_t length) {
    out_ += pattern_.substr(pos_, length);
    pos_ += length;
  }
  void put(size_t length, std::string_view instead) {
    out_ += instead;
    pos_ += length;
  }

  void open_class(std::string_view rest) {
    in_class_ = true;
    take(rest.starts_with("[^]") ? 3 : rest.starts_with("[^") || rest.starts_with("[]") ? 2 : 1);
  }

  Status inside_class(std::string_view rest) {
    if (rest.starts_with("&&")) return make_error(ErrorKind::kUnsupported, "character class intersection (&&)");
    if (rest[0] == '[' && !rest.starts_with("[:")) {
      return make_error(ErrorKind::kUnsupported, "character class in a character class");
    }
    if (rest.starts_with("[:")) {
      take(std::min(rest.find(":]"), rest.size() - 2) + 1);
    } else if (rest[0] == ']') {
      in_class_ = false;
    }
    return {};
  }

  Status escape(std::string_view rest) {
    switch (rest[1]) {
      case 'h':
      case 'H':
        return make_error(ErrorKind::kUnsupported, "\\{} (hexadecimal digit)", rest[1]);
      case 'w':
        in_class_ ? put(2, kWord) : put(2, fmt::format("[{}]", kWord));
        return {};
      case 'W':
        if (in_class_) return make_error(ErrorKind::kUnsupported, "\\W in a character class");
        put(2, fmt::format("[^{}]", kWord));
        return {};
      case 's':
        put(2, R"(\p{White_Space})");
        return {};
      case 'S':
        put(2, R"(\P{White_Space})");
        return {};
      case 'b':
        in_class_ ? take(2) : put(2, fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", kWord));
        return {};
      case 'B':
        put(2, fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", kWord));
        return {};
      case 'u':
        if (rest.size() < 6) break;
        put(6, fmt::format("\\x{{{}}}", rest.substr(2, 4)));
        return {};
    }
    take(2);
    return {};
  }

  const std::string_view pattern_;
  std::string out_;
  size_t pos_ = 0;
  bool in_class_ = false;
};

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
};

void Regex::Free::operator()(Compiled* compiled) const {
  pcre2_code_free(compiled->code);
  delete compiled;
}

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return make_error(ErrorKind::kUnsupported, "pattern of {} bytes, limit {}", pattern.size(), kMaxPatternBytes);
  }
  VAYU_ASSIGN_OR_RETURN(const std::string translated, Translator(pattern).run());
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // ^ and $ stand at every line in Oniguruma's default (Ruby) syntax.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    return make_error(ErrorKind::kUnsupported, "{} at byte {}", reinterpret_cast<const char*>(message), offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it the interpreter runs
  return Regex(std::unique_ptr<Compiled, Free>(new Compiled{code}));
}

struct Regex::Search::State {
  pcre2_match_data* data;
  pcre2_match_context* context;
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

Regex::Search::Search(const Regex& regex, std::string_view text)
    : compiled_(*regex.compiled_),
      text_(text),
      state_(new State{pcre2_match_data_create(1, nullptr), pcre2_match_context_create(nullptr)}) {
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
  find_span(0);
}

Regex::Search::~Search() = default;

// PCRE2's own check of the text would cost its length for every match.
void Regex::Search::find_span(size_t begin) {
  while (begin < text_.size() && decode_utf8(text_, begin).state != Utf8State::kValid) ++begin;
  size_t end = begin;
  while (end < text_.size()) {
    const Utf8Char c = decode_utf8(text_, end);
    if (c.state != Utf8State::kValid) break;
    end += c.length;
  }
  span_begin_ = begin;
  span_ = text_.substr(begin, end - begin);
  pos_ = 0;
  last_end_.reset();
}

int Regex::Search::match_at(size_t pos) {
  const auto run = [&](uint32_t options) {
    return pcre2_match(compiled_.code, reinterpret_cast<PCRE2_SPTR>(span_.data()), span_.size(), pos,
                       options | PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  };
  const size_t steps = std::min<size_t>(kStepsPerByte * (span_.size() - pos), 1u << 30);
  pcre2_set_match_limit(state_->context, kMinSteps + static_cast<uint32_t>(steps));
  const int rc = span_.size() <= kMaxJitBytes ? run(0) : run(PCRE2_NO_JIT);
  return rc == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : rc;
}

std::optional<std::pair<size_t, size_t>> Regex::Search::next_in_span() {
  while (pos_ <= span_.size()) {
    if (match_at(pos_) < 0) break;
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data);
    const size_t begin = ends[0], end = std::max(ends[0], ends[1]);
    const bool empty = begin == end;
    pos_ = !empty ? end : end < span_.size() ? end + decode_utf8(span_, end).length : end + 1;
    if (empty && last_end_ == end) continue;
    last_end_ = end;
    return std::pair(span_begin_ + begin, span_begin_ + end);
  }
  pos_ = span_.size() + 1;
  return std::nullopt;
}

std::optional<std::pair<size_t, size_t>> Regex::Search::next() {
  for (;;) {
    const auto match = next_in_span();
    const size_t end = span_begin_ + span_.size();
    if (match || end >= text_.size()) return match;
    find_span(end);
  }
}

}  // namespace vayu
