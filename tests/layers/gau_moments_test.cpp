// Known numbers: moments of activations by quadrature, and GAU at initialisation against its matrices.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/node.h>
#include <sluice/core/number/random.h>
#include <sluice/layers/gau/gau_moments.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("moments: known integrals", "[moments]") {
  const double pi = std::acos(-1.0);
  auto check = [](Act act, double scale, double mean, double second, double fourth) {
    const ActivationMoments m = activation_moments(act, scale);
    INFO(name_of(act) << " scale " << scale);
    CHECK(m.mean == Approx(mean).margin(1e-13).epsilon(1e-12));
    CHECK(m.second == Approx(second).margin(1e-13).epsilon(1e-12));
    CHECK(m.fourth == Approx(fourth).margin(1e-13).epsilon(1e-12));
  };
  check(Act::identity, 1, 0, 1, 3);
  check(Act::identity, 0.5, 0, 0.25, 3.0 / 16);
  check(Act::relu, 1, 1 / std::sqrt(2 * pi), 0.5, 1.5);
  check(Act::relu, 2, 2 / std::sqrt(2 * pi), 2, 24);
  check(Act::relu2, 1, 0.5, 1.5, 105 / 2.0);
  check(Act::identity, 0, 0, 0, 0);
  CHECK(activation_moments(Act::sigmoid).mean == Approx(0.5).epsilon(1e-13));
  CHECK(activation_moments(Act::gelu).mean == Approx(1 / (2 * std::sqrt(pi))).epsilon(1e-12));  // E x·Φ(x)
  CHECK_THROWS_AS(activation_moments(Act::silu, -1), ValueError);
}

TEST_CASE("moments: SiLU's, and what follows for GAU", "[moments]") {
  const ActivationMoments m = activation_moments(Act::silu);
  CHECK(m.mean == Approx(0.2066210).margin(5e-8));
  CHECK(m.second == Approx(0.3557755).margin(5e-8));
  CHECK(std::sqrt(m.second) == Approx(0.59647).margin(5e-6));
  CHECK(m.fourth == Approx(0.919164).margin(5e-7));
  const GauAtInit g = gau_at_init(128, 512);
  CHECK(g.ratio_limit == Approx(69.447).margin(5e-4));
  CHECK(g.ratio == Approx(47.5).margin(0.05));
  CHECK(g.output_from_diagonal == Approx(0.01126).margin(5e-6));
  CHECK(g.output_from_mean == Approx(0.0441).margin(5e-5));
  CHECK(gau_at_init(32, 512).output_from_mean == Approx(0.0226).margin(5e-5));
  CHECK(gau_at_init(512, 512).output_from_mean == Approx(0.130).margin(5e-4));
  CHECK(gau_at_init(128, 8192).output_from_mean == g.output_from_mean);
  CHECK(g.row_over_diagonal == Approx(511 / 47.5).epsilon(2e-3));
  CHECK_THROWS_AS(gau_at_init(0, 4), ValueError);
}

TEST_CASE("moments: the attention matrix at initialisation", "[moments]") {
  // Z = φ(X·Wz) for random X and Wz, averaged over draws of both.
  NoGrad guard;
  const int64_t d = 256, s = 32, n = 64, draws = 24;
  Rng rng(5);
  double diagonal = 0, off = 0;
  for (int64_t i = 0; i < draws; ++i) {
    const Tensor x = normal({n, d}, 0, 1, rng, {f64}), w = normal({d, s}, 0, 1 / std::sqrt(256.0), rng, {f64});
    const Tensor z = silu(matmul(x, w)), t = matmul(z, transpose(z, 0, 1));
    const Tensor a = relu2(t) / static_cast<double>(n * s);
    const double on = sum(eye(n, n, {f64}) * a).item();
    diagonal += on / static_cast<double>(n * draws);
    off += (sum(a).item() - on) / static_cast<double>(n * (n - 1) * draws);
  }
  const GauAtInit g = gau_at_init(s, n);
  CHECK(diagonal == Approx(g.diagonal).epsilon(0.05));
  CHECK(off == Approx(g.off_diagonal).epsilon(0.1));
  CHECK(diagonal / off == Approx(g.ratio).epsilon(0.1));
  CHECK(diagonal / off < 0.6 * g.ratio_limit);  // far from 69 at s = 32
}
