// Text as tokens and back: Hugging Face's tokenizer.json, byte-pair encoding.
//
//   const Tokenizer tokenizer = Tokenizer::from_file("model/tokenizer.json");
//   const std::string same = tokenizer.decode(tokenizer.encode("Sluice opens."), {.skip_special = true});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

namespace detail {
struct TokenizerTables;
}

/// What Tokenizer::encode() adds and reads.
struct EncodeOptions {
  bool special = true;          // adds the tokens of the template: begin and end of text
  bool special_in_text = true;  // false: special tokens spelt in the text are text, as in a user's input
};
/// What Tokenizer::decode() leaves out.
struct DecodeOptions {
  bool skip_special = false;  // leaves out special tokens; not those that are spelt otherwise when normalized
};

/// A tokenizer as its file describes it. Copies share their tables; any number of threads may use one.
class Tokenizer {
 public:
  /// Reads tokenizer.json. The model is BPE, with byte-level words (GPT-2, Llama 3, Qwen, DeepSeek-V3, gpt-oss, OLMo 2)
  /// or with byte fallback (Gemma 2). Normalizers: NFC, Replace, Prepend. Pre-tokenizers: ByteLevel, Split, Digits.
  /// Post-processors: ByteLevel, TemplateProcessing. Decoders: ByteLevel, Replace, ByteFallback, Fuse, Strip. Each may
  /// be a Sequence. Throws IOError naming the file and the place in it, and what is wrong or not supported there.
  /// Truncation and padding of the file are not applied.
  static Tokenizer from_file(const std::string& path);

  /// The tokens of a text. Bytes that are not UTF-8 count as U+FFFD, one for each longest beginning of a character, as
  /// in Python's errors="replace". Characters that the vocabulary lacks are left out if the file names no token for
  /// them. Time is n log n in the length of a word. Throws ValueError for a text of a GiB, and if a regular expression
  /// of the file takes a thousand steps for each byte.
  std::vector<int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The text of tokens. Bytes that are not UTF-8 become U+FFFD. A number that is no token adds nothing.
  std::string decode(const std::vector<int64_t>& ids, const DecodeOptions& options = {}) const;

  /// The number of a token as the file spells it, and the token of a number; nullopt if there is none. Added tokens
  /// that are found in normalized text are normalized in token_of() and decode(), as in `tokenizers`.
  std::optional<int64_t> id_of(std::string_view token) const;
  std::optional<std::string> token_of(int64_t id) const;

  /// Number of tokens, added ones too. A model's table of embeddings may have more rows.
  int64_t size() const;

 private:
  friend class TokenStream;
  explicit Tokenizer(std::shared_ptr<const detail::TokenizerTables> tables) : tables_(std::move(tables)) {}
  std::shared_ptr<const detail::TokenizerTables> tables_;
};

/// Decodes token by token. What push() and finish() return, joined, is what decode() returns.
///
///     TokenStream stream(tokenizer, {.skip_special = true});
///     std::cout << stream.push(id) << std::flush;
class TokenStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  /// The text that is certain after this token. Characters of which bytes are missing are held back.
  std::string push(int64_t id);
  /// What was held back. The stream starts anew.
  std::string finish();

 private:
  std::string release();
  std::string strip(std::string text);

  std::shared_ptr<const detail::TokenizerTables> tables_;
  DecodeOptions options_;
  std::string held_;  // bytes of incomplete characters, or of a row of byte tokens
  bool first_ = true;
  int64_t strips_;  // how many characters may still be removed at the start
};

}  // namespace sluice
