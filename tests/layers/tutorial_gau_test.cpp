// The tutorial's GAU against loops.
#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

TutorialGau random_layer(TutorialGauOptions o, Rand& rand) {
  o.dtype = f64;
  Rng rng(1);
  TutorialGau g(o, rng);
  for (Tensor* p : {&g.wu, &g.wv, &g.wz, &g.w_out})
    if (p->defined()) *p = random_tensor(p->shape(), f64, rand);
  return g;
}

double gelu_reference(double x, bool tanh_form) {
  if (!tanh_form) return activation_reference(Act::gelu, x);
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

Matrix reference(const TutorialGau& g, const Matrix& x, const std::vector<bool>& real) {
  const TutorialGauOptions& o = g.options;
  const Matrix u = times(x, matrix_of(g.wu)), v = times(x, matrix_of(g.wv)), z = times(x, matrix_of(g.wz));
  const std::size_t half = u.empty() ? 1 : u[0].size() / 2;
  // softmax(QKᵀ/√(e/2)): the width of a query is e/2.
  Matrix y = attention_reference(columns(u, 0, half), columns(u, half, half), columns(v, 0, half),
                                 {.kind = GauKind::softmax, .mask = {.causal = o.causal}}, {}, real);
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t c = 0; c < half; ++c) {
      const double gate = o.sigmoid_gate ? 1 / (1 + std::exp(-v[i][half + c])) : v[i][half + c];
      y[i][c] = gelu_reference(y[i][c], o.gelu_tanh) * gate + (1 - gate) * z[i][c];
    }
  return o.project_out ? times(y, matrix_of(g.w_out)) : y;
}

void each_option(const std::function<void(const TutorialGauOptions&)>& f) {
  for (int bits = 0; bits < 16; ++bits)
    f({.dim = 5,
       .expansion = 8,
       .causal = bool(bits & 1),
       .sigmoid_gate = bool(bits & 2),
       .gelu_tanh = bool(bits & 4),
       .project_out = bool(bits & 8)});
}

}  // namespace

TEST_CASE("tutorial_gau: every option equals loops", "[tutorial_gau]") {
  each_option([](const TutorialGauOptions& o) {
    for (bool padded : {false, true}) {
      Rand rand(1);
      const TutorialGau g = random_layer(o, rand);
      const Tensor x = random_tensor({2, 6, 5}, f64, rand), mask = padded ? prefix_mask(6, 4, 6) : Tensor();
      const Tensor y = g(x, {.key_mask = mask});
      CHECK(y.shape() == Shape{2, 6, o.project_out ? 5 : 4});
      std::vector<double> want;
      for (int64_t b : {0, 1}) {
        std::vector<bool> real(6, true);
        if (padded && b == 0) real[4] = real[5] = false;
        for (const auto& row : reference(g, matrix_of(select(x, 0, b)), real))
          want.insert(want.end(), row.begin(), row.end());
      }
      CHECK(max_abs_diff(real_rows(y, mask), real_rows(Tensor::from(want, y.shape()), mask)) < 1e-12);
    }
  });
}

TEST_CASE("tutorial_gau: number of parameters, defaults, refusals", "[tutorial_gau]") {
  Rng rng(1);
  const int64_t d = 24, e = 40;  // 2.5·d·e, and d·e/2 for the output map
  CHECK(count(TutorialGau({.dim = d, .expansion = e}, rng)) == 5 * d * e / 2);
  CHECK(count(TutorialGau({.dim = d, .expansion = e, .project_out = true}, rng)) == 3 * d * e);
  const TutorialGau g({.dim = 6}, rng);
  CHECK(g.options.expansion == 12);
  CHECK(g(zeros({2, 3, 6})).shape() == Shape{2, 3, 6});  // e = 2·dim stacks without an output map
  CHECK_THROWS_AS(TutorialGau({.dim = 6, .expansion = 7}, rng), ValueError);
  CHECK_THROWS_AS(TutorialGau({.dim = 0, .expansion = 8}, rng), ValueError);
  CHECK_THROWS_WITH(g(zeros({3, 6})), Contains("[3,6]") && Contains("6"));
  CHECK_THROWS_WITH(g(zeros({2, 3, 5})), Contains("[2,3,5]"));
  CHECK_THROWS_WITH(g(zeros({2, 3, 6}), {.key_mask = zeros({2, 4}) > 0.0}), Contains("[2,4]"));
  CHECK_THROWS_AS(g(zeros({2, 3, 6}), {.key_mask = zeros({3, 3}) > 0.0}), ShapeError);
}
