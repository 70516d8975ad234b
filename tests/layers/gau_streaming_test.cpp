// Streaming (SPEC §3): the tokens of a sequence in pieces give the rows of the full causal pass.
#include "layers/gau_reference.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

GauOptions streamable(GauKind kind, GauLength length, GauBias bias, int64_t heads = 1) {
  GauOptions o{.dim = 5, .expansion = 6, .key_dim = 4, .heads = heads};
  o.kind = kind, o.causal = true, o.length = length, o.bias = bias;
  o.constant_length = 6, o.max_length = 40;
  return o;
}

/// The outputs of x fed in pieces of the given sizes, repeated until it ends.
Tensor streamed(const Gau& g, const Tensor& x, const std::vector<int64_t>& sizes, Gau::State state = {}) {
  std::vector<Tensor> outputs;
  for (std::size_t i = 0, at = 0; static_cast<int64_t>(at) < x.dim(1); ++i) {
    const auto start = static_cast<int64_t>(at);
    const int64_t size = std::min(sizes[i % sizes.size()], x.dim(1) - start);
    auto [y, next] = g.step(narrow(x, 1, start, size), std::move(state));
    outputs.push_back(y), state = std::move(next);
    at += static_cast<std::size_t>(size);
    CHECK(state.length == static_cast<int64_t>(at));
  }
  return cat(outputs, 1);
}

}  // namespace

TEST_CASE("gau: streaming equals the full pass for every kind, length, bias and chunk", "[gau][streaming]") {
  double worst = 0;
  for (GauKind kind : kGauKinds)
    for (GauLength length : {GauLength::visible, GauLength::constant})
      for (GauBias bias : kGauBiases)
        for (int64_t heads : {1, 2})
          for (int64_t top_k : {0, 3}) {
            GauOptions o = streamable(kind, length, bias, heads);
            o.top_k = top_k;
            o.placement = heads == 2 ? GauPlacement::post : GauPlacement::pre;
            if (bias == GauBias::rope) o.rope.pairing = RopePairing::interleaved, o.rope.offset = 3;
            Rand rand(1);
            const Gau g = random_gau(o, rand);
            const Tensor x = random_tensor({2, 17, 5}, f64, rand), full = g(x);
            for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {2}, {7}, {5, 1, 9}, {17}}) {
              const double e = max_abs_diff(streamed(g, x, sizes), full);
              check_identity("GAU: cache step = full row, 5 kinds", e, 1e-10);
              if (!(e < 1e-10))
                FAIL_CHECK(name_of(kind) << " length " << static_cast<int>(length) << " bias " << static_cast<int>(bias)
                                         << " heads " << heads << " top_k " << top_k << " chunk " << sizes[0]
                                         << ": off by " << e);
              worst = std::max(worst, e);
            }
          }
  CHECK(worst < 1e-10);
}

TEST_CASE("gau: streaming past 512 positions in f32, and softmax_plus past its floor of 16", "[gau][streaming]") {
  for (GauKind kind : {GauKind::su, GauKind::softmax_plus}) {
    GauOptions o{.dim = 8, .expansion = 16, .key_dim = 8};
    o.kind = kind, o.causal = true;
    Rng rng(2);
    const Gau g(o, rng);
    Rand rand(2);
    const Tensor x = random_tensor({1, 600, 8}, f32, rand), full = g(x);
    CHECK(max_abs_diff(streamed(g, x, {512, 1}), full) < 1e-5 * max_abs(full));
  }
}

TEST_CASE("gau: a window is that of the loops, streams, and bounds the state", "[gau][streaming]") {
  for (GauKind kind : kGauKinds)
    for (GauLength length : {GauLength::visible, GauLength::constant})
      for (GauBias bias : {GauBias::none, GauBias::toeplitz})
        for (int64_t window : {1, 4, 16}) {
          GauOptions o = streamable(kind, length, bias, 2);
          o.window = window;
          Rand rand(6);
          const Gau g = random_gau(o, rand);
          const Tensor x = random_tensor({2, 17, 5}, f64, rand), full = g(x);
          INFO(name_of(kind) << " length " << static_cast<int>(length) << " window " << window);
          CHECK(max_abs_diff(full, gau_reference(g, x, {})) < 1e-12);
          for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {5, 1, 9}, {17}})
            CHECK(max_abs_diff(streamed(g, x, sizes), full) < 1e-10);
          CHECK(g.step(x, {}).second.numel() == 2 * std::min<int64_t>(17, window) * (4 + 6));
        }
}

TEST_CASE("gau: documents see nothing of each other", "[gau]") {
  for (bool causal : {false, true})
    for (GauKind kind : kGauKinds) {
      GauOptions o{.dim = 5, .expansion = 6, .key_dim = 4, .kind = kind, .causal = causal, .length = GauLength::visible};
      o.use_rope = false;  // positions run through all documents
      Rand rand(7);
      const Gau g = random_gau(o, rand);
      const Tensor x = random_tensor({1, 9, 5}, f64, rand);
      const Tensor documents = Tensor::from(std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 1}, {1, 9});
      const Tensor y = g(x, {}, nullptr, {.query_segments = documents, .key_segments = documents});
      CHECK(max_abs_diff(narrow(y, 1, 0, 4), g(narrow(x, 1, 0, 4))) < 1e-13);
      CHECK(max_abs_diff(narrow(y, 1, 4, 5), g(narrow(x, 1, 4, 5))) < 1e-13);
      CHECK_THROWS_AS(g(x, {}, nullptr, {.causal = true}), ValueError);
    }
}

