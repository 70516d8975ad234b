// The split of the text that a language-model example learns from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::examples {

/// The file to learn from, or a few built-in sentences, for a trial, where `path` is empty.
std::string learning_text(const std::string& path);

/// Two adjacent pieces of one text. They are views: the text must outlive them.
struct Split {
  std::string_view train;  // the first 90 %
  std::string_view valid;  // the last 10 %, rounded down to whole bytes
};

/// Splits `text`; the validation part is its last tenth. `window` is the number of bytes one
/// training example spans (context length + 1).
/// Throws ValueError, stating the size needed, when either part is shorter than that.
Split split_text(std::string_view text, std::size_t window = 2);

/// The part of the validation text that n-gram baselines are measured on: its first 40,000 bytes,
/// or all of it when shorter. Fixed, so that figures from different runs can be compared; only a longer `window`
/// takes more.
std::string_view baseline_part(std::string_view valid, std::size_t window);

}  // namespace sluice::examples
