// MLP and the GLU family: sizes, dropout. nn_reference.cpp says what they compute.
#include <sluice/layers/nn/mlp.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("mlp and glu: hidden sizes by default", "[mlp]") {
  Rng rng(1);
  CHECK_THROWS_AS(from_name<Act>("nonsense"), ValueError);
  CHECK(Mlp({.dim = 6}, rng).in.weight.shape() == Shape{6, 24});
  for (int64_t dim : {3, 6, 64, 512}) {
    Glu g({.dim = dim}, rng);
    const int64_t hidden = g.value.weight.dim(1);
    INFO("dim " << dim << " hidden " << hidden);
    CHECK(hidden % 8 == 0);
    CHECK(3 * hidden >= 8 * dim - 3);  // 8/3·dim, rounded up
    CHECK(3 * hidden < 8 * dim + 24);
    CHECK(count(g) == 3 * dim * hidden);  // without biases by default
  }
}

TEST_CASE("mlp and glu: dropout acts on the hidden activations, only with a generator", "[mlp]") {
  Rng init(1), a(2), b(2), d(2);
  Mlp m({.dim = 8, .hidden = 64, .dropout = 0.5}, init);
  Glu g({.dim = 8, .hidden = 64, .dropout = 0.5}, init);
  Tensor x = ones({4, 8});
  CHECK(same_bits(m(x), m(x)));
  CHECK(same_bits(m(x, {.rng = &a}), m(x, {.rng = &b})));
  CHECK_FALSE(same_bits(m(x), m(x, {.rng = &a})));
  CHECK_FALSE(same_bits(g(x), g(x, {.rng = &a})));
  Tensor want = m.out(dropout(activate(m.options.activation, m.in(x)), 0.5, b));
  d.reserve(64);  // 4·64 elements, four a block
  CHECK(same_bits(want, m(x, {.rng = &d})));
}

TEST_CASE("glu: few gates of a row whose gates are equal have a gradient", "[glu]") {
  Rng rng(1);
  const Glu m({.dim = 4, .hidden = 6, .sparsity = 0.3, .dtype = f64}, rng);
  Rand rand(3);
  Tensor x = random_tensor({1, 3, 4}, f64, rand);
  x = cat({x, zeros({1, 1, 4}, {f64})}, 1).requires_grad_();  // as padding has
  backward(sum(square(m(x) + 1.0)));
  CHECK(all(isfinite(x.grad())).item() == 1);
  for (const NamedTensor& p : parameters(m)) CHECK(all(isfinite(p.tensor.grad())).item() == 1);
}
