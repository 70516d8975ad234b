// Attention to sorted blocks, against loops.
#include "layers/sparse_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/heads/sinkhorn.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <algorithm>
#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// One sequence and head: q [n, d], k [n, d], v [n, dv], real [n]; P [G, G] given.
Array naive_blocks(const Array& q, const Array& k, const Array& v, const std::vector<bool>& real, const Array& p,
                   int64_t block) {
  const int64_t n = q.shape[0], d = q.shape[1], dv = v.shape[1], blocks = p.shape[0];
  auto is_real = [&](int64_t j) { return j < n && real[static_cast<std::size_t>(j)]; };
  Array out({n, dv});
  for (int64_t i = 0; i < n; ++i) {
    if (!is_real(i)) continue;
    double total = 0;
    std::vector<double> sum(static_cast<std::size_t>(dv), 0);
    auto attend = [&](const std::vector<double>& key, const std::vector<double>& value, double share) {
      double s = 0;
      for (int64_t c = 0; c < d; ++c)
        s += q({i, c}) * key[static_cast<std::size_t>(c)] / std::sqrt(static_cast<double>(d));
      const double w = share * std::exp(s);
      total += w;
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += w * value[c];
    };
    const int64_t own = i / block;
    for (int64_t t = 0; t < block; ++t) {
      std::vector<double> key(static_cast<std::size_t>(d), 0), value(static_cast<std::size_t>(dv), 0);
      auto add = [&](int64_t j, double w) {
        for (int64_t c = 0; c < d; ++c) key[static_cast<std::size_t>(c)] += w * k({j, c});
        for (int64_t c = 0; c < dv; ++c) value[static_cast<std::size_t>(c)] += w * v({j, c});
      };
      if (is_real(own * block + t)) add(own * block + t, 1), attend(key, value, 1);
      // Slot t of the sorted block: the mean of the real tokens at slot t, weighed by P.
      double share = 0;
      for (int64_t h = 0; h < blocks; ++h)
        if (is_real(h * block + t)) share += p({own, h});
      std::fill(key.begin(), key.end(), 0), std::fill(value.begin(), value.end(), 0);
      for (int64_t h = 0; h < blocks; ++h)
        if (is_real(h * block + t)) add(h * block + t, p({own, h}) / share);
      if (share > 0) attend(key, value, share);
    }
    for (int64_t c = 0; c < dv; ++c) out({i, c}) = sum[static_cast<std::size_t>(c)] / total;
  }
  return out;
}

/// P by its definition: means of real tokens, then sinkhorn() of what has any.
Array naive_permutation(const Array& q, const Array& k, const std::vector<bool>& real, int64_t block,
                        const SinkhornOptions& s) {
  const int64_t n = q.shape[0], d = q.shape[1], blocks = (n + block - 1) / block;
  std::vector<int64_t> live;
  std::vector<std::vector<double>> mq, mk;
  for (int64_t g = 0; g < blocks; ++g) {
    std::vector<double> a(static_cast<std::size_t>(d), 0), b = a;
    double count = 0;
    for (int64_t j = g * block; j < std::min(n, (g + 1) * block); ++j) {
      if (!real[static_cast<std::size_t>(j)]) continue;
      ++count;
      for (int64_t c = 0; c < d; ++c)
        a[static_cast<std::size_t>(c)] += q({j, c}), b[static_cast<std::size_t>(c)] += k({j, c});
    }
    if (count == 0) continue;
    for (double& x : a) x /= count;
    for (double& x : b) x /= count;
    live.push_back(g), mq.push_back(a), mk.push_back(b);
  }
  const auto size = static_cast<int64_t>(live.size());
  std::vector<double> scores;
  for (const auto& a : mq)
    for (const auto& b : mk) {
      double dot = 0;
      for (std::size_t c = 0; c < a.size(); ++c) dot += a[c] * b[c] / std::sqrt(static_cast<double>(d));
      scores.push_back(dot);
    }
  const Array small = array_of(sinkhorn(Tensor::from(scores, {size, size}), s));
  Array p({blocks, blocks});
  for (int64_t g = 0; g < size; ++g)
    for (int64_t h = 0; h < size; ++h)
      p({live[static_cast<std::size_t>(g)], live[static_cast<std::size_t>(h)]}) = small({g, h});
  return p;
}

}  // namespace

