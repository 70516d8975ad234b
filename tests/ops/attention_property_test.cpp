// The tiled attention() against its definition: random calls, the edges of tiles, huge scores, layouts; memory that may
// not grow with m·n. What its rows in support/cases_attention.cpp cover is not repeated.
#include "support/attention_samples.h"
#include "support/catch.h"
#include "support/layouts.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <array>

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
  for (int i = 0; i < 40; ++i)  // wide ones: on AMX, in three parts
    check_against_definition(
        random_attention(rand, {.sizes = {64, 65, 127, 130, 200}, .batch = 2, .kv_heads = 2, .group = 2, .width = 80}));
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

TEST_CASE("attention: backward has the scores of forward, to the bit", "[attention][identity]") {
  if (isa() == Isa::base) {
    WARN("not run: OpenBLAS computes all products, in an order that their shapes decide");
    return;
  }
  // At scores of 10⁶ a row sees one key, with weight 1, as long as e^{S − lse} is taken of the same S: in f32 another
  // order of the sum is another number by 0.1. With g = 1, each column of dV adds up to the number of rows.
  Rand rand(9);
  for (const auto& [heads, kv_heads, m, n] : std::vector<std::array<int64_t, 4>>{{2, 1, 1, 1},
                                                                                 {4, 1, 1, 7},
                                                                                 {4, 2, 3, 9},
                                                                                 {6, 2, 4, 40},
                                                                                 {2, 2, 4, 40},
                                                                                 {2, 1, 5, 5},
                                                                                 {4, 1, 13, 13},
                                                                                 {2, 1, 65, 65},
                                                                                 {2, 1, 129, 129},
                                                                                 {2, 2, 129, 257},
                                                                                 {1, 1, 130, 513},
                                                                                 {4, 2, 259, 514}})
    for (const AttentionMask& mask :
         {AttentionMask{}, AttentionMask{.causal = true}, AttentionMask{.causal = true, .window = 5}})
      for (const auto& [rows, cols] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {3, 4}, {1, 1}, {4, 7}, {64, 64}}) {
        if (rows == 1 && m > 65) continue;
        INFO(heads << " heads of " << kv_heads << ", " << m << " x " << n << ", causal " << mask.causal << ", window "
                   << mask.window << ", tiles of " << rows << " x " << cols);
        const Tensor q = random_tensor({1, heads, m, 24}, f32, rand) * 1000.0,
                     k = random_tensor({1, kv_heads, n, 24}, f32, rand) * 1000.0;
        const Tensor v = random_tensor({1, kv_heads, n, 24}, f32, rand).requires_grad_();
        const Tensor y = attention(q, k, v, {.scale = 1, .mask = mask, .tile_rows = rows, .tile_cols = cols});
        const Tensor dv = grad({sum(y)}, {v})[0];
        CHECK(max_abs(sum(dv, {2}) - static_cast<double>(m * heads / kv_heads)) < 1e-3 * static_cast<double>(m));
      }
}

TEST_CASE("attention: the queries of neighbouring heads may overlap", "[attention]") {
  // The first tile of a head begins where the last one of the head before does, and is longer.
  Rng rng(1);
  const Tensor base = normal({1, 128 * 7 + 200, 32}, 0, 1, rng), keys = normal({1, 4, 256, 32}, 0, 1, rng);
  set_num_threads(1);
  const auto run = [&](Tensor q) {
    q = q.detach().requires_grad_();
    const Tensor y = attention(q, keys, keys);
    return std::pair(y.detach(), grad({sum(square(y))}, {q})[0]);
  };
  const Tensor q = transpose(unfold(base, 1, 200, 128), -1, -2);
  const auto [y, g] = run(q);
  const auto [want, slope] = run(clone(q));
  set_num_threads(0);
  CHECK(max(abs(y - want)).item() == 0);
  CHECK(max(abs(g - slope)).item() == 0);
}
