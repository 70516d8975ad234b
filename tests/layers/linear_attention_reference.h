// Linear attention written as plain loops over pairs and over steps. Of the library it uses only
// the option names and the weights.
#pragma once

#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/linear_attention/retention.h>

namespace sluice::testing {

/// One head of linear attention, pair by pair. log_decay is empty, n×1 or n×m; `real` marks tokens.
struct LinearHead {
  Matrix q, k, v, log_decay;
  std::vector<bool> real;
};

/// Σ_{j in reach of i} w_ij [v_j, 1], w_ij = Σ_c q_ic k_jc Π_{t between} α_tc.
inline Matrix pair_sums(const LinearHead& h, const LinearAttentionForm& f, bool earlier, bool later) {
  const std::size_t n = h.q.size(), dv = h.v.empty() ? 0 : h.v[0].size();
  const Matrix rq = f.rope ? rope_reference(h.q, *f.rope) : h.q,
               rk = f.rope ? rope_reference(h.k, f.rope->of_keys()) : h.k;
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
          LinearAttentionForm form{.direction = direction,
                                   .normalize = normalize,
                                   .eps = 1e-3,
                                   .scale = 0.7,
                                   .log_decay = g[decay],
                                   .key_mask = key_mask};
          if (rotated) form.rope = RopeOptions{.offset = 2};
          if (valid(form))
            f(form, str("direction ", static_cast<int>(direction), " decay ", static_cast<int64_t>(decay),
                        " normalize ", normalize == LinearNormalize::sum, " rope ", rotated));
        }
}

}  // namespace sluice::testing