TEST_CASE("gau: the state holds s + e numbers a token", "[gau][streaming]") {
  GauOptions o = streamable(GauKind::su, GauLength::visible, GauBias::none, 2);
  Rand rand(3);
  const Gau g = random_gau(o, rand);
  const Tensor x = random_tensor({3, 40, 5}, f64, rand);
  Gau::State state;
  int64_t capacity = 0, moves = 0;
  for (int64_t i = 0; i < 40; ++i) {
    state = g.step(narrow(x, 1, i, 1), std::move(state)).second;
    CHECK(state.rings[0].numel() + state.rings[1].numel() == 3 * state.rings[0].dim(2) * (4 + 6));
    CHECK(state.rings[0].dim(2) == state.rings[1].dim(2));
    CHECK(state.rings[0].dim(2) < std::max<int64_t>(2, 2 * (i + 1)));
    if (state.rings[0].dim(2) != capacity) capacity = state.rings[0].dim(2), ++moves;
  }
  CHECK(moves <= 7);  // doubling
  CHECK_FALSE(state.rings[0].requires_grad());
  Rng rng(1);
  const Gau first({.dim = 768, .causal = true}, rng);  // SPEC §3: 1664 numbers a token
  state = first.step(zeros({1, 1, 768}), {}).second;
  CHECK(state.rings[0].numel() + state.rings[1].numel() == 1664);
}

TEST_CASE("gau: streaming has no history and needs no dropout", "[gau][streaming]") {
  GauOptions o = streamable(GauKind::su, GauLength::visible, GauBias::toeplitz);
  o.dropout = o.attention_dropout = 0.5;
  Rand rand(4);
  const Gau g = random_gau(o, rand);
  const Tensor x = random_tensor({1, 4, 5}, f64, rand).requires_grad_();
  CHECK_FALSE(g.step(x, {}).first.requires_grad());
  CHECK(max_abs_diff(g.step(x, {}).first, g(x)) < 1e-12);
  CHECK(g(x).requires_grad());
}

TEST_CASE("gau: a copied state can be continued twice", "[gau][streaming]") {
  Rand rand(5);
  const Gau g = random_gau(streamable(GauKind::su, GauLength::visible, GauBias::none), rand);
  const Tensor x = random_tensor({1, 9, 5}, f64, rand), other = random_tensor({1, 9, 5}, f64, rand);
  for (int64_t shared : {1, 2, 3, 5}) {
    // Grown step by step there is room to spare: both continuations would write to the same place.
    Gau::State state;
    for (int64_t i = 0; i < shared; ++i) state = g.step(narrow(x, 1, i, 1), std::move(state)).second;
    const Gau::State copy = state;
    auto [y, next] = g.step(narrow(x, 1, shared, 1), state);
    g.step(narrow(other, 1, shared, 1), copy);
    const Tensor z = g.step(narrow(x, 1, shared + 1, 1), next).first;
    INFO("after " << shared << " shared tokens");
    CHECK(max_abs_diff(cat({y, z}, 1), narrow(g(x), 1, shared, 2)) < 1e-12);
  }
}

TEST_CASE("gau: what cannot be streamed", "[gau][streaming]") {
  Rand rand(6);
  const Tensor x = random_tensor({2, 3, 5}, f64, rand);
  for (bool causal : {false, true})
    for (GauLength length : kGauLengths) {
      if (causal && length != GauLength::n) continue;
      GauOptions o = streamable(GauKind::su, length, GauBias::none);
      o.causal = causal;
      const Gau g = random_gau(o, rand);
      CHECK_THROWS_AS(g.step(x, {}), ValueError);
      CHECK_THROWS_WITH(g.step(x, {}), Contains("causal") && Contains("visible"));
    }
  const Gau g = random_gau(streamable(GauKind::su, GauLength::visible, GauBias::none), rand);
  const Gau::State two = g.step(x, {}).second;
  CHECK_THROWS_WITH(g.step(random_tensor({1, 3, 5}, f64, rand), two), Contains("2") && Contains("[1,3,5]"));
  CHECK_THROWS_WITH(g.step(random_tensor({2, 3, 4}, f64, rand), two), Contains("[2,3,4]"));
  GauOptions o = streamable(GauKind::su, GauLength::visible, GauBias::toeplitz);
  o.max_length = 4;
  const Gau table = random_gau(o, rand);
  const Gau::State three = table.step(x, {}).second;
  CHECK_THROWS_WITH(table.step(narrow(x, 1, 0, 2), three), Contains("n_max=4"));
  // The refused step changed nothing that matters: the stream goes on.
  CHECK(three.length == 3);
  CHECK_NOTHROW(table.step(narrow(x, 1, 0, 1), three));
}

TEST_CASE("gau: streaming no tokens, or no sequences, is not an error", "[gau][streaming]") {
  Rand rand(7);
  for (GauBias bias : kGauBiases) {
    const Gau g = random_gau(streamable(GauKind::softmax, GauLength::visible, bias), rand);
    const Tensor x = random_tensor({2, 3, 5}, f64, rand);
    INFO("bias " << static_cast<int>(bias));
    CHECK(g.step(narrow(x, 1, 0, 0), {}).first.shape() == Shape{2, 0, 5});
    CHECK(g.step(narrow(x, 0, 0, 0), {}).first.shape() == Shape{0, 3, 5});
    auto [y, state] = g.step(x, {});
    CHECK(g.step(narrow(x, 1, 0, 0), state).second.length == 3);
  }
}
