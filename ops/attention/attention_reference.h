// Attention written as its definition, with the m×n weights in full and every step an op. The tiled engine of
// ops/attention/attention.h is tested against it, and its gradients of higher order run through the same ops.
#pragma once

#include <sluice/ops/attention/attention.h>

namespace sluice {

/// Takes the same arguments and random numbers as attention(); tile sizes are ignored.
Tensor attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {},
                           Rng* rng = nullptr);
/// The attention map: its weights before dropout, [batch, heads, m, n].
Tensor attention_map(const Tensor& q, const Tensor& k, const AttentionOptions& options = {});

/// The two published orders of a tiled softmax. FlashAttention: for each key tile, all query tiles; the output
/// is normalised in every step. FlashAttention-2: for each query tile, all key tiles; normalised once at the end.
enum class TileOrder { flash1, flash2 };
/// Softmax attention in tiles of rows × cols, composed of ops: a study of the algorithm, not fast. No sink, no
/// dropout.
Tensor attention_in_order(const Tensor& q, const Tensor& k, const Tensor& v, TileOrder order, int64_t rows,
                          int64_t cols, const AttentionOptions& options = {});

namespace detail {

/// Operands of rank 4 and options with every default filled in, checked.
struct AttentionOperands {
  Tensor q, k, v;
  AttentionOptions options;
  int rank;  // rank of the caller's operands
};
AttentionOperands attention_operands(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionOptions& options);
/// The options with bf16 tensors converted to f32.
AttentionOptions widened(AttentionOptions o);
/// x [batch, heads, m, …] without the dims that operands of rank `rank` lack.
Tensor restore_rank(const Tensor& x, int rank);

/// scale·q kᵀ behind its soft cap, [batch, heads, m, n].
Tensor attention_products(const Tensor& q, const Tensor& k, const AttentionOptions& o);
/// ρ (attention_products + bias).
Tensor attention_scores(const Tensor& q, const Tensor& k, const AttentionOptions& o);
/// visible_pairs, or undefined if nothing is forbidden.
Tensor visibility_of(const AttentionOptions& o, const Tensor& q, const Tensor& k);
/// Scores to weights, 0 where not visible.
Tensor weights_of(const Tensor& scores, const Tensor& visible, const AttentionOptions& o,
                  Tensor* sink_weight = nullptr);
/// x [batch, kv_heads, n, ·] with rows that no query sees set to 0: 0·NaN would be NaN.
Tensor hide_unseen(const Tensor& x, const Tensor& visible, int64_t heads);
/// q [batch, heads, m, ·] with rows that see no key set to 0: the gradients of keys are products with q.
Tensor hide_blind(const Tensor& q, const Tensor& visible);

/// Dropout's factors, 0 or 1/(1 − p). Row r of the m×n weights takes ⌈n/4⌉ Philox blocks, the first of which
/// is from.first + r·⌈n/4⌉.
Tensor attention_keep_mask(double p, RngBlocks from, const Shape& shape, TensorOptions options);
uint64_t keep_mask_blocks(const Shape& shape);

}  // namespace detail

}  // namespace sluice
