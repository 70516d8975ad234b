// Attention to sorted blocks: heads, limits, noise, errors. sparse_layers_reference.cpp says what it computes.
#include "layers/sparse_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/layers/attention/sinkhorn.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("sinkhorn blocks: shared KV heads are repeated ones, P is doubly stochastic", "[sinkhorn]") {
  Rand rand(1);
  for (int64_t n : {1, 4, 12, 14}) {
    INFO("n=" << n);
    const Qkv x = random_qkv(rand, 2, 4, 2, n, n);
    const auto repeated = [](const Tensor& t) { return repeat_interleave(t, 2, 1); };
    CHECK(max_abs_diff(sinkhorn_block_attention(x.q, x.k, x.v, {.block = 4}),
                       sinkhorn_block_attention(x.q, repeated(x.k), repeated(x.v), {.block = 4})) < 1e-14);
    const Tensor at = arange(2 * n), real = logical_and(ne(at, 2.0), lt(at, static_cast<double>(2 * n - 5)));
    const Tensor keys = reshape(real, {2, n});
    check_ignores_padding(
        x, keys, [&](const Qkv& y) { return sinkhorn_block_attention(y.q, y.k, y.v, {.block = 4, .keys = keys}); });
    const SinkhornBlockOptions long_run{.block = 4, .sinkhorn = {.iterations = 300}};
    const Tensor p = block_permutation(x.q, x.k, long_run);
    REQUIRE(p.shape() == Shape{2, 4, (n + 3) / 4, (n + 3) / 4});
    for (int64_t dim : {-1, -2}) CHECK(max_abs_diff(sum(p, {dim}), ones({2, 4, (n + 3) / 4}, {f64})) < 1e-10);
  }
}

TEST_CASE("sinkhorn blocks: limits, noise, errors", "[sinkhorn]") {
  Rand rand(2);
  // One block: [own | sorted] is the same block twice, which changes no mean.
  const Qkv x = random_qkv(rand, 2, 2, 2, 6, 6);
  CHECK(max_abs_diff(sinkhorn_block_attention(x.q, x.k, x.v, {.block = 6}), attention(x.q, x.k, x.v)) < 1e-13);
  CHECK(max_abs_diff(sinkhorn_block_attention(x.q, x.k, x.v, {.block = 9}), attention(x.q, x.k, x.v)) < 1e-13);
  const auto unscaled = [&](int64_t block) {  // e^{λA}: the means are of tokens, not of slots
    return block_permutation(x.q, x.k, {.block = block, .sinkhorn = {.iterations = 0}});
  };
  CHECK(max_abs_diff(unscaled(9), unscaled(6)) < 1e-13);
  const auto peak = [&](int64_t block) {  // bytes
    const int64_t before = memory_stats().live;
    reset_peak_memory();
    sinkhorn_block_attention(x.q, x.k, x.v, {.block = block, .keys = ones({2, 6}, {boolean})});
    return memory_stats().peak - before;
  };
  peak(6);  // buffers that stay
  CHECK(peak(1 << 16) < 2 * peak(6));
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
