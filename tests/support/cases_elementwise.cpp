// Rows: ops/elementwise/elementwise.h, arithmetic; ops/elementwise/map.h.
#include "support/op_cases.h"

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/map.h>

#include <algorithm>
#include <cmath>

// clang-format off
namespace sluice::testing {

namespace {

using Binary = Tensor (*)(const Tensor&, const Tensor&);

/// Six shapes of broadcasting for one binary op: same, row, column, scalar, outer, leading dims.
void add_binary(Cases& c, const char* op, Binary f, double (*reference)(double, double), Input a, Input b) {
  auto row = [&](const char* variant, Dims sa, Dims sb) {
    a.shape = sa, b.shape = sb;
    OpCase r{.op = op, .variant = variant, .inputs = {a, b}};
    r.call = [f](const In& x) { return f(x[0], x[1]); };
    r.reference = elementwise2(reference);
    c.push_back(r);
    return &c.back();
  };
  OpCase* same = row("", {3, 5}, {3, 5});
  same->any_shape = true;
  same->large = {{33'283}, {33'283}};
  OpCase* by_row = row("row", {3, 5}, {5});
  by_row->shapes = {{{4, 1025}, {1025}}, {{0, 5}, {5}}, {{3, 1}, {1}}};
  by_row->large = {{53, 641}, {641}};
  row("column", {3, 1}, {3, 4})->large = {{53, 1}, {53, 641}};
  row("scalar", {2, 3}, {});
  row("outer", {4, 1}, {1, 3})->shapes = {{{513, 1}, {1, 3}}, {{2, 1}, {1, 0}}};
  row("leading dims", {3}, {2, 2, 1});
}

double ref_lerp(double a, double b, double w) { return (1 - w) * a + w * b; }
double ref_where(double m, double a, double b) { return m != 0 ? a : b; }

}  // namespace

void add_elementwise_cases(Cases& c) {
  add_binary(c, "add", add, [](double a, double b) { return a + b; }, real({}), real({}));
  add_binary(c, "sub", sub, [](double a, double b) { return a - b; }, real({}), real({}));
  add_binary(c, "mul", mul, [](double a, double b) { return a * b; }, real({}), real({}));
  add_binary(c, "div", div, [](double a, double b) { return a / b; }, real({}), away({}, {0}, -2, 2, 0.3));
  add_binary(c, "maximum", static_cast<Binary>(maximum), [](double a, double b) { return a > b ? a : b; }, distinct({}), distinct({}));
  add_binary(c, "minimum", static_cast<Binary>(minimum), [](double a, double b) { return a < b ? a : b; }, distinct({}), distinct({}));
  // In [-8, 8] by 2.2 to 2.8 the quotients are kept off whole numbers: the numerator is moved there by its own remainder.
  const Reference ref_remainder = elementwise2([](double a, double b) { return a - b * std::floor(a / b); });
  c.push_back({.op = "remainder", .inputs = {away({3, 5}, {-6, -3, 0, 3, 6}, -8, 8, 0.4), constant(away({3, 5}, {}, 2.9, 3.1))},
               .call = [](const In& x) { return remainder(x[0], x[1]); }, .reference = ref_remainder, .any_shape = true,
               .large = {{33'283}, {33'283}}});
  c.push_back({.op = "remainder", .variant = "negative divisor, row", .inputs = {away({3, 4}, {0}, -2.5, 2.5, 0.1), real({4}, -3.2, -2.8)},
               .call = [](const In& x) { return remainder(x[0], x[1]); }, .reference = ref_remainder, .large = {{53, 641}, {641}}});
  c.push_back({.op = "remainder", .variant = "by a number", .inputs = {away({2, 5}, {-1.5, 0, 1.5})},
               .call = [](const In& x) { return remainder(x[0], 1.5); },
               .reference = elementwise1([](double x) { return x - 1.5 * std::floor(x / 1.5); }), .any_shape = true});
  const Reference ref_quotient = elementwise2([](double a, double b) { return std::floor(a / b); });
  c.push_back({.op = "floor_divide", .inputs = {away({3, 5}, {-6, -3, 0, 3, 6}, -8, 8, 0.4), constant(away({3, 5}, {}, 2.9, 3.1))},
               .call = [](const In& x) { return floor_divide(x[0], x[1]); }, .reference = ref_quotient, .any_shape = true,
               .large = {{33'283}, {33'283}}});
  c.push_back({.op = "floor_divide", .variant = "negative divisor, row", .inputs = {away({3, 4}, {0}, -2.5, 2.5, 0.1), real({4}, -3.2, -2.8)},
               .call = [](const In& x) { return floor_divide(x[0], x[1]); }, .reference = ref_quotient, .large = {{53, 641}, {641}}});
  c.push_back({.op = "floor_divide", .variant = "by a number", .inputs = {away({2, 5}, {-1.5, 0, 1.5})},
               .call = [](const In& x) { return floor_divide(x[0], 1.5); },
               .reference = elementwise1([](double x) { return std::floor(x / 1.5); }), .any_shape = true});
  add_binary(c, "pow", static_cast<Binary>(pow), [](double a, double b) { return std::pow(a, b); },
             positive({}), real({}));

  auto unary = [&](const char* op, const char* variant, Input x, Tensor (*f)(const Tensor&), double (*reference)(double)) {
    c.push_back({.op = op, .variant = variant, .inputs = {x}, .call = [f](const In& v) { return f(v[0]); },
                 .reference = elementwise1(reference), .any_shape = true, .large = {{33'283}}});
  };
  unary("neg", "", real({2, 3}), neg, [](double x) { return -x; });
  unary("square", "", real({2, 3}), square, [](double x) { return x * x; });
  unary("reciprocal", "", away({2, 3}, {0}, -2, 2, 0.3), reciprocal, [](double x) { return 1 / x; });
  unary("scale", "by -2.5", real({2, 3}), [](const Tensor& x) { return scale(x, -2.5); },
        [](double x) { return -2.5 * x; });
  unary("scale", "by 0", real({2, 3}), [](const Tensor& x) { return scale(x, 0); }, [](double x) { return 0 * x; });
  unary("add_scalar", "", real({2, 3}), [](const Tensor& x) { return add_scalar(x, 1.25); },
        [](double x) { return x + 1.25; });
  unary("pow", "cube", real({2, 3}), [](const Tensor& x) { return pow(x, 3); }, [](double x) { return x * x * x; });
  unary("pow", "1.5", positive({2, 3}), [](const Tensor& x) { return pow(x, 1.5); },
        [](double x) { return x * std::sqrt(x); });
  unary("pow", "-2", away({2, 3}, {0}, -2, 2, 0.3), [](const Tensor& x) { return pow(x, -2); },
        [](double x) { return 1 / (x * x); });
  unary("pow", "0", real({2, 3}), [](const Tensor& x) { return pow(x, 0); }, [](double) { return 1.0; });
  unary("clamp", "both sides", away({2, 5}, {-1, 0.5}), [](const Tensor& x) { return clamp(x, -1, 0.5); },
        [](double x) { return x < -1 ? -1 : x > 0.5 ? 0.5 : x; });
  unary("clamp", "below only", away({2, 5}, {0.25}), [](const Tensor& x) { return clamp(x, 0.25); },
        [](double x) { return x < 0.25 ? 0.25 : x; });

  c.push_back({.op = "lerp", .inputs = {real({2, 3}), real({2, 3}), real({2, 3}, 0, 1)},
               .call = [](const In& x) { return lerp(x[0], x[1], x[2]); },
               .reference = elementwise3(ref_lerp), .any_shape = true, .large = {{33'283}, {33'283}, {33'283}}});
  c.push_back({.op = "lerp", .variant = "broadcast", .inputs = {real({2, 1}), real({3}), real({}, 0, 1)},
               .call = [](const In& x) { return lerp(x[0], x[1], x[2]); }, .reference = elementwise3(ref_lerp)});
  c.push_back({.op = "where", .inputs = {mask({3, 4}), real({3, 4}), real({3, 4})},
               .call = [](const In& x) { return where(x[0], x[1], x[2]); },
               .reference = elementwise3(ref_where), .exact = true, .any_shape = true,
               .large = {{33'283}, {33'283}, {33'283}}});
  c.push_back({.op = "where", .variant = "broadcast", .inputs = {mask({3, 1}), real({4}), real({})},
               .call = [](const In& x) { return where(x[0], x[1], x[2]); },
               .reference = elementwise3(ref_where), .exact = true});
  c.push_back({.op = "masked_fill", .inputs = {real({3, 4}), mask({3, 4})},
               .call = [](const In& x) { return masked_fill(x[0], x[1], -7.5); },
               .reference = elementwise2([](double x, double m) { return m != 0 ? -7.5 : x; }),
               .exact = true, .any_shape = true, .large = {{33'283}, {33'283}}});
  c.push_back({.op = "masked_fill", .variant = "-inf, mask by row", .inputs = {real({3, 4}), mask({4})},
               .call = [](const In& x) { return masked_fill(x[0], x[1], -INFINITY); },
               .reference = elementwise2([](double x, double m) { return m != 0 ? -INFINITY : x; }),
               .flat = "central differences of infinities", .exact = true});

  // Numbers as operands, and integers.
  unary("maximum", "with a number", away({2, 5}, {0.25}), [](const Tensor& x) { return maximum(x, 0.25); }, [](double x) { return x > 0.25 ? x : 0.25; });
  unary("minimum", "with a number", away({2, 5}, {0.25}), [](const Tensor& x) { return minimum(x, 0.25); }, [](double x) { return x < 0.25 ? x : 0.25; });
  c.push_back({.op = "lerp", .variant = "by a number", .inputs = {real({2, 3}), real({2, 3})},
               .call = [](const In& x) { return lerp(x[0], x[1], 0.25); },
               .reference = elementwise2([](double a, double b) { return 0.75 * a + 0.25 * b; })});
  for (bool first : {false, true})
    c.push_back({.op = "where", .variant = first ? "a number, else x" : "x, else a number", .inputs = {mask({3, 4}), real({3, 4})},
                 .call = [first](const In& x) { return first ? where(x[0], 0.5, x[1]) : where(x[0], x[1], 0.5); },
                 .reference = elementwise([first](const std::vector<double>& v) { return (v[0] != 0) == first ? 0.5 : v[1]; }), .exact = true});
  c.push_back({.op = "where", .variant = "of bool", .inputs = {mask({3, 4}), mask({4}), mask({3, 1})},
               .call = [](const In& x) { return where(x[0], x[1], x[2]); }, .reference = elementwise3(ref_where), .flat = "bool", .exact = true});
  c.push_back({.op = "masked_fill", .variant = "of bool", .inputs = {mask({3, 4}), mask({4})},
               .call = [](const In& x) { return masked_fill(x[0], x[1], 1); },
               .reference = elementwise2([](double x, double m) { return m != 0 ? 1.0 : x; }), .flat = "bool", .exact = true});
  unary("sub", "number − tensor", real({2, 3}), [](const Tensor& x) { return 1.5 - x; }, [](double x) { return 1.5 - x; });
  unary("div", "number / tensor", away({2, 3}, {0}, -2, 2, 0.3), [](const Tensor& x) { return 1.5 / x; },
        [](double x) { return 1.5 / x; });
  unary("scale", "tensor / power of two", real({2, 3}), [](const Tensor& x) { return x / 4.0; }, [](double x) { return x / 4; });
  unary("div", "tensor / number", real({2, 3}), [](const Tensor& x) { return x / -4.9; }, [](double x) { return x / -4.9; });
  for (DType t : {i64, i32}) {
    auto integers = [&](const char* op, Binary f, double (*reference)(double, double)) {
      c.push_back({.op = op, .variant = t == i64 ? "i64" : "i32", .inputs = {index({3, 4}, 50), index({4}, 50)},
                   .call = [f, t](const In& x) { return f(to(x[0], t), to(x[1], t)); }, .reference = elementwise2(reference),
                   .flat = "integers", .exact = true, .shapes = {{{3, 700}, {1}}, {{0}, {}}}});
    };
    integers("add", add, [](double a, double b) { return a + b; });
    integers("sub", sub, [](double a, double b) { return a - b; });
    integers("mul", mul, [](double a, double b) { return a * b; });
    integers("neg", [](const Tensor& a, const Tensor& b) { return neg(a) + b - b; }, [](double a, double) { return -a; });
    integers("square", [](const Tensor& a, const Tensor& b) { return square(a + b); }, [](double a, double b) { return (a + b) * (a + b); });
    integers("scale", [](const Tensor& a, const Tensor& b) { return scale(a - b, -3); }, [](double a, double b) { return 3 * (b - a); });
    integers("remainder", [](const Tensor& a, const Tensor& b) { return remainder(a - 25, b - 20); },
             [](double a, double b) { return b == 20 ? a - 25 : a - 25 - (b - 20) * std::floor((a - 25) / (b - 20)); });
    integers("remainder", [](const Tensor& a, const Tensor& b) { return remainder(a - b, -7); },
             [](double a, double b) { return a - b + 7 * std::floor((a - b) / -7); });
    integers("floor_divide", [](const Tensor& a, const Tensor& b) { return floor_divide(a - 25, b - 20); },
             [](double a, double b) { return b == 20 ? 0 : std::floor((a - 25) / (b - 20)); });
    integers("floor_divide", [](const Tensor& a, const Tensor& b) { return floor_divide(a - b, -7); },
             [](double a, double b) { return std::floor((a - b) / -7); });
    integers("pow", [](const Tensor& a, const Tensor& b) { return pow(a - b, 5); }, [](double a, double b) { return std::pow(a - b, 5); });
    integers("pow", [](const Tensor& a, const Tensor& b) { return pow(a - b, 0); }, [](double, double) { return 1.0; });
    integers("maximum", static_cast<Binary>(maximum), [](double a, double b) { return a > b ? a : b; });
    integers("minimum", static_cast<Binary>(minimum), [](double a, double b) { return a < b ? a : b; });
    integers("maximum", [](const Tensor& a, const Tensor& b) { return maximum(a - b, 3); }, [](double a, double b) { return std::max(a - b, 3.0); });
    integers("minimum", [](const Tensor& a, const Tensor& b) { return minimum(a - b, 3); }, [](double a, double b) { return std::min(a - b, 3.0); });
    integers("abs", [](const Tensor& a, const Tensor& b) { return abs(a - b); }, [](double a, double b) { return std::abs(a - b); });
    integers("sign", [](const Tensor& a, const Tensor& b) { return sign(a - b); }, [](double a, double b) { return double(a > b) - double(a < b); });
    integers("relu", [](const Tensor& a, const Tensor& b) { return relu(a - b); }, [](double a, double b) { return std::max(a - b, 0.0); });
    integers("floor", [](const Tensor& a, const Tensor& b) { return floor(a - b); }, [](double a, double b) { return a - b; });
    integers("ceil", [](const Tensor& a, const Tensor& b) { return ceil(a - b); }, [](double a, double b) { return a - b; });
    integers("round", [](const Tensor& a, const Tensor& b) { return round(a - b); }, [](double a, double b) { return a - b; });
    integers("trunc", [](const Tensor& a, const Tensor& b) { return trunc(a - b); }, [](double a, double b) { return a - b; });
    integers("clamp", [](const Tensor& a, const Tensor& b) { return clamp(a - b, -4); }, [](double a, double b) { return std::max(a - b, -4.0); });
    integers("where", [](const Tensor& a, const Tensor& b) { return where(a < b, a, b + 9); }, [](double a, double b) { return a < b ? a : b + 9; });
    integers("masked_fill", [](const Tensor& a, const Tensor& b) { return masked_fill(a + b, a < b, -3); }, [](double a, double b) { return a < b ? -3 : a + b; });
    integers("add_scalar", [](const Tensor& a, const Tensor& b) { return a * b + 7; }, [](double a, double b) { return a * b + 7; });
  }

  // The user's own fused op.
  c.push_back({.op = "map", .variant = "one operand", .inputs = {real({2, 3})},
               .call = [](const In& x) { return map([](auto v) { return v * tanh(v) + 0.5; }, x[0]); },
               .reference = elementwise1([](double x) { return x * std::tanh(x) + 0.5; }), .any_shape = true});
  c.push_back({.op = "map", .variant = "gate", .inputs = {real({2, 3}), real({3})},
               .call = [](const In& x) { return map([](auto v, auto g) { return v * sigmoid(g); }, x[0], x[1]); },
               .reference = elementwise2([](double x, double g) { return x / (1 + std::exp(-g)); }),
               .large = {{53, 641}, {641}}});
  c.push_back({.op = "map", .variant = "four operands, with select and constants",
               .inputs = {distinct({3}), distinct({2, 3}), real({2, 1}), positive({})},
               .call = [](const In& x) {
                 return map([](auto a, auto b, auto s, auto t) {
                   return select(a < b, 2.0 * a - b / t, 1.0 - exp(s) * like(b, 3)) / 4.0;
                 }, x[0], x[1], x[2], x[3]);
               },
               .reference = elementwise([](const std::vector<double>& v) {
                 return (v[0] < v[1] ? 2 * v[0] - v[1] / v[3] : 1 - std::exp(v[2]) * 3) / 4;
               })});
  c.push_back({.op = "map", .variant = "an operand twice", .inputs = {positive({5})},
               .call = [](const In& x) { return map([](auto a, auto b) { return log(a) / b; }, x[0], x[0]); },
               .reference = elementwise1([](double x) { return std::log(x) / x; })});
  c.push_back({.op = "like", .inputs = {real({2, 3})}, .call = [](const In& x) { return like(x[0], 0.75); },
               .reference = [](const Arrays&) { return Array({}, 0.75); }, .flat = "a constant", .exact = true});
}

}  // namespace sluice::testing
