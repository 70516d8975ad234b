#include <sluice/core/text/utf8.h>

namespace sluice::detail {

std::size_t take_utf8(std::string& out, std::string_view in, bool last) {
  std::size_t at = 0;
  while (at < in.size()) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(in[i]); };
    const unsigned char a = byte(at);
    const std::size_t needed = a < 0x80 ? 1 : a < 0xc2 || a > 0xf4 ? 0 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : 4;
    std::size_t n = 1;
    for (; n < needed && at + n < in.size(); ++n) {
      // The second byte is narrower for characters that would be overlong, surrogates or beyond U+10FFFF.
      const unsigned char low = n > 1 ? 0x80 : a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
      const unsigned char high = n > 1 ? 0xbf : a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
      if (byte(at + n) < low || byte(at + n) > high) break;
    }
    if (n < needed && at + n == in.size() && !last) break;
    if (n == needed) out.append(in, at, n);
    else out += "\xef\xbf\xbd";
    at += n;
  }
  return at;
}

void append_utf8(std::string& s, char32_t c) {
  const auto tail = [&](int shift) { s += static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) return s += static_cast<char>(c), void();
  if (c < 0x800) return s += static_cast<char>(0xc0 | c >> 6), tail(0);
  if (c < 0x10000) return s += static_cast<char>(0xe0 | c >> 12), tail(6), tail(0);
  s += static_cast<char>(0xf0 | c >> 18), tail(12), tail(6), tail(0);
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  return std::string(text.substr(0, char_begin(text, most))) += "…";
}

}  // namespace sluice::detail
