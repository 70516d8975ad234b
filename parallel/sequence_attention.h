// Attention along a sequence that is cut over ranks (sequence.h).
#pragma once

#include <sluice/ops/attention/attention.h>
#include <sluice/parallel/sequence.h>

namespace sluice {

/// attention() of this rank's queries over the keys of all ranks; q, k and v are its pieces. In the options, what belongs
/// to a key or a query is the piece's: mask.keys, query_segments, key_segments, row_scale, and the rows of bias and
/// mask.dense. What speaks of other keys is the whole sequence's: the columns of bias and mask.dense, relative_bias for
/// n = m = total, mask.global, mask.blocks. Outside of a scope it is attention().
///
/// Softmax and the elementwise weightings, full or causal, with padding, documents, sink and row_scale: keys and values go
/// around, those of one rank at a time, forward and backward: O(n/ranks) memory; partial results merge by their
/// log-sum-exp, or add up. Causal work is balanced, whatever is cut where: far pairs of ranks are worked on by the one with
/// the keys, so that with pieces of one length all do the same.
/// A window fetches its borders only. Everything else (biases, dense and block masks, dilation, global positions, dropout)
/// fetches all keys that a rank may see: O(n) memory; without causality dilation and global positions add a mask of m·n bytes.
Tensor sequence_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {},
                          Rng* rng = nullptr);

namespace detail {

/// The rows [first, first + m) of a sequence's attention as a call of its own: keys `keys` of the whole, and the options
/// that fit m queries and those keys, aligned at the end.
struct SequenceKeys {
  Tensor k, v;
  AttentionOptions options;
  RowRange keys;
};
/// k, v of rank 2 to 4, rows in dim −2. All ranks call it. `extended`: for queries followed by so many rows that the last
/// one stands at the last key; what the options say of queries is left to the caller.
SequenceKeys fetch_keys(const Tensor& k, const Tensor& v, const AttentionOptions& options, bool extended = false);
/// The mask alone. Blocks become `dense`, and so does a window without causality, unless its queries are extended.
AttentionMask fetch_mask(const AttentionMask& mask, int64_t m, Device device, RowRange& keys, bool extended = false);
/// x, rows of dim of this rank → those that `keys` of fetch_mask names.
Tensor fetch_keys_of(const Tensor& x, int64_t dim, const AttentionMask& mask);

/// sequence_attention with all keys that a rank may see at once.
Tensor gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options, Rng* rng);
/// With those of one rank at a time; for which options, says goes_around.
Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options);
bool goes_around(const AttentionOptions& options, const Rng* rng);

}  // namespace detail

}  // namespace sluice
