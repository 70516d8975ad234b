// Attention to the keys and values of an earlier layer, in passes and streams, and decoders whose blocks share them.
#include "layers/gau_reference.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/models/decoder.h>
#include <sluice/ops/basic.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

MultiHeadAttentionOptions windowed() {
  return {.heads = {.dim = 8, .heads = 2, .kv_heads = 1, .causal = true, .use_rope = true, .dtype = f64},
          .window = 3,
          .qk_norm = true};
}

/// Two layers of these options; the second has the maps of keys and values of the first.
struct Pair {
  MultiHeadAttention first, second, without;

  explicit Pair(Rand& rand) {
    Rng rng(1);
    first = randomised(MultiHeadAttention(windowed(), rng), rand);
    second = randomised(MultiHeadAttention(windowed(), rng), rand);
    second.heads.k = first.heads.k, second.heads.v = first.heads.v, second.k_norm = first.k_norm;
    without = second;
    without.without_keys();
  }
};

}  // namespace

TEST_CASE("attention: with the keys of a layer before, a layer does without maps of its own", "[attention]") {
  Rand rand(3);
  const Pair p(rand);
  const Tensor x = random_tensor({2, 9, 8}, f64, rand);
  const Tensor mask = Tensor::from(std::vector<bool>{false, false, true, true, true, true, true, true, true,  //
                                                     true, true, true, true, true, true, true, true, true},
                                   {2, 9});
  for (const Tensor& real : {Tensor(), mask}) {
    AttendedKeys keys;
    const Tensor y = p.first(x, {.key_mask = real}, keys);
    CHECK(max_abs_diff(y, p.first(x, {.key_mask = real})) == 0);
    CHECK(keys.k.shape() == Shape{2, 1, 9, 4});
    const Tensor want = p.second(x, {.key_mask = real});
    CHECK(max_abs_diff(p.without(x, {.key_mask = real}, keys), want) == 0);

    Stream stream;
    const auto both = [&](const Tensor& t, const Pass& pass) {
      AttendedKeys now;
      const Tensor first = p.first(t, pass, now);
      return stack({first, p.without(t, pass, now)}, 0);
    };
    std::vector<Tensor> seen;
    for (const auto& [at, count] : {std::pair<int64_t, int64_t>(0, 4), {4, 1}, {5, 3}, {8, 1}})
      seen.push_back(step(both, narrow(x, 1, at, count), stream,
                          {.key_mask = real.defined() ? narrow(real, 1, at, count) : Tensor()}));
    const Tensor streamed = cat(seen, 2), hidden = real.defined() ? unsqueeze(logical_not(real), -1) : Tensor();
    for (const auto& [i, whole] : {std::pair(0, y), {1, want}}) {
      const Tensor got = select(streamed, 0, i);
      const auto shown = [&](const Tensor& t) { return hidden.defined() ? masked_fill(t, hidden, 0) : t; };
      CHECK(max_abs_diff(shown(got), shown(whole)) <= 1e-13);
    }
    Stream alone;
    step(p.first, x, alone, {.key_mask = real});
    CHECK(stream.numel() == alone.numel());  // the second layer keeps nothing
  }
}

TEST_CASE("attention: gradients of keys that two layers read are the sums of both", "[attention]") {
  Rand rand(4);
  const Pair p(rand);
  const Tensor x = random_tensor({1, 5, 8}, f64, rand), w = p.first.heads.k.weight;
  const auto slope = [&](const auto& loss) {
    zero_grad(p.first), zero_grad(p.second);
    backward(loss());
    return clone(w.grad());
  };
  const Tensor own = slope([&] { return sum(square(p.first(x))); }),
               other = slope([&] { return sum(square(p.second(x))); }),
               both = slope([&] {
                 AttendedKeys keys;
                 const Tensor y = sum(square(p.first(x, {}, keys)));
                 return y + sum(square(p.without(x, {}, keys)));
               });
  CHECK(max_abs(other) > 1e-3);
  CHECK(max_abs_diff(both, own + other) <= 1e-12 * max_abs(both));
}

TEST_CASE("attention: which layers share keys, and that a layer needs some", "[attention]") {
  Rand rand(5);
  Pair p(rand);
  const Tensor x = random_tensor({1, 4, 8}, f64, rand);
  AttendedKeys keys;
  CHECK_THROWS_WITH(p.without(x), Contains("multi_head_attention: has no Wk; need the keys of a layer"));
  CHECK_THROWS_WITH(p.without(x, {}, keys), Contains("has no Wk"));
  MultiHeadAttentionOptions forgets = windowed();
  forgets.forget.gate = ForgetGate::input;
  Rng rng(1);
  CHECK_THROWS_WITH(MultiHeadAttention(forgets, rng)(x, {}, keys),
                    Contains("a forget gate or") && Contains("share no"));
}

