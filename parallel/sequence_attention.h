// Attention along a sequence that is split over ranks (sequence.h).
#pragma once

#include <sluice/ops/attention/attention.h>
#include <sluice/parallel/sequence.h>

#include <vector>

namespace sluice {

/// attention() of this rank's queries over the keys of all ranks; q, k and v are this rank's pieces. Options with an
/// entry per key or query cover the piece: mask.keys, query_segments, key_segments, row_scale, and the rows of bias,
/// mask.dense and mask.blocks of each query. Options that refer to keys of other ranks cover the whole sequence: the
/// columns of these, relative_bias for n = m = total, mask.global, other mask.blocks. Outside of a scope it is
/// attention().
///
/// Softmax and the elementwise weightings, full or causal, with padding, documents, sink and row_scale, need O(n/ranks)
/// memory: keys and values go around, those of one rank at a time, forward and backward. Partial results merge by their
/// log-sum-exp, or add up. Causal work is balanced: for two ranks far apart the rank with the keys computes, so with
/// pieces of equal length all ranks do the same work.
/// A window fetches only the rows that it reaches beyond the piece. Other options (biases, dense and block masks,
/// dilation, global positions, dropout) fetch all keys that a rank may see: O(n) memory. Without causality, global
/// positions, and dilation without a window, add a mask of m·n bytes.
Tensor sequence_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {},
                          Rng* rng = nullptr);

namespace detail {

/// The attention of rows [first, first + m) of a sequence as a call of its own: the keys and values of rows `keys` of
/// the whole, and options for m queries and these keys, aligned at the end.
struct SequenceKeys {
  Tensor k, v;
  AttentionOptions options;
  RowRange keys;
};
/// k, v of rank 2 to 4, rows in dim −2. All ranks must call it. `extended`: the caller pads the queries with rows until
/// the last one stands at the last key, and must extend the options that belong to queries.
SequenceKeys fetch_keys(const Tensor& k, const Tensor& v, const AttentionOptions& options, bool extended = false);
/// The mask of fetch_keys alone; sets `keys` to the rows that this rank's m queries may see. Blocks become part of
/// `dense`. Without causality a window or dilation does, too, unless `extended`.
AttentionMask fetch_mask(const AttentionMask& mask, int64_t m, Device device, RowRange& keys, bool extended = false);
/// Takes x, this rank's rows of dim, and returns the rows `keys` of fetch_mask.
Tensor fetch_keys_of(const Tensor& x, int64_t dim, const AttentionMask& mask);
/// Both at once: each of `rows`, rows in dim, becomes that of all keys that the queries of as many rows may see.
/// Returns the mask for these. Outside of a scope the rows and the mask stay.
AttentionMask fetch_seen(const AttentionMask& mask, int64_t dim, std::vector<Tensor>& rows);

/// sequence_attention that fetches all keys that a rank may see at once.
Tensor gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options, Rng* rng);
/// sequence_attention with the keys of one rank at a time, for options for which goes_around() is true.
Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options);
bool goes_around(const AttentionOptions& options, const Rng* rng);

}  // namespace detail

}  // namespace sluice
