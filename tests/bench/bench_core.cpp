// The figures that everything else rests on: the machine's own peaks, the cost of a recorded tiny op, fused
// maps, and the throughput of every vectorised formula. One "name value unit" per line, so that
// compare_pytorch.py can read them.
#include "bench.h"

#include <sluice/ops/map.h>
#include <sluice/sluice.h>

#include <cstring>

using namespace sluice;
using bench::median_seconds;

namespace {

void line(const char* name, double value, const char* unit) { std::printf("%-34s %12.4f %s\n", name, value, unit); }

/// Forward + backward per node of a chain of n recorded products on 8 elements.
double tiny_op_us(int n) {
  Tensor a = full({8}, 1).requires_grad_(), b = full({8}, 0.999).requires_grad_();
  return median_seconds([&] {
           Tensor h = a;
           for (int i = 0; i < n; ++i) h = h * b;
           grad({sum(h)}, {a, b});
         }) / n * 1e6;
}

template <class F>
double giga_per_second(F formula) {
  constexpr int64_t n = 2048;  // in L1
  alignas(64) static float x[n], y[n];
  for (int64_t i = 0; i < n; ++i) x[i] = 0.001f * static_cast<float>(i) + 0.1f;
  const double s = median_seconds([&] {
    for (int rep = 0; rep < 500; ++rep) {
      const float* in = x;
      float* out = y;
      detail::apply_formula<F, float, 0>(&formula, &in, &out, n);
      asm volatile("" ::: "memory");
    }
  });
  return 500.0 * n / s * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && !std::strcmp(argv[1], "--one-thread")) set_num_threads(1);
  line("threads", num_threads(), "");
  Rng rng(1);
  {
    Tensor a = normal({1536, 1536}, 0, 1, rng), b = normal({1536, 1536}, 0, 1, rng);
    line("gemm_f32_1536", 2 * 1536.0 * 1536 * 1536 / median_seconds([&] { matmul(a, b); }) * 1e-9, "GFLOP/s");
    Tensor big = normal({1 << 24}, 0, 1, rng);
    line("copy_64MiB", 2 * 67.108864 / median_seconds([&] { clone(big); }) * 1e-3, "GB/s (read + write)");
  }
  line("tiny_op_chain_100", tiny_op_us(100), "us per node, forward + backward");
  line("tiny_op_chain_10000", tiny_op_us(10000), "us per node, forward + backward");
  {
    Tensor x = normal({4096, 1024}, 0, 1, rng).requires_grad_(), g = normal({4096, 1024}, 0, 1, rng).requires_grad_();
    Tensor seed = ones({4096, 1024});
    line("swiglu_fused_4096x1024",
         median_seconds([&] { grad({swiglu(x, g)}, {x, g}, {.grad_outputs = {seed}}); }) * 1e3, "ms forward + backward");
    line("swiglu_composed_4096x1024",
         median_seconds([&] { grad({x * (g * sigmoid(g))}, {x, g}, {.grad_outputs = {seed}}); }) * 1e3,
         "ms forward + backward");
  }
  {
    Tensor x = normal({2048, 1024}, 0, 1, rng).requires_grad_(), w = ones({1024}).requires_grad_(), b = zeros({1024}).requires_grad_();
    Tensor seed = ones({2048, 1024});
    line("layer_norm_2048x1024", median_seconds([&] { grad({layer_norm(x, w, b)}, {x, w, b}, {.grad_outputs = {seed}}); }) * 1e3, "ms forward + backward");
    line("softmax_2048x1024", median_seconds([&] { grad({softmax(x)}, {x}, {.grad_outputs = {seed}}); }) * 1e3, "ms forward + backward");
  }
  {
    Gau gau({.dim = 256, .key_dim = 128, .causal = true}, rng);
    Tensor x = normal({8, 512, 256}, 0, 1, rng);
    Adam adam(parameters(gau), {});
    line("gau_layer_8x512x256", median_seconds([&] {
           adam.zero_grad();
           backward(mean(square(gau(x))));
         }, 7) * 1e3, "ms forward + backward");
  }
  // A loop that stops vectorising falls to a tenth of these.
  namespace fm = formula;
  line("formula_silu", giga_per_second(fm::Silu{}), "G elements/s in cache");
  line("formula_gelu", giga_per_second(fm::Gelu{}), "G elements/s in cache");
  line("formula_tanh", giga_per_second(fm::Tanh{}), "G elements/s in cache");
  line("formula_exp", giga_per_second(fm::Exp{}), "G elements/s in cache");
  line("formula_log", giga_per_second(fm::Log{}), "G elements/s in cache");
  line("formula_erf", giga_per_second(fm::Erf{}), "G elements/s in cache");
  line("formula_sin", giga_per_second(fm::Sin{}), "G elements/s in cache");
  line("formula_softplus", giga_per_second(fm::Softplus{}), "G elements/s in cache");
  line("formula_laplace", giga_per_second(fm::Laplace{}), "G elements/s in cache");
}
