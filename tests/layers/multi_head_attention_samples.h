// Layers of softmax attention to test with.
#pragma once

#include "layers/gau_reference.h"

#include <sluice/layers/attention/multi_head_attention.h>

namespace sluice::testing {

/// A layer in f64 with random parameters.
inline MultiHeadAttention random_attention(MultiHeadAttentionOptions o, Rand& rand) {
  o.heads.dtype = f64;
  Rng rng(1);
  return randomised(MultiHeadAttention(o, rng), rand);
}

inline Tensor documents(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return Tensor::from(all, {2, static_cast<int64_t>(a.size())});
}

}  // namespace sluice::testing
