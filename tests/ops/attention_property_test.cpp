// The tiled attention() against its definition: random calls, the edges of tiles, gradients of both orders, huge
// scores, empty sizes; bits that may not depend on threads, layouts, memory that may not grow with m·n.
#include "support/attention_samples.h"
#include "support/catch.h"
#include "support/layouts.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/allocator.h>
#include <sluice/core/parallel.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Forward and all first gradients of attention() against the definition, in f64 and f32.
void check_against_definition(const AttentionSample& s, const std::vector<Tensor>* known = nullptr) {
  const std::vector<Tensor> want = known ? *known : run_attention(attention_reference, s);
  check_all_close(run_attention(attention, s), want, 1e-12, 1e-12, s.text());
  check_all_close(run_attention(attention, s.in(f32)), want, 4e-6, 2e-5, s.text() + " f32");
}

}  // namespace

TEST_CASE("attention: equals its definition over random calls", "[attention][property]") {
  Rand rand(2024);
  for (int i = 0; i < 250; ++i)
    check_against_definition(random_attention(rand, {.sizes = {1, 2, 3, 5, 9, 15, 16, 17, 33}}));
  for (int i = 0; i < 40; ++i)
    check_against_definition(random_attention(
        rand, {.sizes = {17, 63, 64, 65, 127, 128, 129, 130}, .batch = 2, .kv_heads = 2, .group = 2, .width = 5}));
}

TEST_CASE("attention: equals its definition at the edges of tiles", "[attention][property]") {
  Rand rand(7);
  const std::pair<int64_t, int64_t> tilings[] = {{0, 0}, {1, 64}, {7, 16}, {16, 7}, {64, 64}};
  int turn = 0;
  for (int64_t size : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 255, 256, 257})
    for (auto [m, n] : {std::pair<int64_t, int64_t>{size, size}, {3, size}, {size, 18}})
      for (bool causal : {false, true}) {
        AttentionSample s = plain_attention(rand, {1, 2, m, 4}, 1, n, 3);
        s.options.weighting = kWeightings[turn++ % 5];
        s.options.mask.causal = causal;
        if (turn % 3 == 0) s.options.relative_bias = random_tensor({2, n + m - 1}, f64, rand);
        if (turn % 4 == 0) s.options.mask.window = 1 + size / 2;
        if (turn % 7 == 0) s.options.dropout = 0.3;
        const std::vector<Tensor> want = run_attention(attention_reference, s);
        for (auto [rows, cols] : tilings) {
          s.options.tile_rows = rows, s.options.tile_cols = cols;
          check_against_definition(s, &want);
        }
      }
}

TEST_CASE("attention: long rows of keys, whose gradients are computed in parts", "[attention][property]") {
  Rand rand(8);
  for (Weighting weighting : kWeightings)
    for (bool causal : {false, true}) {
      AttentionSample s = plain_attention(rand, {1, 2, causal ? 1030 : 5, 3}, 1, 1100, 2);
      s.options.weighting = weighting, s.options.mask.causal = causal;
      s.options.relative_bias = random_tensor({1, s.k.dim(2) + s.q.dim(2) - 1}, f64, rand);
      check_against_definition(s);
    }
}

