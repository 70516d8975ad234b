// The slots of attention under Precision::bf16, on the emulator, against double loops: forward and backward, one query
// or one key beyond every tile, groups of heads, masks, rows that see nothing, NaN behind the mask; the same bits in
// every schedule; and which calls go to the tensor cores.
#include "attention_bf16_check.h"

using namespace sluice;
using namespace sluice::testing;
using namespace sluice::testing::bf16_attention;

namespace {

constexpr Weighting kAll[] = {Weighting::softmax, Weighting::relu2, Weighting::laplace, Weighting::sigmoid,
                              Weighting::linear};

}  // namespace

TEST_CASE("cuda attention, bf16: every weighting, masks and groups of heads", "[cuda]") {
  uint64_t seed = 1;
  for (Weighting w : kAll) {
    check({1, 2, 1, 65, 129, 64, w, {.causal = true}}, ++seed);
    check({1, 1, 1, 129, 65, 64, w, {.causal = true, .window = 30}}, ++seed);  // the first queries see nothing
    check({2, 2, 1, 65, 66, 64, w, {.causal = true}, true}, ++seed);
  }
  check({1, 4, 2, 17, 193, 64}, ++seed);
  check({1, 1, 1, 97, 129, 64, Weighting::softmax, {.window = 40}}, ++seed);
  check({1, 2, 2, 16, 16, 64, Weighting::relu2, {.window = 3}}, ++seed);
  check({1, 3, 1, 33, 65, 64, Weighting::softmax, {.causal = true}, false, true}, ++seed);
}

TEST_CASE("cuda attention, bf16: 128 columns", "[cuda]") {
  check({1, 2, 1, 65, 97, 128, Weighting::softmax, {.causal = true}}, 3);
  check({2, 1, 1, 97, 65, 128, Weighting::softmax, {}, true}, 4);
  check({1, 1, 1, 129, 65, 128, Weighting::relu2, {.window = 30}}, 5);
}

TEST_CASE("cuda attention, bf16: widths that are filled up with zeros", "[cuda]") {
  uint64_t seed = 20;
  const int64_t widths[][2] = {{16, 16}, {62, 64}, {64, 62}, {30, 66}, {96, 64}, {80, 80}, {126, 128}, {2, 128}};
  for (const auto& [d, dv] : widths)
    for (int64_t m : {65, 129})
      check({1,
             2,
             1,
             m,
             130,
             d,
             m == 65 ? Weighting::relu2 : Weighting::softmax,
             {.causal = true},
             false,
             false,
             Poison::none,
             dv},
            ++seed);
}

TEST_CASE("cuda attention, bf16: the edges of windows, wherever they fall in a tile", "[cuda]") {
  uint64_t seed = 40;
  for (int64_t before : {62, 63, 64}) {  // keys before that of the first query
    const AttentionMask masks[] = {{.causal = true},
                                   {.window = before + 63},
                                   {.causal = true, .window = before + 63},
                                   {.causal = true, .window = 64},
                                   {.window = 1}};
    for (const AttentionMask& mask : masks) check({1, 1, 1, 80, 80 + before, 64, Weighting::linear, mask}, ++seed);
  }
}

TEST_CASE("cuda attention, bf16: NaN reaches those who see it, and nobody else", "[cuda]") {
  uint64_t seed = 60;
  for (Poison poison : {Poison::key, Poison::query})
    for (Weighting w : {Weighting::softmax, Weighting::relu2, Weighting::linear}) {
      check({1, 2, 1, 80, 80, 64, w, {.causal = true}, false, false, poison}, ++seed);
      check({1, 1, 1, 130, 140, 64, w, {.window = 20}, false, false, poison}, ++seed);
    }
  check({1, 1, 1, 65, 65, 128, Weighting::softmax, {.causal = true}, false, false, Poison::key}, ++seed);
  check({1, 1, 1, 65, 65, 128, Weighting::softmax, {.causal = true}, false, false, Poison::query}, ++seed);
}

