#include <sluice/layers/heads/gated_attention.h>

#include <sluice/parallel/sequence_attention.h>

namespace sluice {

namespace {

Tensor gated(const std::optional<AttentionGate>& gate, const Tensor& y, const Tensor& x) {
  return gate ? (*gate)(y, x) : y;
}

}  // namespace

GatedAttention::GatedAttention(GatedAttentionOptions given, Rng& rng) : options(given) {
  GatedAttentionOptions& o = options;
  check_options("gated_attention", o);
  const HeadsOptions& h = o.heads = checked_heads("gated_attention", o.heads);
  heads = Heads(h, rng);
  auto gate = [&](GatePosition position, int64_t in, int64_t count, int64_t width) {
    AttentionGateOptions g{.position = position, .granularity = o.granularity};
    g.bias = true, g.bias_init = o.gate_bias, g.init = o.gate_init;
    return AttentionGate(g, in, count, width, rng, h.dtype);
  };
  if (o.output != OutputGate::none)
    output_gate = gate(GatePosition::g1, o.output == OutputGate::from_input ? h.dim : h.heads * h.head_dim, h.heads,
                       h.value_dim);
  if (o.gate_query) query_gate = gate(GatePosition::g4, h.dim, h.heads, h.head_dim);
  if (o.gate_key) key_gate = gate(GatePosition::g3, h.dim, h.kv_heads, h.head_dim);
  if (o.gate_value) value_gate = gate(GatePosition::g2, h.dim, h.kv_heads, h.value_dim);
}

GatedAttention::Projected GatedAttention::project(const Tensor& x, int64_t position) const {
  HeadsOptions plain = options.heads;
  plain.use_rope = false;  // the gates apply before RoPE
  auto [q, k, v] = heads.project(plain, x);
  const Tensor source = options.output == OutputGate::from_query ? detail::merge_heads(q) : x;
  q = gated(query_gate, q, x), k = gated(key_gate, k, x), v = gated(value_gate, v, x);
  if (options.heads.use_rope)
    q = detail::rope_from(q, options.heads.rope, position), k = detail::rope_from(k, options.heads.rope.of_keys(), position);
  return {q, k, v, source};
}

Tensor GatedAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "gated_attention", given, h.dim, pass);
  call.check_causal(h.causal);
  const Projected p = project(call.x, call.first());
  const std::vector<Tensor> rows = call.rows({p.k, p.v});
  const AttentionOptions a{.mask = {.causal = h.causal, .keys = call.key_mask()}, .dropout = h.attention_dropout};
  const Tensor y = output_gate ? output_gate->over(p.q, rows[0], rows[1], p.gate_source, a, call.rng())
                               : sequence_attention(p.q, rows[0], rows[1], a, call.rng());
  return heads.finish(h, y, call.x, call.rng());
}

}  // namespace sluice
