// Texts as sequences of tokens, and windows of them to train on.
//
//   const std::string text = read_text("book.txt.gz");
//   const TextWindows windows(byte_tokens(text), 256);
//   Loader loader({.rows = windows.size(), .batch = 16, .seed = 1}, windows);
//   for (const auto& [inputs, targets] : loader) …          // i64 [16, 256] each
#pragma once

#include <sluice/core/tensor.h>

#include <string>
#include <string_view>

namespace sluice {

/// The bytes of a regular file, gzip-compressed or not. IOError naming the path for one that cannot be read or is empty.
std::string read_text(const std::string& path);

/// i32 [text.size()]: the bytes, 0 … 255.
Tensor byte_tokens(std::string_view text);

/// Inputs and the tokens that follow them, i64 [batch, length] each.
struct TextBatch {
  Tensor inputs, targets;  // targets[…, i] = inputs[…, i + 1]
};

/// All windows of length + 1 tokens that begin at a multiple of `stride`. A value that shares the tokens' memory.
class TextWindows {
 public:
  /// tokens: i32 or i64, rank 1. stride 0: `length`, so that every token but the last few is a target once. ShapeError for
  /// another rank and for fewer than length + 1 tokens, DTypeError for another type, ValueError unless length >= 1, stride >= 0.
  TextWindows(const Tensor& tokens, int64_t length, int64_t stride = 0);

  /// How many there are.
  int64_t size() const { return (tokens_.numel() - length_ - 1) / stride_ + 1; }
  /// The windows of these numbers, i64 [batch], each in [0, size()).
  TextBatch operator()(const Tensor& rows) const;

 private:
  Tensor tokens_;  // contiguous, on cpu
  int64_t length_, stride_;
};

}  // namespace sluice