TEST_CASE("attention: gradients of gradients", "[attention][property]") {
  for (Weighting weighting : kWeightings)
    for (int variant = 0; variant < 6; ++variant) {
      Rand rand(static_cast<uint64_t>(variant) + 20);
      AttentionSample s = plain_attention(rand, {1, 2, 3, 2}, variant % 2 ? 1 : 2, variant == 4 ? 2 : 3, 2);
      AttentionOptions& o = s.options;
      o.weighting = weighting;
      o.mask.causal = variant >= 1;
      if (variant == 2) o.mask.keys = tensor_of({0, 1, 1}, {1, 3}, boolean);  // the first row sees nothing
      if (variant == 3) o.dropout = 0.4;
      if (variant == 5) o.row_scale = random_tensor({3}, f64, rand, 0.5, 1.5);
      // Far from the kink of relu²: scores are the bias ± 0.4.
      s.q = s.q * 0.3, s.k = s.k * 0.3;
      const Tensor far = tensor_of({1, -1, 1, 1, 1, -1, -1, 1, 1}, {3, 3}, f64);
      std::vector<Tensor> inputs{s.q, s.k, s.v, narrow(far, 1, 0, s.k.dim(2)),
                                 random_tensor({2, s.k.dim(2) + 2}, f64, rand, -0.1, 0.1)};
      const bool sink = weighting == Weighting::softmax && variant % 3 == 0;
      if (sink) inputs.push_back(random_tensor({2}, f64, rand));
      for (Tensor& x : inputs) x = clone(x).requires_grad_();
      const TensorFunction f = [&](const std::vector<Tensor>& x) {
        AttentionOptions with = o;
        with.bias = x[3], with.relative_bias = x[4];
        if (sink) with.sink = x[5];
        Rng rng(4);
        return attention(x[0], x[1], x[2], with, &rng);
      };
      const GradcheckResult first = gradcheck(f, inputs), second = gradgradcheck(f, inputs, {.tolerance = 1e-6});
      INFO(s.text() << ": " << first.message << "; " << second.message);
      CHECK(first.ok);
      CHECK(second.ok);
    }
}

TEST_CASE("attention: scores of 1e4 stay finite", "[attention][property]") {
  Rand rand(13);
  for (Weighting weighting : kWeightings)
    for (bool causal : {false, true})
      for (int64_t tile : {0, 7}) {
        AttentionSample s = plain_attention(rand, {1, 2, 40, 4}, 2, 40, 3);
        s.options.weighting = weighting, s.options.mask.causal = causal;
        s.options.scale = 3000, s.options.tile_rows = s.options.tile_cols = tile;
        const std::vector<Tensor> want = run_attention(attention_reference, s), got = run_attention(attention, s);
        check_all_close(got, want, 1e-11, 1e-9, s.text());
        for (const Tensor& x : run_attention(attention, s.in(f32))) CHECK(all_finite(x));
        if (weighting != Weighting::softmax) continue;
        s.options.sink = tensor_of({-2e4, 2e4}, {2}, f64);
        check_all_close(run_attention(attention, s), run_attention(attention_reference, s), 1e-11, 1e-9, s.text());
        const AttentionAndLse both = attention_with_lse(s.q, s.k, s.v, s.options);
        CHECK(all_finite(both.lse));
      }
}

TEST_CASE("attention: nothing in some direction", "[attention][property]") {
  Rand rand(14);
  struct Sizes {
    int64_t batch, heads, kv_heads, m, n, d, dv;
  };
  for (const Sizes& z : {Sizes{2, 2, 1, 0, 3, 2, 2},
                         {2, 2, 1, 3, 0, 2, 2},
                         {2, 2, 1, 3, 3, 0, 2},
                         {2, 2, 1, 3, 3, 2, 0},
                         {0, 2, 1, 3, 3, 2, 2},
                         {2, 0, 0, 3, 3, 2, 2},
                         {2, 0, 1, 3, 3, 2, 2},
                         {2, 2, 1, 0, 0, 2, 2},
                         {0, 0, 0, 0, 0, 0, 0}})
    for (Weighting weighting : kWeightings)
      for (bool causal : {false, true}) {
        AttentionSample s;
        s.q = random_tensor({z.batch, z.heads, z.m, z.d}, f64, rand),
        s.k = random_tensor({z.batch, z.kv_heads, z.n, z.d}, f64, rand);
        s.v = random_tensor({z.batch, z.kv_heads, z.n, z.dv}, f64, rand);
        s.options.weighting = weighting, s.options.mask.causal = causal;
        INFO(s.text());
        const std::vector<Tensor> got = run_attention(attention, s), want = run_attention(attention_reference, s);
        CHECK(got[0].shape() == Shape{z.batch, z.heads, z.m, z.dv});
        for (std::size_t i = 0; i < 4; ++i) CHECK(max_abs_diff(got[i], want[i]) < 1e-14);
        if (z.n == 0) CHECK(max_abs(got[0]) == 0);
        if (weighting != Weighting::softmax) continue;
        const AttentionAndLse both = attention_with_lse(s.q, s.k, s.v, s.options);
        CHECK(both.lse.shape() == Shape{z.batch, z.heads, z.m});
        if (z.n == 0) CHECK(all(both.lse == -INFINITY).item() == 1);
      }
}

