// Texts as sequences of tokens, and windows of tokens for training.
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

/// The bytes of a regular file, plain or gzip-compressed. Throws IOError naming the path if the file cannot be read or
/// is empty.
std::string read_text(const std::string& path);

/// The bytes of the text as i32 [text.size()], 0 … 255.
Tensor byte_tokens(std::string_view text);

/// Inputs and the tokens that follow them, i64 [batch, length] each.
struct TextBatch {
  Tensor inputs, targets;  // targets[…, i] = inputs[…, i + 1]
};

/// All windows of length + 1 tokens that begin at a multiple of `stride`. Shares the memory of
/// contiguous tokens on the CPU; copies of a TextWindows share memory, too.
class TextWindows {
 public:
  /// `tokens` must be i32 or i64 of rank 1. A stride of 0 means `length`: then each token except the first and the last
  /// few is a target once. Throws ShapeError for another rank and for fewer than length + 1 tokens, DTypeError for
  /// another dtype, ValueError unless length >= 1 and stride >= 0.
  TextWindows(const Tensor& tokens, int64_t length, int64_t stride = 0);

  /// Number of windows.
  int64_t size() const { return (tokens_.numel() - length_ - 1) / stride_ + 1; }
  /// Returns the windows with the numbers `rows`, i64 [batch]. Throws ValueError for a number outside [0, size()).
  TextBatch operator()(const Tensor& rows) const;

 private:
  Tensor tokens_;  // contiguous, on cpu
  int64_t length_, stride_;
};

}  // namespace sluice
