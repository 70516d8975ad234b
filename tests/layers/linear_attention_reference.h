// Linear attention written as plain loops over pairs and over steps. Of the library it uses only
// the option names and the weights.
#pragma once

#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/layers/linear_time/gla.h>
#include <sluice/layers/linear_time/retention.h>

namespace sluice::testing {

/// φ of one row by its definition; `head` picks the map where heads have their own.
inline std::vector<double> feature_reference(const FeatureMap& map, std::vector<double> x, std::size_t head = 0) {
  const FeatureMapOptions& o = map.options;
  for (double& v : x) v *= o.input_scale.value_or(1);
  auto dense = [&](const std::vector<double>& in, const Tensor& w, const Tensor& b) {
    const std::vector<double> weight = w.to_vector<double>();
    const std::vector<double> bias = b.defined() ? b.to_vector<double>() : std::vector<double>{};
    const auto width = static_cast<std::size_t>(w.dim(-1));
    const std::size_t first = w.rank() == 3 ? head * in.size() * width : 0;
    std::vector<double> out(width, 0.0);
    for (std::size_t c = 0; c < width; ++c) {
      for (std::size_t r = 0; r < in.size(); ++r) out[c] += in[r] * weight[first + r * width + c];
      if (!bias.empty()) out[c] += bias[(w.rank() == 3 ? head * width : 0) + c];
    }
    return out;
  };
  auto relu = [](std::vector<double> y) {
    for (double& v : y) v = v > 0 ? v : 0;
    return y;
  };
  std::vector<double> y = x;
  double square = 0;
  for (double v : x) square += v * v;
  const auto m = static_cast<double>(o.features);
  switch (o.kind) {
    case FeatureMapKind::identity: break;
    case FeatureMapKind::exp:
      for (double& v : y) v = std::exp(v);
      break;
    case FeatureMapKind::elu1:
      for (double& v : y) v = v > 0 ? v + 1 : std::exp(v);
      break;
    case FeatureMapKind::relu: case FeatureMapKind::t2r:
      y = relu(map.weight.defined() ? dense(x, map.weight, map.bias) : x);
      for (double& v : y) v += o.offset;
      break;
    case FeatureMapKind::poly_elem:
      y.clear();
      for (int64_t r = 1; r <= o.degree; ++r)
        for (double v : x) y.push_back(std::pow(v, static_cast<double>(r)));
      break;
    case FeatureMapKind::poly_kernel: {
      x.push_back(std::sqrt(o.constant));
      y = {1.0};
      for (int64_t r = 0; r < o.degree; ++r) {
        std::vector<double> next;
        for (double a : y)
          for (double b : x) next.push_back(a * b);
        y = next;
      }
      break;
    }
    case FeatureMapKind::favor:
      y = dense(x, map.omega, {});
      for (double& v : y) v = (std::exp(v - square / 2) + o.offset) / std::sqrt(m);
      break;
    case FeatureMapKind::fourier: {
      const std::vector<double> p = dense(x, map.omega, {});
      y.clear();
      for (double v : p) y.push_back(std::cos(v) / std::sqrt(m));
      for (double v : p) y.push_back(std::sin(v) / std::sqrt(m));
      if (o.smoothing > 0) y.push_back(std::sqrt(o.smoothing));
      break;
    }
    case FeatureMapKind::mlp:
      y = dense(relu(dense(x, map.weight, map.bias)), map.weight2, map.bias2);
      for (double& v : y) v = std::log1p(std::exp(v));
      break;
    case FeatureMapKind::hedgehog: {
      const std::vector<double> p = dense(x, map.weight, map.bias);
      y.clear();
      double total = 0;
      for (double sign : {2.0, -2.0})
        for (double v : p) y.push_back(std::exp(sign * v)), total += y.back();
      for (double& v : y) v /= total;
      break;
    }
  }
  return y;
}
inline Matrix features_reference(const FeatureMap& map, Matrix x, std::size_t head = 0) {
  for (auto& row : x) row = feature_reference(map, row, head);
  return x;
}

/// One head of linear attention, pair by pair. log_decay is empty, n×1 or n×m; `real` marks tokens.
struct LinearHead {
  Matrix q, k, v, log_decay;
  std::vector<bool> real;
};

/// Σ_{j in reach of i} w_ij [v_j, 1], w_ij = Σ_c q_ic k_jc Π_{t between} α_tc.
inline Matrix pair_sums(const LinearHead& h, const LinearAttentionForm& f, bool earlier, bool later) {
  const std::size_t n = h.q.size(), dv = h.v.empty() ? 0 : h.v[0].size();
  const Matrix rq = f.rope ? rope_reference(h.q, *f.rope) : h.q, rk = f.rope ? rope_reference(h.k, f.rope->of_keys()) : h.k;
  Matrix out = matrix(static_cast<int64_t>(n), static_cast<int64_t>(dv + 1));
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> kept(h.q[i].size(), 1.0);  // Π_{t between} α_t, as j goes away from i
    const auto pass_step = [&](std::size_t t) {
      for (std::size_t c = 0; c < kept.size() && !h.log_decay.empty() && h.real[t]; ++c)
        kept[c] *= std::exp(h.log_decay[t].size() == 1 ? h.log_decay[t][0] : h.log_decay[t][c]);
    };
    const auto add = [&](std::size_t j) {
      if (!h.real[j]) return;
      double w = 0, plain = 0;
      for (std::size_t c = 0; c < kept.size(); ++c)
        w += f.scale * rq[i][c] * rk[j][c] * kept[c], plain += f.scale * h.q[i][c] * h.k[j][c] * kept[c];
      for (std::size_t c = 0; c < dv; ++c) out[i][c] += w * h.v[j][c];
      out[i][dv] += plain;
    };
    if (i < h.k.size()) add(i);
    for (std::size_t j = std::min(i, h.k.size()); earlier && j-- > 0;) pass_step(j + 1), add(j);
    kept.assign(kept.size(), 1.0);
    for (std::size_t j = i + 1; later && j < h.k.size(); ++j) pass_step(j), add(j);
  }
  return out;
}
inline Matrix pairs_reference(const LinearHead& h, const LinearAttentionForm& f) {
  auto divided = [&](Matrix sums) {
    for (auto& row : sums) {
      const double d = f.normalize == LinearNormalize::sum ? row.back() + f.eps : 1;
      row.pop_back();
      for (double& x : row) x /= d == 0 ? 1 : d;
    }
    return sums;
  };
  if (f.direction != LinearDirection::two_direction_mean)
    return divided(pair_sums(h, f, true, f.direction != LinearDirection::causal));
  Matrix a = divided(pair_sums(h, f, true, false)), b = divided(pair_sums(h, f, false, true));
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t c = 0; c < a[i].size(); ++c) a[i][c] = (a[i][c] + b[i][c]) / 2;
  return a;
}

