// Rows: ops/elementwise/elementwise.h, functions of one number.
#include "support/op_cases.h"

#include <sluice/ops/elementwise/elementwise.h>

#include <cmath>

// clang-format off
namespace sluice::testing {

void add_mathematics_cases(Cases& c) {
  auto unary = [&](const char* op, Input x, Tensor (*f)(const Tensor&), double (*reference)(double), double ulps = 4) {
    c.push_back({.op = op, .inputs = {x}, .call = [f](const In& v) { return f(v[0]); },
                 .reference = elementwise1(reference), .ulps = ulps, .any_shape = true, .large = {{33'283}}});
  };
  unary("exp", real({2, 3}, -4, 4), exp, [](double x) { return std::exp(x); });
  unary("expm1", real({2, 3}, -3, 3), expm1, [](double x) { return std::expm1(x); });
  unary("log", real({2, 3}, 0.1, 5), log, [](double x) { return std::log(x); });
  unary("log1p", real({2, 3}, -0.8, 4), log1p, [](double x) { return std::log1p(x); });
  unary("sqrt", real({2, 3}, 0.1, 5), sqrt, [](double x) { return std::sqrt(x); });
  unary("rsqrt", real({2, 3}, 0.1, 5), rsqrt, [](double x) { return 1 / std::sqrt(x); });
  unary("tanh", real({2, 3}, -3, 3), tanh, [](double x) { return std::tanh(x); });
  unary("sigmoid", real({2, 3}, -5, 5), sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); });
  unary("softplus", real({2, 3}, -5, 5), softplus, [](double x) { return std::log(1 + std::exp(x)); });
  unary("normal_cdf", real({2, 3}, -5, 2.5), normal_cdf, [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }, 8);
  unary("erf", real({2, 3}, -2.5, 2.5), erf, [](double x) { return std::erf(x); });
  unary("sin", real({2, 3}, -7, 7), sin, [](double x) { return std::sin(x); });
  unary("cos", real({2, 3}, -7, 7), cos, [](double x) { return std::cos(x); });
  unary("abs", away({2, 3}, {0}), abs, [](double x) { return x < 0 ? -x : x; });
  const std::vector<double> halves{-3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3};
  unary("sign", away({2, 3}, {0}), sign, [](double x) { return x < 0 ? -1.0 : x > 0 ? 1.0 : 0.0; });
  unary("floor", away({2, 3}, halves, -3, 3), floor, [](double x) { return std::floor(x); });
  unary("ceil", away({2, 3}, halves, -3, 3), ceil, [](double x) { return -std::floor(-x); });
  unary("round", away({2, 3}, halves, -3, 3), round, [](double x) { return std::floor(x + 0.5); });
  unary("trunc", away({2, 3}, halves, -3, 3), trunc,
        [](double x) { return x < 0 ? -std::floor(-x) : std::floor(x); });
}

}  // namespace sluice::testing
