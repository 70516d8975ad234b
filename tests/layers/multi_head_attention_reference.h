// The softmax attention layer written as plain loops over one sequence. Of the
// library it uses only the option names and the weights.
#pragma once

#include "layers/gau_reference.h"

#include <sluice/layers/heads/multi_head_attention.h>

namespace sluice::testing {

/// One sequence of a batch, and what may be brought to a call besides.
struct AttentionSequence {
  Matrix x, context;
  std::vector<bool> real;                          // keys; empty: all
  std::vector<int64_t> segments, context_segments;  // empty: one document
  std::function<bool(std::size_t head, std::size_t i, std::size_t j)> allowed;
  Matrix bias;  // empty: none
};
struct AttentionResult {
  Matrix out;
  std::vector<Matrix> map;  // of each head
};

inline std::vector<Matrix> heads_reference(const Matrix& x, int64_t heads) {
  std::vector<Matrix> y;
  const std::size_t width = x.empty() ? 0 : x[0].size() / static_cast<std::size_t>(heads);
  for (std::size_t h = 0; h < static_cast<std::size_t>(heads); ++h) y.push_back(columns(x, h * width, width));
  return y;
}

/// y [heads][n][width] gated by x [n][dim].
inline void gate_reference(const AttentionGate& g, std::vector<Matrix>& y, const Matrix& x) {
  const bool wide = g.options.granularity == GateGranularity::elementwise;
  const std::size_t heads = y.size();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Matrix flat =
        g.options.input_independent ? Matrix{g.theta.to_vector<double>()} : linear_reference(g.map, {x[i]});
    const std::size_t width = y[0][i].size();
    auto logit = [&](std::size_t h, std::size_t c) { return flat[0][wide ? h * width + c : h]; };
    for (std::size_t c = 0; c < width; ++c) {
      double shared_score = 0, shared_logit = 0;
      for (std::size_t h = 0; h < heads; ++h) {
        shared_score += activation_reference(g.options.activation, logit(h, c)) / static_cast<double>(heads);
        shared_logit += logit(h, c) / static_cast<double>(heads);
      }
      for (std::size_t h = 0; h < heads; ++h) {
        double s = activation_reference(g.options.activation, logit(h, c));
        if (g.options.sharing == GateSharing::scores) s = shared_score;
        if (g.options.sharing == GateSharing::logits) s = activation_reference(g.options.activation, shared_logit);
        y[h][i][c] = g.options.mode == GateMode::multiply ? y[h][i][c] * s : y[h][i][c] + s;
      }
    }
  }
}

inline void gates_reference(const MultiHeadAttention& a, GatePosition p, bool after, std::vector<Matrix>& y,
                            const Matrix& input) {
  for (const AttentionGate& g : a.gates) {
    if (g.options.position != p || g.options.after_qk_norm != after) continue;
    const Matrix x = g.options.source == GateSource::query ? linear_reference(a.heads.q, input) : input;
    if (p != GatePosition::g5) {
      gate_reference(g, y, x);
      continue;
    }
    std::vector<Matrix> parts = heads_reference(y[0], g.heads);  // one, or as many as headwise scores
    gate_reference(g, parts, x);
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t c = 0, width = parts[0][i].size(); c < y[0][i].size(); ++c) y[0][i][c] = parts[c / width][i][c % width];
  }
}

/// Gate, norm of each head, late gate, RoPE.
inline std::vector<Matrix> projected_reference(const MultiHeadAttention& a, const Linear& f, const Norm& norm,
                                               int64_t heads, GatePosition p, const Matrix& x, bool positions) {
  std::vector<Matrix> y = heads_reference(linear_reference(f, x), heads);
  gates_reference(a, p, false, y, x);
  if (a.options.qk_norm_over == QkNormOver::shared) {
    for (Matrix& h : y) h = norm_reference(norm, h);
  } else {
    Matrix flat(x.size());
    for (const Matrix& h : y)
      for (std::size_t i = 0; i < x.size(); ++i) flat[i].insert(flat[i].end(), h[i].begin(), h[i].end());
    y = heads_reference(norm_reference(norm, flat), heads);
  }
  gates_reference(a, p, true, y, x);
  const RopeOptions rope = p == GatePosition::g3 ? a.options.heads.rope.of_keys() : a.options.heads.rope;
  if (positions && a.options.heads.use_rope)
    for (Matrix& h : y) h = rope_reference(h, rope);
  return y;
}

