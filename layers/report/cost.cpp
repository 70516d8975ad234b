#include <sluice/layers/report/cost.h>

#include <algorithm>

namespace sluice {

namespace {

/// A dense map of n rows, with or without bias.
Cost dense(int64_t in, int64_t out, bool bias, int64_t n) {
  return {.parameters = (in + (bias ? 1 : 0)) * out, .flops = 2 * n * in * out};
}
Cost parameters_only(int64_t parameters) { return {.parameters = parameters}; }

Cost norm_cost(NormKind kind, int64_t dim) {
  switch (kind) {
    case NormKind::none: case NormKind::rms_plain: return {};
    case NormKind::scale: case NormKind::scale_l2: return parameters_only(1);
    case NormKind::rms: return parameters_only(dim);
    case NormKind::layer: return parameters_only(2 * dim);
  }
  return {};
}

/// Scores and the weighted sum for so many pairs in each of `heads` heads.
Cost map_cost(int64_t heads, int64_t pairs, int64_t key_dim, int64_t value_dim) {
  return {.flops = 2 * heads * pairs * (key_dim + value_dim), .attention_elements = heads * pairs};
}

/// Σ φ(k)ᵀv and reading it, and in the chunk form the pairs within each chunk.
Cost linear_cost(int64_t heads, int64_t n, int64_t features, int64_t width, int64_t chunk) {
  Cost c{.flops = 4 * n * heads * features * width, .extra_elements = heads * features * width};
  if (chunk > 0) c.flops += 2 * n * std::min(chunk, n) * heads * (features + width);
  return c;
}

Cost stream(int64_t numbers) { return {.state = numbers}; }

int64_t head_dim_of(int64_t given, int64_t dim, int64_t heads) { return given ? given : dim / heads; }

/// The maps of multi-head attention for m queries and n keys.
Cost heads_cost(const HeadsOptions& o, int64_t m, int64_t n) {
  Cost c = dense(o.dim, o.heads * o.head_dim, o.qkv_bias, m) +
           dense(o.source_dim(), o.kv_heads * (o.head_dim + o.value_dim), o.qkv_bias, n);
  return o.project_out ? c + dense(o.heads * o.value_dim, o.dim, o.out_bias, m) : c;
}
/// Keys and values of n tokens.
int64_t cached(const HeadsOptions& o, int64_t n) { return n * o.kv_heads * (o.head_dim + o.value_dim); }

/// The biases of GAU and FLASH: a Toeplitz table, two vectors, or T5's buckets.
int64_t bias_parameters(GauBias bias, int64_t positions, int64_t key_dim, int64_t buckets) {
  switch (bias) {
    case GauBias::none: return 0;
    case GauBias::toeplitz: return 2 * positions - 1;
    case GauBias::rope: return 2 * key_dim;
    case GauBias::t5: return buckets;
  }
  return 0;
}

struct MapSize {
  int64_t parameters, flops;  // of one feature map, a row of one head
};
MapSize feature_map_size(const FeatureMapOptions& o, int64_t d) {
  const int64_t f = o.features ? o.features : d, hidden = o.hidden ? o.hidden : 2 * d;
  const int64_t maps = std::max<int64_t>(1, o.heads);
  const auto learned = [&](int64_t weights, int64_t biases) {
    return MapSize{maps * (weights + (o.bias ? biases : 0)), 2 * weights};
  };
  switch (o.kind) {
    case FeatureMapKind::relu: return o.features ? MapSize{maps * d * f, 2 * d * f} : MapSize{0, 0};
    case FeatureMapKind::t2r: return learned(d * f, f);
    case FeatureMapKind::hedgehog: return learned(d * d, d);
    case FeatureMapKind::mlp: return learned(d * hidden + hidden * f, hidden + f);
    case FeatureMapKind::favor: case FeatureMapKind::fourier: return {0, 2 * d * f};
    default: return {0, 0};
  }
}
int64_t feature_count(FeatureMapOptions o, int64_t d) {
  FeatureMap shape;  // its width follows from the options
  o.dim = d;
  if (o.features == 0 && o.kind != FeatureMapKind::relu) o.features = d;
  shape.options = o;
  return shape.out_dim();
}

}  // namespace

Cost& Cost::operator+=(const Cost& o) {
  parameters += o.parameters, flops += o.flops, attention_elements += o.attention_elements;
  extra_elements += o.extra_elements, state += o.state;
  return *this;
}

Cost cost(const MlpOptions& o, int64_t n) {
  const int64_t e = o.hidden ? o.hidden : 4 * o.dim;
  return dense(o.dim, e, o.bias, n) + dense(e, o.dim, o.bias, n);
}

Cost cost(const GluOptions& o, int64_t n) {
  const int64_t e = o.hidden ? o.hidden : (o.dim * 8 / 3 + 7) / 8 * 8;
  return 2 * dense(o.dim, e, o.bias, n) + dense(e, o.dim, o.bias, n);
}

Cost cost(const GauOptions& o, int64_t n) {
  const int64_t e = o.expansion ? o.expansion : 2 * o.dim, s = o.key_dim;
  Cost c = dense(o.dim, 2 * e + s, o.linear_bias, n) + dense(e, o.dim, o.linear_bias, n) + norm_cost(o.norm, o.dim);
  c += parameters_only(4 * s + bias_parameters(o.bias, o.max_length, s / o.heads, o.t5.buckets));
  c += map_cost(o.heads, n * n, s / o.heads, e / o.heads);
  if (o.causal && o.length.value_or(GauLength::visible) != GauLength::n) c += stream(n * (s + e));
  return c;
}

Cost cost(const CrossGauOptions& o, int64_t m, int64_t n) {
  const int64_t e = o.expansion ? o.expansion : 2 * o.dim, c = o.context_dim ? o.context_dim : o.dim, s = o.key_dim;
  return norm_cost(o.norm, o.dim) + dense(o.dim, e + s, true, m) + dense(c, s, true, n) + dense(c, e, true, n) +
         dense(e, o.dim, true, m) + map_cost(1, m * n, s, e);
}

Cost cost(const TutorialGauOptions& o, int64_t n) {
  const int64_t e = o.expansion ? o.expansion : 2 * o.dim;
  Cost c = dense(o.dim, 2 * e + e / 2, false, n) + map_cost(1, n * n, e / 2, e / 2);
  if (o.project_out) c += dense(e / 2, o.dim, false, n);
  return c;
}

Cost cost(const FlashOptions& o, int64_t n) {
  const int64_t e = o.expansion ? o.expansion : 2 * o.dim, s = o.key_dim, rest = n % o.chunk;
  const int64_t pairs = n / o.chunk * o.chunk * o.chunk + rest * rest, chunks = (n + o.chunk - 1) / o.chunk;
  Cost c = dense(o.dim, 2 * e + s, o.linear_bias, n) + dense(e, o.dim, o.linear_bias, n) + norm_cost(o.norm, o.dim);
  c += parameters_only(8 * s + bias_parameters(o.bias, o.chunk, s, o.t5.buckets));
  if (o.quadratic) c += map_cost(1, pairs, s, e);
  // KᵀV and Q(KᵀV); causal, one prefix sum of KᵀV for each chunk.
  if (o.linear) c += {.flops = 4 * n * s * e, .extra_elements = (o.causal ? chunks : 1) * s * e};
  if (o.causal) c += stream(s * e + o.chunk * (2 * s + e) + (o.token_shift ? (o.dim + 1) / 2 : 0));
  return c;
}

Cost cost(const LinearAttentionOptions& o, int64_t n) {
  const int64_t h = o.heads, d = head_dim_of(o.head_dim, o.dim, h), dv = o.value_dim ? o.value_dim : d;
  const int64_t m = feature_count(o.feature_map, d);
  const int64_t width = dv + (o.normalize == LinearNormalize::sum ? 1 : 0);  // the denominator is a column of ones
  Cost c = 2 * dense(o.dim, h * d, o.qkv_bias, n) + dense(o.dim, h * dv, o.qkv_bias, n) +
           dense(h * dv, o.dim, o.out_bias, n) + norm_cost(o.output_norm, dv);
  const MapSize map = feature_map_size(o.feature_map, d);
  c += {.parameters = map.parameters * (o.tie_feature_map ? 1 : 2), .flops = 2 * n * h * map.flops};
  if (o.decay == LinearDecay::learned) c += parameters_only(h);
  const bool full = o.direction == LinearDirection::full, both = !full && o.direction != LinearDirection::causal;
  Cost sums = linear_cost(h, n, m, width, full ? 0 : o.chunk);
  // Rotated features serve the numerator only: the denominator has scores of its own.
  if (!full && o.use_rope == LinearRope::features && width > dv) sums.flops += 2 * n * std::min(o.chunk, n) * h * m;
  c += (both ? 2 : 1) * sums;
  if (o.direction == LinearDirection::causal) c += stream(h * m * width);
  return c;
}

Cost cost(const GlaOptions& o, int64_t n) {
  const int64_t keys = detail::expanded_width("gla", "expand_k", o.expand_k, o.dim, o.heads);
  const int64_t values = detail::expanded_width("gla", "expand_v", o.expand_v, o.dim, o.heads);
  Cost c = 2 * dense(o.dim, keys, false, n) + dense(o.dim, values, false, n) + dense(values, o.dim, false, n);
  if (o.gate == GlaGate::per_channel) c += dense(o.dim, o.gate_rank, false, n) + dense(o.gate_rank, keys, true, n);
  else c += dense(o.dim, o.heads, true, n);
  if (o.output_gate) c += dense(o.dim, values, false, n);
  return c + norm_cost(o.norm, values / o.heads) + linear_cost(o.heads, n, keys / o.heads, values / o.heads, o.chunk) +
         stream(keys * values / o.heads);
}

Cost cost(const RetentionOptions& o, int64_t n) {
  const int64_t keys = detail::expanded_width("retention", "expand_k", o.expand_k, o.dim, o.heads);
  const int64_t values = detail::expanded_width("retention", "expand_v", o.expand_v, o.dim, o.heads);
  return 2 * dense(o.dim, keys, false, n) + (o.gate ? 2 : 1) * dense(o.dim, values, false, n) +
         dense(values, o.dim, false, n) + norm_cost(o.group_norm, values) +
         linear_cost(o.heads, n, keys / o.heads, values / o.heads, o.chunk) + stream(keys * values / o.heads);
}

// -- softmax attention and its gates -------------------------------------------------------------------------

Cost cost(const AttentionGateOptions& o, int64_t dim, int64_t heads, int64_t head_dim, int64_t n) {
  const int64_t width = o.granularity == GateGranularity::elementwise ? heads * head_dim : heads;
  if (o.input_independent) return {.parameters = width, .extra_elements = width};
  return dense(dim, width, o.bias, n) + Cost{.extra_elements = n * width};
}

Cost cost(const MultiHeadAttentionOptions& given, int64_t n, int64_t context_length) {
  const MultiHeadAttentionOptions o = detail::checked(given);
  const HeadsOptions& h = o.heads;
  const bool cross = h.context_dim > 0;
  const int64_t keys = cross ? context_length : n;
  const int64_t global = std::count_if(o.global.begin(), o.global.end(), [n](int64_t p) { return p < n; });
  Cost c = heads_cost(h, n, keys);
  for (const AttentionGateOptions& g : o.gates) {
    const detail::GateSizes s = detail::gate_sizes(o, g.position);
    const bool key_side = g.position == GatePosition::g2 || g.position == GatePosition::g3;
    c += cost(g, s.dim, s.heads, s.head_dim, key_side ? keys : n);
  }
  // Keys a query sees: those of the window, every dilation-th, and the global ones; global queries see all.
  int64_t seen = (keys + o.dilation - 1) / o.dilation;
  if (o.window > 0) seen = std::min(seen, h.causal ? o.window : 2 * o.window - 1);
  seen = std::min(seen + global, keys);
  c += map_cost(h.heads, (n - global) * seen + global * keys, h.head_dim, h.value_dim);
  if (o.separate_global_projections)
    c += dense(h.dim, h.heads * h.head_dim, false, global) + dense(h.dim, cached(h, 1), false, keys) +
         map_cost(h.heads, global * keys, h.head_dim, h.value_dim);
  const int64_t reach = (o.window - 1) * o.dilation + 1;
  const int64_t kept = o.window > 0 && o.global.empty() ? std::min(keys, reach) : keys;
  if (cross || (h.causal && !o.separate_global_projections)) c += stream(cached(h, kept));
  c.parameters = parameter_count(o);
  return c;
}

Cost cost(const AttentionStackOptions& o, int64_t n) {
  Cost c;
  for (const MultiHeadAttentionOptions& layer : o.layers) c += cost(layer, n);
  return c;
}

Cost cost(const GatedAttentionOptions& o, int64_t n) {
  const HeadsOptions h = checked_heads("cost", o.heads);
  Cost c = heads_cost(h, n, n) + map_cost(h.heads, n * n, h.head_dim, h.value_dim);
  AttentionGateOptions gate{.granularity = o.granularity};
  gate.bias = true;
  const int64_t output_source = o.output == OutputGate::from_query ? h.heads * h.head_dim : h.dim;
  if (o.output != OutputGate::none) c += cost(gate, output_source, h.heads, h.value_dim, n);
  if (o.gate_query) c += cost(gate, h.dim, h.heads, h.head_dim, n);
  if (o.gate_key) c += cost(gate, h.dim, h.kv_heads, h.head_dim, n);
  if (o.gate_value) c += cost(gate, h.dim, h.kv_heads, h.value_dim, n);
  return h.causal ? c + stream(cached(h, n)) : c;
}

Cost cost(const GatedCrossAttentionOptions& o, int64_t m, int64_t n) {
  const HeadsOptions h = checked_heads("cost", o.heads, {.cross = true});
  const int64_t width = h.heads * h.head_dim, values = h.heads * h.value_dim;
  Cost c = heads_cost(h, m, n) + map_cost(h.heads, m * n, h.head_dim, h.value_dim);
  if (o.reading == CrossGate::flamingo) return c + parameters_only(1) + stream(cached(h, n));
  const int64_t rows = o.reading == CrossGate::pooled ? 1 : m, scores = width + (values != width ? values : 0);
  c += dense(width, scores, true, rows) + Cost{.extra_elements = rows * scores};
  if (o.reading == CrossGate::per_query) c += stream(cached(h, n));  // the encoded context
  return c;
}

Cost cost(const FusedAttentionOptions& o, int64_t n) {
  const HeadsOptions h = checked_heads("cost", o.heads);
  const int64_t d = h.head_dim, dv = h.value_dim;
  const int64_t scores = o.gate == FusedGate::per_channel ? h.heads * dv : o.gate == FusedGate::per_head ? h.heads : 1;
  Cost c = heads_cost(h, n, n) + dense(h.dim, scores, true, n) + map_cost(h.heads, n * n, d, dv) +
           linear_cost(h.heads, n, d, dv + 1, h.causal ? o.chunk : 0) + Cost{.extra_elements = n * scores};
  return h.causal ? c + stream(cached(h, n) + h.heads * d * (dv + 1)) : c;
}

Cost cost(const GatedResidualOptions& o, int64_t n) {
  switch (o.kind) {
    case ResidualGate::scalar: return {.parameters = 1, .extra_elements = 1};
    case ResidualGate::per_channel: return {.parameters = o.dim, .extra_elements = o.dim};
    case ResidualGate::input: return dense(o.dim, o.dim, true, n) + Cost{.extra_elements = n * o.dim};
    case ResidualGate::input_token: return dense(o.dim, 1, true, n) + Cost{.extra_elements = n};
  }
  return {};
}

}  // namespace sluice