TEST_CASE("Decoder: blocks share the keys of an earlier block with the same attention", "[decoder]") {
  Rng rng(1);
  const DecoderBlockOptions own{.mixer = windowed(), .feed = GluOptions{.dim = 8, .dtype = f64}};
  DecoderBlockOptions reads = own;
  reads.keys_of = 0;
  DecoderOptions o{.vocabulary = 5, .dim = 8, .blocks = {own, reads, reads}, .dtype = f64};
  const Decoder model(o, rng);
  CHECK(!std::get<MultiHeadAttention>(model.blocks[2].mixer).heads.v.weight.defined());
  const auto refused = [&](std::size_t at, int64_t of) {
    DecoderOptions wrong = o;
    wrong.blocks[at].keys_of = of;
    CHECK_THROWS_WITH(Decoder(wrong, rng), Contains(str("decoder: block ", at, " has keys_of=", of, "; need an ")));
  };
  refused(1, 1), refused(2, 1), refused(1, 2);
  std::get<MultiHeadAttentionOptions>(o.blocks[0].mixer).window = 4;
  refused(1, 0);
  o.blocks[0].mixer = GatedShortConvolutionOptions{.dim = 8, .dtype = f64};
  refused(1, 0);
}

TEST_CASE("PerLayerEmbedding: tokens behind the last row have the first", "[decoder]") {
  Rng rng(1);
  Rand rand(6);
  const PerLayerEmbedding p({.vocabulary = 3, .width = 2, .dim = 4, .blocks = 2, .dtype = f64}, rng);
  const Tensor h = repeat(random_tensor({1, 1, 4}, f64, rand), 4, 1);
  const Tensor y = p(Tensor::from(std::vector<int64_t>{0, 3, 2, 9}, {1, 4}), h);
  CHECK(y.shape() == Shape{1, 4, 2, 2});
  const auto of = [&](int64_t token) { return select(y, 1, token); };
  CHECK(max_abs_diff(of(1), of(0)) == 0);
  CHECK(max_abs_diff(of(3), of(0)) == 0);
  CHECK(max_abs_diff(of(2), of(0)) > 1e-4);
}

TEST_CASE("Decoder: what does not go with per-layer embeddings, AltUp and experts beside a feed", "[decoder]") {
  Rng rng(1);
  const DecoderBlockOptions block{.mixer = windowed(), .feed = GluOptions{.dim = 8, .dtype = f64}};
  const DecoderOptions o{.vocabulary = 5, .dim = 8, .blocks = {block}, .dtype = f64};
  const auto refusal = [&](const auto& change, const char* why) {
    DecoderOptions changed = o;
    change(changed);
    CHECK_THROWS_WITH(Decoder(changed, rng), Contains(why));
  };
  const PerLayerEmbeddingOptions embedding{.vocabulary = 5, .width = 3};
  refusal([&](DecoderOptions& d) { d.per_layer = embedding, d.streams = HyperConnectionOptions{.dim = 8}; },
          "residual streams take no per-layer embedding");
  refusal([&](DecoderOptions& d) { d.per_layer = PerLayerEmbeddingOptions{.vocabulary = 5, .width = 0}; },
          "per_layer_embedding: got vocabulary=5, width=0");
  refusal([&](DecoderOptions& d) { d.alt_up = AltUpOptions{}; }, "alt_up needs per_layer");
  refusal([&](DecoderOptions& d) { d.per_layer = embedding, d.alt_up = AltUpOptions{.streams = 0}; },
          "alt_up: streams must be at least 1");
  refusal([&](DecoderOptions& d) { d.per_layer = embedding, d.alt_up = AltUpOptions{}, d.residual_scale = 2; },
          "takes no post_norm, `scaled`, residual_scale");
  refusal([&](DecoderOptions& d) { d.per_layer = embedding, d.alt_up = AltUpOptions{}, d.blocks[0].scaled = true; },
          "takes no post_norm, `scaled`, residual_scale");
  refusal([&](DecoderOptions& d) { d.blocks[0].experts = MoeOptions{.dim = 8}, d.blocks[0].parallel = true; },
          "experts beside a feed need one, and take no streams");
  refusal([&](DecoderOptions& d) { d.blocks[0].experts = MoeOptions{.dim = 6}; }, "Moe has dim=6");
}
