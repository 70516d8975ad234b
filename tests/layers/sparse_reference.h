// What the tests of sparse attention share: random operands, loops, and checks of both orders of gradients.
#pragma once

#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace sluice::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

struct Qkv {
  Tensor q, k, v;
};
inline Qkv random_qkv(Rand& rand, int64_t batch, int64_t heads, int64_t kv_heads, int64_t m, int64_t n, int64_t d = 3,
                      int64_t dv = 4) {
  return {random_tensor({batch, heads, m, d}, f64, rand, -2, 2),
          random_tensor({batch, kv_heads, n, d}, f64, rand, -2, 2), random_tensor({batch, kv_heads, n, dv}, f64, rand)};
}

inline Tensor naive(const Qkv& x, const AttentionOptions& o) {
  const Array out = naive_attention(array_of(x.q), array_of(x.k), array_of(x.v), o).out;
  return tensor_of(out.v, {x.q.dim(0), x.q.dim(1), x.q.dim(2), x.v.dim(3)}, f64);
}
inline Tensor naive_dense(const Qkv& x, const Array& visible) {
  std::vector<bool> flags;
  for (double f : visible.v) flags.push_back(f != 0);
  const Dims& s = visible.shape;
  return naive(x, {.mask = {.dense = Tensor::from(flags, {s[0], s[1], s[2], s[3]})}});
}

/// q·k/√d of every pair, [batch, heads, m, n].
inline Array naive_scores(const Qkv& x) {
  const Array q = array_of(x.q), k = array_of(x.k);
  Array s({q.shape[0], q.shape[1], q.shape[2], k.shape[2]});
  const int64_t group = q.shape[1] / k.shape[1];
  each_index(s.shape, [&](const Dims& i) {
    for (int64_t c = 0; c < q.shape[3]; ++c)
      s(i) += q({i[0], i[1], i[2], c}) * k({i[0], i[1] / group, i[3], c}) / std::sqrt(static_cast<double>(q.shape[3]));
  });
  return s;
}

inline void check_gradients(const TensorFunction& f, std::vector<Tensor> inputs) {
  for (Tensor& x : inputs) x = clone(x).requires_grad_();
  const auto first = gradcheck(f, inputs), second = gradgradcheck(f, inputs);
  INFO(first.message << "\n" << second.message);
  CHECK(first);
  CHECK(second);
}

/// NaN in q, k and v where `keys` are padding changes nothing, and gradients stay finite.
inline void check_ignores_padding(const Qkv& x, const Tensor& keys, const std::function<Tensor(const Qkv&)>& f) {
  Qkv dirty = x;
  const Tensor hidden = reshape(logical_not(keys), {keys.dim(0), 1, keys.dim(1), 1});
  for (Tensor* t : {&dirty.q, &dirty.k, &dirty.v}) *t = masked_fill(*t, hidden, NAN).requires_grad_();
  const Tensor got = f(dirty);
  CHECK(max_abs_diff(got, f(x)) < 1e-14);
  for (const Tensor& g : grad({sum(got)}, {dirty.q, dirty.k, dirty.v})) CHECK(std::isfinite(max_abs(g)));
}

/// Attention where pair (i, j) has the weight e^{s_ij}·factor, summed by hand.
inline Tensor naive_weighted(const Qkv& x, const std::function<double(const Dims&)>& factor) {
  const Array s = naive_scores(x), v = array_of(x.v);
  Array out({s.shape[0], s.shape[1], s.shape[2], v.shape[3]}), total({s.shape[0], s.shape[1], s.shape[2]});
  const int64_t group = s.shape[1] / v.shape[1];
  each_index(s.shape, [&](const Dims& i) { total({i[0], i[1], i[2]}) += std::exp(s(i)) * factor(i); });
  each_index(s.shape, [&](const Dims& i) {
    const double sum = total({i[0], i[1], i[2]});
    for (int64_t c = 0; sum > 0 && c < v.shape[3]; ++c)
      out({i[0], i[1], i[2], c}) += std::exp(s(i)) * factor(i) / sum * v({i[0], i[1] / group, i[3], c});
  });
  return tensor_of(out.v, {out.shape[0], out.shape[1], out.shape[2], out.shape[3]}, f64);
}

}  // namespace sluice::testing
