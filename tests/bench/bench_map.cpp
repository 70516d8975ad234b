// A user's fused map() beside the separate ops that it replaces, and in a plain Release build beside -march=native.
// Every pair is measured alternately, so that a busy machine slows both sides alike.
#include "bench.h"

#include "bench_map.h"

#include <sluice/core/kernel/cpu.h>
#include <sluice/sluice.h>

#include <cstdio>

using namespace sluice;

namespace {

using Formula = Tensor (*)(const Tensor&, const Tensor&);

double seconds(Formula f, const Tensor& x, const Tensor& g, const Tensor& seed) {
  const double start = bench::now();
  grad({f(x, g)}, {x, g}, {.grad_outputs = {seed}});
  return bench::now() - start;
}

/// Medians of forward + backward.
void compare(const char* name, std::initializer_list<Formula> formulas, int64_t rows, Rng& rng) {
  Tensor x = normal({rows, 1024}, 0, 1, rng).requires_grad_(), g = normal({rows, 1024}, 0, 1, rng).requires_grad_();
  const Tensor seed = ones({rows, 1024});
  std::vector<std::vector<double>> times(formulas.size());
  for (int run = 0; run < 23; ++run) {
    std::size_t k = 0;
    for (Formula f : formulas) {
      const double t = seconds(f, x, g, seed);
      if (run >= 2) times[k].push_back(t);
      ++k;
    }
  }
  for (auto& t : times) std::sort(t.begin(), t.end());
  auto ms = [&](std::size_t k) { return times[k][times[k].size() / 2] * 1e3; };
  std::printf(
      "%-10s %5ld x 1024   separate %8.3f ms   map %8.3f ms (%5.2f x)   map, native %8.3f ms   plain/native %5.2f\n",
      name, static_cast<long>(rows), ms(0), ms(1), ms(0) / ms(1), ms(2), ms(1) / ms(2));
}

}  // namespace

int main() {
  std::printf("%s, %s, %d threads; forward + backward of two f32 inputs\n", cpu_name().c_str(), isa_name(isa()),
              num_threads());
  Rng rng(1);
  for (int64_t rows : {64, 4096}) {
    compare("swiglu",
            {[](const Tensor& x, const Tensor& g) { return x * (g * sigmoid(g)); }, bench::swiglu_plain,
             bench::swiglu_native},
            rows, rng);
    compare("geglu",
            {[](const Tensor& x, const Tensor& g) { return x * (g * normal_cdf(g)); }, bench::geglu_plain,
             bench::geglu_native},
            rows, rng);
    compare("gate_norm",
            {[](const Tensor& x, const Tensor& g) { return x * rsqrt(square(g) + 1.0); }, bench::gate_norm_plain,
             bench::gate_norm_native},
            rows, rng);
    compare("clipped",
            {[](const Tensor& x, const Tensor& g) { return where(x < g, x * g, log1p(abs(x)) + g); },
             bench::clipped_plain, bench::clipped_native},
            rows, rng);
  }
}
