// Conversions of attention weights between layers and layouts.
#pragma once

#include <sluice/layers/attention/multi_head_attention.h>

namespace sluice {

/// Returns a layer with `groups` KV heads. Its K and V projections, the gates on K and V, and the weights of a norm of
/// K that has them for each head, are means over the heads of each group. A multi-head checkpoint becomes a
/// grouped-query one this way, before uptraining (Ainslie et al. 2023). If the heads of each group are equal, both
/// layers compute the same. All tensors are copies. Throws ValueError unless groups divides kv_heads.
MultiHeadAttention pool_kv_heads(const MultiHeadAttention& layer, int64_t groups);

/// The layout of query and gate in the q_proj of published checkpoints of gated attention (gate G1).
enum class QProjPacking {
  per_kv_group,  // [kv_heads, heads/kv_heads·dk | heads/kv_heads·(dk or 1)]: the paper's code
  per_head,      // [heads, dk | dk or 1]: Qwen3-Next
};
constexpr const char* choices(QProjPacking) { return "per_kv_group per_head"; }
/// The parts of a fused projection.
struct QueryAndGate {
  Tensor query;  // [..., heads·head_dim]
  Tensor gate;   // [..., heads·head_dim], or [..., heads] for headwise gates
};
/// Splits a q_proj. `weight` must be [..., width]: a weight [dim, width] or a bias [width]. Throws ShapeError unless
/// the width fits. Gradients pass through.
QueryAndGate unpack_q_proj(const Tensor& weight, QProjPacking packing, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, GateGranularity granularity = GateGranularity::elementwise);
/// The inverse of unpack_q_proj().
Tensor pack_q_proj(const QueryAndGate& parts, QProjPacking packing, int64_t heads, int64_t kv_heads, int64_t head_dim,
                   GateGranularity granularity = GateGranularity::elementwise);

}  // namespace sluice
