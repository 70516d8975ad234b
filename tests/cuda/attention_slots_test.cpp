// The slots of attention on the device against those of the CPU: random calls with every option, forward and backward.
#include "attention_slots.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/cuda/emulator/emulator.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

void check_close(const SlotResults& got, const SlotResults& want, double tolerance, const std::string& text) {
  check_all_close(got.forward, want.forward, tolerance, tolerance, text + ", forward");
  check_all_close(got.backward, want.backward, 4 * tolerance, 4 * tolerance, text + ", backward");
}

/// Sizes beyond a warp's rows, a block's, a tile's columns, a piece of a sum and of a result, remainder 1 included.
const SampleLimits kLimits{.sizes = {1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 97, 129}, .width = 9};
AttentionSample wide_sample(Rand& rand, int64_t d, int64_t dv) {
  AttentionSample s = random_attention(rand, kLimits);
  s.q = random_tensor({s.q.dim(0), s.q.dim(1), s.q.dim(2), d}, f64, rand),
  s.k = random_tensor({s.k.dim(0), s.k.dim(1), s.k.dim(2), d}, f64, rand);
  s.v = random_tensor({s.v.dim(0), s.v.dim(1), s.v.dim(2), dv}, f64, rand);
  return s;
}

}  // namespace

TEST_CASE("cuda attention: random calls equal the CPU's, forward and backward", "[cuda]") {
  Rand rand(31);
  for (int i = 0; i < 100; ++i) {
    const AttentionSample s = random_attention(rand, kLimits);
    const SlotResults want = run_slots(s, cpu, i % 2);
    check_close(run_slots(s, Device::cuda(), i % 2), want, 1e-12, s.text());
    if (i % 3 == 0) check_close(run_slots(s.in(f32), Device::cuda(), i % 2), want, 4e-6, s.text() + " in f32");
  }
}

TEST_CASE("cuda attention: the spans of causal masks and windows, wherever their edges fall in a tile", "[cuda]") {
  Rand rand(30);
  for (int64_t extra = -3; extra < 40; ++extra)
    for (const AttentionMask& mask : {AttentionMask{.causal = true}, {.window = 34}, {.causal = true, .window = 40}}) {
      AttentionSample s = plain_attention(rand, {1, 1, 32, 2}, 1, 32 + extra, 3);
      s.options.mask = mask;
      check_close(run_slots(s, Device::cuda(), false), run_slots(s, cpu, false), 1e-12, s.text());
    }
}

TEST_CASE("cuda attention: any widths", "[cuda]") {
  Rand rand(32);
  const int64_t widths[][2] = {{1, 33},   {33, 1}, {64, 65}, {65, 128},  {129, 31},
                               {63, 129}, {0, 3},  {3, 0},   {130, 257}, {0, 0}};
  for (const auto& [d, dv] : widths) {
    const AttentionSample s = wide_sample(rand, d, dv);
    const SlotResults want = run_slots(s, cpu, false);
    check_close(run_slots(s, Device::cuda(), false), want, 2e-12, s.text());
    check_close(run_slots(s.in(f32), Device::cuda(), true), want, 2e-5, s.text() + " in f32");
  }
}

TEST_CASE("cuda attention: few queries of many keys, which are shared among blocks", "[cuda]") {
  Rand rand(29);
  for (int i = 0; i < 24; ++i) {
    const AttentionSample s = random_attention(
        rand, {.sizes = {511, 512, 513, 1000, 1025}, .batch = 1, .kv_heads = 2, .group = 2, .width = 5});
    const int64_t m = 1 + rand.below(20), n = s.k.dim(2);
    AttentionSample few = s;
    few.q = contiguous(narrow(s.q, 2, 0, m));
    for (Tensor* x : {&few.options.bias, &few.options.mask.query_segments, &few.options.mask.blocks,
                      &few.options.mask.dense, &few.options.relative_bias, &few.options.row_scale})
      *x = Tensor();
    few.options.mask.key_segments = Tensor(), few.options.mask.block = 0;
    if (i % 2) few.options.relative_bias = random_tensor({1, n + m - 1}, f64, rand);
    if (i % 4 == 0) few.options.mask.keys = s.options.mask.keys;
    const SlotResults want = run_slots(few, cpu, false), got = run_slots(few, Device::cuda(), i % 3 == 0);
    check_close(got, want, 2e-12, few.text());
    check_close(run_slots(few.in(f32), Device::cuda(), false), want, 1e-5, few.text() + " in f32");
  }
}

