#include <sluice/layers/heads/multi_head_attention.h>

#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

constexpr const char* kLayer = "multi_head_attention";

/// Returns y [batch, heads, n, ·] with its rows `rows` replaced by `fresh` [batch, heads, rows.size(), ·].
Tensor with_rows(const Tensor& y, const std::vector<int64_t>& rows, const Tensor& fresh) {
  std::vector<bool> hit(static_cast<std::size_t>(y.dim(2)), false);
  for (int64_t r : rows) hit[static_cast<std::size_t>(r)] = true;
  const Tensor there = unsqueeze(to(Tensor::from(hit), y.device()), 1), index = to(Tensor::from(rows), y.device());
  return where(there, index_add(zeros(y.shape(), y.options()), 2, index, fresh), y);
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(MultiHeadAttentionOptions given, Rng& rng)
    : options(detail::checked(std::move(given))) {
  const MultiHeadAttentionOptions& o = options;
  const HeadsOptions& h = o.heads;
  norm = Norm({h.dim, o.norm, o.norm_eps, h.dtype});
  heads = Heads(h, rng);
  if (o.qk_norm) {
    auto of = [&](int64_t count) {
      if (o.qk_norm_over == QkNormOver::shared) return Norm({h.head_dim, o.qk_norm_kind, o.qk_norm_eps, h.dtype});
      const int64_t parts = o.qk_norm_over == QkNormOver::per_head ? count : 1;
      return Norm(NormOptions{count * h.head_dim, o.qk_norm_kind, o.qk_norm_eps, h.dtype, parts});
    };
    q_norm = of(h.heads), k_norm = of(h.kv_heads);
  }
  for (const AttentionGateOptions& g : o.gates) {
    const detail::GateSizes s = detail::gate_sizes(o, g);
    gates.emplace_back(g, s.dim, s.heads, s.head_dim, rng, h.dtype);
  }
  ablation = SdpaAblation(o.ablation, h.value_dim, h.dtype, o.ablation_eps);
  if (o.position_bias == PositionBias::t5) t5_bias = init_normal({o.t5.buckets, h.heads}, 0.02, rng, h.dtype);
  if (o.position_bias == PositionBias::toeplitz)
    toeplitz_bias = init_normal({h.heads, 2 * o.max_length - 1}, 0.02, rng, h.dtype);
  if (o.sink == AttentionSink::learned) sink = init_vector(h.heads, 0, h.dtype);
  if (o.separate_global_projections) {
    auto copy = [](const Linear& from) {
      Linear to = from;
      for (Tensor* t : {&to.weight, &to.bias})
        if (t->defined()) *t = clone(t->detach()).requires_grad_();
      return to;
    };
    global_q = copy(heads.q), global_k = copy(heads.k), global_v = copy(heads.v);
  }
  if (o.sandwich_norm) sandwich = Norm({h.dim, o.norm, o.norm_eps, h.dtype});
}

// -- parts ------------------------------------------------------------------------------------------------

Tensor MultiHeadAttention::gated(GatePosition position, const Tensor& y, const Tensor& x, bool after_qk_norm) const {
  Tensor result = y;
  for (const AttentionGate& gate : gates)
    if (gate.options.position == position && gate.options.after_qk_norm == after_qk_norm) result = gate(result, x);
  return result;
}

Tensor MultiHeadAttention::normed_heads(const Norm& n, const Tensor& y) const {
  if (!options.qk_norm || options.qk_norm_over == QkNormOver::shared) return n(y);
  return detail::split_heads(n(detail::merge_heads(y)), y.dim(1));
}

Tensor MultiHeadAttention::queries(const Tensor& x, int64_t position) const {
  Tensor y = gated(GatePosition::g4, detail::split_heads(heads.q(x), options.heads.heads), x);
  y = gated(GatePosition::g4, normed_heads(q_norm, y), x, true);
  return options.heads.use_rope ? detail::rope_from(y, options.heads.rope, position) : y;
}
Tensor MultiHeadAttention::keys(const Tensor& source, int64_t position) const {
  Tensor y = gated(GatePosition::g3, detail::split_heads(heads.k(source), options.heads.kv_heads), source);
  y = gated(GatePosition::g3, normed_heads(k_norm, y), source, true);
  return options.heads.use_rope ? detail::rope_from(y, options.heads.rope.of_keys(), position) : y;
}
Tensor MultiHeadAttention::values(const Tensor& source) const {
  return gated(GatePosition::g2, detail::split_heads(heads.v(source), options.heads.kv_heads), source);
}

Tensor MultiHeadAttention::relative_bias(int64_t m, int64_t n) const {
  if (m == 0 || n == 0) return {};
  switch (options.position_bias) {
    case PositionBias::none: return {};
    case PositionBias::t5: return relative_t5(t5_bias, m, n, options.t5);
    case PositionBias::toeplitz: return relative_toeplitz(toeplitz_bias, m, n);
    case PositionBias::alibi: return relative_alibi(alibi_slopes(options.heads.heads, heads.q.weight.options()), m, n);
  }
  return {};
}

AttentionOptions MultiHeadAttention::attention_options(int64_t m, int64_t n, AttentionMask mask) const {
  AttentionOptions a;
  a.scale = options.scale, a.softcap = options.softcap;
  a.mask = std::move(mask);
  a.mask.causal = options.heads.causal;
  a.mask.window = options.window, a.mask.dilation = options.dilation, a.mask.global = options.global;
  a.relative_bias = relative_bias(m, n);
  if (options.sink == AttentionSink::off_by_one) a.sink = zeros({1}, heads.q.weight.options());
  if (options.sink == AttentionSink::learned) a.sink = sink;
  return a;
}

const AttentionGate* MultiHeadAttention::gate_of_attention(const Tensor& q) const {
  const AttentionGate* one = nullptr;
  for (const AttentionGate& gate : gates)
    if (gate.options.position == GatePosition::g1) {
      if (one || !gate.may_fuse(q)) return nullptr;
      one = &gate;
    }
  return ablation.kind == SdpaAblationKind::none ? one : nullptr;
}

Tensor MultiHeadAttention::finish(const Tensor& x, const Tensor& normed, const Tensor& attended, Rng* rng) const {
  return finish_gated(x, normed, gated(GatePosition::g1, ablation(attended), normed), rng);
}

Tensor MultiHeadAttention::finish_gated(const Tensor& x, const Tensor& normed, const Tensor& attended, Rng* rng) const {
  Tensor y = heads.out(detail::merge_heads(attended));
  y = Dropout{options.heads.dropout}(sandwich(gated(GatePosition::g5, y, normed)), rng);
  return options.heads.residual ? x + y : y;
}

// -- the whole pass ---------------------------------------------------------------------------------------

MultiHeadAttention::Prepared MultiHeadAttention::prepare(Call& call) const {
  const Pass& pass = call.pass();
  Prepared p;
  p.normed = norm(call.x);
  if (cross()) {
    const std::vector<Tensor> seen = call.of_context([&] {
      const Tensor source = call.context(options.heads.context_dim);
      return std::vector<Tensor>{keys(source, 0), values(source), pass.context_mask};
    });
    p.q = queries(p.normed, 0), p.k = seen[0], p.v = seen[1];
    AttentionMask mask = call.mask();
    mask.keys = seen[2], mask.key_segments = pass.context_segments;
    p.attention = attention_options(call.x.dim(1), p.k.dim(2), mask);
    if (mask.query_segments.defined() != mask.key_segments.defined())
      fail<ValueError>("multi_head_attention: segments and context_segments come together");
  } else {
    call.check_causal(options.heads.causal);
    const int64_t position = call.first();
    // Without global positions, later queries see the last (W − 1)·dilation + 1 keys only.
    const bool bounded = options.window > 0 && options.global.empty();
    const int64_t window = bounded ? (options.window - 1) * options.dilation + 1 : 0;
    const bool ordered = call.x.dim(1) > 1 || options.position_bias != PositionBias::none || options.dilation > 1;
    p.q = queries(p.normed, position);
    const std::vector<Tensor> rows = call.rows({keys(p.normed, position), values(p.normed)}, window,
                                               ordered ? KvCache::Order::position : KvCache::Order::any);
    p.k = rows[0], p.v = rows[1];
    const auto [m, n] = call.extent(p.k);
    p.attention = attention_options(m, n, call.mask());
  }
  p.attention.bias = pass.bias;
  return p;
}

std::vector<int64_t> MultiHeadAttention::global_rows(int64_t n) const {
  if (!options.separate_global_projections) return {};
  return {options.global.begin(), std::lower_bound(options.global.begin(), options.global.end(), n)};
}

MultiHeadAttention::Prepared MultiHeadAttention::prepare_global(const Prepared& p,
                                                                const std::vector<int64_t>& rows) const {
  if (p.attention.mask.blocks.defined())
    fail<ValueError>("multi_head_attention: separate_global_projections do not go together with a block mask");
  const int64_t n = p.normed.dim(1);
  const Tensor index = to(Tensor::from(rows), p.normed.device());
  auto of_rows = [&](const Tensor& t) { return t.rank() >= 2 && t.dim(-2) == n ? index_select(t, -2, index) : t; };
  Prepared g;
  g.q = normed_heads(q_norm, detail::split_heads(global_q(index_select(p.normed, 1, index)), options.heads.heads));
  g.k = normed_heads(k_norm, detail::split_heads(global_k(p.normed), options.heads.kv_heads));
  if (options.heads.use_rope) g.q = rope_at(g.q, index, options.heads.rope), g.k = rope(g.k, options.heads.rope.of_keys());
  g.v = detail::split_heads(global_v(p.normed), options.heads.kv_heads);

  g.attention = p.attention;
  AttentionMask& mask = g.attention.mask;
  mask.causal = false, mask.window = 0, mask.dilation = 1, mask.global.clear();
  if (mask.query_segments.defined()) mask.query_segments = index_select(mask.query_segments, 1, index);
  if (mask.dense.defined()) mask.dense = of_rows(mask.dense);
  if (options.heads.causal) {
    const Tensor earlier = le(unsqueeze(arange(n, index.options()), 0), unsqueeze(index, 1));
    mask.dense = mask.dense.defined() ? logical_and(mask.dense, earlier) : earlier;
  }
  if (g.attention.bias.defined()) g.attention.bias = of_rows(g.attention.bias);
  if (const Tensor table = p.attention.relative_bias; table.defined()) {
    std::vector<Tensor> line;  // the bias of each row, [heads, n]
    for (int64_t r : rows) line.push_back(narrow(table, 1, n - 1 - r, n));
    const Tensor relative = stack(line, 1);
    g.attention.bias = g.attention.bias.defined() ? g.attention.bias + relative : relative;
    g.attention.relative_bias = Tensor();
  }
  return g;
}

Tensor MultiHeadAttention::operator()(const Tensor& x, const Pass& pass) const {
  if (options.separate_global_projections)
    detail::not_cut(kLayer, "separate_global_projections make the rows of global positions from all tokens");
  Call call(*this, kLayer, x, options.heads.dim, pass);
  call.check_causal(!options.separate_global_projections, "separate_global_projections cannot be streamed");
  Prepared p = prepare(call);
  p.attention.dropout = options.heads.attention_dropout;
  const std::vector<int64_t> rows = global_rows(x.dim(1));
  if (const AttentionGate* gate = rows.empty() ? gate_of_attention(p.q) : nullptr)
    return finish_gated(call.x, p.normed, gate->over(p.q, p.k, p.v, p.normed, p.attention, call.rng()), call.rng());
  Tensor y = cross() ? attention(p.q, p.k, p.v, p.attention, call.rng())
                     : sequence_attention(p.q, p.k, p.v, p.attention, call.rng());
  if (!rows.empty()) {
    const Prepared g = prepare_global(p, rows);
    y = with_rows(y, rows, attention(g.q, g.k, g.v, g.attention, call.rng()));
  }
  return finish(call.x, p.normed, y, call.rng());
}

Tensor MultiHeadAttention::map(const Tensor& x, const Pass& pass) const {
  detail::not_cut(kLayer, "map() shows all queries beside all keys");
  Call call(*this, kLayer, x, options.heads.dim, pass);
  call.check_causal(false, "map() shows whole sequences");
  const Prepared p = prepare(call);
  const Tensor weights = attention_map(p.q, p.k, p.attention);
  const std::vector<int64_t> rows = global_rows(x.dim(1));
  if (rows.empty()) return weights;
  const Prepared g = prepare_global(p, rows);
  return with_rows(weights, rows, attention_map(g.q, g.k, g.attention));
}

}  // namespace sluice
