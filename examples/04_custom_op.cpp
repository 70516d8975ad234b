// Your own fused kernel in one line, with exact gradients of any order.
#include <sluice/sluice.h>

#include <chrono>
#include <cstdio>

using namespace sluice;

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
  std::printf("forward + backward on %lld elements: fused %.2f ms, composed of ops %.2f ms\n", (long long)n, fused, composed);

  // The same text serves every order: check the second derivative in f64.
  Tensor probe = uniform({6}, -2, 2, rng, {f64}).requires_grad_(), scale = full({}, 1.5, {f64}).requires_grad_();
  auto f = [&](const std::vector<Tensor>& in) { return map(scaled_mish, in[0], in[1]); };
  GradcheckResult first = gradcheck(f, {probe, scale}), second = gradgradcheck(f, {probe, scale});
  std::printf("gradcheck %s (max error %.1e), gradgradcheck %s (max error %.1e)\n", first ? "ok" : "FAILED",
              first.max_error, second ? "ok" : "FAILED", second.max_error);
  return first && second ? 0 : 1;
}
