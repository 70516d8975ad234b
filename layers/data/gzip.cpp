#include <sluice/layers/data/gzip.h>

#include <sluice/core/error.h>
#include <sluice/core/file.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace sluice {

namespace {

/// The compressed bytes, taken bit by bit from the low end.
struct Bits {
  std::string_view bytes;
  const std::string& path;
  std::size_t at = 0;
  uint64_t hold = 0;
  int held = 0;

  [[noreturn]] void bad(const char* what) const {
    fail<IOError>("gunzip: '", path, "': ", what, " at byte ", at - static_cast<std::size_t>(held / 8), " of ", bytes.size());
  }
  void fill() {
    while (held <= 56 && at < bytes.size()) hold |= uint64_t{static_cast<unsigned char>(bytes[at++])} << held, held += 8;
  }
  void drop(int n) {
    if (n > held) bad("the file ends early");
    hold >>= n, held -= n;
  }
  uint32_t take(int n) {
    fill();
    const auto value = static_cast<uint32_t>(hold & ((uint64_t{1} << n) - 1));
    drop(n);
    return value;
  }
  /// Drops the rest of a byte and gives back what was held ahead.
  void align() {
    drop(held % 8);
    at -= static_cast<std::size_t>(held / 8);
    hold = 0, held = 0;
  }
};

constexpr int kLongest = 15;

/// A prefix code as a table over the next 15 bits: symbol and length.
struct Code {
  std::vector<std::pair<uint16_t, uint8_t>> table = std::vector<std::pair<uint16_t, uint8_t>>(1 << kLongest);

  /// By the length of each symbol's word, 0 for none. A code may be incomplete: what it leaves out is refused when met.
  void build(const uint8_t* lengths, int n, Bits& in) {
    std::array<uint32_t, kLongest + 1> count{}, next{};
    for (int s = 0; s < n; ++s) ++count[lengths[s]];
    count[0] = 0;
    uint32_t code = 0;
    for (std::size_t l = 1; l <= kLongest; ++l) {
      code = (code + count[l - 1]) << 1, next[l] = code;
      if (code + count[l] > uint32_t{1} << l) in.bad("a code with too many words");
    }
    std::fill(table.begin(), table.end(), std::pair<uint16_t, uint8_t>{0, 0});
    for (int s = 0; s < n; ++s) {
      const uint8_t l = lengths[s];
      if (l == 0) continue;
      uint32_t word = next[l]++, reversed = 0;  // words are sent from their high end
      for (int i = 0; i < l; ++i, word >>= 1) reversed = reversed << 1 | (word & 1);
      for (uint32_t i = reversed; i < uint32_t{1} << kLongest; i += uint32_t{1} << l) table[i] = {static_cast<uint16_t>(s), l};
    }
  }
  int read(Bits& in) const {
    in.fill();
    const auto [symbol, length] = table[in.hold & ((1 << kLongest) - 1)];
    if (length == 0) in.bad(in.held < kLongest && in.at == in.bytes.size() ? "the file ends early" : "no word of the code");
    in.drop(length);
    return symbol;
  }
};

struct Codes {
  Code literal, distance;

