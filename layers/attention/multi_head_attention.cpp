#include <sluice/layers/attention/multi_head_attention.h>

#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice {

namespace {

AttentionGate make_gate(const HeadsOptions& h, const AttentionGateOptions& gate, Rng& rng) {
  const auto make = [&](int64_t from, int64_t heads, int64_t width) {
    return AttentionGate(gate, from, heads, width, rng, h.dtype);
  };
  const int64_t from = gate.source == GateSource::query ? h.heads * h.head_dim : h.dim;
  const int64_t parts = gate.granularity == GateGranularity::headwise ? h.heads : 1;  // parts of the dense output
  switch (gate.position) {
    case GatePosition::g1: return make(from, h.heads, h.value_dim);
    case GatePosition::g2: return make(h.source_dim(), h.kv_heads, h.value_dim);
    case GatePosition::g3: return make(h.source_dim(), h.kv_heads, h.head_dim);
    case GatePosition::g4: return make(from, h.heads, h.head_dim);
    case GatePosition::g5: return make(from, parts, h.dim / parts);
  }
  fail<ValueError>("multi_head_attention: unknown gate position ", static_cast<int>(gate.position));
}

/// y [batch, heads, n, d] normed by n, which is as wide as one head or as all of them side by side.
Tensor normed_heads(const Norm& n, const Tensor& y) {
  if (n.options.kind == NormKind::none || n.options.dim == y.dim(-1)) return n(y);
  return detail::split_heads(n(detail::merge_heads(y)), y.dim(1));
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(MultiHeadAttentionOptions o, Rng& rng)
    : MultiHeadAttention(Preset{type, "multi_head_attention"}, std::move(o), rng) {}

MultiHeadAttention::MultiHeadAttention(Preset preset, MultiHeadAttentionOptions given, Rng& rng)
    : options(detail::checked(preset.name, std::move(given))), preset_(preset) {
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
  if (o.v_norm) v_norm = Norm({h.value_dim, NormKind::rms_plain, o.qk_norm_eps, h.dtype});
  if (o.tied_values) heads.v = Linear();
  forget = detail::forget_map(o.forget, h, rng);
  if (o.kv_shift)
    for (Linear* shift : {&k_shift, &v_shift}) *shift = Linear({h.dim, h.kv_heads, false, h.init, h.dtype}, rng);
  for (const AttentionGateOptions& g : o.gates) gates.push_back(make_gate(h, g, rng));
  if (o.ablation == SdpaAblationKind::head_norm) {
    const int64_t parts = o.ablation_per_head ? h.heads : 1;
    ablation = Norm(NormOptions{parts * h.value_dim, o.ablation_norm, o.ablation_eps, h.dtype, parts});
  }
  if (o.position_bias == PositionBias::t5) t5_bias = init_normal({o.t5.buckets, h.heads}, 0.02, rng, h.dtype);
  if (o.position_bias == PositionBias::toeplitz)
    toeplitz_bias = init_normal({h.heads, 2 * o.max_length - 1}, 0.02, rng, h.dtype);
  if (o.sink == AttentionSink::learned) sink = init_vector(h.heads, 0, h.dtype);
  if (o.separate_global_projections) {
    global_q = heads.q, global_k = heads.k, global_v = heads.v;
    for (const Linear* map : {&global_q, &global_k, &global_v}) detail::unshare(detail::members(*map));
  }
  if (o.sandwich_norm) sandwich = Norm({h.dim, o.norm, o.norm_eps, h.dtype});
}

// -- parts ------------------------------------------------------------------------------------------------

Tensor MultiHeadAttention::gated(GatePosition position, const Tensor& y, const Sources& from,
                                 bool after_qk_norm) const {
  Tensor result = y;
  for (const AttentionGate& gate : gates)
    if (gate.options.position == position && gate.options.after_qk_norm == after_qk_norm)
      result = gate(result, from.of(gate));
  return result;
}

Tensor MultiHeadAttention::shifted(Call& call, const Linear& shift, const Tensor& source, const Tensor& rows) const {
  if (!options.kv_shift) return rows;
  const Tensor now = detail::filled_tokens(rows, call.padding(), 0);  // padding counts as zeros
  const Tensor before = detail::filled_tokens(call.shift(now), call.starts(), 0);
  const int64_t kv_heads = options.heads.kv_heads;
  const auto parts = [&](const Tensor& t) { return unflatten(t, -1, {kv_heads, t.dim(-1) / kv_heads}); };
  return flatten(lerp(parts(now), parts(before), parts(sigmoid(shift(source)))), -2, -1);
}

Tensor MultiHeadAttention::mapped(const Linear& map, const Tensor& x) const {
  const double l = options.qkv_limit;
  return l > 0 ? clamp(map(x), -l, l) : map(x);
}
Tensor MultiHeadAttention::normed_and_turned(Tensor y, const Norm& n, GatePosition gate, const Sources& from,
                                             const RopeOptions& rope, int64_t position) const {
  const auto turned = [&](const Tensor& t) {
    return options.heads.use_rope ? detail::rope_from(t, rope, position) : t;
  };
  if (options.qk_norm_late) y = turned(y);
  y = gated(gate, normed_heads(n, y), from, true);
  return options.qk_norm_late ? y : turned(y);
}
Tensor MultiHeadAttention::queries(const Sources& from, int64_t position) const {
  const Tensor y = gated(GatePosition::g4, detail::split_heads(from.q, options.heads.heads), from);
  return detail::grown(normed_and_turned(y, q_norm, GatePosition::g4, from, options.heads.rope, position),
                       options.growth, position);
}
Tensor MultiHeadAttention::keys(Call& call, const Tensor& source, int64_t position) const {
  const Tensor rows = shifted(call, k_shift, source, mapped(heads.k, source)),
               y = gated(GatePosition::g3, detail::split_heads(rows, options.heads.kv_heads), {source});
  return normed_and_turned(y, k_norm, GatePosition::g3, {source}, options.heads.rope.of_keys(), position);
}
Tensor MultiHeadAttention::values(Call& call, const Tensor& source) const {
  const Tensor rows = shifted(call, v_shift, source, mapped(options.tied_values ? heads.k : heads.v, source));
  return gated(GatePosition::g2, v_norm(detail::split_heads(rows, options.heads.kv_heads)), {source});
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

void MultiHeadAttention::set_chunks(Call& call, int64_t position, int64_t keys, AttentionMask& mask) const {
  if (call.segments().defined())
    fail<ValueError>(preset_.name, ": chunk_size=", options.chunk_size,
                     " counts the tokens of one document; got segments");
  const int64_t m = call.x.dim(1), end = position + m;
  const TensorOptions number{i64, call.x.device()};
  const Tensor real = call.key_mask().defined() ? to(call.key_mask(), i64) : ones({call.x.dim(0), m}, number),
               before = call.running_sum(to(call.running_sum(real, 1) == 0.0, i64), 1);
  if (m == 0 && keys > 0) return;  // a step of no tokens
  const Tensor lead = narrow(before, 1, std::max<int64_t>(m - 1, 0), std::min<int64_t>(m, 1));
  const auto chunks = [&](int64_t n) {  // of the last n tokens
    return floor_divide(arange(end - n, end, 1, number) - lead, static_cast<double>(options.chunk_size));
  };
  mask.query_segments = chunks(m), mask.key_segments = chunks(keys);
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
  return options.ablation == SdpaAblationKind::none ? one : nullptr;
}

// -- the whole pass ---------------------------------------------------------------------------------------

MultiHeadAttention::Prepared MultiHeadAttention::prepare(Call& call, const ChooseKeys& choose,
                                                         AttendedKeys* shared) const {
  const Pass& pass = call.pass();
  Prepared p;
  p.from.x = norm(call.x), p.from.q = mapped(heads.q, p.from.x);
  if (cross()) {
    const std::vector<Tensor> seen = call.of_context(3, [&] {
      const Tensor source = call.context(options.heads.context_dim);
      return std::vector<Tensor>{keys(call, source, 0), values(call, source), pass.context_mask};
    });
    p.q = queries(p.from, 0), p.k = seen[0], p.v = seen[1];
    AttentionMask mask = call.mask();
    mask.keys = seen[2], mask.key_segments = pass.context_segments;
    p.attention = attention_options(call.x.dim(1), p.k.dim(2), mask);
    if (mask.query_segments.defined() != mask.key_segments.defined())
      fail<ValueError>(preset_.name, ": segments and context_segments come together");
  } else {
    call.check_causal(options.heads.causal);
    const int64_t position = call.first(options.heads.use_rope || options.growth.beta != 0 || options.chunk_size > 0);
    int64_t window = Call::rows_seen(options.window, options.dilation, options.global);
    if (options.chunk_size > 0 && options.global.empty())
      window = window > 0 ? std::min(window, options.chunk_size) : options.chunk_size;
    const bool others = shared && shared->k.defined();
    if (!others && !heads.k.weight.defined()) fail<ValueError>(preset_.name, ": has no Wk; need the keys of a layer");
    p.q = queries(p.from, position);
    p.k = others ? shared->k : keys(call, p.from.x, position), p.v = others ? shared->v : values(call, p.from.x);
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(options.heads.head_dim)));
    if (options.forget.gate != ForgetGate::none) detail::add_forget_columns(call, forget, p.from.x, scale, p.q, p.k);
    if (!others) {
      const std::vector<Tensor> rows = call.rows({p.k, p.v}, window);
      p.k = rows[0], p.v = rows[1];
    }
    AttentionMask mask = call.mask();
    if (others) mask.keys = shared->real;
    else if (shared) *shared = {p.k, p.v, mask.keys};
    const auto [m, n] = call.extent(p.k);
    p.attention = attention_options(m, n, std::move(mask));
    p.attention.scale = scale;  // the width of q may have grown
    if (options.chunk_size > 0) set_chunks(call, position, p.k.dim(2), p.attention.mask);
    std::vector<int64_t>& global = p.attention.mask.global;
    for (const int64_t i : pass.positions.get()) {
      if (i < 0 || i >= n) fail<ValueError>(preset_.name, ": position ", i, " is not one of the ", n, " tokens");
      global.push_back(i);
    }
    std::erase_if(global, [n = n](int64_t i) { return i >= n; });
    std::ranges::sort(global);
    global.erase(std::unique(global.begin(), global.end()), global.end());
    if (choose) choose(call, p.attention.mask);
  }
  p.attention.bias = pass.bias;
  if (p.q.dtype() != p.v.dtype()) {  // forget columns
    p.v = detail::widened(p.v), p.attention = detail::widened(p.attention);
    p.attention.precision = Precision::bf16;
  }
  return p;
}

GlobalRows MultiHeadAttention::global_rows(const Prepared& p) const {
  const std::vector<int64_t>& global = p.attention.mask.global;
  if (!options.separate_global_projections || global.empty()) return {};
  const HeadsOptions& h = options.heads;
  const Tensor& x = p.from.x;
  const Tensor index = to(Tensor::from(global), x.device());
  GlobalRows g{.q = detail::split_heads(mapped(global_q, index_select(x, 1, index)), h.heads),
               .k = detail::split_heads(mapped(global_k, x), h.kv_heads),
               .v = v_norm(detail::split_heads(mapped(global_v, x), h.kv_heads))};
  const auto turn = [&] {
    if (h.use_rope) g.q = rope_at(g.q, index, h.rope), g.k = rope(g.k, h.rope.of_keys());
  };
  if (options.qk_norm_late) turn();
  g.q = normed_heads(q_norm, g.q), g.k = normed_heads(k_norm, g.k);
  if (!options.qk_norm_late) turn();
  return g;
}

Tensor MultiHeadAttention::operator()(const Tensor& x, const Pass& pass, AttendedKeys& shared) const {
  if (cross() || options.forget.gate != ForgetGate::none || options.separate_global_projections)
    fail<ValueError>(preset_.name,
                     ": layers with cross attention, a forget gate or separate_global_projections share no keys");
  return attend(x, pass, {}, &shared);
}

Tensor MultiHeadAttention::attend(const Tensor& x, const Pass& pass, const ChooseKeys& choose,
                                  AttendedKeys* shared) const {
  const HeadsOptions& h = options.heads;
  if (options.separate_global_projections)
    detail::not_cut(preset_.name, "separate projections make the rows of global positions from all tokens");
  Call call(this, preset_.type, preset_.name, x, h.dim, pass);
  call.check_causal(!options.separate_global_projections, "separate global projections cannot be streamed");
  Prepared p = prepare(call, choose, shared);
  p.attention.dropout = h.attention_dropout;
  const GlobalRows rows = global_rows(p);
  Tensor y;
  if (const AttentionGate* gate = rows.q.defined() ? nullptr : gate_of_attention(p.q)) {
    y = gate->attend(p.q, p.k, p.v, p.from.of(*gate), p.attention, call.rng());
  } else {
    if (rows.q.defined()) y = detail::attention_with_rows(preset_.name, p.q, p.k, p.v, p.attention, rows, call.rng());
    else if (cross()) y = attention(p.q, p.k, p.v, p.attention, call.rng());
    else y = to(sequence_attention(p.q, p.k, p.v, p.attention, call.rng()), call.x.dtype());
    y = options.ablation == SdpaAblationKind::silu ? silu(y) : normed_heads(ablation, y);
    y = gated(GatePosition::g1, y, p.from);
  }
  y = detail::merge_heads(y);
  if (h.project_out) y = heads.out(y);
  y = Dropout{h.dropout}(sandwich(gated(GatePosition::g5, y, p.from)), call.rng());
  return h.residual ? call.x + y : y;
}

Tensor MultiHeadAttention::map(const Tensor& x, const Pass& pass) const {
  detail::not_cut(preset_.name, "map() shows all queries beside all keys");
  Call call(this, preset_.type, preset_.name, x, options.heads.dim, pass);
  call.check_causal(false, "map() shows whole sequences");
  const Prepared p = prepare(call);
  const Tensor weights = to(attention_map(p.q, p.k, p.attention), call.x.dtype());
  const GlobalRows rows = global_rows(p);
  if (!rows.q.defined()) return weights;
  const AttentionOptions own = detail::options_of_rows(preset_.name, p.attention, weights.dim(2), weights.device());
  return detail::with_rows(weights, p.attention.mask.global, attention_map(rows.q, rows.k, own));
}

}  // namespace sluice