/// The causal form step by step: S ← diag(α) S + φ(k)ᵀ v, Z ← α Z + φ(k).
inline Matrix steps_reference(const LinearHead& h, const LinearAttentionForm& f) {
  const std::size_t n = h.q.size(), m = h.q.empty() ? 0 : h.q[0].size(), dv = h.v.empty() ? 0 : h.v[0].size();
  Matrix u = matrix(static_cast<int64_t>(m), static_cast<int64_t>(dv)), out;
  std::vector<double> z(m, 0.0);
  for (std::size_t t = 0; t < n; ++t) {
    std::vector<double> o(dv, 0.0);
    double d = f.normalize == LinearNormalize::sum ? f.eps : 1;
    for (std::size_t c = 0; c < m; ++c) {
      const double kept = h.log_decay.empty() ? 1 : std::exp(h.log_decay[t][h.log_decay[t].size() == 1 ? 0 : c]);
      z[c] = kept * z[c] + h.k[t][c];
      for (std::size_t e = 0; e < dv; ++e) {
        u[c][e] = kept * u[c][e] + h.k[t][c] * h.v[t][e];
        o[e] += f.scale * h.q[t][c] * u[c][e];
      }
      if (f.normalize == LinearNormalize::sum) d += f.scale * h.q[t][c] * z[c];
    }
    for (double& x : o) x /= d;
    out.push_back(o);
  }
  return out;
}

/// Head (b, h) of tensors [batch, heads, n, ·]; the decay may be undefined, of rank 3 or 4, and broadcast.
inline LinearHead head_of(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionForm& f, int64_t b,
                          int64_t h) {
  auto at = [&](const Tensor& t) {
    return matrix_of(select(select(t, 0, t.dim(0) == 1 ? 0 : b), 0, t.dim(1) == 1 ? 0 : h));
  };
  LinearHead head{at(q), at(k), at(v), {}, std::vector<bool>(static_cast<std::size_t>(k.dim(2)), true)};
  if (f.log_decay.defined()) {
    head.log_decay = at(f.log_decay.rank() == 4 ? f.log_decay : unsqueeze(f.log_decay, -1));
    if (head.log_decay.size() == 1) head.log_decay.resize(head.k.size(), head.log_decay[0]);
  }
  if (f.key_mask.defined()) head.real = select(f.key_mask, 0, b).to_vector<bool>();
  return head;
}
inline Tensor each_head(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionForm& f,
                        Matrix (*form)(const LinearHead&, const LinearAttentionForm&)) {
  std::vector<double> all;
  for (int64_t b = 0; b < q.dim(0); ++b)
    for (int64_t h = 0; h < q.dim(1); ++h)
      for (const auto& row : form(head_of(q, k, v, f, b, h), f)) all.insert(all.end(), row.begin(), row.end());
  return Tensor::from(all, {q.dim(0), q.dim(1), q.dim(2), v.dim(3)});
}
/// linear_attention by its definition.
inline Tensor linear_attention_by_pairs(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const LinearAttentionForm& f) {
  return each_head(q, k, v, f, pairs_reference);
}
inline Tensor linear_attention_by_steps(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const LinearAttentionForm& f) {
  return each_head(q, k, v, f, steps_reference);
}

