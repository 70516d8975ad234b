// Text as UTF-8, sets of characters by their properties, and normal form C: what reading a tokenizer needs of Unicode.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice::detail {

/// A set of code points.
using CharSet = std::bitset<0x110000>;

/// Appends the UTF-8 of `in` to `out` and returns the number of bytes read. Bytes that are not UTF-8 become U+FFFD, one
/// for each longest beginning of a character, as in Python's errors="replace". An incomplete character at the end is
/// read only if `last`.
std::size_t take_utf8(std::string& out, std::string_view in, bool last = true);

void append_utf8(std::string& s, char32_t c);

/// The character at `p` of valid UTF-8; moves `p` behind it.
inline char32_t next_char(const char*& p) {
  const auto byte = [&] { return static_cast<unsigned char>(*p++); };
  const char32_t a = byte();
  if (a < 0x80) return a;
  const char32_t b = byte() & 0x3f;
  if (a < 0xe0) return (a & 0x1f) << 6 | b;
  const char32_t c = byte() & 0x3f;
  if (a < 0xf0) return (a & 0x0f) << 12 | b << 6 | c;
  return (a & 0x07) << 18 | b << 12 | c << 6 | (byte() & 0x3f);
}

/// Adds the characters that have a property: "Lu" or another general category, "L" or another group of these, "Han",
/// "White_Space". Returns false for a name that is none of these.
bool add_property(CharSet& set, std::string_view name);

/// Normal form C of valid UTF-8.
std::string nfc(std::string_view text);

/// The numbers in unicode_tables.cpp, which says what they mean.
struct UnicodeTables {
  std::span<const uint32_t> categories, combining, pairs;
};
const UnicodeTables& unicode_tables();

}  // namespace sluice::detail