// A step of decoding: its cache, long and of bf16, is not copied to f32.
TEST_CASE("cuda attention: few queries or keys of bf16 are read as they lie", "[cuda]") {
  const Device gpu = Device::cuda();
  Rng rng(7);
  const auto laid = [&](int64_t heads, int64_t n, int64_t d) {
    return transpose(to(to(normal({2, n, heads, d}, 0, 1, rng), bf16), gpu), 1, 2);
  };
  for (const auto& [m, n, d, dv] :
       std::vector<std::array<int64_t, 4>>{{1, 900, 24, 40}, {5, 33, 8, 8}, {40, 7, 16, 72}}) {
    AttentionOptions o{.scale = 0.3, .mask = {.causal = m < n, .window = 700}};
    o.sink = to(to(normal({4}, 0, 1, rng), bf16), gpu);
    o.relative_bias = to(to(normal({4, m + n - 1}, 0, 1, rng), bf16), gpu);
    const Tensor q = laid(4, m, d), k = laid(2, n, d), v = laid(2, n, dv);
    const NoGrad guard;
    AttentionOptions wide = o;
    wide.sink = to(o.sink, f32), wide.relative_bias = to(o.relative_bias, f32);
    const Tensor want = to(to(attention(to(q, f32), to(k, f32), to(v, f32), wide), bf16), cpu);
    sluice::detail::backend(gpu).reset_peak(0);
    const int64_t before = sluice::detail::backend(gpu).memory_stats(0).live;
    const Tensor got = attention(q, k, v, o);
    if (n == 900) CHECK(sluice::detail::backend(gpu).memory_stats(0).peak - before < 2 * k.numel());
    CHECK(same_bits(to(got, cpu), want));
  }
}

TEST_CASE("cuda attention: the same bits wherever rows begin, in whole vectors of 16 bytes or not", "[cuda]") {
  const Device gpu = Device::cuda();
  Rng rng(8);
  for (const DType dtype : {f32, bf16})
    for (const int64_t d : {20, 24, 72}) {  // 20: whole vectors of f32, not of bf16
      INFO("d " << d);
      const auto laid = [&](const Tensor& x, int64_t before, int64_t behind) {  // NaN around each row
        return narrow(to(pad(x, 3, before, behind, NAN), gpu), 3, before, d);
      };
      const auto numbers = [&](int64_t heads, int64_t n) { return to(normal({2, heads, n, d}, 0, 1, rng), dtype); };
      const Tensor q = numbers(4, 3), k = numbers(2, 70), v = numbers(2, 70);
      const NoGrad guard;
      const auto result = [&](int64_t before, int64_t behind) {
        return to(attention(laid(q, before, behind), laid(k, before, behind), laid(v, before, behind),
                            {.scale = 0.3, .mask = {.causal = true}}),
                  cpu);
      };
      const Tensor want = result(0, 1);  // number by number
      for (const auto& [before, behind] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {8, 8}, {1, 7}, {4, 4}, {2, 0}, {0, 4}})
        CHECK(same_bits(result(before, behind), want));
      CHECK(all(isfinite(to(want, f32))).item() != 0);
    }
}