// -- layers --------------------------------------------------------------------------------------------------

inline Matrix head_columns(const Matrix& x, std::size_t head, std::size_t heads) {
  const std::size_t width = x.empty() ? 0 : x[0].size() / heads;
  return columns(x, head * width, width);
}
inline Matrix beside(Matrix a, const Matrix& b) {
  if (a.empty()) return b;
  for (std::size_t i = 0; i < a.size(); ++i) a[i].insert(a[i].end(), b[i].begin(), b[i].end());
  return a;
}
/// A layer's q | k | v through its short convolution, padding as zeros.
inline void convolved_reference(const ShortConvolution& conv, Matrix& q, Matrix& k, Matrix& v, const std::vector<bool>& real) {
  if (!conv.weight.defined()) return;
  const Matrix x = beside(beside(q, k), v), w = matrix_of(conv.weight);
  Matrix y = matrix(static_cast<int64_t>(x.size()), conv.options.dim);
  for (std::size_t t = 0; t < x.size(); ++t)
    for (std::size_t c = 0; c < y[t].size(); ++c) {
      for (std::size_t back = 0; back < w.size() && back <= t; ++back)
        if (real[t - back]) y[t][c] += w[w.size() - 1 - back][c] * x[t - back][c];
      y[t][c] = activation_reference(conv.options.activation, y[t][c]);
    }
  const std::size_t a = q.empty() ? 0 : q[0].size(), b = k.empty() ? 0 : k[0].size(), e = v.empty() ? 0 : v[0].size();
  q = columns(y, 0, a), k = columns(y, a, b), v = columns(y, a + b, e);
}
/// y ⊙ swish(x·W)
inline Matrix swish_gated_reference(const Linear& gate, Matrix y, const Matrix& x) {
  const Matrix g = linear_reference(gate, x);
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t c = 0; c < y[i].size(); ++c) y[i][c] *= g[i][c] / (1 + std::exp(-g[i][c]));
  return y;
}

// -- samples --------------------------------------------------------------------------------------------------

constexpr LinearDirection kLinearDirections[] = {LinearDirection::full, LinearDirection::causal,
                                                 LinearDirection::bidirectional, LinearDirection::two_direction_mean};

/// Positive features, so that no denominator is near 0; v of any sign.
struct LinearSample {
  Tensor q, k, v;
  LinearSample(int64_t batch, int64_t heads, int64_t n, int64_t m, int64_t dv, Rand& rand, DType dtype = f64)
      : q(random_tensor({batch, heads, n, m}, dtype, rand, 0.1, 1)),
        k(random_tensor({batch, heads, n, m}, dtype, rand, 0.1, 1)),
        v(random_tensor({batch, heads, n, dv}, dtype, rand)) {}
};

/// No decay; a number a head; one a token; one a channel.
inline std::vector<Tensor> log_decays(int64_t batch, int64_t heads, int64_t n, int64_t m, Rand& rand) {
  return {Tensor(), random_tensor({1, heads, 1}, f64, rand, -0.7, -0.05),
          random_tensor({batch, heads, n}, f64, rand, -0.7, 0),
          random_tensor({batch, heads, n, m}, f64, rand, -0.7, 0)};
}

inline bool valid(const LinearAttentionForm& f) {
  return f.direction != LinearDirection::full || !f.log_decay.defined();
}

/// All forms over two sequences, two heads, features of width m.
inline void each_form(int64_t n, int64_t m, const Tensor& key_mask, Rand& rand,
               const std::function<void(const LinearAttentionForm&, const std::string&)>& f) {
  const std::vector<Tensor> g = log_decays(2, 2, n, m, rand);
  for (LinearDirection direction : kLinearDirections)
    for (std::size_t decay = 0; decay < g.size(); ++decay)
      for (LinearNormalize normalize : {LinearNormalize::sum, LinearNormalize::none})
        for (bool rotated : {false, true}) {
          LinearAttentionForm form{.direction = direction, .normalize = normalize, .eps = 1e-3, .scale = 0.7,
                                   .log_decay = g[decay], .key_mask = key_mask};
          if (rotated) form.rope = RopeOptions{.offset = 2};
          if (valid(form))
            f(form, str("direction ", static_cast<int>(direction), " decay ", static_cast<int64_t>(decay),
                        " normalize ", normalize == LinearNormalize::sum, " rope ", rotated));
        }
}

}  // namespace sluice::testing
