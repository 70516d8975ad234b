// Text as UTF-8: characters of several bytes, bytes that are none, and texts cut for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::detail {

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

/// True if a byte of valid UTF-8 continues a character that began before it.
inline bool goes_on(char c) { return (c & 0xc0) == 0x80; }
/// Position of the first byte of the character that contains the byte at `at`.
inline std::size_t char_begin(std::string_view text, std::size_t at) {
  while (at > 0 && goes_on(text[at])) --at;
  return at;
}
/// Position behind the character that begins at `at`.
inline std::size_t char_end(std::string_view text, std::size_t at) {
  do ++at;
  while (at < text.size() && goes_on(text[at]));
  return at;
}

/// Text for a message: whole, or as many of its first characters as fit into `most` bytes, followed by "…".
std::string shortened(std::string_view text, std::size_t most = 200);

}  // namespace sluice::detail
