// NFC, NFD, NFKC and NFKD by ICU.
#include <unicode/edits.h>
#include <unicode/normalizer2.h>

#include "tokenizer/pipeline/normalizer.h"
#include "tokenizer/utf8.h"

namespace vayu {
namespace {

// ICU orders a run of combining marks by insertion, which takes the square of its length. No text has such runs; longer
// ones are ordered piece by piece.
constexpr size_t kMaxMarks = 1024;

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(const icu::Normalizer2& form) : form_(form) {}

  void apply(NormalizedText& text) const override {
    if (is_normalized(text.text)) return;
    Rewriter rewriter(text);
    for (size_t pos = 0; pos < text.text.size();) {
      const size_t end = span_end(text.text, pos);
      if (end == pos) {  // a bad byte, which ICU would replace
        const size_t length = decode_utf8(text.text, pos).length;
        rewriter.copy(pos, pos + length);
        pos += length;
      } else {
        rewrite_span(text.text, pos, end, rewriter);
        pos = end;
      }
    }
    rewriter.finish();
  }

  size_t max_shrink() const override { return 3; }  // three bytes to one at most (Unicode Standard Annex 15)

 private:
  bool is_normalized(std::string_view text) const {
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = span_end(text, pos);
      UErrorCode code = U_ZERO_ERROR;
      const icu::StringPiece span(text.data() + pos, static_cast<int32_t>(end - pos));
      if (!form_.isNormalizedUTF8(span, code) || U_FAILURE(code)) return false;
      pos = end == pos ? pos + decode_utf8(text, pos).length : end;
    }
    return true;
  }

  size_t span_end(std::string_view text, size_t pos) const {
    size_t marks = 0;
    while (pos < text.size()) {
      const Utf8Char c = decode_utf8(text, pos);
      if (c.state != Utf8State::kValid) break;
      const bool is_mark = c.code_point >= 0x300 && form_.getCombiningClass(static_cast<UChar32>(c.code_point)) != 0;
      marks = is_mark ? marks + 1 : 0;
      pos += c.length;
      if (marks == kMaxMarks) break;
    }
    return pos;
  }

  void rewrite_span(const std::string& text, size_t begin, size_t end, Rewriter& rewriter) const {
    UErrorCode code = U_ZERO_ERROR;
    icu::Edits edits;
    std::string out;
    icu::StringByteSink<std::string> sink(&out);
    form_.normalizeUTF8(0, icu::StringPiece(text.data() + begin, static_cast<int32_t>(end - begin)), sink, &edits,
                        code);
    auto edit = edits.getFineIterator();
    while (U_SUCCESS(code) && edit.next(code)) {
      const size_t from = begin + static_cast<size_t>(edit.sourceIndex());
      const size_t to = from + static_cast<size_t>(edit.oldLength());
      if (edit.hasChange()) {
        rewriter.replace(from, to,
                         std::string_view(out).substr(static_cast<size_t>(edit.destinationIndex()),
                                                      static_cast<size_t>(edit.newLength())));
      } else {
        rewriter.copy(from, to);
      }
    }
    if (U_FAILURE(code)) rewriter.copy(begin, end);  // out of memory only
  }

  const icu::Normalizer2& form_;
};

}  // namespace

Result<NormalizerPtr> make_unicode_form(std::string_view kind) {
  UErrorCode code = U_ZERO_ERROR;
  const icu::Normalizer2* form = kind == "NFC"    ? icu::Normalizer2::getNFCInstance(code)
                                 : kind == "NFD"  ? icu::Normalizer2::getNFDInstance(code)
                                 : kind == "NFKC" ? icu::Normalizer2::getNFKCInstance(code)
                                                  : icu::Normalizer2::getNFKDInstance(code);
  if (U_FAILURE(code)) return make_error(ErrorKind::kInternal, "ICU has no data for {}: {}", kind, u_errorName(code));
  return NormalizerPtr(std::make_shared<UnicodeForm>(*form));
}

}  // namespace vayu
