// FLASH's initial values, counts, edges, padding in odd places, and errors.
#include "layers/flash_reference.h"
#include "layers/streamed.h"
#include "support/catch.h"

#include <sluice/core/node.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

FlashOptions small(GauKind kind, ChunkLength length, bool causal, GauBias bias) {
  FlashOptions o{.dim = 4, .expansion = 3, .key_dim = 4, .chunk = 3, .causal = causal};
  o.kind = kind, o.length = length, o.bias = bias;
  return o;
}

}  // namespace

TEST_CASE("flash: defaults and initial values", "[flash]") {
  Rng rng(1);
  const Flash plain({.dim = 32}, rng);
  CHECK(plain.options.expansion == 64);
  CHECK(plain.options.key_dim == 128);
  CHECK(plain.options.chunk == 256);
  CHECK(plain.options.activation == Act::silu);
  CHECK(plain.options.kind == GauKind::su);
  CHECK(plain.options.scaling == ChunkScaling::su);
  CHECK(plain.options.length == ChunkLength::chunk);
  CHECK(plain.norm.options.kind == NormKind::scale);
  CHECK(plain.norm.weight.numel() == 1);
  CHECK(max_abs_diff(plain.gamma, ones({4, 128})) == 0);
  CHECK(max_abs(plain.beta) == 0);
  CHECK(max_abs(plain.in.bias) == 0);

  FlashOptions o{.dim = 64, .key_dim = 256};
  o.gamma_std = 0.02, o.init = Init::paper(), o.bias = GauBias::toeplitz;
  const Flash paper(o, rng);
  CHECK(spread(paper.gamma) == Approx(0.02).epsilon(0.1));  // 1024 values: 4.5 σ
  CHECK(spread(paper.toeplitz_bias) == Approx(0.02).epsilon(0.15));
  CHECK(spread(paper.in.weight) == Approx(0.02).epsilon(0.02));
  CHECK(paper.toeplitz_bias.numel() == 511);
}

TEST_CASE("flash: number of parameters", "[flash]") {
  const int64_t d = 24, e = 40, s = 16;  // 3de + ds + 8s, and 2e + s + d biases
  for (bool bias : {false, true}) {
    FlashOptions o{.dim = d, .expansion = e, .key_dim = s};
    o.linear_bias = bias, o.norm = NormKind::none;
    Rng rng(1);
    CHECK(count(Flash(o, rng)) == 3 * d * e + d * s + 8 * s + (bias ? 2 * e + s + d : 0));
    o.bias = GauBias::toeplitz, o.chunk = 10, o.norm = NormKind::scale;
    CHECK(count(Flash(o, rng)) == 3 * d * e + d * s + 8 * s + (bias ? 2 * e + s + d : 0) + 19 + 1);
  }
}

TEST_CASE("mixed_chunk_attention: a NaN in padded keys and values reaches nobody", "[flash]") {
  Rand rand(16);
  const Tensor mask = prefix_mask(8, 4, 6), hidden = unsqueeze(logical_not(mask), -1);
  for (GauKind kind : kGauKinds)
    for (int form = 0; form < 4; ++form) {  // causal, not, not across chunks, with documents
      MixedChunkOptions o{.chunk = 3, .causal = form == 0, .kind = kind, .across_chunks = form != 2};
      const Tensor segments = form == 3 ? documents(8, {5}, {2, 6}) : Tensor();
      auto input = [&](int64_t width) { return random_tensor({2, 8, width}, f64, rand); };
      const Tensor q = input(4), k = input(4), ql = input(4), kl = input(4), v = input(2);
      auto run = [&](double junk) {
        auto with = [&](const Tensor& t) { return masked_fill(t, hidden, junk); };
        return real_rows(mixed_chunk_attention(q, with(k), ql, with(kl), with(v), o, {}, mask, segments), mask);
      };
      CHECK(same_bits(run(NAN), run(0)));
      CHECK(same_bits(run(INFINITY), run(0)));
    }
}

TEST_CASE("segment_mask: by hand", "[flash]") {
  // Chunks of 2: documents {1,1} {1,2} {3,3} {3}.
  const Tensor ids = Tensor::from(std::vector<int64_t>{1, 1, 1, 2, 3, 3, 3}, {1, 7});
  auto rows = [](const Tensor& m) { return m.to_vector<bool>(); };
  CHECK(rows(segment_mask(ids, 2, false)) == std::vector<bool>{true, true, false, false, true, true, false, false,  //
                                                               false, false, true, true, false, false, true, true});
  CHECK(rows(segment_mask(ids, 2, true)) == std::vector<bool>{false, false, false, false, true, false, false, false,  //
                                                              false, false, false, false, false, false, true, false});
  // With token 2 padded, chunk 1 is document 2 alone; with chunk 3 padded, it sees nobody.
  const Tensor real = Tensor::from(std::vector<bool>{true, true, false, true, true, true, false}, {1, 7});
  CHECK(rows(segment_mask(ids, 2, false, real)) ==
        std::vector<bool>{true, false, false, false, false, true, false, false,  //
                          false, false, true, false, false, false, false, false});
}

