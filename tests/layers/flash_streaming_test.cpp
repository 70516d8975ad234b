// Streaming (SPEC §6): the tokens of a sequence in pieces give the rows of the full causal pass, from a state that
// does not grow.
#include "layers/flash_reference.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

FlashOptions streamable(GauKind kind, int64_t chunk = 4) {
  FlashOptions o{.dim = 5, .expansion = 6, .key_dim = 4, .chunk = chunk, .causal = true};
  o.kind = kind;
  return o;
}

/// The outputs of x fed in pieces of the given sizes, the last one repeated until x ends.
Tensor streamed(const Flash& f, const Tensor& x, const std::vector<int64_t>& sizes, Flash::State state = {}) {
  std::vector<Tensor> outputs;
  const int64_t before = state.length();
  int64_t at = 0;
  for (std::size_t i = 0; at < x.dim(1); ++i) {
    const int64_t size = std::min(sizes[std::min(i, sizes.size() - 1)], x.dim(1) - at);
    auto [y, next] = f.step(narrow(x, 1, at, size), std::move(state));
    outputs.push_back(y), state = std::move(next);
    at += size;
    CHECK(state.length() == before + at);
  }
  return cat(outputs, 1);
}

int64_t numbers(const Flash::State& s) {
  int64_t n = 0;
  for (const Tensor* t : {&s.mixed.sum, &s.mixed.k_quad, &s.mixed.k_lin, &s.mixed.v, &s.shift})
    if (t->defined()) n += t->numel();
  return n;
}

const std::vector<std::vector<int64_t>> kPieces{{1}, {2}, {3, 1}, {4}, {10, 1, 1, 1, 7}, {17}};

}  // namespace

TEST_CASE("flash: streaming equals the full pass", "[flash][streaming]") {
  int turn = 0;
  for (GauKind kind : kGauKinds)
    for (ChunkScaling scaling : kChunkScalings)
      for (ChunkLength length : kChunkLengths)
        for (GauBias bias : kGauBiases)
          for (int64_t chunk : {1, 4, 20}) {
            FlashOptions o = streamable(kind, chunk);
            o.scaling = scaling, o.length = length, o.bias = bias;
            o.token_shift = ++turn % 2 == 0;
            if (bias == GauBias::rope) o.rope.pairing = RopePairing::interleaved, o.rope.offset = 3;
            Rand rand(1);
            const Flash f = random_flash(o, rand);
            const Tensor x = random_tensor({2, 17, 5}, f64, rand), full = f(x);
            INFO(name_of(kind) << " scaling " << static_cast<int>(scaling) << " bias " << static_cast<int>(bias)
                               << " length " << static_cast<int>(length) << " chunk " << chunk);
            const std::vector<int64_t>& pieces = kPieces[static_cast<std::size_t>(turn) % kPieces.size()];
            check_identity("FLASH: stream = chunked, 6", streamed(f, x, pieces), full, 1e-12);
          }
}

TEST_CASE("flash: streaming one term alone", "[flash][streaming]") {
  for (bool quadratic : {false, true}) {
    FlashOptions o = streamable(GauKind::su);
    o.quadratic = quadratic, o.linear = !quadratic;
    Rand rand(2);
    const Flash f = random_flash(o, rand);
    const Tensor x = random_tensor({2, 17, 5}, f64, rand);
    for (const auto& pieces : kPieces) CHECK(max_abs_diff(streamed(f, x, pieces), f(x)) < 1e-12);
  }
}

TEST_CASE("flash: streaming in f32, over many chunks", "[flash][streaming]") {
  FlashOptions o{.dim = 8, .expansion = 16, .key_dim = 8, .chunk = 32, .causal = true};
  Rng rng(2);
  const Flash f(o, rng);
  Rand rand(2);
  const Tensor x = random_tensor({1, 500, 8}, f32, rand), full = f(x);
  CHECK(max_abs_diff(streamed(f, x, {400, 1}), full) < 1e-5 * max_abs(full));
}

TEST_CASE("flash: the state holds s·e + C·(2s + e) numbers, whatever the length", "[flash][streaming]") {
  for (bool shift : {false, true}) {
    FlashOptions o = streamable(GauKind::su);
    o.token_shift = shift;
    Rand rand(3);
    const Flash f = random_flash(o, rand);
    const Tensor x = random_tensor({3, 13, 5}, f64, rand);
    Flash::State state;
    for (int64_t i = 0; i < 13; ++i) {
      state = f.step(narrow(x, 1, i, 1), std::move(state)).second;
      CHECK(numbers(state) == 3 * (4 * 6 + 4 * (2 * 4 + 6) + (shift ? 3 : 0)));
      for (const Tensor* t : {&state.mixed.sum, &state.mixed.v}) CHECK_FALSE(t->requires_grad());
    }
    if (shift) CHECK(state.shift.impl().storage->bytes() <= 3 * 3 * 8 + 64);  // not a window on all of the input
  }
  Rng rng(1);
  const Flash first({.dim = 768, .causal = true}, rng);  // SPEC §6: 655 k numbers
  CHECK(numbers(first.step(zeros({1, 1, 768}), {}).second) == 655360);
}