inline bool visible_reference(const MultiHeadAttentionOptions& o, const AttentionSequence& s, bool free, std::size_t h,
                              std::size_t i, std::size_t j) {
  const auto distance = static_cast<int64_t>(i) - static_cast<int64_t>(j);
  auto is_global = [&](std::size_t p) {
    return std::find(o.global.begin(), o.global.end(), static_cast<int64_t>(p)) != o.global.end();
  };
  if (o.heads.causal && distance < 0) return false;
  if (!free && !is_global(i) && !is_global(j)) {
    if (o.window > 0 && std::abs(distance) > (o.window - 1) * o.dilation) return false;
    if (distance % o.dilation != 0) return false;
  }
  if (!s.real.empty() && !s.real[j]) return false;
  const auto& key_segments = o.heads.context_dim > 0 ? s.context_segments : s.segments;
  if (!s.segments.empty() && s.segments[i] != key_segments[j]) return false;
  return !s.allowed || s.allowed(h, i, j);
}

inline double bias_reference(const MultiHeadAttention& a, std::size_t h, int distance) {  // j − i
  const MultiHeadAttentionOptions& o = a.options;
  switch (o.position_bias) {
    case PositionBias::none: return 0;
    case PositionBias::t5: {
      const auto buckets = static_cast<int>(o.t5.buckets), farthest = static_cast<int>(o.t5.max_distance);
      const int bucket = t5_reference(distance, o.heads.causal, buckets, farthest);
      return matrix_of(a.t5_bias)[static_cast<std::size_t>(bucket)][h];
    }
    case PositionBias::toeplitz:
      return matrix_of(a.toeplitz_bias)[h][static_cast<std::size_t>(o.max_length - 1 + distance)];
    case PositionBias::alibi:  // for powers of two
      return -std::pow(2.0,
                       -8.0 * static_cast<double>(h + 1) / static_cast<double>(o.heads.heads)) * std::abs(distance);
  }
  return NAN;
}

inline AttentionResult mha_reference(const MultiHeadAttention& a, const AttentionSequence& s) {
  const MultiHeadAttentionOptions& o = a.options;
  const bool cross = o.heads.context_dim > 0;
  const Matrix normed = norm_reference(a.norm, s.x), &source = cross ? s.context : normed;
  const std::size_t m = s.x.size(), n = source.size(),
      per_group = static_cast<std::size_t>(o.heads.heads / o.heads.kv_heads);
  const double scale = o.scale ? *o.scale : 1 / std::sqrt(static_cast<double>(o.heads.head_dim));
  std::vector<Matrix> attended;
  std::vector<double> sink(static_cast<std::size_t>(o.heads.heads),
                           o.sink == AttentionSink::off_by_one ? 0 : -INFINITY);
  if (o.sink == AttentionSink::learned) sink = a.sink.to_vector<double>();

  AttentionResult r;
  auto run = [&](const Linear& fq, const Linear& fk, const Linear& fv, bool global_rows) {
    const auto q = projected_reference(a, fq, a.q_norm, o.heads.heads, GatePosition::g4, normed, !cross);
    const auto k = projected_reference(a, fk, a.k_norm, o.heads.kv_heads, GatePosition::g3, source, !cross);
    auto v = heads_reference(linear_reference(fv, source), o.heads.kv_heads);
    if (!global_rows) gates_reference(a, GatePosition::g2, false, v, source);
    for (std::size_t h = 0; h < q.size(); ++h) {
      if (!global_rows) {
        r.map.push_back(matrix(static_cast<int64_t>(m), static_cast<int64_t>(n)));
        attended.push_back(matrix(static_cast<int64_t>(m), o.heads.value_dim));
      }
      for (std::size_t i = 0; i < m; ++i) {
        const bool is_global = std::find(o.global.begin(), o.global.end(), static_cast<int64_t>(i)) != o.global.end();
        if (global_rows && !is_global) continue;
        std::vector<double> e(n, 0.0);
        double total = std::exp(sink[h]);
        for (std::size_t j = 0; j < n; ++j) {
          if (!visible_reference(o, s, global_rows, h, i, j)) continue;
          double t = 0;
          for (std::size_t c = 0; c < q[h][i].size(); ++c) t += q[h][i][c] * k[h / per_group][j][c];
          t *= scale;
          if (o.softcap > 0) t = o.softcap * std::tanh(t / o.softcap);
          t += bias_reference(a, h, static_cast<int>(j) - static_cast<int>(i));
          if (!s.bias.empty()) t += s.bias[i][j];
          e[j] = std::exp(t), total += e[j];
        }
        auto& out = attended[h][i];
        std::fill(out.begin(), out.end(), 0.0);
        for (std::size_t j = 0; j < n; ++j) {
          r.map[h][i][j] = e[j] == 0 ? 0 : e[j] / total;
          if (e[j] == 0) continue;
          for (std::size_t c = 0; c < out.size(); ++c) out[c] += e[j] / total * v[h / per_group][j][c];
        }
      }
    }
  };
  run(a.heads.q, a.heads.k, a.heads.v, false);
  if (o.separate_global_projections) run(a.global_q, a.global_k, a.global_v, true);

  for (Matrix& y : attended) {
    if (o.ablation == SdpaAblationKind::head_norm) {
      Norm norm({o.heads.value_dim, NormKind::rms, o.ablation_eps, f64});
      norm.weight = a.ablation.weight;
      y = norm_reference(norm, y);
    }
    if (o.ablation == SdpaAblationKind::silu)
      for (auto& row : y)
        for (double& value : row) value = activation_reference(Act::silu, value);
  }
  gates_reference(a, GatePosition::g1, false, attended, normed);
  Matrix joined(m);
  for (const Matrix& y : attended)
    for (std::size_t i = 0; i < m; ++i) joined[i].insert(joined[i].end(), y[i].begin(), y[i].end());
  std::vector<Matrix> y{o.heads.project_out ? linear_reference(a.heads.out, joined) : joined};
  gates_reference(a, GatePosition::g5, false, y, normed);
  r.out = norm_reference(a.sandwich, y[0]);
  if (o.heads.residual)
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t c = 0; c < r.out[i].size(); ++c) r.out[i][c] += s.x[i][c];
  return r;
}

