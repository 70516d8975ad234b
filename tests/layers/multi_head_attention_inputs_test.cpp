// What a call of the softmax attention layer brings besides its tokens (masks, documents, padding, a context, random
// numbers), and what its outputs must not depend on.
#include "layers/multi_head_attention_samples.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("multi_head_attention: what a call brings equals loops", "[attention]") {
  for (bool causal : {false, true})
    for (int bits = 1; bits < 32; ++bits) {
      MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4}};
      o.heads.causal = causal, o.window = bits % 3 == 0 ? 4 : 0;
      if (bits % 4 == 1 && !(bits & 8)) o.global = {0, 3}, o.separate_global_projections = true;
      Rand rand(static_cast<uint64_t>(bits));
      const MultiHeadAttention a = random_attention(o, rand);
      const Tensor x = random_tensor({2, 7, 6}, f64, rand);
      AttentionInputs in;
      if (bits & 1) in.key_mask = prefix_mask(7, 7, 4);
      if (bits & 2) in.segments = documents({0, 0, 0, 1, 1, 1, 5}, {3, 3, 3, 3, 3, 1, 1});
      if (bits & 4) in.mask = random_bools({2, bits & 1 ? 4 : 1, 7, 7}, rand);
      if (bits & 8) in.blocks = random_bools({3, 3}, rand), in.block = 3;
      if (bits & 16) in.bias = random_tensor({2, 1, 7, 7}, f64, rand);
      const BatchResult want = mha_reference(a, x, in);
      INFO("inputs " << bits << " causal " << causal);
      CHECK(max_abs_diff(real_rows(a(x, in), in.key_mask), real_rows(want.out, in.key_mask)) < 1e-12);
      CHECK(max_abs_diff(a.map(x, in), want.map) < 1e-13);
    }
}

TEST_CASE("multi_head_attention: cross attention equals loops", "[attention]") {
  for (int bits = 0; bits < 64; ++bits) {
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 3,
                                          .context_dim = 5}};
    o.norm = bits & 1 ? NormKind::rms : NormKind::none;
    o.qk_norm = bits & 1, o.heads.residual = bits & 2;
    if (bits & 4) o.sink = AttentionSink::learned;
    if (bits & 8)
      for (GatePosition p : {GatePosition::g2, GatePosition::g3, GatePosition::g4, GatePosition::g1})
        o.gates.push_back({.position = p});
    Rand rand(static_cast<uint64_t>(bits));
    const MultiHeadAttention a = random_attention(o, rand);
    const Tensor x = random_tensor({2, 4, 6}, f64, rand);
    AttentionInputs in{.context = random_tensor({2, 7, 5}, f64, rand)};
    if (bits & 16) in.key_mask = prefix_mask(7, 3, 0);  // the second context is empty
    if (bits & 32) {
      in.segments = documents({0, 0, 1, 2}, {2, 0, 0, 1});
      in.context_segments = documents({0, 0, 1, 1, 0, 1, 3}, {0, 0, 0, 1, 1, 1, 2});
    }
    const BatchResult want = mha_reference(a, x, in);
    CHECK(max_abs_diff(a(x, in), want.out) < 1e-12);
    CHECK(max_abs_diff(a.map(x, in), want.map) < 1e-13);
  }
}

TEST_CASE("multi_head_attention: separate global projections begin as the shared ones", "[attention]") {
  for (const LayerSample& s : global_samples(true)) {
    Rng rng(1), again(1);
    MultiHeadAttentionOptions o = s.options;
    o.heads.dtype = f64;
    MultiHeadAttention separate(o, rng);
    o.separate_global_projections = false;
    const MultiHeadAttention shared(o, again);
    Rand rand(14);
    const Tensor x = random_tensor({2, 9, 6}, f64, rand), y = separate(x);
    INFO(s.name);
    CHECK(max_abs_diff(y, shared(x)) < 1e-13);
    separate.global_k.weight = separate.global_k.weight * 2.0;  // only rows 1 and 5 change
    const Tensor changed = separate(x);
    for (int64_t i = 0; i < 9; ++i) {
      const bool same = same_bits(select(changed, 1, i), select(y, 1, i));
      CHECK(same == (i != 1 && i != 5));
    }
    CHECK_FALSE(separate.global_q.weight.shares_storage(separate.heads.q.weight));
  }
}

TEST_CASE("multi_head_attention: earlier outputs do not know later tokens, to the bit", "[attention]") {
  for (const auto& list : {attention_samples(true), global_samples(true)})
    for (const LayerSample& s : list) {
      Rand rand(15);
      const MultiHeadAttention a = random_attention(s.options, rand);
      const Tensor x = random_tensor({2, 9, 6}, f64, rand), y = a(x);
      INFO(s.name);
      for (int64_t t : {0, 4, 8}) {
        const Tensor changed = a(masked_fill(x, reshape(arange(9), {9, 1}) == static_cast<double>(t), 3));
        CHECK(same_bits(narrow(changed, 1, 0, t), narrow(y, 1, 0, t)));
        CHECK(max_abs_diff(select(changed, 1, t), select(y, 1, t)) > 1e-3);
      }
    }
}