TEST_CASE("flash: steps write in place, and into no state that another copy holds", "[flash][streaming]") {
  Rand rand(5);
  FlashOptions o = streamable(GauKind::su);
  o.token_shift = true;
  const Flash f = random_flash(o, rand);
  const Tensor x = random_tensor({1, 9, 5}, f64, rand), other = random_tensor({1, 9, 5}, f64, rand), full = f(x);
  for (int64_t shared : {1, 2, 3, 4, 5}) {
    Flash::State state;
    for (int64_t i = 0; i < shared; ++i) state = f.step(narrow(x, 1, i, 1), std::move(state)).second;
    const Flash::State copy = state;
    auto [y, next] = f.step(narrow(x, 1, shared, 1), state);
    f.step(narrow(other, 1, shared, 3), copy);
    const Tensor z = f.step(narrow(x, 1, shared + 1, 3), next).first;
    INFO("after " << shared << " shared tokens");
    CHECK(max_abs_diff(cat({y, z}, 1), narrow(full, 1, shared, 4)) < 1e-12);
    CHECK(copy.length() == shared);
  }
  Flash::State state = f.step(narrow(x, 1, 0, 1), {}).second;
  const void* keys = state.mixed.k_quad.raw();
  for (int64_t i = 1; i < 9; ++i) state = f.step(narrow(x, 1, i, 1), std::move(state)).second;
  CHECK(state.mixed.k_quad.raw() == keys);
}

TEST_CASE("flash: streaming has no history and no dropout", "[flash][streaming]") {
  FlashOptions o = streamable(GauKind::su);
  o.dropout = o.attention_dropout = 0.5, o.bias = GauBias::toeplitz;
  Rand rand(4);
  const Flash f = random_flash(o, rand);
  const Tensor x = random_tensor({1, 6, 5}, f64, rand).requires_grad_();
  CHECK_FALSE(f.step(x, {}).first.requires_grad());
  CHECK(max_abs_diff(f.step(x, {}).first, f(x)) < 1e-12);
}

TEST_CASE("flash: streaming no tokens, or no sequences, is not an error", "[flash][streaming]") {
  Rand rand(7);
  for (GauBias bias : kGauBiases) {
    FlashOptions o = streamable(GauKind::softmax);
    o.bias = bias, o.token_shift = true;
    const Flash f = random_flash(o, rand);
    const Tensor x = random_tensor({2, 6, 5}, f64, rand);
    CHECK(f.step(narrow(x, 1, 0, 0), {}).first.shape() == Shape{2, 0, 5});
    CHECK(f.step(narrow(x, 0, 0, 0), {}).first.shape() == Shape{0, 6, 5});
    auto [y, state] = f.step(narrow(x, 1, 0, 3), {});
    state = f.step(narrow(x, 1, 0, 0), state).second;
    CHECK(state.length() == 3);
    CHECK(max_abs_diff(f.step(narrow(x, 1, 3, 3), state).first, narrow(f(x), 1, 3, 3)) < 1e-12);
  }
}

TEST_CASE("flash: what cannot be streamed", "[flash][streaming]") {
  Rand rand(6);
  const Tensor x = random_tensor({2, 3, 5}, f64, rand);
  FlashOptions o = streamable(GauKind::su);
  o.causal = false;
  const Flash both = random_flash(o, rand);
  CHECK_THROWS_AS(both.step(x, {}), ValueError);
  CHECK_THROWS_WITH(both.step(x, {}), Contains("causal"));
  const Flash f = random_flash(streamable(GauKind::su), rand);
  const Flash::State two = f.step(x, {}).second;
  CHECK_THROWS_WITH(f.step(narrow(x, 0, 0, 1), two), Contains("batch 2") && Contains("[1,3,5]"));
  CHECK_THROWS_WITH(f.step(random_tensor({2, 3, 4}, f64, rand), two), Contains("[2,3,4]"));
  const Flash wider = random_flash(streamable(GauKind::su, 6), rand);
  CHECK_THROWS_WITH(wider.step(x, two), Contains("chunks of 6"));
  CHECK(two.length() == 3);  // the refused steps changed nothing: the stream goes on
  CHECK(max_abs_diff(f.step(x, two).first, narrow(f(cat({x, x}, 1)), 1, 3, 3)) < 1e-12);
  const Tensor q = ones({1, 2, 3, 4}), v = ones({1, 2, 3, 2});
  CHECK_THROWS_WITH(mixed_chunk_step(q, q, q, q, v, {.chunk = 4, .causal = true}, ones({1, 5}), {}),
                    Contains("relative_bias=[1,5]") && Contains("4"));
  CHECK_THROWS_WITH(mixed_chunk_step(q, q, q, q, v, {.chunk = 4}, {}, {}), Contains("causal"));
}
