// Two ways in which vocabularies write bytes: the printable alphabet of byte-level BPE, and byte tokens <0xNN>.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vayu {

// Byte-level files write a byte as a printable character: itself where it is printable in Latin-1, else the next free
// code point from U+0100 on.
void append_printable(uint8_t byte, std::string& out);
std::string to_printable(std::string_view bytes);
// Nothing when a character stands for no byte.
std::optional<std::string> from_printable(std::string_view token);

// "<0xE0>": the byte; digits in either case.
std::optional<uint8_t> parse_byte_token(std::string_view token);
std::string byte_token(uint8_t byte);  // upper case

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, SentencePiece's mark for a space

}  // namespace vayu
