#include <sluice/layers/attention/attention_gate.h>

#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/attention/gated.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

namespace sluice {

AttentionGate::AttentionGate(AttentionGateOptions o, int64_t dim, int64_t h, int64_t d, Rng& rng, DType dtype)
    : options(o), heads(h), head_dim(d) {
  check_options("attention_gate", o);
  if (dim < 1 || heads < 1 || head_dim < 1)
    fail<ValueError>("attention_gate: sizes must be positive — got dim=", dim, ", heads=", heads,
                     ", head_dim=", head_dim);
  const bool dense = o.position == GatePosition::g5;
  if (dense && heads != 1 && o.granularity != GateGranularity::headwise)
    fail<ValueError>("attention_gate: the dense output (g5) has no heads, unless scores are headwise — got heads=",
                     heads);
  if (dense && o.sharing != GateSharing::none)
    fail<ValueError>("attention_gate: the dense output (g5) has no heads to share scores among");
  if (o.after_qk_norm && o.position != GatePosition::g3 && o.position != GatePosition::g4)
    fail<ValueError>("attention_gate: after_qk_norm is for the key (g3) and the query (g4)");
  if (o.source == GateSource::query && (o.position == GatePosition::g2 || o.position == GatePosition::g3))
    fail<ValueError>("attention_gate: gates of the key side (g2, g3) read x; the source query is for g1, g4 and g5");
  if (o.head_bias && (dense || o.granularity == GateGranularity::headwise))
    fail<ValueError>("attention_gate: head_bias is for elementwise scores of heads (g1 to g4); bias is for all scores");
  if (o.input_independent && (o.bias || o.head_bias))
    fail<ValueError>("attention_gate: an input-independent gate has no bias; theta is one");
  const int64_t width = o.granularity == GateGranularity::elementwise ? heads * head_dim : heads;
  if (o.input_independent) {
    theta = init_vector(width, 0, dtype);
  } else {
    map = Linear({dim, width, false, o.init, dtype}, rng);
    if (o.bias) map.bias = init_vector(width, o.bias_init, dtype);
    if (o.head_bias) head_bias = init_vector(heads, o.bias_init, dtype);
  }
}

// Scores have the layout [batch, n, heads, ·], token by token. The map returns this layout, projections and the result
// of attention() have it in memory, and the next map needs it. Heads come first only in the views outside of this
// class.
Tensor AttentionGate::logits(const Tensor& x) const {
  if (!options.input_independent && (x.rank() != 3 || x.dim(-1) != map.weight.dim(0)))
    fail("attention_gate: got x=", x, "; need [batch, n, ", map.weight.dim(0), "]");
  const Tensor flat = options.input_independent ? reshape(theta, {1, 1, theta.dim(0)}) : map(x);
  if (options.position == GatePosition::g5) return flat;
  Tensor l = unflatten(flat, -1, {heads, flat.dim(-1) / heads});
  if (head_bias.defined()) l = l + unsqueeze(head_bias, -1);
  return options.sharing == GateSharing::logits ? mean(l, {2}, keep) : l;
}

Tensor AttentionGate::activated(const Tensor& logits) const {
  Tensor s = activate(options.activation, logits);
  return options.sharing == GateSharing::scores ? mean(s, {2}, keep) : s;
}

Tensor AttentionGate::scores(const Tensor& x) const {
  ModuleScope scope(this, type);
  Tensor s = activated(logits(x));
  return options.position == GatePosition::g5 ? s : transpose(s, 1, 2);
}

Tensor AttentionGate::operator()(const Tensor& y, const Tensor& x) const {
  ModuleScope scope(this, type);
  const bool dense = options.position == GatePosition::g5,
             parts = dense && options.granularity == GateGranularity::headwise;
  const bool fits = x.rank() == 3 && y.rank() == (dense ? 3 : 4) && y.dim(0) == x.dim(0) && y.dim(-2) == x.dim(1) &&
                    y.dim(-1) == (dense ? heads * head_dim : head_dim) && (dense || y.dim(1) == heads);
  if (!fits)
    fail("attention_gate: got y=", y, ", x=", x, "; need y ",
         dense ? str("[batch, n, ", heads * head_dim, "]") : str("[batch, ", heads, ", n, ", head_dim, "]"),
         " and x [batch, n, dim]");
  const Tensor tokens = parts ? unflatten(y, -1, {heads, head_dim}) : dense ? y : transpose(y, 1, 2);
  const Tensor l = parts ? unsqueeze(logits(x), -1) : logits(x);
  Tensor gated;
  if (options.mode == GateMode::add) gated = tokens + activated(l);
  else if (options.sharing == GateSharing::scores) gated = tokens * activated(l);
  else gated = gated_by(options.activation, tokens, l);
  return parts ? flatten(gated, -2, -1) : dense ? gated : transpose(gated, 1, 2);
}

bool AttentionGate::may_fuse(const Tensor& q) const {
  const AttentionGateOptions& o = options;
  return o.position == GatePosition::g1 && o.mode == GateMode::multiply && o.activation == Act::sigmoid &&
         o.sharing == GateSharing::none && !o.input_independent && q.dtype() == map.weight.dtype() &&
         detail::may_gate(q) && !in_sequence();
}

Tensor AttentionGate::attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& x,
                             const AttentionOptions& o, Rng* rng) const {
  if (!may_fuse(q)) return (*this)(sequence_attention(q, k, v, o, rng), x);
  Tensor l;
  {
    ModuleScope scope(this, type);
    l = logits(x);
  }
  const auto [y, gated] = detail::attention_and_gate(q, k, v, transpose(l, 1, 2), o, rng);
  if (gated) return y;
  ModuleScope scope(this, type);
  return transpose(gated_by(options.activation, transpose(y, 1, 2), l), 1, 2);
}

}  // namespace sluice