TEST_CASE("sinkhorn blocks: against loops, ragged and padded", "[sinkhorn]") {
  Rand rand(1);
  for (int64_t n : {1, 4, 12, 14})
    for (int padding = 0; padding < 3; ++padding) {
      if (padding > 0 && n < 12) continue;
      INFO("n=" << n << ", padding " << padding);
      const Qkv x = random_qkv(rand, 2, 4, 2, n, n);
      std::vector<bool> real(static_cast<std::size_t>(2 * n), true);
      if (padding == 1) std::fill(real.end() - 5, real.end(), false);  // into a block, and all of the last
      if (padding == 2) real[2] = real[9] = real[static_cast<std::size_t>(n) + 4] = false;
      const Tensor keys = Tensor::from(real, {2, n});
      SinkhornBlockOptions o{.block = 4};
      Qkv y = x;
      if (padding > 0) {
        o.keys = keys;
        const Tensor hidden = reshape(logical_not(keys), {2, 1, n, 1});
        for (Tensor* t : {&y.q, &y.k, &y.v}) *t = masked_fill(*t, hidden, NAN);
      }
      for (Tensor* t : {&y.q, &y.k, &y.v}) t->requires_grad_();
      const Tensor got = sinkhorn_block_attention(y.q, y.k, y.v, o), p = block_permutation(y.q, y.k, o);
      double worst = 0;
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t h = 0; h < 4; ++h) {
          auto part = [&](const Tensor& t, int64_t head) { return array_of(select(select(t, 0, b), 0, head)); };
          const std::vector<bool> row(real.begin() + b * n, real.begin() + (b + 1) * n);
          const Array q = part(x.q, h), k = part(x.k, h / 2), v = part(x.v, h / 2),
                      want_p = naive_permutation(q, k, row, 4, o.sinkhorn);
          const Array want = naive_blocks(q, k, v, row, want_p, 4);
          worst = std::max(
              worst, max_abs_diff(select(select(p, 0, b), 0, h), tensor_of(want_p.v, {(n + 3) / 4, (n + 3) / 4}, f64)));
          worst = std::max(worst, max_abs_diff(select(select(got, 0, b), 0, h), tensor_of(want.v, {n, 4}, f64)));
        }
      CHECK(worst < 1e-12);
      for (const Tensor& g : grad({sum(got)}, {y.q, y.k, y.v})) CHECK(std::isfinite(max_abs(g)));
    }
}

TEST_CASE("sinkhorn blocks: limits, noise, errors", "[sinkhorn]") {
  Rand rand(2);
  // One block: [own | sorted] is the same block twice, which changes no mean.
  const Qkv x = random_qkv(rand, 2, 2, 2, 6, 6);
  CHECK(max_abs_diff(sinkhorn_block_attention(x.q, x.k, x.v, {.block = 6}), attention(x.q, x.k, x.v)) < 1e-13);
  CHECK(max_abs_diff(sinkhorn_block_attention(x.q, x.k, x.v, {.block = 9}), attention(x.q, x.k, x.v)) < 1e-13);
  // A large λ sorts whole blocks: each query sees its own block and the one that P assigns to it.
  const SinkhornBlockOptions sharp{.block = 2, .sinkhorn = {.lambda = 2000, .iterations = 2000}};
  const std::vector<double> p = block_permutation(x.q, x.k, sharp).to_vector<double>();
  std::vector<bool> seen;
  int64_t twice = 0;
  for (int64_t r = 0; r < 4 * 3; ++r)
    for (int64_t row = 0; row < 2; ++row)
      for (int64_t j = 0; j < 6; ++j) {
        const double w = p[static_cast<std::size_t>(r * 3 + j / 2)];
        CHECK(std::min(w, 1 - w) < 1e-2);
        twice += w > 0.5 && r % 3 == j / 2;
        seen.push_back(w > 0.5 || r % 3 == j / 2);
      }
  CHECK(twice < 4 * 3 * 2 * 2);  // not all blocks are sorted to themselves
  const Tensor mask = Tensor::from(seen, {2, 2, 6, 6});
  CHECK(max_abs_diff(sinkhorn_block_attention(x.q, x.k, x.v, sharp),
                     attention(x.q, x.k, x.v, {.mask = {.dense = mask}})) < 0.05);

  const SinkhornBlockOptions noisy{.block = 2, .sinkhorn = {.gumbel = 1}};
  Rng a(1), b(1);
  const Tensor once = sinkhorn_block_attention(x.q, x.k, x.v, noisy, &a);
  CHECK(same_bits(once, sinkhorn_block_attention(x.q, x.k, x.v, noisy, &b)));
  CHECK(max_abs_diff(once, sinkhorn_block_attention(x.q, x.k, x.v, noisy)) > 1e-3);
  CHECK(max_abs_diff(to(sinkhorn_block_attention(to(x.q, f32), to(x.k, f32), to(x.v, f32), {.block = 2}), f64),
                     sinkhorn_block_attention(x.q, x.k, x.v, {.block = 2})) < 1e-5);
  CHECK(sinkhorn_block_attention(zeros({2, 1, 0, 3}), zeros({2, 1, 0, 3}), zeros({2, 1, 0, 5})).shape() ==
        Shape{2, 1, 0, 5});
  CHECK(sinkhorn_block_attention(zeros({0, 1, 4, 3}), zeros({0, 1, 4, 3}), zeros({0, 1, 4, 5})).shape() ==
        Shape{0, 1, 4, 5});
  CHECK_THROWS_WITH(sinkhorn_block_attention(x.q, x.k, x.v, {.block = 0}), Contains("block must be in [1, 2^31)"));
  CHECK_THROWS_AS(block_permutation(x.q, x.k, {.causal = true}), ValueError);
  CHECK_THROWS_WITH(sinkhorn_block_attention(x.q, x.k, x.v, {.keys = ones({2, 5}, {boolean})}), Contains("[2,5]"));
}
