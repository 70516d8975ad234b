#include <sluice/layers/attention/gated_cross_attention.h>

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>

namespace sluice {

/// The mean of x [batch, m, w] over its real rows, [batch, 1, w].
static Tensor mean_of_rows(const Tensor& x, const Tensor& row_mask) {
  if (!row_mask.defined() && in_sequence())
    return sequence_sum(sum(x, {1}, keep)) *
           (1 / static_cast<double>(std::max<int64_t>(1, sequence_piece(x.dim(1)).total)));
  if (!row_mask.defined()) return x.dim(1) > 0 ? mean(x, {1}, keep) : sum(x, {1}, keep);  // the mean of no rows is 0
  const Tensor real = unsqueeze(to(row_mask, x.dtype()), -1);
  const Tensor count = sequence_sum(sum(real, {1}, keep));
  return sequence_sum(sum(x * real, {1}, keep)) / clamp(count, 1);
}

GatedCrossAttention::GatedCrossAttention(GatedCrossAttentionOptions o, Rng& rng)
    : options(
          checked_layer("gated_cross_attention", o, {.cross = true, .grouped = false, .causal = false, .rope = false})),
      heads(options.heads, rng) {
  HeadsOptions& h = options.heads;
  h.context_dim = h.source_dim();
  if (o.reading == CrossGate::flamingo) {
    alpha = init_vector(1, 0, h.dtype);
    return;
  }
  auto make_gate = [&](int64_t to) {
    Linear g({h.heads * h.head_dim, to, false, o.gate_init, h.dtype}, rng);
    g.bias = init_vector(to, o.gate_bias, h.dtype);
    return g;
  };
  gate = make_gate(h.heads * h.head_dim);
  if (h.value_dim != h.head_dim) value_gate = make_gate(h.heads * h.value_dim);
}

Tensor GatedCrossAttention::operator()(const Tensor& given, const Pass& pass) const {
  const GatedCrossAttentionOptions& o = options;
  const HeadsOptions& h = o.heads;
  Call call(*this, "gated_cross_attention", given, h.dim, pass);
  call.check_causal(o.reading == CrossGate::per_query || o.reading == CrossGate::flamingo,
                    "the readings `pooled` and `literal` mix queries, and cannot be streamed");
  if (o.reading == CrossGate::literal)
    detail::not_cut("gated_cross_attention", "the literal reading gates key j by query j");
  const std::vector<Tensor> seen = call.of_context(3, [&] {
    const Tensor source = call.context(h.source_dim());
    return std::vector<Tensor>{detail::split_heads(heads.k(source), h.heads),
                               detail::split_heads(heads.v(source), h.heads), pass.context_mask};
  });
  const int64_t m = call.x.dim(1), n = seen[0].dim(2);
  if (o.reading == CrossGate::literal && m != n)
    fail("gated_cross_attention: the literal reading gates key j by query j: needs as many queries as keys — got ", m,
         " and ", n);

  // q, as the gate, is [batch, rows, heads·width]; keys and values are [batch, heads, rows, width].
  Tensor q = heads.q(call.x);
  Tensor keys = seen[0], values = seen[1], gate_logits, value_logits;
  if (o.reading != CrossGate::flamingo) {
    const Tensor source = o.reading == CrossGate::pooled ? mean_of_rows(q, call.key_mask()) : q;
    gate_logits = gate(source);
    value_logits = h.value_dim == h.head_dim ? gate_logits : value_gate(source);
  }
  if (o.reading == CrossGate::literal) {
    keys = detail::split_heads(glu(detail::merge_heads(keys), gate_logits), h.heads);
    values = detail::split_heads(glu(detail::merge_heads(values), value_logits), h.heads);
  }
  // For a g that does not depend on j, Σ_c q_ic (g_c k_jc) = Σ_c (g_c q_ic) k_jc and Σ_j a_ij (g ⊙ v_j) =
  // g ⊙ Σ_j a_ij v_j. With per_query g belongs to row i, with pooled to all rows.
  const bool outside = o.reading == CrossGate::per_query || o.reading == CrossGate::pooled;
  if (outside) q = glu(q, gate_logits);
  const AttentionOptions a{.mask = {.keys = seen[2]}, .dropout = h.attention_dropout};
  Tensor y = attention(detail::split_heads(q, h.heads), keys, values, a, call.rng());
  if (outside) y = detail::split_heads(glu(detail::merge_heads(y), value_logits), h.heads);
  HeadsOptions plain = h;
  plain.residual = false;  // tanh(α) applies before x is added
  y = heads.finish(plain, y, call.x, call.rng());
  if (o.reading == CrossGate::flamingo) y = y * tanh(alpha);
  return h.residual ? call.x + y : y;
}

}  // namespace sluice
