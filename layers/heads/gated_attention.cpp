#include <sluice/layers/heads/gated_attention.h>

#include <sluice/core/node.h>
#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/view.h>

namespace sluice {

namespace {

GatedAttentionOptions checked(GatedAttentionOptions o) {
  if (o.dim < 1 || o.heads < 1 || o.head_dim < 0)
    fail<ValueError>("gated_attention: sizes must be positive — got dim=", o.dim, ", heads=", o.heads,
                     ", head_dim=", o.head_dim);
  if (o.head_dim == 0) {
    if (o.dim % o.heads != 0)
      fail<ValueError>("gated_attention: heads=", o.heads, " must divide dim=", o.dim, ", or head_dim be given");
    o.head_dim = o.dim / o.heads;
  }
  return o;
}

Tensor gated(const std::optional<AttentionGate>& gate, const Tensor& y, const Tensor& x) {
  return gate ? (*gate)(y, x) : y;
}

}  // namespace

GatedAttention::GatedAttention(GatedAttentionOptions given, Rng& rng) : options(checked(given)) {
  const GatedAttentionOptions& o = options;
  const int64_t width = o.heads * o.head_dim;
  query = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
  key = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
  value = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
  if (o.project_out) out = Linear({width, o.dim, o.linear_bias, o.init, o.dtype}, rng);
  auto gate = [&](GatePosition position, int64_t in) {
    AttentionGateOptions g{.position = position, .granularity = o.granularity};
    g.bias = true, g.bias_init = o.gate_bias, g.init = o.gate_init;
    return AttentionGate(g, in, o.heads, o.head_dim, rng, o.dtype);
  };
  if (o.output != OutputGate::none)
    output_gate = gate(GatePosition::g1, o.output == OutputGate::from_input ? o.dim : width);
  if (o.gate_query) query_gate = gate(GatePosition::g4, o.dim);
  if (o.gate_key) key_gate = gate(GatePosition::g3, o.dim);
  if (o.gate_value) value_gate = gate(GatePosition::g2, o.dim);
}

GatedAttention::Projected GatedAttention::project(const Tensor& x, int64_t position) const {
  if (x.rank() != 3 || x.dim(-1) != options.dim)
    fail("gated_attention: got x=", x, "; need [batch, n, ", options.dim, "]");
  const int64_t heads = options.heads;
  const Tensor flat_q = query(x);
  Tensor q = gated(query_gate, detail::split_heads(flat_q, heads), x);
  Tensor k = gated(key_gate, detail::split_heads(key(x), heads), x);
  Tensor v = gated(value_gate, detail::split_heads(value(x), heads), x);
  if (options.use_rope) {
    RopeOptions r = options.rope;
    r.offset += position;
    q = rope(q, r), k = rope(k, r);
  }
  return {q, k, v, options.output == OutputGate::from_query ? flat_q : x};
}

Tensor GatedAttention::finish(const Tensor& attended, const Tensor& gate_source) const {
  const Tensor y = detail::merge_heads(gated(output_gate, attended, gate_source));
  return options.project_out ? out(y) : y;
}

Tensor GatedAttention::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  if (key_mask.defined() && (x.rank() != 3 || key_mask.shape() != Shape{x.dim(0), x.dim(1)}))
    fail("gated_attention: key_mask=", key_mask, " does not fit x=", x, "; need [batch, n]");
  const Projected p = project(finite_padding(x, key_mask), 0);
  AttentionOptions a;
  a.mask.causal = options.causal, a.mask.keys = key_mask;
  if (rng) a.dropout = options.attention_dropout;
  return finish(attention(p.q, p.k, p.v, a, rng), p.gate_source);
}

std::pair<Tensor, GatedAttention::State> GatedAttention::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  if (!options.causal) fail<ValueError>("gated_attention: only a causal layer can be streamed");
  NoGrad guard;
  const Projected p = project(x, state.length);
  const std::vector<Tensor> rows = state.append({p.k, p.v});
  AttentionOptions a;
  a.mask.causal = true;
  Tensor y = finish(attention(p.q, rows[0], rows[1], a), p.gate_source);
  return {y, std::move(state)};
}

}  // namespace sluice
