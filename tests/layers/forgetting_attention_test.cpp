#include "support/catch.h"

#include <sluice/sluice.h>

using namespace sluice;

TEST_CASE("forgetting attention: the definition, a gate for each query head", "[heads]") {
  Rng rng(3);
  const ForgettingAttention f({.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 3, .dtype = f64}}, rng);
  const Tensor x = normal({2, 7, 6}, 0, 1, rng, {f64}), c = cumsum(log(sigmoid(transpose(f.forget(x), 1, 2))), -1);
  const auto [q, k, v] = f.heads.project(f.options.heads, x);
  Tensor s =
      matmul(q, transpose(repeat_interleave(k, 2, 1), -1, -2)) / std::sqrt(3.0) + unsqueeze(c, -1) - unsqueeze(c, -2);
  s = masked_fill(s, logical_not(causal_mask(7, 7)), -INFINITY);
  const Tensor y = f.heads.finish(f.options.heads, matmul(softmax(s, -1), repeat_interleave(v, 2, 1)), x);
  CHECK(max(abs(f(x) - y)).item() < 1e-13);
}

TEST_CASE("forgetting attention: the Pro block", "[heads]") {
  Rng rng(3);
  ForgettingAttentionOptions o =
      forgetting_pro_options({.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 3, .value_dim = 5, .dtype = f64});
  const ForgettingAttention plain({.heads = o.heads}, rng), pro(o, rng);
  const int64_t shifts = 2 * 6 * 2, norms = (4 + 2) * 3 + 4 * 5, gate = 6 * 4 * 5;
  CHECK(count(pro) == count(plain) + shifts + norms + gate);
  o.shared_qk_norm = true;
  CHECK(count(ForgettingAttention(o, rng)) == count(pro) - (4 + 2) * 3 + 2 * 3);
  CHECK(cost(o, 9).state == cost(ForgettingAttentionOptions{.heads = o.heads}, 9).state + 2 * (3 + 5));
  // What stands in padding is nothing to the token behind it.
  const Tensor x = normal({1, 7, 6}, 0, 1, rng, {f64}), mask = unsqueeze(arange(7) != 2.0, 0);
  const Tensor padded = where(unsqueeze(mask, -1), x, 5), other = where(unsqueeze(mask, -1), x, -3);
  const Tensor y = pro(padded, {.key_mask = mask}), z = pro(other, {.key_mask = mask});
  CHECK(max(abs(masked_fill(y - z, unsqueeze(logical_not(mask), -1), 0))).item() == 0);
}

TEST_CASE("forgetting attention: far into a text, sums of f32 keep the digits of their differences", "[heads]") {
  // c falls to some −4,000, where numbers of f32 are 2⁻¹² apart.
  Rng rng(3);
  ForgettingAttention f({.heads = {.dim = 16, .heads = 4, .kv_heads = 2, .head_dim = 6}}, rng);
  const Tensor x = normal({1, 6000, 16}, 0, 1, rng);
  const auto last = [](const Tensor& y) { return to(narrow(y, 1, 5800, 200), f64); };
  const Tensor y = last(f(x));
  to(f, f64);
  const Tensor want = last(f(to(x, f64)));
  CHECK(max(abs(y - want)).item() < 2e-6 * max(abs(want)).item());
}

TEST_CASE("forgetting attention: far into a text, rounded products", "[heads][bf16]") {
  // c falls by 0.7 a token, to −420, where numbers of bf16 are 2 apart.
  Rng rng(3);
  const ForgettingAttention f({.heads = {.dim = 16, .heads = 4, .kv_heads = 2, .head_dim = 6}}, rng);
  const Tensor x = to(to(normal({1, 600, 16}, 0, 1, rng), bf16), f32);
  const auto last = [](const Tensor& y) { return to(narrow(y, 1, 500, 100), f32); };
  ForgettingAttention half = clone(f);
  to(half, bf16), to(f, bf16), to(f, f32);  // both with weights of bf16
  const Tensor want = last(f(x));
  const double largest = max(abs(want)).item();
  CHECK(max(abs(last(half(to(x, bf16))) - want)).item() < 0.03 * largest);
  PrecisionScope scope(Precision::bf16);
  CHECK(max(abs(last(f(x)) - want)).item() < 0.03 * largest);
}

