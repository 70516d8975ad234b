// Every row beyond the smallest shapes, past tiles, lanes and slabs: against its reference, its gradient along a
// direction against differences of the reference, f32 against f64, one thread against two.
#include "support/catch.h"
#include "support/op_cases.h"
#include "support/op_table.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>

#include <algorithm>
#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// What a row gives: its outputs, a cotangent for each real one, its gradients.
struct Results {
  std::vector<Tensor> outputs, cotangents, gradients;
};
Results run(const OpCase& row, const In& x) {
  Results r;
  const Outputs y = row.call(x);
  r.outputs.assign(y.begin(), y.end());
  if (row.flat) return r;
  Rand rand(17);
  r.cotangents = random_cotangents(y, rand);
  r.gradients = library_gradient([&](const In&) { return r.outputs; }, x, r.cotangents);
  return r;
}

void check_forward(const std::vector<Tensor>& got, const Expected& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t o = 0; o < want.size(); ++o) {
    INFO("output " << o);
    REQUIRE(str(got[o].shape()) == str(shape_of(want[o].shape)));
    double largest = 0;
    for (double v : want[o].v)
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
    const Closeness c = all_close(got[o], tensor_of(want[o].v, shape_of(want[o].shape), f64), 1e-12, largest);
    INFO(c.text);
    CHECK(c);
  }
}

/// Σ gradient · v, for one random direction v of all inputs, against (Σ c · y(x + hv) − Σ c · y(x − hv)) / 2h of the
/// reference. Its error is of order h² and ε/h, and differs in sign from element to element: so the bound is in units
/// of roots of sums of squares, beside which one wrong element of a million stands out.
void check_gradient(const OpCase& row, const Arrays& values, const Results& got) {
  constexpr double h = 1e-6;
  Rand rand(18);
  Arrays ahead = values, behind = values;
  long double slope = 0, squares = 0;
  std::size_t k = 0;
  const In kinds = input_tensors(row, values, f64, true);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!kinds[i].requires_grad()) continue;
    const auto g = got.gradients[k++].to_vector<double>();
    for (std::size_t j = 0; j < g.size(); ++j) {
      const double v = rand.uniform(-1, 1);
      ahead[i].v[j] += h * v, behind[i].v[j] -= h * v;
      slope += g[j] * v, squares += g[j] * v * g[j] * v;
    }
  }
  const Expected after = row.reference(ahead), before = row.reference(behind);
  long double difference = 0, size = 0;
  std::size_t o = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (!is_float(got.outputs[i].dtype())) continue;
    const auto c = got.cotangents[o++].to_vector<double>();
    for (std::size_t j = 0; j < c.size(); ++j) {
      difference += c[j] * static_cast<long double>(after[i].v[j] - before[i].v[j]);
      size += c[j] * after[i].v[j] * c[j] * after[i].v[j];
    }
  }
  const double error = std::abs(static_cast<double>(slope - difference / (2 * h)));
  const double allowed = 1e-8 * static_cast<double>(std::sqrt(squares) + std::sqrt(size));
  INFO("slope " << static_cast<double>(slope) << ", by differences " << static_cast<double>(difference / (2 * h))
                << ", allowed error " << allowed);
  CHECK(error <= allowed);
  note_check(row.op, Column::gradient, allowed > 0 ? 1e-8 * error / allowed : error, error <= allowed);
}

}  // namespace

TEST_CASE("op cases: gradients along a direction equal differences of the reference", "[ops][cases]") {
  for_each_row([](const OpCase& row) {
    if (row.flat) return;
    for (const auto& shapes : shapes_of(row)) {
      const Arrays values = input_values(row, shapes);
      int64_t elements = 0;
      for (const Array& x : values) elements += count(x.shape);
      if (elements <= 40) continue;  // each element against differences: op_cases_gradient_test.cpp
      INFO("first input " << str(shape_of(values[0].shape)));
      check_gradient(row, values, run(row, input_tensors(row, values, f64, true)));
    }
  });
}

TEST_CASE("op cases: large shapes equal the reference, in f32 and for any number of threads", "[ops][cases]") {
  const int before = num_threads();
  for_each_row([](const OpCase& row) {
    if (row.large.empty()) return;
    const Arrays values = input_values(row, row.large);
    const Results wide = run(row, input_tensors(row, values, f64, !row.flat));
    check_forward(wide.outputs, row.reference(values));
    if (!row.flat) check_gradient(row, values, wide);

    const In x = input_tensors(row, values, f32, !row.flat);
    set_num_threads(1);
    const Results one = run(row, x);
    set_num_threads(2);
    const Results two = run(row, x);
    auto check = [&](const char* what, std::vector<Tensor> Results::*part, double ulps) {
      const auto &a = one.*part, &b = two.*part, &w = wide.*part;
      REQUIRE(a.size() == w.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        INFO(what << " " << i);
        CHECK(same_bits(a[i], b[i]));
        const Closeness c = all_close(a[i], w[i], ulps * 0x1p-23, max_abs(w[i]));
        INFO(c.text);
        CHECK(c);
      }
    };
    check("output", &Results::outputs, row.exact ? 0.5 : 2 * row.ulps);
    check("gradient", &Results::gradients, row.gradient_ulps > 0 ? row.gradient_ulps : 2 * row.ulps);
  });
  set_num_threads(before);
}
