// What a tokenizer.json says, as encode() and decode() use it.
#pragma once

#include <sluice/layers/port/bpe.h>
#include <sluice/layers/port/pattern.h>
#include <sluice/layers/port/tokenizer.h>

#include <array>

namespace sluice::detail {

/// A change of a text: the matches of `pattern` become `text`; without a pattern `text` is put in front.
struct TextChange {
  std::optional<Pattern> pattern;
  std::string text;
  bool nfc = false;  // true: normal form C instead
  std::string operator()(std::string_view s) const;
};

/// What becomes of the matches that split a text, as tokenizers names it.
enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };
constexpr const char* choices(SplitBehavior) { return "Removed Isolated MergedWithPrevious MergedWithNext Contiguous"; }

/// A step that splits texts. Without a pattern it puts a space in front of texts that begin with none.
struct SplitStep {
  std::optional<Pattern> pattern;
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;  // the matches and the text between them change places
};

/// A token in addition to the model's tokens.
struct AddedToken {
  std::string text;  // normalized if it is searched for in normalized text
  bool special = false;
  bool lstrip = false, rstrip = false;  // takes the white space before, behind it
};

/// The texts of added tokens by their bytes.
struct TokenTrie {
  std::unordered_map<uint64_t, uint32_t> edges;  // by node << 8 | byte
  std::vector<int64_t> tokens{-1};               // by node
  std::array<bool, 256> starts{};                // by first byte

  /// Of tokens with the same text the first stays.
  void add(std::string_view text, int64_t id);
  /// The token of the longest text that begins at `at`, and its length; {-1, 0} if there is none.
  std::pair<int64_t, std::size_t> longest(std::string_view text, std::size_t at) const;
};

/// The steps that turn tokens into a text, in order.
struct TokenDecoder {
  bool absent = true;                // no decoder: spaces stand between tokens
  bool byte_level = false;           // tokens are bytes, written in the byte-level alphabet
  std::vector<TextChange> replaces;  // in each token
  bool byte_fallback = false;        // <0x41> is a byte
  std::string strip;                 // removed at the start of the text,
  int64_t strips = 0;                // this often at most
};

/// All tables of a tokenizer.
struct TokenizerTables {
  Bpe bpe;
  std::unordered_map<int64_t, std::string_view> tokens;  // the model's, by number; the texts are bpe.vocab's
  std::unordered_map<int64_t, AddedToken> added;
  TextMap<int64_t> added_ids;
  TokenTrie added_in_raw, added_in_normalized;  // searched before, after normalization
  std::vector<TextChange> normalizers;
  std::vector<SplitStep> splits;
  bool byte_level = false;              // words are bytes, written in the byte-level alphabet
  std::vector<int64_t> prefix, suffix;  // of the template
  TokenDecoder decoder;

  /// Throws ValueError naming the place in the file and what is wrong there.
  explicit TokenizerTables(const std::string& json);
};

}  // namespace sluice::detail
