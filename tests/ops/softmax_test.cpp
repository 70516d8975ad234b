// softmax and log_softmax along a dim whose numbers lie apart: the same numbers as along the last dim.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/softmax.h>

#include <limits>
#include <utility>

using namespace sluice;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
using Function = Tensor (*)(const Tensor&, int64_t);

/// y and dx for one g, from f along the middle of x or along the last dim of a copy with the dims exchanged.
std::vector<Tensor> middle(Function f, const Tensor& x_in, const Tensor& g) {
  const Tensor x = clone(x_in).requires_grad_(), y = f(x, 1);
  return {y.detach(), grad(y, x, {.grad_outputs = {g}})};
}
std::vector<Tensor> last(Function f, const Tensor& x, const Tensor& g) {
  const Tensor rows = clone(transpose(x, 1, 2)).requires_grad_(), y = f(rows, 2);
  return {transpose(y.detach(), 1, 2), transpose(grad(y, rows, {.grad_outputs = {clone(transpose(g, 1, 2))}}), 1, 2)};
}

}  // namespace

TEST_CASE("softmax along a middle dim equals softmax along the last", "[softmax]") {
  const Function f = GENERATE(Function{softmax}, Function{log_softmax});
  const DType dtype = GENERATE(f32, f64, bf16);
  const int64_t n = GENERATE(1, 2, 127, 300), inner = GENERATE(1, 15, 16, 127, 129, 260);
  Rng rng(1);
  const Shape shape{2, n, inner};
  const Tensor x = to(normal(shape, 0, 3, rng), dtype), g = to(normal(shape, 0, 1, rng), dtype);
  const std::vector<Tensor> got = middle(f, x, g), want = last(f, x, g);
  const double digits = dtype == f64 ? 1e-14 : dtype == f32 ? 1e-5 : 0;
  for (std::size_t i = 0; i < 2; ++i) CHECK(testing::max_abs_diff(got[i], want[i]) <= digits * static_cast<double>(n));
}

TEST_CASE("softmax along a middle dim: -inf, inf and NaN stay in their columns", "[softmax]") {
  const Function f = GENERATE(Function{softmax}, Function{log_softmax});
  const DType dtype = GENERATE(f32, f64);
  Rng rng(2);
  const int64_t n = 5, inner = 140;
  Tensor x = normal({2, n, inner}, 0, 3, rng, {dtype}), all = zeros({2, n, inner});
  const auto put = [&](int64_t column, int64_t first, int64_t count, double value) {
    Tensor at = narrow(narrow(x, 2, column, 1), 1, first, count);
    fill_(at, value);
  };
  put(3, 0, n, -kInf), put(4, 0, 3, -kInf), put(10, 2, 1, kInf), put(11, 1, 2, kNan), put(12, 0, n, kNan);
  put(130, 0, n, -kInf), put(131, 1, 1, kNan), put(132, 0, n, 100), put(139, 0, n, -1000);
  const std::vector<Tensor> got = middle(f, x, ones_like(x)), want = last(f, x, ones_like(x));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(isnan(got[i]).to_vector<double>() == isnan(want[i]).to_vector<double>());
    CHECK(isinf(got[i]).to_vector<double>() == isinf(want[i]).to_vector<double>());
    const Tensor finite = isfinite(want[i]);
    CHECK(testing::max_abs_diff(where(finite, got[i], 0.0), where(finite, want[i], 0.0)) < 1e-5);
  }
}

TEST_CASE("softmax along a middle dim: slopes of both orders, and operands of any layout", "[softmax]") {
  const Function f = GENERATE(Function{softmax}, Function{log_softmax});
  Rng rng(3);
  const Tensor x = normal({2, 3, 16}, 0, 1, rng, {f64});
  const auto of = [f](const std::vector<Tensor>& in) { return f(in[0], 1); };
  CHECK(gradcheck(of, {clone(x).requires_grad_()}));
  CHECK(gradgradcheck(of, {clone(x).requires_grad_()}));
  const Tensor leaf = clone(x).requires_grad_(), g = normal(x.shape(), 0, 1, rng, {f64});
  const Tensor recorded = grad(f(leaf, 1), leaf, {.create_graph = true, .grad_outputs = {g}});
  CHECK(testing::max_abs_diff(recorded.detach(), grad(f(leaf, 1), leaf, {.grad_outputs = {g}})) < 1e-12);
  const Tensor wide = normal({2, 3, 40}, 0, 1, rng), apart = slice(wide, 2, 0, 40, 2);
  CHECK(testing::same_bits(f(apart, 1), f(clone(apart), 1)));
  CHECK(f(empty({0, 3, 20}), 1).shape() == Shape{0, 3, 20});
  CHECK(f(empty({2, 0, 20}), 1).shape() == Shape{2, 0, 20});
}

TEST_CASE("softmax: beside +inf, numbers of any size have a share of 0", "[softmax]") {
  const DType dtype = GENERATE(f32, f64, bf16);
  const auto [n, apart] = GENERATE(std::pair(3, 1), std::pair(3, 40), std::pair(200, 1), std::pair(200, 40));
  Tensor x = full({n, apart}, 1000, {f64});
  Tensor first = narrow(x, 0, 0, 1), last = narrow(x, 0, n - 1, 1);
  fill_(first, -3), fill_(last, kInf);
  for (bool rows : {true, false}) {
    INFO(name_of(dtype) << ", n " << n << ", lines " << apart << ", rows " << rows);
    const Device device = testing::test_device();
    const Tensor lines = to(contiguous(to(rows ? transpose(x, 0, 1) : x, dtype)), device).requires_grad_();
    const int64_t dim = rows ? 1 : 0;
    const Tensor y = softmax(lines, dim), l = log_softmax(lines, dim), sum = logsumexp(lines, {dim});
    CHECK(all(narrow(y, dim, 0, n - 1) == 0.0).item());
    CHECK(all(isnan(narrow(y, dim, n - 1, 1))).item());
    CHECK(all(narrow(l, dim, 0, n - 1) == -kInf).item());
    CHECK(all(sum == kInf).item());
    if (!rows) continue;
    const Tensor loss = cross_entropy(lines, full({apart}, 1, {i64, device}), {.reduction = Reduction::sum});
    CHECK(loss.item() == kInf);
    const Tensor slope = grad(loss, lines);
    CHECK(all(narrow(slope, 1, 0, 1) == 0.0).item());
    CHECK(all(narrow(slope, 1, 1, 1) == -1.0).item());
  }
}