TEST_CASE("cuda attention, bf16: blocks of 128 queries or keys", "[cuda]") {
  uint64_t seed = 80;
  for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
    check({1, 2, 1, 129, 257, 64, w, {.causal = true}}, ++seed);
    check({1, 1, 1, 257, 129, 64, w, {.causal = true}}, ++seed);  // the first queries see nothing
    check({2, 3, 1, 129, 193, 64, w, {}, true}, ++seed);  // the ring goes round, NaN in hidden keys of every tile
    check({1, 2, 1, 193, 129, 128, w, {.window = 70}}, ++seed);
    check({1, 1, 1, 129, 257, 128, w, {.causal = true}}, ++seed);
  }
  check({1, 2, 2, 161, 385, 64, Weighting::softmax, {.causal = true, .window = 30}, false, true}, ++seed);
  check({1, 1, 1, 129, 321, 64, Weighting::laplace}, ++seed);
  for (Weighting w : {Weighting::sigmoid, Weighting::laplace}) check({1, 1, 1, 129, 129, 128, w}, ++seed);
  for (int64_t before : {62, 63, 64, 65}) {  // the edges of windows
    check({1, 1, 1, 144, 144 + before, 64, Weighting::linear, {.window = before + 63}}, ++seed);
    check({1, 1, 1, 144, 144 + before, 128, Weighting::linear, {.causal = true, .window = 64}}, ++seed);
  }
  for (Poison poison : {Poison::key, Poison::query})
    for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
      check({1, 2, 1, 150, 150, 64, w, {.causal = true}, false, false, poison}, ++seed);
      check({1, 1, 1, 130, 150, 128, w, {.window = 20}, false, false, poison}, ++seed);
    }
}

TEST_CASE("cuda attention, bf16: gradients of some operands are those of all", "[cuda]") {
  PrecisionScope scope(Precision::bf16);
  uint64_t seed = 120;
  const int64_t sizes[][3] = {{17, 65, 64}, {129, 129, 64}, {65, 129, 128}};
  for (const auto& [m, n, d] : sizes)
    for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
      const Sample c{1, 2, 1, m, n, d, w, {.causal = true}};
      const Operands x(c, ++seed);
      const Array lse = expected(c, x).lse;
      const std::vector<Tensor> all = run_slots(c, x, lse, false);
      for (int wanted = 1; wanted < 7; ++wanted) {
        INFO("m " << m << ", n " << n << ", d " << d << ", weighting " << static_cast<int>(w) << ", wanted " << wanted);
        std::vector<Tensor> some = run_slots(c, x, lse, false, wanted);
        for (int i = 2; i >= 0; --i) {
          if (!(wanted >> i & 1)) continue;
          CHECK(same_bits(some.back(), all[all.size() - 3 + static_cast<std::size_t>(i)]));
          some.pop_back();
        }
      }
    }
}

TEST_CASE("cuda attention, bf16: which calls go to the tensor cores", "[cuda]") {
  Rand rand(7);
  const auto differs = [&](int64_t m, int64_t n, int64_t d, int64_t dv, const AttentionOptions& options) {
    const Tensor q = to(random_tensor({1, 1, m, d}, f32, rand), Device::cuda()),
                 k = to(random_tensor({1, 1, n, d}, f32, rand), Device::cuda());
    const Tensor v = to(random_tensor({1, 1, n, dv}, f32, rand), Device::cuda());
    const auto run = [&](Precision p) {
      PrecisionScope scope(p);
      return to(contiguous(attention(q, k, v, options)), cpu).to_vector();
    };
    return run(Precision::f32) != run(Precision::bf16);
  };
  CHECK(differs(16, 16, 64, 64, {}));
  CHECK(differs(17, 16, 128, 128, {.weighting = Weighting::laplace, .mask = {.causal = true, .window = 9}}));
  CHECK_FALSE(differs(15, 16, 64, 64, {}));
  CHECK_FALSE(differs(16, 15, 64, 64, {}));
  CHECK(differs(16, 16, 64, 128, {}));
  CHECK(differs(16, 16, 65, 65, {}));
  CHECK(differs(16, 16, 64, 64, {.mask = {.dilation = 2}}));
  CHECK(differs(16, 16, 64, 64, {.mask = {.window = 2, .global = {3}}}));
  CHECK(differs(16, 16, 64, 64, {.bias = full({16, 16}, 1.0, {f32, Device::cuda()})}));
  CHECK(differs(16, 16, 64, 64, {.row_scale = full({16}, 2.0, {f32, Device::cuda()})}));
}
