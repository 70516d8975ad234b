// GAU at initialisation: n = 512 tokens of N(0, 1), dim 768, e = 1536, s = 128,
// without norm. The numbers there come from another program; the bounds allow for the draw.
#include "support/catch.h"

#include <sluice/core/node.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;

namespace {

constexpr int64_t n = 512, d = 768, e = 1536, s = 128;

double rms(const Tensor& x) { return std::sqrt(mean(square(x)).item()); }

/// rms of F(x), the layer without its residual.
double output_rms(GauOptions o) {
  o.norm = NormKind::none;
  Rng rng(1);
  const Gau gau(o, rng);
  const Tensor x = normal({1, n, d}, 0, 1, rng);
  NoGrad guard;
  return rms(gau(x) - x);
}
GauOptions lecun() {
  GauOptions o{.dim = d, .expansion = e, .key_dim = s};
  o.init = Init::lecun(), o.use_rope = false;
  return o;
}

}  // namespace

TEST_CASE("gau: A at initialisation is a diagonal that its row outweighs", "[gau][init]") {
  Rng rng(2);
  NoGrad guard;
  const Tensor x = normal({n, d}, 0, 1, rng), wz = init_weight(d, s, Init::lecun(), rng), z = silu(matmul(x, wz));
  const Tensor a = gau_attention(z, z, eye(n), {});
  const double diagonal_mean = mean(diagonal(a)).item(), off = (sum(a).item() - n * diagonal_mean) / (n * (n - 1.0));
  CHECK(diagonal_mean == Approx(0.034).epsilon(0.06));
  CHECK(off == Approx(7.4e-4).epsilon(0.06));
  CHECK(diagonal_mean / off == Approx(45.5).epsilon(0.06));
  CHECK(off * (n - 1) / diagonal_mean == Approx(11.2).epsilon(0.06));
}

TEST_CASE("gau: size of the output at initialisation", "[gau][init]") {
  GauOptions o = lecun();
  const double su = output_rms(o);
  CHECK(su > 0.049);
  CHECK(su < 0.060);
  o.init = Init::paper();
  CHECK(output_rms(o) == Approx(3.2e-4).epsilon(0.1));
  o = lecun(), o.kind = GauKind::paper_code;
  CHECK(output_rms(o) == Approx(0.0129).epsilon(0.1));
  for (GauKind kind : {GauKind::softmax, GauKind::rownorm}) {
    o = lecun(), o.kind = kind;
    CHECK(output_rms(o) == Approx(0.125).epsilon(0.1));
  }
}

TEST_CASE("gau: γ of 0.02 needs a bias", "[gau][init]") {
  GauOptions o = lecun();
  o.gamma_std = 0.02;
  CHECK(output_rms(o) < 2e-8);  // in f32 what is left of 1.4e-9 is rounding
  o.bias = GauBias::toeplitz, o.kind = GauKind::paper_code, o.use_rope = true;
  // One table of 1023 values decides: its row sums vary by 10 % from draw to draw.
  CHECK(output_rms(o) == Approx(1.2e-2).epsilon(0.3));
  o.init = Init::paper();
  CHECK(output_rms(o) == Approx(1.7e-3).epsilon(0.3));
}

TEST_CASE("gau: Xavier counts the fan-out of each of the three kernels, not of their fusion", "[gau][init]") {
  // Fused, Z would be 2.1 times smaller: the output with its seventh power.
  GauOptions o = lecun();
  o.init = Init::xavier();
  CHECK(output_rms(o) == Approx(0.18).epsilon(0.15));
  o.norm = NormKind::none;
  Rng rng(3);
  const Gau gau(o, rng);
  int64_t at = 0;
  for (int64_t width : {e, e, s}) {
    CHECK(rms(narrow(gau.in.weight, 1, at, width)) ==
          Approx(std::sqrt(2.0 / static_cast<double>(d + width))).epsilon(0.02));
    at += width;
  }
  o.init = Init::deepnorm(24);
  const Gau deep(o, rng);
  CHECK(rms(narrow(deep.in.weight, 1, 2 * e, s)) == Approx(std::sqrt(2.0 / (d + s) / 48)).epsilon(0.02));
}
