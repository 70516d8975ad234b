// Softmax and linear attention mixed by a gate: padding, sizes, errors. heads_reference.cpp says what it computes.
#include "layers/gau_reference.h"
#include "layers/streamed.h"

#include <sluice/layers/attention/fused_attention.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr FusedGate kGates[] = {FusedGate::per_channel, FusedGate::per_head, FusedGate::per_token};

FusedAttention make(FusedAttentionOptions o, Rand& rand) {
  o.heads.dtype = f64;
  Rng rng(1);
  return randomised(FusedAttention(o, rng), rand);
}

std::vector<FusedAttentionOptions> all_options() {
  std::vector<FusedAttentionOptions> all;
  for (FusedGate gate : kGates)
    for (int bits = 0; bits < 8; ++bits) {
      FusedAttentionOptions o{.heads = {.dim = 4, .heads = 2}};
      o.gate = gate, o.heads.causal = bits & 1, o.heads.use_rope = bits & 2,
      o.heads.qkv_bias = o.heads.out_bias = bits & 4;
      o.heads.project_out = bits % 3 != 1, o.chunk = 2, o.eps = bits & 4 ? 1e-2 : 0;
      all.push_back(o);
    }
  return all;
}
std::string describe(const FusedAttentionOptions& o) {
  return str("gate ", static_cast<int>(o.gate), " causal ", o.heads.causal, " rope ", o.heads.use_rope, " bias ",
             o.heads.qkv_bias);
}

}  // namespace

TEST_CASE("fused attention: a sequence without any real key is 0 from both kinds of attention", "[gates]") {
  for (const FusedAttentionOptions& o : all_options()) {
    Rand rand(5);
    const FusedAttention l = make(o, rand);
    INFO(describe(o));
    const Tensor y = l(random_tensor({2, 5, 4}, f64, rand), {.key_mask = prefix_mask(5, 0, 5)});
    const Tensor want = l.heads.out.bias.defined() && o.heads.project_out ? l.heads.out.bias : zeros({1}, {f64});
    CHECK(max_abs(select(y, 0, 0) - want) == 0);
  }
}

TEST_CASE("fused attention: the function itself ignores NaN behind the mask, with gradients", "[gates]") {
  Rand rand(8);
  const Tensor mask = prefix_mask(6, 4, 6), nan = Tensor::from(std::vector<double>{NAN}, {1});
  auto operand = [&](bool dirty) {
    const Tensor t = random_tensor({2, 2, 6, 3}, f64, rand);
    return (dirty ? where(unsqueeze(unsqueeze(mask, 1), -1), t, nan) : t).detach().requires_grad_();
  };
  for (bool causal : {false, true}) {
    const std::vector<Tensor> inputs{operand(false), operand(true), operand(true), operand(false)};
    const FusedAttentionForm form{.causal = causal, .chunk = 4};
    const Tensor y = fused_attention(inputs[0], inputs[1], inputs[2], inputs[3], form, mask);
    auto real = [](const Tensor& t) { return narrow(narrow(t, 0, 0, 1), 2, 0, 4); };
    const Tensor alone = fused_attention(real(inputs[0]), real(inputs[1]), real(inputs[2]), real(inputs[3]), form);
    CHECK(max_abs_diff(real(y), alone) < 1e-12);
    const TensorFn f = [&](const std::vector<Tensor>& v) {
      return std::vector<Tensor>{fused_attention(v[0], v[1], v[2], v[3], form, mask)};
    };
    for (const Tensor& g : library_gradient(f, inputs, {ones(y.shape(), {f64})}))
      for (double v : g.to_vector<double>()) CHECK(std::isfinite(v));
  }
}

TEST_CASE("fused attention: sizes", "[gates]") {
  Rng rng(1);
  const FusedAttention l({.heads = {.dim = 16, .heads = 2, .causal = true}}, rng);
  CHECK(count(l) == 5 * 256 + 16);
  CHECK(count(FusedAttention({.heads = {.dim = 16, .heads = 2}, .gate = FusedGate::per_head}, rng)) ==
        4 * 256 + 2 * 16 + 2);
  CHECK(count(FusedAttention({.heads = {.dim = 16, .heads = 2}, .gate = FusedGate::per_token}, rng)) ==
        4 * 256 + 16 + 1);
  CHECK(FusedAttention({.heads = {.dim = 4}, .gate = FusedGate::per_token, .gate_bias = 3}, rng).gate.bias.item() == 3);
}

TEST_CASE("fused attention: what is refused, and by which words", "[gates]") {
  Rng rng(1);
  CHECK_THROWS_WITH(FusedAttention({.heads = {.dim = 5, .heads = 2}}, rng), Contains("heads=2") && Contains("dim=5"));
  const FusedAttention l({.heads = {.dim = 4}}, rng);
  CHECK_THROWS_WITH(stream_of(l, ones({1, 1, 4})), Contains("causal"));
  const Tensor q = ones({1, 2, 3, 4});
  CHECK_THROWS_WITH(fused_attention(q, ones({1, 2, 5, 4}), ones({1, 2, 5, 4}), ones({1})), Contains("[1,2,5,4]"));
  CHECK_THROWS_AS(fused_attention(q, q, q, ones({1, 2, 3, 5})), ShapeError);
  CHECK_THROWS_WITH(fused_attention(q, q, q, ones({2, 2, 3, 4})), Contains("[2,2,3,4]") && Contains("gate"));
}