TEST_CASE("forgetting attention: the gates' weights are f32 in a layer of bf16", "[heads][bf16]") {
  Rng rng(3);
  ForgettingAttention f({.heads = {.dim = 16, .heads = 2, .dtype = bf16}}, rng);
  const Tensor x = to(normal({1, 300, 16}, 0, 1, rng), bf16);
  f.forget.weight = to(to(f.forget.weight.detach() * 4, bf16), f32);
  const Tensor y = f(x);
  f.forget.weight = f.forget.weight * (1 + 0x1p-10);  // the same in bf16
  CHECK(max(abs(to(f(x) - y, f32))).item() > 0);
}

TEST_CASE("forgetting attention: the gates' gradients, where products are rounded", "[heads][bf16]") {
  // They are sums over all later tokens, of which most cancel.
  Rng rng(5);
  const HeadsOptions heads{.dim = 32, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const ForgettingAttention f({.heads = heads, .gate_bias = 3}, rng);
  to(f, bf16), to(f, f32);
  const Tensor x = to(to(normal({1, 1200, 32}, 0, 1, rng), bf16), f32);
  const Tensor g = to(to(normal({1, 1200, 32}, 0, 1, rng), bf16), f32);
  const auto gradients = [&](DType dtype) {
    const ForgettingAttention layer = clone(f);
    to(layer, dtype);
    return grad({layer(to(x, dtype))}, {layer.forget.bias, layer.forget.weight}, {.grad_outputs = {to(g, dtype)}});
  };
  const std::vector<Tensor> exact = gradients(f64);
  PrecisionScope scope(Precision::bf16);
  for (const DType dtype : {f32, bf16}) {
    INFO(dtype);
    const std::vector<Tensor> rounded = gradients(dtype);
    for (std::size_t i = 0; i < exact.size(); ++i)
      CHECK(max(abs(to(rounded[i], f64) - exact[i])).item() < 0.02 * max(abs(exact[i])).item());
  }
}

TEST_CASE("forgetting attention: gates that do not read x", "[heads]") {
  Rng rng(3);
  const HeadsOptions heads = checked_heads("forgetting_attention", {.dim = 6, .heads = 3, .head_dim = 4, .dtype = f64});
  const auto made = [&](ForgetGate gate, double first, double last) {
    Rng same(5);
    return ForgettingAttention({.heads = heads, .gate = gate, .decay_first = first, .decay_last = last}, same);
  };
  const ForgettingAttention learned = made(ForgetGate::learned, 2, 32), fixed = made(ForgetGate::fixed, 2, 32),
                            none = made(ForgetGate::none, 0, 0);
  // Weights fall to 1/e in 2, 8 and 32 tokens.
  const Tensor decay = neg(log(sigmoid(learned.forget.bias)));
  CHECK(max(abs(decay - Tensor::from(std::vector<double>{0.5, 0.125, 0.03125}, {3}))).item() < 1e-12);
  CHECK(count(learned) == count(none) + 3);
  CHECK(count(fixed) == count(none));
  const Tensor x = normal({2, 9, 6}, 0, 1, rng, {f64});
  CHECK(max(abs(learned(x) - fixed(x))).item() == 0);
  // Decays that do not depend on the data are a bias by distance, as ALiBi's.
  const Tensor p = arange(9, {f64});
  const Tensor bias = unsqueeze(unsqueeze(neg(decay), -1), -1) * (unsqueeze(p, 1) - unsqueeze(p, 0));
  const auto [q, k, v] = fixed.heads.project(fixed.options.heads, x);
  const auto attended = [&, q = q, k = k, v = v](const Tensor& added) {  // clang 14 captures no structured bindings
    return fixed.heads.finish(heads, attention(q, k, v, {.mask = {.causal = true}, .bias = added}), x);
  };
  CHECK(max(abs(fixed(x) - attended(bias))).item() < 1e-13);
  CHECK(max(abs(none(x) - attended({}))).item() < 1e-13);
  CHECK_THROWS_WITH(made(ForgetGate::input, 2, 0), Contains("forgetting_attention") && Contains("decay_last=0"));
}
