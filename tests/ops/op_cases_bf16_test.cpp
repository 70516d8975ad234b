// Every row in bf16: the same op of the same values in f32 is its reference, rounded once; gradients likewise.
#include "support/catch.h"
#include "support/layouts.h"
#include "support/op_cases.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kHalfUlp = 0x1p-8;  // at most, relative to the number

/// Ops whose sums AMX adds in another order.
bool multiplies(const OpCase& row) {
  const std::string_view op = row.op;
  return op == "matmul" || op == "linear" || op == "einsum";
}

/// Ops of several products: what goes from one to the next, weights of attention or the states of a scan, is rounded,
/// too.
bool rounds_between(const OpCase& row) {
  const std::string_view op = row.op;
  return op == "attention" || op == "attention_with_lse" || op == "linear_scan" || op == "delta_scan" ||
         op == "delta_rule";
}

struct Results {
  std::vector<Tensor> outputs, gradients;
};

/// The row's outputs and, for the given cotangents, its gradients.
Results run(const OpCase& row, const In& x, const std::vector<Tensor>& cotangents, bool create_graph = false) {
  Results r;
  const Outputs y = row.call(x);
  r.outputs.assign(y.begin(), y.end());
  if (row.flat) return r;
  std::vector<Tensor> c;
  for (const Tensor& t : r.outputs)
    if (is_float(t.dtype())) c.push_back(to(cotangents.at(c.size()), t.dtype()));
  r.gradients = library_gradient([&](const In&) { return r.outputs; }, x, c, create_graph);
  return r;
}

In widened(const In& xs) {
  In wide;
  for (const Tensor& x : xs) {
    wide.push_back(x.dtype() == bf16 ? to(x.detach(), f32) : x);
    if (x.requires_grad()) wide.back().requires_grad_();
  }
  return wide;
}

std::vector<Tensor> cotangents_of(const OpCase& row, const In& x) {
  Rand rand(19);
  std::vector<Tensor> c;
  for (const Tensor& t : random_cotangents(row.call(x), rand)) c.push_back(to(t, bf16));
  return c;
}

void check_outputs(const OpCase& row, const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("output " << i);
    if (is_float(want[i].dtype())) CHECK((got[i].dtype() == bf16 || got[i].dtype() == want[i].dtype()));
    else CHECK(got[i].dtype() == want[i].dtype());
    if (multiplies(row)) {  // the neighbour at most, or what sums that cancel leave
      const Closeness c = all_close(got[i], to(want[i], bf16), 2 * kHalfUlp, 0x1p-12 * max_abs(want[i]));
      INFO(c.text);
      CHECK(c);
      continue;
    }
    if (!rounds_between(row)) {
      CHECK(same_bits(got[i], to(want[i], got[i].dtype())));
      continue;
    }
    const Closeness c = all_close(got[i], want[i], kHalfUlp, 2 * max_abs(want[i]));
    INFO(c.text);
    CHECK(c);
  }
}

/// Gradients are small differences of large numbers where an op rounds in between, and sums of rounded numbers where an
/// operand was broadcast: then in units of the largest gradient.
void check_gradients(const OpCase& row, const std::vector<Tensor>& got, const std::vector<Tensor>& want,
                     int64_t outputs) {
  REQUIRE(got.size() == want.size());
  double largest = 0;
  for (const Tensor& g : want) largest = std::max(largest, max_abs(g));
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].dtype() == bf16);
    const Closeness c = all_close(got[i], want[i], kHalfUlp,
                                  3 * (rounds_between(row) || got[i].numel() < outputs ? largest : max_abs(want[i])));
    INFO("gradient " << i << ", " << c.text);
    CHECK(c);
  }
}

}  // namespace

TEST_CASE("op cases: bf16 equals f32, rounded", "[ops][cases][bf16]") {
  const int before = num_threads();
  for_each_row([](const OpCase& row) {
    auto all = shapes_of(row);
    if (!row.large.empty()) all.push_back(row.large);
    for (const auto& shapes : all) {
      INFO("first input " << (shapes.empty() ? "as in the row" : str(shape_of(shapes[0]))));
      const In x = input_tensors(row, input_values(row, shapes), bf16, !row.flat), wide = widened(x);
      const auto c = cotangents_of(row, x);
      set_num_threads(1);
      const Results got = run(row, x, c), want = run(row, wide, c);
      const int64_t n = got.outputs[0].numel();
      check_outputs(row, got.outputs, want.outputs);
      check_gradients(row, got.gradients, want.gradients, n);
      if (shapes != row.large || row.large.empty()) {
        check_gradients(row, run(row, x, c, true).gradients, want.gradients, n);
        continue;
      }
      set_num_threads(2);
      const Results two = run(row, x, c);
      for (auto part : {&Results::outputs, &Results::gradients})
        for (std::size_t i = 0; i < (got.*part).size(); ++i) CHECK(same_bits((got.*part)[i], (two.*part)[i]));
    }
  });
  set_num_threads(before);
}

TEST_CASE("bf16: NaN, infinities and denormals go through as in f32", "[ops][bf16]") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> v(1031, 0.5f);
  v[0] = inf, v[1] = -inf, v[2] = nan, v[3] = 0x1p-130f, v[4] = -0x1.8p-127f, v[5] = 0x1.fep127f, v[6] = -0.0f,
  v[1030] = nan;
  const Tensor x = to(Tensor::from(v), bf16), wide = to(x, f32);
  CHECK(same_bits(to(wide, bf16), x));
  const Tensor finite = masked_fill(x, logical_not(isfinite(x)), 2), finite_wide = to(finite, f32);
  const std::vector<std::function<Tensor(const Tensor&)>> ops{
      [](const Tensor& y) { return y + y; },
      [](const Tensor& y) { return exp(y); },
      [](const Tensor& y) { return gelu(y); },
      [](const Tensor& y) { return y * 1.5; },
      [](const Tensor& y) { return sum(y); },
      [](const Tensor& y) { return max(y); },
      [](const Tensor& y) { return softmax(y); },
      [](const Tensor& y) { return rms_norm(y); },
      [](const Tensor& y) { return cumsum(y, 0); },
      [](const Tensor& y) { return sort(y, 0).values; },
      [](const Tensor& y) { return matmul(unsqueeze(y, 1), unsqueeze(narrow(y, 0, 0, 7), 0)); }};
  for (std::size_t i = 0; i < ops.size(); ++i) {
    INFO("op " << i);
    for (const auto& [a, b] : {std::pair{x, wide}, {finite, finite_wide}}) {
      Tensor got = ops[i](a), want = to(ops[i](b), bf16);
      const double size = max_abs(want);  // infinite with a NaN
      CHECK(same_bits(isnan(got), isnan(want)));
      got = masked_fill(got, isnan(got), 0), want = masked_fill(want, isnan(want), 0);
      CHECK(max_abs_diff(got, want) <= kHalfUlp * 2 * (std::isfinite(size) ? size : 0));
    }
  }
}
