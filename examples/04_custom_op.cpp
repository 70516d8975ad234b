// Your own fused kernel in one line, with exact gradients of any order; and an op of which you give the gradient
// yourself.
#include <sluice/sluice.h>

#include <chrono>
#include <cstdio>

using namespace sluice;

/// 1 where x > 0, else 0, with the gradient of a sigmoid: a hard gate that learns (straight-through, Bengio et al.
/// 2013).
Tensor hard_gate(const Tensor& x) {
  return custom_op(
      "hard_gate", {x}, [](const Tensors& in) { return to(in[0] > 0.0, in[0].dtype()); },
      [](const Tensor& g, const Tensors& in, const Tensor&) -> Tensors {
        const Tensor p = sigmoid(in[0]);  // in ops, so that it can be differentiated again
        return {g * p * (1.0 - p)};
      });
}

int main(int argc, char**) {
  const int64_t n = argc > 1 ? 1 << 10 : 1 << 22;  // any argument (--smoke): small

  // Mish, x·tanh(softplus(x)), of a scaled input: one pass over memory forward, one backward.
  auto scaled_mish = [](auto x, auto s) { return (x * s) * tanh(softplus(x * s)); };

  Rng rng(1);
  Tensor x = normal({n}, 0, 1, rng).requires_grad_(), s = Tensor(1.5f).requires_grad_();
  auto time = [](auto f) {
    f();  // warm-up: the allocator keeps the blocks
    auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  Tensor ones_like_x = ones({n});
  double fused = time([&] { grad({map(scaled_mish, x, s)}, {x, s}, {.grad_outputs = {ones_like_x}}); });
  double composed = time([&] { grad({x * s * tanh(softplus(x * s))}, {x, s}, {.grad_outputs = {ones_like_x}}); });
  std::printf("forward + backward on %lld elements: fused %.2f ms, composed of ops %.2f ms\n", (long long)n, fused,
              composed);

  // The same text serves every order: check the second derivative in f64.
  Tensor probe = uniform({6}, -2, 2, rng, {f64}).requires_grad_(), scale = full({}, 1.5, {f64}).requires_grad_();
  auto f = [&](const std::vector<Tensor>& in) { return map(scaled_mish, in[0], in[1]); };
  GradcheckResult first = gradcheck(f, {probe, scale}), second = gradgradcheck(f, {probe, scale});
  std::printf("gradcheck %s (max error %.1e), gradgradcheck %s (max error %.1e)\n", first ? "ok" : "FAILED",
              first.max_error, second ? "ok" : "FAILED", second.max_error);

  Tensor z = Tensor({-2, -0.5f, 0.5f, 2}).requires_grad_();
  backward(sum(hard_gate(z)));
  std::printf("hard gate of -2 -0.5 0.5 2: %s\nand its gradient:           %s\n",
              to_string(hard_gate(z).detach()).c_str(), to_string(z.grad()).c_str());
  return first && second ? 0 : 1;
}

// Expected output:
// forward + backward on 4194304 elements: fused … ms, composed of ops … ms
// gradcheck ok (max error …), gradgradcheck ok (max error …)
// hard gate of -2 -0.5 0.5 2: Tensor[4] f32 cpu
// [0.0, 0.0, 1.0, 1.0]
// and its gradient:           Tensor[4] f32 cpu
// [0.105, 0.235, 0.235, 0.105]
