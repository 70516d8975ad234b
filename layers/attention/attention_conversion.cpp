#include <sluice/layers/attention/attention_conversion.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>

namespace sluice {

namespace {

/// Replaces x [..., heads·width] by its mean over the heads of each group, [..., groups·width]. The result is a leaf.
void pool(Tensor& x, int64_t heads, int64_t groups) {
  if (!x.defined()) return;
  const int64_t width = x.dim(-1) / heads;
  const Tensor by_group = unflatten(x.detach(), -1, {groups, heads / groups, width});
  x = contiguous(flatten(mean(by_group, {-2}), -2, -1)).requires_grad_(x.requires_grad());
}

struct PackedShape {
  int64_t groups, query, gate;  // number of groups; columns of query and of gate in one group
};
PackedShape packed_shape(const char* op, QProjPacking packing, int64_t heads, int64_t kv_heads, int64_t head_dim,
                         GateGranularity granularity) {
  if (heads < 1 || kv_heads < 1 || head_dim < 1 || heads % kv_heads != 0)
    fail<ValueError>(op, ": sizes must be positive and kv_heads divide heads — got heads=", heads,
                     ", kv_heads=", kv_heads, ", head_dim=", head_dim);
  const int64_t groups = packing == QProjPacking::per_head ? heads : kv_heads, per_group = heads / groups;
  return {groups, per_group * head_dim, per_group * (granularity == GateGranularity::headwise ? 1 : head_dim)};
}

}  // namespace

MultiHeadAttention pool_kv_heads(const MultiHeadAttention& layer, int64_t groups) {
  const int64_t heads = layer.options.heads.kv_heads;
  if (groups < 1 || heads % groups != 0)
    fail<ValueError>("pool_kv_heads: groups=", groups, " must divide kv_heads=", heads);
  NoGrad guard;
  MultiHeadAttention pooled = layer;
  detail::unshare(detail::members(pooled));
  pooled.options.heads.kv_heads = groups;
  for (Linear* map :
       {&pooled.heads.k, &pooled.heads.v, &pooled.global_k, &pooled.global_v, &pooled.k_shift, &pooled.v_shift})
    pool(map->weight, heads, groups), pool(map->bias, heads, groups);
  if (Norm& norm = pooled.k_norm; pooled.options.qk_norm && pooled.options.qk_norm_over != QkNormOver::shared) {
    for (Tensor* t : {&norm.weight, &norm.bias})
      if (t->defined() && t->dim(0) == norm.options.dim) pool(*t, heads, groups);  // else one number for all channels
    norm.options.dim = norm.options.dim / heads * groups;
    if (norm.options.parts > 1) norm.options.parts = groups;
  }
  for (AttentionGate& gate : pooled.gates) {
    if (gate.options.position != GatePosition::g2 && gate.options.position != GatePosition::g3) continue;
    for (Tensor* t : {&gate.map.weight, &gate.map.bias, &gate.theta, &gate.head_bias}) pool(*t, heads, groups);
    gate.heads = groups;
  }
  return pooled;
}

QueryAndGate unpack_q_proj(const Tensor& weight, QProjPacking packing, int64_t heads, int64_t kv_heads,
                           int64_t head_dim, GateGranularity granularity) {
  const PackedShape s = packed_shape("unpack_q_proj", packing, heads, kv_heads, head_dim, granularity);
  if (weight.rank() < 1 || weight.dim(-1) != s.groups * (s.query + s.gate))
    fail("unpack_q_proj: weight=", weight, " does not fit; need [..., ", s.groups * (s.query + s.gate),
         "] for heads=", heads, ", kv_heads=", kv_heads, ", head_dim=", head_dim);
  const std::vector<Tensor> part = split(unflatten(weight, -1, {s.groups, s.query + s.gate}), {s.query, s.gate}, -1);
  return {flatten(part[0], -2, -1), flatten(part[1], -2, -1)};
}

Tensor pack_q_proj(const QueryAndGate& parts, QProjPacking packing, int64_t heads, int64_t kv_heads, int64_t head_dim,
                   GateGranularity granularity) {
  const PackedShape s = packed_shape("pack_q_proj", packing, heads, kv_heads, head_dim, granularity);
  const Tensor &query = parts.query, &gate = parts.gate;
  if (query.rank() < 1 || gate.rank() != query.rank() || query.dim(-1) != s.groups * s.query ||
      gate.dim(-1) != s.groups * s.gate)
    fail("pack_q_proj: query=", query, ", gate=", gate, " do not fit; need [..., ", s.groups * s.query, "] and [..., ",
         s.groups * s.gate, "] for heads=", heads, ", kv_heads=", kv_heads, ", head_dim=", head_dim);
  return flatten(cat({unflatten(query, -1, {s.groups, s.query}), unflatten(gate, -1, {s.groups, s.gate})}, -1), -2, -1);
}

}  // namespace sluice