TEST_CASE("cuda attention: heads of one query that share keys, as rows of one tile and each by itself", "[cuda]") {
  const Device gpu = Device::cuda();
  Rng rng(9);
  for (const int64_t heads : {2, 6, 32})  // 1, 3 and 16 of a key head
    for (const bool masked : {false, true}) {
      INFO(heads << " heads, masked " << masked);
      const Tensor q = normal({2, heads, 1, 24}, 0, 1, rng), k = normal({2, 2, 600, 24}, 0, 1, rng),
                   v = normal({2, 2, 600, 40}, 0, 1, rng);
      AttentionOptions o{.scale = 0.3, .mask = {.causal = true}}, there = o;
      if (masked) o.mask.keys = normal({2, 600}, 0, 1, rng) > 0.0, there.mask.keys = to(o.mask.keys, gpu);
      const NoGrad guard;
      const Tensor want = attention(q, k, v, o), got = attention(to(q, gpu), to(k, gpu), to(v, gpu), there);
      CHECK(max_abs(to(got, cpu) - want) < 1e-5);
    }
}

TEST_CASE("cuda attention: sizes of 0", "[cuda]") {
  Rand rand(33);
  for (Weighting w : {Weighting::softmax, Weighting::linear})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{0, 3}, {3, 0}}) {
      AttentionSample s = plain_attention(rand, {2, 4, m, 3}, 2, n, 2);
      s.options.weighting = w;
      if (n > 0) s.options.relative_bias = random_tensor({4, n + m - 1}, f64, rand);
      const SlotResults want = run_slots(s, cpu, false);
      check_close(run_slots(s, Device::cuda(), false), want, 1e-12, s.text());
    }
}

TEST_CASE("cuda attention: NaN behind the mask stays there", "[cuda]") {
  Rand rand(34);
  check_hidden_values(rand, kLimits, 60, [](const AttentionSample& s, const Tensor& poison) {
    return run_slots(s, Device::cuda(), false, poison);
  });
}

TEST_CASE("cuda attention: a key of NaN reaches those who see it, and nobody else", "[cuda]") {
  Rand rand(35);
  for (int i = 0; i < 30; ++i) {
    AttentionSample s = random_attention(rand, kLimits);
    s.options.mask.causal = true, s.options.dropout = 0;
    const SlotResults want = run_slots(s, Device::cuda(), true);
    const int64_t n = s.k.dim(2), j = rand.below(n);
    Tensor where = zeros({n}, {.dtype = boolean});
    where.mutable_data<bool>()[j] = true;
    s.k = filled(s.k, expand(unsqueeze(where, 1), s.k.shape()), NAN),
    s.v = filled(s.v, expand(unsqueeze(where, 1), s.v.shape()), NAN);
    const SlotResults got = run_slots(s, Device::cuda(), true);
    const Tensor sees = unsqueeze(reshape(narrow(s.visible(), 3, j, 1), {s.q.dim(0), s.q.dim(1), s.q.dim(2)}), 3);
    const auto spared = [&](const Tensor& x) { return filled(x, expand(sees, x.shape()), 0); };
    check_all_same({spared(got.forward[0]), spared(got.backward[0])},
                   {spared(want.forward[0]), spared(want.backward[0])}, s.text());
    CHECK_FALSE(any(logical_and(isfinite(got.forward[0]), expand(sees, got.forward[0].shape()))).item() != 0);
  }
}

TEST_CASE("cuda attention: the same bits in every schedule", "[cuda]") {
  Rand rand(36);
  for (int i = 0; i < 8; ++i) {
    const AttentionSample s = random_attention(rand, kLimits).in(f32);
    const SlotResults want = run_slots(s, Device::cuda(), false);
    for (uint64_t seed : {2u, 3u}) {
      cuda::emulator::set_schedule(seed);
      const SlotResults got = run_slots(s, Device::cuda(), false);
      check_all_same(got.forward, want.forward, s.text());
      check_all_same(got.backward, want.backward, s.text());
    }
    cuda::emulator::set_schedule(0);
  }
}
