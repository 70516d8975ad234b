// The tutorial's GAU against loops (SPEC §4).
#include "layers/gau_reference.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

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
      const Tensor y = g(x, mask);
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

TEST_CASE("tutorial_gau: gradients and their gradients", "[tutorial_gau]") {
  each_option([](const TutorialGauOptions& given) {
    TutorialGauOptions o = given;
    o.dim = 3, o.expansion = 4;
    Rand rand(2);
    const TutorialGau g = random_layer(o, rand);
    const Tensor mask = prefix_mask(4, 4, 3);
    std::vector<Tensor> inputs{random_tensor({2, 4, 3}, f64, rand).requires_grad_()};
    for (const NamedTensor& p : state_dict(g)) inputs.push_back(p.tensor.detach().requires_grad_());
    const TensorFunction f = [&](const std::vector<Tensor>& v) {
      TutorialGau copy = g;
      copy.wu = v[1], copy.wv = v[2], copy.wz = v[3];
      if (o.project_out) copy.w_out = v[4];
      return copy(v[0], mask);
    };
    const GradcheckResult first = gradcheck(f, inputs), second = gradgradcheck(f, inputs, {.tolerance = 1e-5});
    INFO(first.message << "; " << second.message);
    CHECK(first.ok);
    CHECK(second.ok);
  });
}

TEST_CASE("tutorial_gau: padded ≡ truncated, and a NaN behind the mask stays there", "[tutorial_gau]") {
  for (bool causal : {false, true}) {
    Rand rand(3);
    TutorialGau g = random_layer({.dim = 5, .expansion = 8, .causal = causal, .project_out = true}, rand);
    for (Tensor* p : {&g.wu, &g.wv, &g.wz, &g.w_out}) *p = p->detach().requires_grad_();
    const Tensor clean = random_tensor({2, 9, 5}, f64, rand);
    CHECK(max_abs_diff(narrow(g(clean, prefix_mask(9, 6, 6)), 1, 0, 6), g(narrow(clean, 1, 0, 6))) < 1e-13);
    auto run = [&](double junk) {
      Tensor x = masked_fill(clean, reshape(arange(9), {9, 1}) >= 6.0, junk).detach().requires_grad_();
      const Tensor y = narrow(g(x, prefix_mask(9, 6, 6)), 1, 0, 6);
      std::vector<Tensor> all = grad({sum(square(y))}, {x, g.wu, g.wv, g.wz, g.w_out});
      all[0] = narrow(all[0], 1, 0, 6);
      all.push_back(y);
      return all;
    };
    const std::vector<Tensor> zero = run(0), nan = run(NAN);
    CHECK(max_abs_diff(zero.back(), nan.back()) < 1e-14);
    double of_gradients = 0;
    for (std::size_t i = 0; i + 1 < zero.size(); ++i)
      of_gradients = std::max(of_gradients, max_abs_diff(zero[i], nan[i]));
    CHECK(of_gradients < 1e-12);
  }
}

TEST_CASE("tutorial_gau: causal outputs do not know later tokens", "[tutorial_gau]") {
  Rand rand(4);
  const TutorialGau g = random_layer({.dim = 5, .expansion = 8, .causal = true}, rand);
  const Tensor x = random_tensor({2, 9, 5}, f64, rand), y = g(x);
  for (int64_t t : {0, 4, 8}) {
    const Tensor changed = g(masked_fill(x, reshape(arange(9), {9, 1}) == static_cast<double>(t), 3));
    CHECK(same_bits(narrow(changed, 1, 0, t), narrow(y, 1, 0, t)));
    CHECK(max_abs_diff(narrow(changed, 1, t, 9 - t), narrow(y, 1, t, 9 - t)) > 1e-3);
  }
}

TEST_CASE("tutorial_gau: number of parameters, defaults, empty inputs, refusals", "[tutorial_gau]") {
  Rng rng(1);
  const int64_t d = 24, e = 40;  // SPEC §4: 2.5·d·e, and d·e/2 for the output map
  CHECK(count(TutorialGau({.dim = d, .expansion = e}, rng)) == 5 * d * e / 2);
  CHECK(count(TutorialGau({.dim = d, .expansion = e, .project_out = true}, rng)) == 3 * d * e);
  const TutorialGau g({.dim = 6}, rng);
  CHECK(g.options.expansion == 12);
  CHECK(g(zeros({2, 3, 6})).shape() == Shape{2, 3, 6});  // e = 2·dim stacks without an output map
  CHECK(g(zeros({0, 3, 6})).shape() == Shape{0, 3, 6});
  CHECK(g(zeros({2, 0, 6})).shape() == Shape{2, 0, 6});
  CHECK_THROWS_AS(TutorialGau({.dim = 6, .expansion = 7}, rng), ValueError);
  CHECK_THROWS_AS(TutorialGau({.dim = 0, .expansion = 8}, rng), ValueError);
  CHECK_THROWS_WITH(g(zeros({3, 6})), Contains("[3,6]") && Contains("6"));
  CHECK_THROWS_WITH(g(zeros({2, 3, 5})), Contains("[2,3,5]"));
  CHECK_THROWS_WITH(g(zeros({2, 3, 6}), zeros({2, 4}) > 0.0), Contains("[2,4]"));
  CHECK_THROWS_AS(g(zeros({2, 3, 6}), zeros({3, 3}) > 0.0), ShapeError);
}
