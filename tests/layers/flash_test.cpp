// FLASH against loops: every normaliser, length, bias, scaling and mask; heads,
// norms and activations.
#include "layers/flash_reference.h"
#include "support/catch.h"

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

FlashOptions small(GauKind kind, ChunkLength length, bool causal, GauBias bias, int64_t chunk = 3) {
  FlashOptions o{.dim = 4, .expansion = 3, .key_dim = 4};
  o.kind = kind, o.length = length, o.causal = causal, o.bias = bias, o.chunk = chunk;
  return o;
}

std::string describe(const FlashOptions& o, int mask) {
  return str(name_of(o.kind), " chunk ", o.chunk, " length ", static_cast<int>(o.length), " causal ", o.causal,
             " bias ", static_cast<int>(o.bias), " scaling ", static_cast<int>(o.scaling), " across ", o.across_chunks,
             " shift ", o.token_shift, " terms ", o.quadratic, o.linear, " mask ", mask);
}

/// Everything that bears on the quadratic term; the options of the linear one take turns.
void each_quadratic(const std::function<void(const FlashOptions&, int mask)>& f) {
  int turn = 0;
  for (GauKind kind : kGauKinds)
    for (ChunkLength length : kChunkLengths)
      for (GauBias bias : kGauBiases)
        for (bool causal : {false, true})
          for (int mask = 0; mask < 4; ++mask, ++turn) {
            FlashOptions o = small(kind, length, causal, bias);
            o.scaling = kChunkScalings[(turn / 8 + mask) % 5];
            o.token_shift = turn % 3 == 0;
            f(o, mask);
          }
}

/// Everything that bears on the linear term.
void each_linear(const std::function<void(const FlashOptions&, int mask)>& f) {
  for (ChunkScaling scaling : kChunkScalings)
    for (int64_t chunk : {1, 2, 3, 7, 9})
      for (int mask = 0; mask < 4; ++mask)
        for (int form = 0; form < 4; ++form) {
          FlashOptions o = small(GauKind::su, ChunkLength::chunk, form == 1, GauBias::none, chunk);
          o.scaling = scaling, o.across_chunks = form != 2, o.count_padding = form == 3;
          if (form == 3 && scaling != ChunkScaling::lucid) continue;
          o.quadratic = chunk != 2;
          f(o, mask);
        }
}

}  // namespace

TEST_CASE("flash: every combination equals loops", "[flash]") {
  double worst = 0;
  const auto check = [&](const FlashOptions& o, int which) {
    Rand rand(7);
    const Flash f = random_flash(o, rand);
    const Tensor x = random_tensor({2, 7, 4}, f64, rand);
    const Masks m = masks(which, 7);
    const Tensor got = f(x, {.key_mask = m.keys, .segments = m.segments});
    const Tensor want = flash_reference(f, x, m.keys, m.segments);
    const double error = max_abs_diff(real_rows(got, m.keys), real_rows(want, m.keys));
    if (!(error < 1e-11)) FAIL_CHECK(describe(o, which) << ": off by " << error);
    worst = std::max(worst, error);
  };
  each_quadratic(check);
  each_linear(check);
  CHECK(worst < 1e-11);
}

TEST_CASE("mixed_chunk_attention: heads, their biases and their masks equal loops", "[flash]") {
  Rand rand(3);
  const int64_t batch = 2, heads = 3, n = 8, s = 4, e = 2, c = 3;
  for (bool causal : {false, true})
    for (int which = 0; which < 4; ++which)
      for (int64_t bias_heads : {int64_t{0}, int64_t{1}, heads}) {
        auto input = [&](int64_t width) { return random_tensor({batch, heads, n, width}, f64, rand); };
        const Tensor q = input(s), k = input(s), ql = input(s), kl = input(s), v = input(e);
        const Tensor table = bias_heads ? random_tensor({bias_heads, 2 * 5 - 1}, f64, rand) : Tensor();  // T = 5 > C
        const Masks m = masks(which, n);
        const MixedChunkOptions o{.chunk = c, .causal = causal, .kind = GauKind::softmax};
        const Tensor got = mixed_chunk_attention(q, k, ql, kl, v, o, table, m.keys, m.segments);
        REQUIRE(got.shape() == Shape{batch, heads, n, e});
        for (int64_t b = 0; b < batch; ++b)
          for (int64_t h = 0; h < heads; ++h) {
            auto one = [&](const Tensor& t) { return matrix_of(select(select(t, 0, b), 0, h)); };
            Matrix bias;
            if (bias_heads) {
              const std::vector<double> w = select(table, 0, bias_heads == 1 ? 0 : h).to_vector<double>();
              bias = matrix(c, c);
              for (std::size_t i = 0; i < 3; ++i)
                for (std::size_t j = 0; j < 3; ++j) bias[i][j] = w[4 + j - i];
            }
            const Matrix want = mixed_chunk_reference({one(q), one(k), one(ql), one(kl), one(v)}, o, bias,
                                                      tokens_of(n, b, m.keys, m.segments));
            const Matrix have = one(got);
            double worst = 0;
            for (std::size_t i = 0; i < want.size(); ++i)
              for (std::size_t a = 0; a < want[i].size(); ++a)
                worst = std::max(worst, std::abs(want[i][a] - have[i][a]));
            CHECK(worst < 1e-12);
          }
      }
}

TEST_CASE("flash: norms, activations, RoPE's options and one term alone equal loops", "[flash]") {
  Rand rand(4);
  auto check = [&](const FlashOptions& o) {
    const Flash f = random_flash(o, rand);
    const Tensor x = random_tensor({2, 7, o.dim}, f64, rand);
    INFO(describe(o, 0) << " norm " << static_cast<int>(o.norm) << " act " << name_of(o.activation));
    CHECK(max_abs_diff(f(x), flash_reference(f, x)) < 1e-11);
  };
  for (NormKind norm :
       {NormKind::none, NormKind::layer, NormKind::rms, NormKind::rms_plain, NormKind::scale, NormKind::scale_l2})
    for (Act act : {Act::identity, Act::relu, Act::silu, Act::gelu, Act::tanh}) {
      FlashOptions o = small(GauKind::su, ChunkLength::chunk, act == Act::silu, GauBias::none);
      o.norm = norm, o.activation = act, o.linear_bias = act != Act::silu;
      o.token_shift = norm == NormKind::layer, o.dim = 5;
      check(o);
    }
  FlashOptions o = small(GauKind::su, ChunkLength::chunk, true, GauBias::rope);
  o.rope.pairing = RopePairing::interleaved, o.rope.offset = 5, check(o);
  o.rope.xpos = 6, check(o), o.rope.xpos = 0;  // queries grow as keys shrink
  o.rope.rot_dim = 2, o.bias = GauBias::none, check(o);
  o.use_rope = false, check(o);
  o.quadratic = false, check(o);
  o.quadratic = true, o.linear = false, check(o);
}

TEST_CASE("flash: T5's buckets widen and chunks are long", "[flash]") {
  for (bool causal : {false, true}) {
    FlashOptions o = small(GauKind::su, ChunkLength::chunk, causal, GauBias::t5, 140);
    Rand rand(13);
    const Flash f = random_flash(o, rand);
    const Tensor x = random_tensor({1, 150, 4}, f64, rand);
    CHECK(max_abs_diff(f(x), flash_reference(f, x)) < 1e-10);
  }
}
