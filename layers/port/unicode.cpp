#include <sluice/layers/port/unicode.h>

#include <algorithm>
#include <unordered_map>

namespace sluice::detail {

namespace {

constexpr std::string_view kCategories =
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn ";

/// Hangul syllables are composed by arithmetic: L + V + T in the order of their code points.
constexpr char32_t kSyllables = 0xac00, kL = 0x1100, kV = 0x1161, kT = 0x11a7, kVs = 21, kTs = 28, kCount = 11172;

/// The tables of normal form C.
struct Composition {
  struct Pair {
    char32_t first, second;  // second is 0 for a decomposition to one character
  };
  std::unordered_map<char32_t, Pair> parts;
  std::unordered_map<uint64_t, char32_t> composed;  // by first << 32 | second
  std::unordered_map<char32_t, uint8_t> combining;  // classes other than 0
  CharSet may_change;                               // a text without these is in normal form C

  Composition() {
    const UnicodeTables& tables = unicode_tables();
    char32_t code = 0;
    for (std::size_t i = 0; i < tables.combining.size(); code += tables.combining[i], i += 2)
      for (uint32_t k = 0; tables.combining[i + 1] && k < tables.combining[i]; ++k) {
        combining[code + k] = static_cast<uint8_t>(tables.combining[i + 1]);
        may_change.set(code + k);
      }
    code = 0;
    for (std::size_t i = 0; i < tables.pairs.size(); i += 3) {
      code += tables.pairs[i];
      const Pair pair{tables.pairs[i + 1] / 2, tables.pairs[i + 2]};
      parts[code] = pair;
      if (tables.pairs[i + 1] % 2) {
        composed[uint64_t{pair.first} << 32 | pair.second] = code;
        may_change.set(pair.second);
      } else {
        may_change.set(code);
      }
    }
    for (char32_t v = 0; v < kVs; ++v) may_change.set(kV + v);
    for (char32_t t = 1; t < kTs; ++t) may_change.set(kT + t);
  }

  uint8_t order(char32_t c) const {
    const auto it = combining.find(c);
    return it == combining.end() ? 0 : it->second;
  }
  void decompose(char32_t c, std::u32string& out) const {
    if (const char32_t s = c - kSyllables; c >= kSyllables && s < kCount) {
      out += {kL + s / (kVs * kTs), kV + s / kTs % kVs};
      if (s % kTs) out += kT + s % kTs;
    } else if (const auto it = parts.find(c); it != parts.end()) {
      decompose(it->second.first, out);
      if (it->second.second) out += it->second.second;
    } else {
      out += c;
    }
  }
  /// The character that a and b compose to; 0 if there is none.
  char32_t compose(char32_t a, char32_t b) const {
    if (a >= kL && a < kL + 19 && b >= kV && b < kV + kVs) return kSyllables + ((a - kL) * kVs + b - kV) * kTs;
    if (a >= kSyllables && a < kSyllables + kCount && (a - kSyllables) % kTs == 0 && b > kT && b < kT + kTs)
      return a + b - kT;
    const auto it = composed.find(uint64_t{a} << 32 | b);
    return it == composed.end() ? 0 : it->second;
  }
};

}  // namespace

bool add_property(CharSet& set, std::string_view name) {
  const bool han = name == "Han", space = name == "White_Space";
  bool wanted[64] = {};
  for (std::size_t i = 0; i < 64; ++i) {
    const std::string_view category = kCategories.substr(std::min<std::size_t>(i % 32, 29) * 3, 2);
    wanted[i] = han ? i >= 32 : space ? category[0] == 'Z' : category.substr(0, name.size()) == name;
  }
  if (name.empty() || std::find(wanted, wanted + 64, true) == wanted + 64) return false;
  std::size_t code = 0;
  for (const uint32_t run : unicode_tables().categories) {
    if (wanted[run % 64])
      for (std::size_t c = code; c < code + run / 64; ++c) set.set(c);
    code += run / 64;
  }
  if (space)
    for (const int c : {0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x85}) set.set(c);
  return true;
}

std::string nfc(std::string_view text) {
  static const Composition unicode;
  const char *p = text.data(), *const end = p + text.size();
  bool changes = false;
  while (p != end && !changes) changes = unicode.may_change.test(next_char(p));
  if (!changes) return std::string(text);

  std::u32string parts, whole;
  for (p = text.data(); p != end;) unicode.decompose(next_char(p), parts);
  for (auto at = parts.begin(); at != parts.end(); ++at) {
    const auto mark = [&](char32_t c) { return unicode.order(c) != 0; };
    const auto stop = std::find_if_not(at, parts.end(), mark);
    std::stable_sort(at, stop, [&](char32_t a, char32_t b) { return unicode.order(a) < unicode.order(b); });
    if ((at = stop) == parts.end()) break;
  }
  std::size_t starter = std::u32string::npos;  // the place in `whole` of the last character of class 0
  uint8_t last = 0;                            // the class of the last character in `whole`
  for (const char32_t c : parts) {
    const uint8_t order = unicode.order(c);
    if (starter < whole.size() && (starter + 1 == whole.size() || last < order))
      if (const char32_t both = unicode.compose(whole[starter], c)) {
        whole[starter] = both;
        continue;
      }
    if (order == 0) starter = whole.size();
    last = order;
    whole += c;
  }
  std::string out;
  for (const char32_t c : whole) append_utf8(out, c);
  return out;
}

}  // namespace sluice::detail
