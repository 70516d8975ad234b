// Attention of few queries of bf16 to many keys, as in a step of decoding, against attention of the same numbers in f64
// on the CPU: one key beyond every tile and part, rows beyond a tile, masks, sinks, strides, NaN behind the mask.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <vector>

using namespace sluice;
using namespace sluice::testing;

namespace {

const Device gpu = Device::cuda();

struct Call {
  int64_t batch, heads, kv_heads, m, n, d, dv;
  AttentionOptions options = {};
};

/// Attention there and here, and on both sides the gradients of q, k and v for an output gradient of ones.
void check(const Call& c, uint64_t seed) {
  INFO("heads " << c.heads << " of " << c.kv_heads << ", m " << c.m << ", n " << c.n << ", d " << c.d << ", dv " << c.dv
                << ", weighting " << static_cast<int>(c.options.weighting) << ", causal " << c.options.mask.causal
                << ", window " << c.options.mask.window);
  Rng rng(seed);
  const auto laid = [&](int64_t heads, int64_t n, int64_t d) {  // [batch, n, heads, d] in memory, as caches lie
    return transpose(to(normal({c.batch, n, heads, d}, 0, 1, rng), bf16), 1, 2);
  };
  const Tensor q = laid(c.heads, c.m, c.d), k = laid(c.kv_heads, c.n, c.d), v = laid(c.kv_heads, c.n, c.dv);
  AttentionOptions there = c.options, here = c.options;
  if (here.sink.defined()) there.sink = to(here.sink, gpu), here.sink = to(here.sink, f64);
  if (here.mask.keys.defined()) there.mask.keys = to(here.mask.keys, gpu);
  const auto with_gradients = [](Tensor a, Tensor b, Tensor e, const AttentionOptions& o) {
    std::vector<Tensor> x{a.detach(), b.detach(), e.detach()};
    for (Tensor& t : x) t.requires_grad_();
    std::vector<Tensor> results{attention(x[0], x[1], x[2], o)};
    for (const Tensor& t : grad({sum(results[0])}, x)) results.push_back(t);
    return results;
  };
  const std::vector<Tensor> got = with_gradients(to(q, gpu), to(k, gpu), to(v, gpu), there);
  const std::vector<Tensor> want = with_gradients(to(q, f64), to(k, f64), to(v, f64), here);
  CHECK(got[0].dtype() == bf16);
  CHECK(relative_distance(got[0], want[0]) < 0x1p-8);
  for (std::size_t i = 1; i < want.size(); ++i) CHECK(relative_distance(got[i], want[i]) < 0x1p-6);
}

}  // namespace

TEST_CASE("cuda attention of few queries: sizes beyond every tile and part", "[cuda]") {
  uint64_t seed = 1;
  for (const int64_t n : {16, 31, 127, 128, 129, 255, 257, 385, 513, 2049})
    for (const int64_t m : {1, 3}) check({2, 4, 2, m, n, 64, 64, {.scale = 0.3}}, ++seed);
  for (const int64_t n : {129, 900}) check({1, 2, 1, 1, n, 128, 128, {.scale = 0.2, .mask = {.causal = true}}}, ++seed);
  for (const auto& [d, dv] : {std::pair{16, 16}, {24, 40}, {62, 64}, {72, 126}, {128, 8}, {30, 66}})
    check({1, 3, 1, 2, 300, d, dv, {.scale = 0.3}}, ++seed);
}

TEST_CASE("cuda attention of few queries: rows beyond a tile", "[cuda]") {
  uint64_t seed = 40;
  for (const int64_t heads : {5, 15, 17, 33}) check({2, heads, 1, 1, 300, 64, 64, {.scale = 0.3}}, ++seed);
  for (const int64_t m : {5, 15}) check({1, 6, 2, m, 200, 64, 64, {.scale = 0.3, .mask = {.causal = true}}}, ++seed);
  check({1, 1, 1, 40, 1030, 64, 64, {.scale = 0.3, .mask = {.causal = true}}}, ++seed);  // rung 3 would have one block
}

TEST_CASE("cuda attention of few queries: weightings, masks and sinks", "[cuda]") {
  uint64_t seed = 60;
  Rng rng(9);
  for (const Weighting w :
       {Weighting::softmax, Weighting::relu2, Weighting::laplace, Weighting::sigmoid, Weighting::linear})
    for (const AttentionMask& mask : {AttentionMask{.causal = true}, {.causal = true, .window = 70}, {.window = 150}}) {
      AttentionOptions o{.weighting = w, .scale = 0.3, .mask = mask};
      check({2, 4, 2, 4, 300, 64, 64, o}, ++seed);
      o.mask.keys = normal({2, 300}, 0, 1, rng) > 0.5;
      if (w == Weighting::softmax) o.sink = to(normal({4}, 0, 1, rng), bf16);
      check({2, 4, 2, 4, 300, 64, 64, o}, ++seed);
    }
}

TEST_CASE("cuda attention of few queries: rows that see nothing, large scores, NaN", "[cuda]") {
  Rng rng(5);
  const auto numbers = [&](int64_t heads, int64_t n) { return to(normal({1, heads, n, 64}, 0, 1, rng), bf16); };
  const Tensor q = numbers(4, 3), k = numbers(2, 300), v = numbers(2, 300);
  const NoGrad guard;
  const auto there = [&](const Tensor& keys, const Tensor& values, AttentionOptions o) {
    return to(to(attention(to(q, gpu), to(keys, gpu), to(values, gpu), o), cpu), f64);
  };
  const Tensor nobody = zeros({1, 300}, {boolean, cpu});
  CHECK(max_abs(there(k, v, {.mask = {.keys = to(nobody, gpu)}})) == 0);
  // 2,000 times the scores: one key has all the weight.
  const Tensor sharp = there(k, v, {.scale = 2000}),
               want = attention(to(q, f64), to(k, f64), to(v, f64), {.scale = 2000});
  CHECK(max_abs(sharp - want) < 0.02);
  // Keys and values that only the last query sees, that the key mask hides, and that all see.
  const Tensor place = arange(300), last = place == 299.0, middle = place == 140.0,
               clean = there(k, v, {.mask = {.causal = true}});
  const auto poisoned = [&](const Tensor& x, const Tensor& where) {
    return masked_fill(x, reshape(where, {1, 1, 300, 1}), NAN);
  };
  const Tensor seen_last = there(poisoned(k, last), poisoned(v, last), {.mask = {.causal = true}});
  CHECK(same_bits(narrow(seen_last, 2, 0, 2), narrow(clean, 2, 0, 2)));
  CHECK(all(isnan(narrow(seen_last, 2, 2, 1))).item() != 0);
  AttentionOptions hides{.mask = {.causal = true, .keys = to(reshape(logical_not(middle), {1, 300}), gpu)}};
  CHECK(same_bits(there(poisoned(k, middle), poisoned(v, middle), hides), there(k, v, hides)));
  CHECK(all(isnan(there(k, poisoned(v, middle), {.mask = {.causal = true}}))).item() != 0);
}
