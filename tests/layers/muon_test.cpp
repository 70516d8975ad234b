#include <sluice/layers/train/optim.h>

#include <sluice/core/memory/allocator.h>
#include <sluice/layers/train/graphed_step.h>
#include <sluice/ops/basic.h>

#include "layers/optim_steps.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/limit.h"

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Newton and Schulz by hand: g [rows, cols] by rows → nearly U·Vᵀ.
Doubles orthogonal(Doubles g, std::size_t rows, std::size_t cols) {
  const auto product = [](const Doubles& a, const Doubles& b, std::size_t n, std::size_t k, std::size_t m) {
    Doubles c(n * m);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t l = 0; l < k; ++l)
        for (std::size_t j = 0; j < m; ++j) c[i * m + j] += a[i * k + l] * b[l * m + j];
    return c;
  };
  double squares = 0;
  for (const double x : g) squares += x * x;
  for (double& x : g) x /= std::sqrt(squares);
  for (int i = 0; i < 5; ++i) {
    Doubles t(g.size());
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < cols; ++c) t[c * rows + r] = g[r * cols + c];
    const Doubles a = product(g, t, rows, cols, rows), ag = product(a, g, rows, rows, cols),
                  aag = product(a, ag, rows, rows, cols);
    for (std::size_t j = 0; j < g.size(); ++j) g[j] = 3.4445 * g[j] - 4.775 * ag[j] + 2.0315 * aag[j];
  }
  return g;
}

}  // namespace

TEST_CASE("muon: equals its definition, and adam's for what is no matrix", "[optim]") {
  const double decay = GENERATE(0.0, 0.1);
  const bool nesterov = GENERATE(true, false), tall = GENERATE(false, true);
  CAPTURE(decay, nesterov, tall);
  const std::size_t rows = tall ? 7 : 4, cols = tall ? 4 : 7;
  for (const auto& [dtype, tolerance] : {std::pair{f64, 1e-12}, {f32, 1e-4}}) {
    const auto parameters = [&, type = dtype] {
      return std::vector<NamedTensor>{{"w", leaf(numbers(28, 1), {int64_t(rows), int64_t(cols)}, type)},
                                      {"bias", leaf(numbers(7, 2), {7}, type)}};
    };
    Muon muon(parameters(), {.lr = 0.05, .momentum = 0.9, .nesterov = nesterov, .rms = 0.3, .weight_decay = decay});
    Adam adam({parameters()[1]}, {.lr = 0.05, .beta2 = 0.95, .weight_decay = decay});
    Doubles w = numbers(28, 1), b(28);
    for (int t = 1; t <= 6; ++t) {
      const Doubles g = gradient(w, t);
      Doubles u(28);
      for (std::size_t i = 0; i < 28; ++i) b[i] = 0.9 * b[i] + g[i], u[i] = nesterov ? g[i] + 0.9 * b[i] : b[i];
      u = orthogonal(u, rows, cols);
      for (std::size_t i = 0; i < 28; ++i) w[i] = w[i] * (1 - 0.05 * decay) - 0.05 * 0.3 * std::sqrt(7.0) * u[i];
      one_step(muon, t), one_step(adam, t);
    }
    const Doubles got = muon.parameters()[0].tensor.to_vector<double>();
    for (std::size_t i = 0; i < 28; ++i) CHECK(std::abs(got[i] - w[i]) < tolerance);
    CHECK(muon.parameters()[1].tensor.to_vector() == adam.parameters()[0].tensor.to_vector());
    CHECK(muon.state().size() == 1 + 2 + 3);  // steps; updates and m; updates, m and v
  }
}

TEST_CASE("muon: a small decay shrinks f32 as adam's does", "[optim]") {
  Rng rng(1);
  const Tensor start = uniform({16, 16}, 0.5, 1, rng);
  Tensor a = clone(start).requires_grad_(), b = clone(start).requires_grad_();
  a.set_grad(zeros_like(start)), b.set_grad(zeros_like(start));
  Muon({{"w", a}}, {.lr = 1e-6, .weight_decay = 0.1}).step();  // 1 - 1e-7 is 1 - 1.19e-7 in f32
  Adam({{"w", b}}, {.lr = 1e-6, .weight_decay = 0.1}).step();
  CHECK(same_bits(a.detach(), b.detach()));
  CHECK_FALSE(same_bits(a.detach(), start));
}

TEST_CASE("muon: newton_schulz brings singular values near 1", "[optim]") {
  Rng rng(3);
  // Of x·xᵀ with eigenvalues near 1 also each diagonal entry is near 1.
  for (const Shape& shape : {Shape{16, 40}, Shape{40, 16}, Shape{3, 16, 16}, Shape{1, 5}, Shape{5, 1}}) {
    CAPTURE(shape);
    const Tensor x = newton_schulz(normal(shape, 0, 100, rng, {f64}));
    const bool tall = shape[shape.rank() - 2] > shape[shape.rank() - 1];
    const Tensor a = tall ? matmul(transpose(x, -2, -1), x) : matmul(x, transpose(x, -2, -1));
    for (const double v : diagonal(a).to_vector<double>()) CHECK((v > 0.4 && v < 1.5));
  }
  CHECK(newton_schulz(zeros({2, 3})).to_vector() == zeros({2, 3}).to_vector());
  CHECK(newton_schulz(zeros({0, 3})).numel() == 0);
  CHECK_THROWS_WITH(newton_schulz(zeros({3})), Contains("newton_schulz") && Contains("[3]"));
  CHECK_THROWS_AS(newton_schulz(zeros({3, 3}, {i64})), DTypeError);
  Tensor w = leaf({1, 2}, {2});
  CHECK_THROWS_WITH(Muon({w}, {.matrices = [](const NamedTensor&) { return true; }}), Contains("rank 2"));
  Muon muon({w});
  GraphedStep step(muon, [&](const std::vector<Tensor>&) { return sum(w); });
  CHECK(step({}).item() == 3);  // on the CPU every call runs the function
}

TEST_CASE("muon: a step that finds no memory changes nothing", "[muon][optim]") {
  if (!MemoryLimit::works()) {
    WARN("not tested: limits of memory do nothing here");
    return;
  }
  Rng rng(1);
  const Tensor start = normal({1024, 1024}, 0, 1, rng), g = normal({1024, 1024}, 0, 1, rng);  // of 4 MiB
  int failed = 0;
  const auto two_steps = [&](int64_t mebibytes) {  // with so much memory at first; 0: with all of it
    Tensor w = clone(start).requires_grad_();
    w.set_grad(g);
    Muon muon({{"w", w}}, {.lr = 0.1, .matrices = [](const NamedTensor&) { return true; }});
    if (mebibytes > 0) {
      muon.step();
      const Tensor before = clone(w.detach());
      release_cached_memory();
      try {
        const MemoryLimit limit(mebibytes << 20);
        muon.step();
      } catch (const std::exception&) {  // MemoryError, or bad_alloc
        ++failed;
        CHECK(muon.steps() == 1);
        CHECK(same_bits(w.detach(), before));
        muon.step();
      }
    } else {
      muon.step(), muon.step();
    }
    return w.detach();
  };
  const Tensor want = two_steps(0);
  for (const int64_t mebibytes : {1, 6, 11, 16, 21, 26}) {
    CAPTURE(mebibytes);
    CHECK(same_bits(two_steps(mebibytes), want));
  }
  CHECK(failed >= 4);
}