TEST_CASE("flash: what is refused, and by which words", "[flash]") {
  Rng rng(1);
  const Flash f({.dim = 4, .expansion = 8, .key_dim = 4, .chunk = 2}, rng);
  auto ones_of = [](const Shape& shape) { return ones(shape); };
  const Tensor x = ones_of({2, 3, 4});
  auto refused = [&](FlashOptions o) { Flash(o, rng); };
  CHECK_THROWS_WITH(refused({.dim = 4, .causal = true, .across_chunks = false}), Contains("across_chunks"));
  CHECK_THROWS_WITH(refused({.dim = 4, .count_padding = true}), Contains("count_padding"));
  CHECK_THROWS_WITH(refused({.dim = 4, .quadratic = false, .linear = false}), Contains("quadratic"));
  CHECK_THROWS_WITH(refused({.dim = 4, .bias = GauBias::t5, .t5 = {.max_distance = 8}}), Contains("flash: T5 needs"));
  CHECK_NOTHROW(refused({.dim = 4, .causal = true, .across_chunks = false, .linear = false}));

  const Tensor q = ones({1, 5, 4}), v = ones({1, 5, 2});
  CHECK_THROWS_WITH(mixed_chunk_attention(q, q, q, ones({1, 4, 4}), v, {}), Contains("k_lin=[1,4,4]"));
  CHECK_THROWS_WITH(mixed_chunk_attention(q, q, q, q, ones({1, 6, 2}), {}), Contains("v=[1,6,2]"));
  CHECK_THROWS_WITH(mixed_chunk_attention(ones({4}), q, q, q, v, {}), Contains("q_quad=[4]"));
  CHECK_THROWS_WITH(mixed_chunk_attention(q, q, q, q, v, {.chunk = 3}, ones({1, 3})), Contains("relative_bias=[1,3]"));
  CHECK_THROWS_WITH(mixed_chunk_attention(q, q, q, q, v, {.chunk = 3}, ones({2, 5})), Contains("relative_bias=[2,5]"));
  CHECK_NOTHROW(mixed_chunk_attention(q, q, q, q, v, {.chunk = 3}, ones({1, 5})));
  CHECK_THROWS_AS(segment_mask(ones({2, 3}), 2, false), DTypeError);
  CHECK_THROWS_AS(segment_mask(zeros({2, 3}, {i64}), 0, false), ValueError);
  CHECK_THROWS_WITH(segment_mask(zeros({2, 3}, {i64}), 2, false, ones({2, 4}, {boolean})),
                    "segment_mask: key_mask=[2,4] does not fit segments=[2,3]");
  CHECK_THROWS_WITH(mixed_chunk_attention(q, q, q, q, v, {}, {}, ones({1, 5})),
                    Contains("key_mask must be bool") && Contains("f32"));
  CHECK_THROWS_WITH(mixed_chunk_attention(q, q, q, q, v, {}, {}, {}, zeros({1, 4}, {i64})),
                    Contains("segments=[1,4] does not fit v="));
}

TEST_CASE("flash: what cannot be streamed", "[flash][streaming]") {
  Rand rand(6);
  const Tensor x = random_tensor({2, 3, 4}, f64, rand);
  FlashOptions o = small(GauKind::su, ChunkLength::chunk, false, GauBias::none);
  const Flash both = random_flash(o, rand);
  CHECK_THROWS_AS(stream_of(both, x), ValueError);
  CHECK_THROWS_WITH(stream_of(both, x), Contains("causal"));
  o.causal = true;
  const Flash f = random_flash(o, rand);
  Stream stream = stream_of(f, x);
  CHECK_THROWS_WITH(step(f, narrow(x, 0, 0, 1), stream), Contains("batch 2") && Contains("[1,3,4]"));
  CHECK_THROWS_WITH(step(f, random_tensor({2, 3, 5}, f64, rand), stream), Contains("[2,3,5]"));
  o.chunk = 6;
  const Flash wider = random_flash(o, rand);
  CHECK_THROWS_WITH(step(wider, x, stream), Contains("chunks of 6"));
  CHECK(stream.length() == 3);  // the refused steps changed nothing: the stream goes on
  CHECK(max_abs_diff(step(f, x, stream), narrow(f(cat({x, x}, 1)), 1, 3, 3)) < 1e-12);
}
