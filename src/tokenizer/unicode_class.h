// Classes of characters that pre-tokenizers and normalizers cut and filter by. Unicode version: ICU's.
#pragma once

#include <cstdint>

namespace vayu {

enum class CharClass : uint8_t { kLetter, kNumber, kSpace, kOther };

// \p{L}, \p{N} and \s of the published patterns; a table look-up in the Basic Multilingual Plane.
CharClass classify(char32_t c);

inline bool is_number(char32_t c) { return classify(c) == CharClass::kNumber; }
inline bool is_space(char32_t c) { return classify(c) == CharClass::kSpace; }  // White_Space
bool is_word_char(char32_t c);          // \w: Alphabetic, marks, decimal digits, connectors, joiners
bool is_punctuation(char32_t c);        // \p{P}, or any ASCII sign that is neither letter, digit, space nor control
bool is_mark(char32_t c);               // \p{M}
bool is_nonspacing_mark(char32_t c);    // \p{Mn}
bool is_control_or_format(char32_t c);  // \p{Cc}, \p{Cf}, \p{Co}, \p{Cs}

}  // namespace vayu
