#include <sluice/layers/heads/gated_cross_attention.h>

#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/kv_cache.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

namespace sluice {

namespace {

GatedCrossAttentionOptions checked(GatedCrossAttentionOptions o) {
  if (o.dim < 1 || o.context_dim < 0 || o.heads < 1 || o.head_dim < 0 || o.value_dim < 0)
    fail<ValueError>("gated_cross_attention: sizes must be positive — got dim=", o.dim, ", context_dim=", o.context_dim,
                     ", heads=", o.heads, ", head_dim=", o.head_dim, ", value_dim=", o.value_dim);
  if (o.context_dim == 0) o.context_dim = o.dim;
  if (o.head_dim == 0) {
    if (o.dim % o.heads != 0)
      fail<ValueError>("gated_cross_attention: heads=", o.heads, " must divide dim=", o.dim, ", or head_dim be given");
    o.head_dim = o.dim / o.heads;
  }
  if (o.value_dim == 0) o.value_dim = o.head_dim;
  return o;
}

/// The mean of x [batch, m, w] over its real rows, [batch, 1, w].
Tensor mean_of_rows(const Tensor& x, const Tensor& row_mask) {
  if (!row_mask.defined()) return mean(x, {1}, keep);
  const Tensor real = unsqueeze(to(row_mask, x.dtype()), -1);
  return sum(x * real, {1}, keep) / clamp(sum(real, {1}, keep), 1);
}

}  // namespace

GatedCrossAttention::GatedCrossAttention(GatedCrossAttentionOptions given, Rng& rng) : options(checked(given)) {
  const GatedCrossAttentionOptions& o = options;
  const int64_t width = o.heads * o.head_dim, value_width = o.heads * o.value_dim;
  query = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
  key = Linear({o.context_dim, width, o.linear_bias, o.init, o.dtype}, rng);
  value = Linear({o.context_dim, value_width, o.linear_bias, o.init, o.dtype}, rng);
  if (o.project_out) out = Linear({value_width, o.dim, o.linear_bias, o.init, o.dtype}, rng);
  if (o.reading == CrossGate::flamingo) {
    alpha = init_vector(1, 0, o.dtype);
    return;
  }
  auto make_gate = [&](int64_t to) {
    Linear g({width, to, false, o.gate_init, o.dtype}, rng);
    g.bias = init_vector(to, o.gate_bias, o.dtype);
    return g;
  };
  gate = make_gate(width);
  if (o.value_dim != o.head_dim) value_gate = make_gate(value_width);
}

GatedCrossAttention::Memory GatedCrossAttention::encode(const Tensor& context, const Tensor& key_mask) const {
  ModuleScope scope(this, type);
  if (context.rank() != 3 || context.dim(-1) != options.context_dim)
    fail("gated_cross_attention: got context=", context, "; need [batch, n, ", options.context_dim, "]");
  if (key_mask.defined() && key_mask.shape() != Shape{context.dim(0), context.dim(1)})
    fail("gated_cross_attention: key_mask=", key_mask, " does not fit context=", context, "; need [batch, n]");
  const Tensor seen = finite_padding(context, key_mask);
  return {detail::split_heads(key(seen), options.heads), detail::split_heads(value(seen), options.heads), key_mask};
}

Tensor GatedCrossAttention::attend(const Tensor& given, const Memory& memory, const Tensor& query_mask,
                                   Rng* rng) const {
  ModuleScope scope(this, type);
  const GatedCrossAttentionOptions& o = options;
  if (given.rank() != 3 || given.dim(-1) != o.dim || given.dim(0) != memory.keys.dim(0))
    fail("gated_cross_attention: got x=", given, " for a context of batch ", memory.keys.dim(0), "; need [batch, m, ",
         o.dim, "]");
  if (query_mask.defined() && query_mask.shape() != Shape{given.dim(0), given.dim(1)})
    fail("gated_cross_attention: query_mask=", query_mask, " does not fit x=", given, "; need [batch, m]");
  const int64_t m = given.dim(1), n = memory.keys.dim(2);
  if (o.reading == CrossGate::literal && m != n)
    fail("gated_cross_attention: the literal reading gates key j by query j: needs as many queries as keys — got ", m,
         " and ", n);

  // Queries, keys and values as [batch, rows, heads·width], like the gate.
  Tensor q = query(finite_padding(given, query_mask));
  Tensor keys = memory.keys, values = memory.values, gate_logits, value_logits;
  if (o.reading != CrossGate::flamingo) {
    const Tensor source = o.reading == CrossGate::pooled ? mean_of_rows(q, query_mask) : q;
    gate_logits = gate(source);
    value_logits = o.value_dim == o.head_dim ? gate_logits : value_gate(source);
  }
  if (o.reading == CrossGate::literal) {
    keys = detail::split_heads(glu(detail::merge_heads(keys), gate_logits), o.heads);
    values = detail::split_heads(glu(detail::merge_heads(values), value_logits), o.heads);
  }
  // Σ_c q_ic (g_c k_jc) = Σ_c (g_c q_ic) k_jc, and Σ_j a_ij (g ⊙ v_j) = g ⊙ Σ_j a_ij v_j, for a g that does not
  // depend on j: with per_query it belongs to row i, with pooled to all rows.
  const bool outside = o.reading == CrossGate::per_query || o.reading == CrossGate::pooled;
  if (outside) q = glu(q, gate_logits);
  AttentionOptions a;
  a.mask.keys = memory.key_mask;
  if (rng) a.dropout = o.attention_dropout;
  Tensor y = detail::merge_heads(attention(detail::split_heads(q, o.heads), keys, values, a, rng));
  if (outside) y = glu(y, value_logits);
  if (o.project_out) y = out(y);
  return o.reading == CrossGate::flamingo ? y * tanh(alpha) : y;
}

Tensor GatedCrossAttention::operator()(const Tensor& x, const Tensor& context, const Tensor& key_mask,
                                       const Tensor& query_mask, Rng* rng) const {
  return attend(x, encode(context, key_mask), query_mask, rng);
}

}  // namespace sluice