template <class T>
std::vector<T> line_of(const Tensor& t, int64_t b) {
  if (!t.defined()) return {};
  return select(t, 0, t.dim(0) == 1 ? 0 : b).to_vector<T>();
}

/// The reference on a batch; `in.mask` is [batch or 1, heads or 1, m, n].
struct BatchResult {
  Tensor out, map;
};
inline BatchResult mha_reference(const MultiHeadAttention& a, const Tensor& x, const Pass& in) {
  const Tensor &context = in.context, &bias = in.bias, &mask = in.mask, &block_mask = in.blocks;
  const Tensor& key_mask = context.defined() ? in.context_mask : in.key_mask;
  std::vector<double> out, map;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    AttentionSequence s;
    s.x = matrix_of(select(x, 0, b));
    if (context.defined()) s.context = matrix_of(select(context, 0, b));
    s.real = line_of<bool>(key_mask, b);
    s.segments = line_of<int64_t>(in.segments, b), s.context_segments = line_of<int64_t>(in.context_segments, b);
    if (bias.defined()) s.bias = matrix_of(select(select(bias, 0, b), 0, 0));
    std::vector<bool> dense, blocks;
    if (mask.defined()) dense = expand(mask, {x.dim(0), a.options.heads.heads, -1, -1}).to_vector<bool>();
    if (block_mask.defined()) blocks = block_mask.to_vector<bool>();
    const int64_t m = x.dim(1), n = context.defined() ? context.dim(1) : m;
    if (mask.defined() || block_mask.defined())
      s.allowed = [&, b](std::size_t h, std::size_t i, std::size_t j) {
        const auto I = static_cast<int64_t>(i), J = static_cast<int64_t>(j), H = static_cast<int64_t>(h);
        const auto at = static_cast<std::size_t>(((b * a.options.heads.heads + H) * m + I) * n + J);
        if (!dense.empty() && !dense[at]) return false;
        return blocks.empty() || blocks[static_cast<std::size_t>(I / in.block * block_mask.dim(1) + J / in.block)];
      };
    const AttentionResult r = mha_reference(a, s);
    for (const auto& row : r.out) out.insert(out.end(), row.begin(), row.end());
    for (const Matrix& head : r.map)
      for (const auto& row : head) map.insert(map.end(), row.begin(), row.end());
  }
  const int64_t n = context.defined() ? context.dim(1) : x.dim(1);
  const int64_t width = x.numel() > 0 ? static_cast<int64_t>(out.size()) / (x.dim(0) * x.dim(1)) : x.dim(2);
  return {Tensor::from(out, {x.dim(0), x.dim(1), width}),
          Tensor::from(map, {x.dim(0), a.options.heads.heads, x.dim(1), n})};
}

}  // namespace sluice::testing
