// Every differentiable row backward: the fused gradient against central differences, the composed
// gradient against the fused one, the gradients of gradients against differences again.
#include "support/catch.h"
#include "support/op_cases.h"
#include "support/op_table.h"

#include <sluice/autograd/engine.h>

#include <algorithm>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Runs check on every differentiable row in each of its small shapes.
void for_each_small(int64_t most, const std::function<void(const OpCase&, const std::vector<Dims>&)>& check) {
  for (const OpCase& row : all_cases()) {
    if (row.flat) {
      note_flat(row.op, row.flat);
      continue;
    }
    for (const auto& shapes : shapes_of(row)) {
      int64_t elements = 0;
      for (const Dims& d : shapes) elements += count(d);
      if (elements > most) continue;
      std::string where;
      for (const Dims& d : shapes) where += str(" ", shape_of(d));
      INFO(row.name() << where);
      try {
        check(row, shapes);
      } catch (const std::exception& e) { FAIL_CHECK("threw: " << e.what()); }
    }
  }
}

/// Checks lists of gradients: |got − want| <= tolerance · (|want| + largest want or 1). Returns the
/// largest error in those units.
double check_gradients(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                       bool& passed) {
  double worst = 0;
  REQUIRE(got.size() == want.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    const Closeness c = all_close(got[k], want[k], tolerance, std::max(1.0, max_abs(want[k])));
    INFO("gradient " << k << ", " << c.text);
    CHECK(c);
    passed &= bool(c);
    worst = std::max(worst, c.used * tolerance);
  }
  return worst;
}

/// The row's gradients as a function of its inputs and the cotangents of its outputs, which are the
/// last entries of `xs`.
std::vector<Tensor> gradients_of(const OpCase& row, const std::vector<Tensor>& xs, bool create_graph) {
  const std::size_t n = row.inputs.size();
  return library_gradient(row.call, {xs.begin(), xs.begin() + static_cast<std::ptrdiff_t>(n)},
                          {xs.begin() + static_cast<std::ptrdiff_t>(n), xs.end()}, create_graph);
}

}  // namespace

TEST_CASE("op cases: gradients equal central differences", "[ops][cases]") {
  for_each_small(40, [](const OpCase& row, const std::vector<Dims>& shapes) {
    const In x = input_tensors(row, input_values(row, shapes), f64, true);
    Rand rand(11);
    const auto c = random_cotangents(row.call(x), rand);
    bool passed = true;
    const double worst =
        check_gradients(library_gradient(row.call, x, c), central_difference(row.call, x, c), 1e-6, passed);
    note_check(row.op, Column::gradient, worst, passed);
  });
}

TEST_CASE("op cases: fused gradients equal composed ones", "[ops][cases]") {
  for_each_small(2000, [](const OpCase& row, const std::vector<Dims>& shapes) {
    const In x = input_tensors(row, input_values(row, shapes), f64, true);
    Rand rand(12);
    const auto c = random_cotangents(row.call(x), rand);
    const auto fused = library_gradient(row.call, x, c, false), composed = library_gradient(row.call, x, c, true);
    bool passed = true;
    check_gradients(composed, fused, 1e-12, passed);
    for (const Tensor& g : fused) CHECK_FALSE(g.requires_grad());
  });
}

TEST_CASE("op cases: f32 gradients equal f64 ones", "[ops][cases]") {
  for_each_small(3000, [](const OpCase& row, const std::vector<Dims>& shapes) {
    const Arrays values = input_values(row, shapes);
    const In wide = input_tensors(row, values, f64, true), narrow = input_tensors(row, values, f32, true);
    Rand one(13), two(13);
    const auto want = library_gradient(row.call, wide, random_cotangents(row.call(wide), one));
    const auto got = library_gradient(row.call, narrow, random_cotangents(row.call(narrow), two));
    REQUIRE(got.size() == want.size());
    for (std::size_t k = 0; k < got.size(); ++k) {
      CHECK(got[k].dtype() == f32);
      const Closeness c = all_close(
          got[k], want[k], (row.gradient_ulps > 0 ? row.gradient_ulps : 2 * row.ulps) * 0x1p-23, max_abs(want[k]));
      INFO("gradient " << k << ", " << c.text);
      CHECK(c);
      note_check(row.op, Column::gradient_f32, c.used, bool(c));
    }
  });
}

TEST_CASE("op cases: second gradients equal central differences", "[ops][cases]") {
  for_each_small(24, [](const OpCase& row, const std::vector<Dims>& shapes) {
    // The gradient is a function of the inputs and of the cotangents; both may vary.
    std::vector<Tensor> xs = input_tensors(row, input_values(row, shapes), f64, true);
    Rand rand(14);
    for (Tensor& c : random_cotangents(row.call(xs), rand)) xs.push_back(c.requires_grad_());
    auto first = [&](const std::vector<Tensor>& at) { return gradients_of(row, at, false); };
    auto recorded = [&](const std::vector<Tensor>& at) { return gradients_of(row, at, true); };
    const auto v = random_cotangents(first(xs), rand);
    bool passed = true;
    const double worst =
        check_gradients(library_gradient(recorded, xs, v), central_difference(first, xs, v), 1e-5, passed);
    note_check(row.op, Column::second_gradient, worst, passed);
  });
}

TEST_CASE("op cases: third gradients equal central differences", "[ops][cases]") {
  for_each_small(10, [](const OpCase& row, const std::vector<Dims>& shapes) {
    std::vector<Tensor> xs = input_tensors(row, input_values(row, shapes), f64, true);
    Rand rand(15);
    for (Tensor& c : random_cotangents(row.call(xs), rand)) xs.push_back(c.requires_grad_());
    const std::size_t n = xs.size();
    auto first = [&](const std::vector<Tensor>& at) { return gradients_of(row, at, true); };
    for (Tensor& c : random_cotangents(first(xs), rand)) xs.push_back(c.requires_grad_());
    auto second = [&](const std::vector<Tensor>& at, bool create_graph) {
      return library_gradient(first, {at.begin(), at.begin() + static_cast<std::ptrdiff_t>(n)},
                              {at.begin() + static_cast<std::ptrdiff_t>(n), at.end()}, create_graph);
    };
    auto plain = [&](const std::vector<Tensor>& at) { return second(at, false); };
    auto recorded = [&](const std::vector<Tensor>& at) { return second(at, true); };
    const auto w = random_cotangents(plain(xs), rand);
    bool passed = true;
    check_gradients(library_gradient(recorded, xs, w), central_difference(plain, xs, w), 1e-5, passed);
  });
}