TEST_CASE("attention: one thread or two, the same bits", "[attention][bits]") {
  const int before = num_threads();
  Rand rand(15);
  for (int i = 0; i < 40; ++i) {
    AttentionSample s =
        random_attention(rand, {.sizes = {33, 129, 140}, .batch = 2, .kv_heads = 2, .group = 2, .width = 9});
    if (i == 0) s = plain_attention(rand, {1, 2, 200, 8}, 1, 1500, 8);
    for (DType dtype : {f64, f32}) {
      const AttentionSample typed = s.in(dtype);
      set_num_threads(1);
      const std::vector<Tensor> one = run_attention(attention, typed);
      set_num_threads(2);
      check_all_same(run_attention(attention, typed), one, s.text());
    }
  }
  set_num_threads(before);
}

TEST_CASE("attention: heads may lie between the rows, and anywhere else", "[attention][property]") {
  // BLAS may sum in another order when rows lie apart.
  auto check_rounding = [](const std::vector<Tensor>& got, const std::vector<Tensor>& want, const std::string& text) {
    const bool wide = got[0].dtype() == f64;
    check_all_close(got, want, wide ? 1e-14 : 2e-6, wide ? 1e-14 : 5e-6, text);
  };
  Rand rand(16);
  for (int i = 0; i < 60; ++i) {
    const AttentionSample s = random_attention(rand, {.sizes = {1, 2, 5, 17, 40, 65}});
    for (DType dtype : {f64, f32}) {
      AttentionSample typed = s.in(dtype), other = typed;
      const std::vector<Tensor> want = run_attention(attention, typed);
      for (Tensor* x : {&other.q, &other.k, &other.v})  // [batch, n, heads, d] in memory
        *x = transpose(contiguous(transpose(*x, 1, 2)), 1, 2);
      check_rounding(run_attention(attention, other), want, s.text() + " heads between rows");
      for (Storing how : {Storing::permuted, Storing::gapped, Storing::reversed, Storing::offset}) {
        other = typed;
        AttentionOptions& o = other.options;
        for (Tensor* x : {&other.q, &other.k, &other.v, &o.bias, &o.relative_bias, &o.sink, &o.row_scale, &o.mask.keys,
                          &o.mask.query_segments, &o.mask.key_segments, &o.mask.blocks, &o.mask.dense})
          if (x->defined()) *x = stored(*x, how);
        check_rounding(run_attention(attention, other), want, s.text() + " " + std::string(name_of(how)));
      }
    }
  }
}

TEST_CASE("attention: memory grows with m + n, not with their product", "[attention][memory]") {
  Rand rand(18);
  const int64_t n = 3000;
  for (Weighting weighting : kWeightings)
    for (bool causal : {false, true}) {
      AttentionSample s = plain_attention(rand, {1, 1, n, 4}, 1, n, 4).in(f32);
      s.options.weighting = weighting, s.options.mask.causal = causal, s.options.mask.window = causal ? 50 : 0;
      s.options.relative_bias = random_tensor({1, 2 * n - 1}, f32, rand);
      s.options.dropout = causal ? 0.1 : 0;
      const int64_t before = memory_stats().live;
      reset_peak_memory();
      run_attention(attention, s);
      INFO(s.text());
      CHECK(memory_stats().peak - before < n * n * 4 / 8);
    }
}
