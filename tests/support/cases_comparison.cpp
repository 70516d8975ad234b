// Rows: comparisons and logic. Results are bool and exact.
#include "support/op_cases.h"

#include <sluice/ops/elementwise/elementwise.h>

// clang-format off
namespace sluice::testing {

void add_comparison_cases(Cases& c) {
  constexpr const char* flat = "the result is bool";
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  auto binary = [&](const char* op, Binary f, double (*reference)(double, double), Input a, Input b) {
    c.push_back({.op = op, .inputs = {a, b}, .call = [f](const In& x) { return f(x[0], x[1]); },
                 .reference = elementwise2(reference), .flat = flat, .exact = true, .any_shape = true,
                 .large = {{33'283}, {33'283}}});
    OpCase row = c.back();
    row.variant = "broadcast", row.any_shape = false;
    row.inputs[0].shape = {4, 1}, row.inputs[1].shape = {2, 1, 3};
    row.large = {{251, 1}, {401}};
    c.push_back(row);
  };
  const Input x = levels({4, 5}), m = mask({4, 5});
  binary("eq", eq, [](double a, double b) { return double(a == b); }, x, x);
  binary("ne", ne, [](double a, double b) { return double(a != b); }, x, x);
  binary("lt", lt, [](double a, double b) { return double(a < b); }, x, x);
  binary("le", le, [](double a, double b) { return double(a <= b); }, x, x);
  binary("gt", gt, [](double a, double b) { return double(a > b); }, x, x);
  binary("ge", ge, [](double a, double b) { return double(a >= b); }, x, x);
  binary("logical_and", logical_and, [](double a, double b) { return double(a != 0 && b != 0); }, m, m);
  binary("logical_or", logical_or, [](double a, double b) { return double(a != 0 || b != 0); }, m, m);
  binary("eq", eq, [](double a, double b) { return double(a == b); }, index({4, 5}, 3), index({4, 5}, 3));

  auto unary = [&](const char* op, Input in, Tensor (*f)(const Tensor&), double (*reference)(double)) {
    c.push_back({.op = op, .inputs = {in}, .call = [f](const In& v) { return f(v[0]); },
                 .reference = elementwise1(reference), .flat = flat, .exact = true, .any_shape = true,
                 .large = {{33'283}}});
  };
  unary("logical_not", m, logical_not, [](double a) { return double(a == 0); });
  unary("lt", x, [](const Tensor& v) { return v < 0.5; }, [](double a) { return double(a < 0.5); });
  unary("le", x, [](const Tensor& v) { return v <= 0.0; }, [](double a) { return double(a <= 0); });
  unary("gt", x, [](const Tensor& v) { return v > 0.0; }, [](double a) { return double(a > 0); });
  unary("ge", x, [](const Tensor& v) { return v >= 1.0; }, [](double a) { return double(a >= 1); });
  unary("eq", x, [](const Tensor& v) { return v == 1.0; }, [](double a) { return double(a == 1); });
  unary("ne", x, [](const Tensor& v) { return v != -1.0; }, [](double a) { return double(a != -1); });
  // log makes −inf of 0 and NaN of −1, so every kind of number is met.
  unary("isnan", x, [](const Tensor& v) { return isnan(log(v)); }, [](double a) { return double(a < 0); });
  unary("isinf", x, [](const Tensor& v) { return isinf(log(v)); }, [](double a) { return double(a == 0); });
  unary("isinf", x, [](const Tensor& v) { return isinf(-log(v)); }, [](double a) { return double(a == 0); });
  unary("isinf", index({4, 5}, 3), [](const Tensor& v) { return isinf(v); }, [](double) { return 0.0; });
  unary("isfinite", x, [](const Tensor& v) { return isfinite(log(v)); }, [](double a) { return double(a > 0); });
}

}  // namespace sluice::testing