TEST_CASE("multi_head_attention: a padded batch equals its rows alone, and NaN in padding stays there", "[attention]") {
  for (const LayerSample& s : all_attention_samples()) {
    Rand rand(16);
    const MultiHeadAttention a = random_attention(s.options, rand);
    const Tensor clean = random_tensor({2, 9, 6}, f64, rand), mask = prefix_mask(9, 6, 6);
    auto run = [&](double junk) {
      Tensor x = masked_fill(clean, reshape(arange(9), {9, 1}) >= 6.0, junk).detach().requires_grad_();
      std::vector<Tensor> wanted{x};
      for (const NamedTensor& p : parameters(a)) wanted.push_back(p.tensor);
      const Tensor y = narrow(a(x, {.key_mask = mask}), 1, 0, 6);
      std::vector<Tensor> all = grad({sum(square(y))}, wanted, {.allow_unused = true});
      all[0] = narrow(all[0], 1, 0, 6);
      all.push_back(y);
      return all;
    };
    const std::vector<Tensor> zero = run(0), nan = run(NAN);
    INFO(s.name);
    CHECK(max_abs_diff(a(narrow(clean, 1, 0, 6)), nan.back()) < 1e-13);
    double worst = 0;
    for (std::size_t i = 0; i < zero.size(); ++i)
      if (zero[i].defined()) worst = std::max(worst, max_abs_diff(zero[i], nan[i]));
    CHECK(worst < 1e-12);
  }
}

TEST_CASE("multi_head_attention: documents are as alone, with positions counted on", "[attention]") {
  Rand rand(17);
  MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 2, .causal = true}, .position_bias = PositionBias::alibi};
  const MultiHeadAttention a = random_attention(o, rand);  // ALiBi sees distances only
  const Tensor x = random_tensor({1, 9, 6}, f64, rand);
  const Tensor at = Tensor::from(std::vector<int64_t>{4, 4, 4, 4, 2, 2, 2, 2, 2}, {1, 9});
  const Tensor y = a(x, {.segments = at});
  CHECK(max_abs_diff(narrow(y, 1, 0, 4), a(narrow(x, 1, 0, 4))) < 1e-13);
  CHECK(max_abs_diff(narrow(y, 1, 4, 5), a(narrow(x, 1, 4, 5))) < 1e-13);
}

TEST_CASE("multi_head_attention: f32 follows f64", "[attention]") {
  for (const LayerSample& s : all_attention_samples()) {
    Rand rand(18);
    MultiHeadAttention a = random_attention(s.options, rand, 0.3);
    const Tensor x = random_tensor({2, 9, 6}, f64, rand), want = a(x);
    for (const auto& slot : detail::members(a).slots) *slot.tensor = to(slot.tensor->detach(), f32).requires_grad_();
    a.options.heads.dtype = f32;
    const Tensor got = a(to(x, f32));
    INFO(s.name);
    CHECK(got.dtype() == f32);
    CHECK(max_abs_diff(to(got, f64), want) < 1e-5 * std::max(1.0, max_abs(want)));
  }
}

TEST_CASE("multi_head_attention: dropout needs a generator, repeats with it, and keeps the mean", "[attention]") {
  for (bool on_weights : {true, false})
    for (bool global : {true, false}) {
      MultiHeadAttentionOptions o{.heads = {.dim = 4, .heads = 2, .residual = true}};
      if (global) o.window = 2, o.global = {2}, o.separate_global_projections = true;
      (on_weights ? o.heads.attention_dropout : o.heads.dropout) = 0.25;
      Rand rand(19);
      const MultiHeadAttention a = random_attention(o, rand);
      const Tensor x = random_tensor({2, 5, 4}, f64, rand), still = a(x);
      CHECK(same_bits(a(x), still));
      Rng one(5), two(5);
      CHECK(same_bits(a(x, {}, &one), a(x, {}, &two)));
      CHECK_FALSE(same_bits(a(x, {}, &one), still));
      const int draws = 800;
      NoGrad guard;
      Tensor total = zeros(x.shape(), {f64}), squares = zeros(x.shape(), {f64});
      for (int i = 0; i < draws; ++i) {
        const Tensor difference = a(x, {}, &one) - still;
        total = total + difference, squares = squares + square(difference);
      }
      const std::vector<double> t = total.to_vector<double>(), q = squares.to_vector<double>();
      double worst = 0;  // in standard errors
      for (std::size_t i = 0; i < t.size(); ++i) worst = std::max(worst, std::abs(t[i]) / std::sqrt(q[i]));
      CHECK(worst < 4.5);
      CHECK(worst > 0.5);
    }
}
