#include "tokenizer/unicode_class.h"

#include <unicode/uchar.h>

#include <array>

namespace vayu {
namespace {

uint32_t category(char32_t c) { return U_GET_GC_MASK(static_cast<UChar32>(c)); }

CharClass classify_with_icu(char32_t c) {
  if (category(c) & U_GC_L_MASK) return CharClass::kLetter;
  if (category(c) & U_GC_N_MASK) return CharClass::kNumber;
  return u_isUWhiteSpace(static_cast<UChar32>(c)) ? CharClass::kSpace : CharClass::kOther;
}

}  // namespace

// The Basic Multilingual Plane as one byte a character (64 KiB, filled once in under a millisecond): Indic text would
// otherwise spend most of its time in ICU's property look-up.
CharClass classify(char32_t c) {
  static const auto table = [] {
    std::array<CharClass, 0x10000> classes;
    for (char32_t i = 0; i < classes.size(); ++i) classes[i] = classify_with_icu(i);
    return classes;
  }();
  return c < table.size() ? table[c] : classify_with_icu(c);
}

bool is_word_char(char32_t c) {
  const UChar32 u = static_cast<UChar32>(c);
  return (category(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 || u_hasBinaryProperty(u, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > 0x20 && c < 0x7F && classify(c) == CharClass::kOther;
  return (category(c) & U_GC_P_MASK) != 0;
}

bool is_mark(char32_t c) { return (category(c) & U_GC_M_MASK) != 0; }

bool is_nonspacing_mark(char32_t c) { return (category(c) & U_GC_MN_MASK) != 0; }

bool is_control_or_format(char32_t c) {
  return (category(c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK)) != 0;
}

}  // namespace vayu