  void build_fixed(Bits& in) {
    std::array<uint8_t, 288> lengths;
    for (std::size_t s = 0; s < 288; ++s) lengths[s] = s < 144 ? 8 : s < 256 ? 9 : s < 280 ? 7 : 8;
    literal.build(lengths.data(), 288, in);
    lengths.fill(5);
    distance.build(lengths.data(), 30, in);
  }
  void build_dynamic(Bits& in) {
    const int literals = static_cast<int>(in.take(5)) + 257, distances = static_cast<int>(in.take(5)) + 1;
    const int sent = static_cast<int>(in.take(4)) + 4;
    if (literals > 286 || distances > 30) in.bad("a code of too many symbols");
    constexpr uint8_t order[] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    std::array<uint8_t, 320> lengths{};
    for (int i = 0; i < sent; ++i) lengths[order[i]] = static_cast<uint8_t>(in.take(3));
    literal.build(lengths.data(), 19, in);
    lengths.fill(0);
    for (int at = 0; at < literals + distances;) {
      const int symbol = literal.read(in);
      if (symbol < 16) {
        lengths[static_cast<std::size_t>(at++)] = static_cast<uint8_t>(symbol);
        continue;
      }
      if (symbol == 16 && at == 0) in.bad("a repeated length without a first");
      const uint8_t value = symbol == 16 ? lengths[static_cast<std::size_t>(at - 1)] : uint8_t{0};
      const int times = static_cast<int>(symbol == 16 ? 3 + in.take(2) : symbol == 17 ? 3 + in.take(3) : 11 + in.take(7));
      if (at + times > literals + distances) in.bad("more lengths than symbols");
      for (int i = 0; i < times; ++i) lengths[static_cast<std::size_t>(at++)] = value;
    }
    literal.build(lengths.data(), literals, in);
    distance.build(lengths.data() + literals, distances, in);
  }
};

constexpr uint16_t kLengthBase[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                    31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr uint8_t kLengthBits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};

/// Appends one block's bytes to `out`, of which the current member began at `begin`; stops at `at_most`.
void inflate_block(Bits& in, const Codes& codes, std::string& out, std::size_t begin, uint64_t at_most) {
  while (out.size() < at_most) {
    int symbol = codes.literal.read(in);
    if (symbol < 256) {
      out += static_cast<char>(symbol);
      continue;
    }
    if (symbol == 256) return;
    if ((symbol -= 257) > 28) in.bad("no such length");
    std::size_t length = kLengthBase[symbol] + in.take(kLengthBits[symbol]);
    const int d = codes.distance.read(in), extra = d < 2 ? 0 : d / 2 - 1;
    const std::size_t distance = d < 2 ? static_cast<std::size_t>(d) + 1
                                       : ((std::size_t{2} + static_cast<std::size_t>(d % 2)) << extra) + in.take(extra) + 1;
    if (distance > out.size() - begin) in.bad("a distance beyond the beginning");
    for (std::size_t from = out.size() - distance; length > 0; --length) out += out[from++];  // they may overlap
  }
}

/// Whether the member was unpacked to its end.
bool inflate(Bits& in, Codes& codes, std::string& out, uint64_t at_most) {
  const std::size_t begin = out.size();
  for (bool last = false; !last;) {
    last = in.take(1) != 0;
    const uint32_t kind = in.take(2);
    if (kind == 3) in.bad("no such kind of block");
    if (kind == 0) {
      in.align();
      const uint32_t length = in.take(16), inverse = in.take(16);
      if (length != (~inverse & 0xffff)) in.bad("the length of a stored block is damaged");
      in.align();
      if (length > in.bytes.size() - in.at) in.bad("the file ends early");
      out += in.bytes.substr(in.at, length), in.at += length;
    } else {
      if (kind == 1) codes.build_fixed(in);
      else codes.build_dynamic(in);
      inflate_block(in, codes, out, begin, at_most);
    }
    if (out.size() >= at_most) return false;
  }
  in.align();
  return true;
}

uint32_t crc32(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> t;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t c = ~0u;
  for (const char byte : bytes) c = table[(c ^ static_cast<unsigned char>(byte)) & 0xff] ^ c >> 8;
  return ~c;
}

void skip_header(Bits& in) {
  if (in.take(16) != 0x8b1f) in.bad("no gzip file");
  if (in.take(8) != 8) in.bad("an unknown method");
  const uint32_t flags = in.take(8);
  if (flags & 0xe0) in.bad("unknown flags");
  in.take(24), in.take(24);  // time, level, system
  if (flags & 4)
    for (uint32_t n = in.take(16); n > 0; --n) in.take(8);
  for (const uint32_t text : {8u, 16u})  // name, comment
    if (flags & text)
      while (in.take(8) != 0) {}
  if (flags & 2) in.take(16);
}

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view packed, const std::string& path, uint64_t at_most) {
  std::string out;
  Codes codes;
  Bits in{packed, path};
  do {
    skip_header(in);
    const std::size_t begin = out.size();
    if (!inflate(in, codes, out, at_most)) break;
    const uint32_t sum = in.take(32), size = in.take(32);
    const std::string_view member = std::string_view(out).substr(begin);
    if (size != static_cast<uint32_t>(member.size())) in.bad("the length is not the one stated");
    if (sum != crc32(member)) in.bad("the checksum is not the one stated");
    in.align();
  } while (is_gzip(packed.substr(in.at)));  // what else follows is padding
  if (out.size() > at_most) out.resize(at_most);
  return out;
}

std::string read_unpacked(const std::string& path) {
  std::string bytes = read_file(path);
  return is_gzip(bytes) ? gunzip(bytes, path) : bytes;
}

}  // namespace sluice
