// Weights of one attention layer read as those of another.
#pragma once

#include <sluice/layers/heads/multi_head_attention.h>

namespace sluice {

/// The layer with `groups` KV heads whose K and V projections, and gates on them, are the means over the heads of
/// each group: how a multi-head checkpoint becomes a grouped-query one before uptraining (Ainslie et al. 2023).
/// With equal heads in each group the two layers compute the same. Every tensor is a copy. ValueError unless
/// groups divides kv_heads.
MultiHeadAttention pool_kv_heads(const MultiHeadAttention& layer, int64_t groups);

/// How published checkpoints of gated attention (gate G1) lay query and gate out in one q_proj.
enum class QProjPacking {
  per_kv_group,  // [kv_heads, heads/kv_heads·dk | heads/kv_heads·(dk or 1)]: the paper's code
  per_head,      // [heads, dk | dk or 1]: Qwen3-Next
};
constexpr const char* choices(QProjPacking) { return "per_kv_group per_head"; }
/// A fused projection, taken apart.
struct QueryAndGate {
  Tensor query;  // [..., heads·head_dim]
  Tensor gate;   // [..., heads·head_dim], or [..., heads] for headwise gates
};
/// weight is [dim, width] (a bias [width]); ShapeError unless the width fits. Gradients pass through.
QueryAndGate unpack_q_proj(const Tensor& weight, QProjPacking packing, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, GateGranularity granularity = GateGranularity::elementwise);
/// Its inverse.
Tensor pack_q_proj(const QueryAndGate& parts, QProjPacking packing, int64_t heads, int64_t kv_heads, int64_t head_dim,
                   GateGranularity granularity = GateGranularity::elementwise);

}  // namespace sluice
