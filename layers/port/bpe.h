// Byte-pair encoding of one word: the model of tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::detail {

/// Allows look-ups by string_view in a table of strings.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
/// A hash map whose keys are texts.
template <class T> using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

struct Bpe {
  struct Merge {
    int32_t rank, id;  // lower ranks come first; id of both together
  };
  TextMap<int32_t> vocab;
  std::unordered_map<uint64_t, Merge> merges;  // by left << 32 | right
  int32_t unknown = -1;                        // the token of unknown characters, -1 for none
  bool whole_words = false;                    // a word that is a token is not merged: "ignore_merges"
  bool byte_fallback = false;                  // the bytes of unknown characters are the tokens <0x00> … <0xFF>
  bool fuse_unknown = false;                   // one unknown token for all in a row

  /// Appends the tokens of a word of valid UTF-8.
  void encode(std::string_view word, std::vector<int64_t>& out) const;

 private:
  struct Symbol;
  std::vector<Symbol> symbols(std::string_view word) const;
};

}  // namespace sluice::detail
