// Byte n-gram baselines: what counting alone achieves on the same split as the model.
#pragma once

#include <string_view>
#include <vector>

namespace sluice::examples {

/// Longest n-gram supported: its bytes are packed into one 64-bit key.
inline constexpr int kMaxNgramOrder = 8;

/// Cross-entropy, in bits per byte, of `test` under an n-gram model of `train` with interpolated
/// Witten-Bell smoothing, for every order 1 … max_order (element i holds order i + 1; order 2 is
/// the bigram, one byte of context). The model is static: nothing is learnt from `test`. The first
/// bytes of `test` have only the context that `test` itself gives them.
/// An empty `train` gives 8 bits, the uniform distribution.
/// Throws std::invalid_argument when max_order is not in 1 … 8 or `test` is empty.
/// Time and memory grow linearly with `train`: about 0.02 s per order and megabyte.
std::vector<double> witten_bell_table(std::string_view train, std::string_view test, int max_order);

}  // namespace sluice::examples
