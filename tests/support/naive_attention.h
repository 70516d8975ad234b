// Attention as plain loops, from the conventions in ops/attention/attention.h and ops/attention/attention_mask.h alone:
// one pair at a time, every weight on its own. Of the library it uses the option names and the values of tensors.
#pragma once

#include "support/array.h"

#include <sluice/ops/attention/attention.h>

namespace sluice::testing {

/// The values of a tensor of any dtype; an empty shape and no values if undefined.
Array array_of(const Tensor& x);

/// A mask's rules, asked for one pair.
class NaiveMask {
 public:
  /// heads: must be given where groups of heads share the blocks of a query.
  NaiveMask(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads = 0);
  bool sees(int64_t batch, int64_t head, int64_t i, int64_t j) const;

 private:
  bool is_global(int64_t position) const;

  AttentionMask mask_;
  int64_t m_, n_, heads_of_group_ = 1;
  Array keys_, query_segments_, key_segments_, blocks_, dense_;
};

struct NaiveAttention {
  Array out, lse, weights;
};
/// Operands of rank 4; without dropout.
NaiveAttention naive_attention(const Array& q, const Array& k, const Array& v, const AttentionOptions& options);

}  // namespace sluice::testing
