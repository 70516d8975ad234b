// Rows: ops/shape/create.h. Ops that make tensors from nothing take their dtype from a dummy scalar.
#include "support/op_cases.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

// clang-format off
namespace sluice::testing {

void add_create_cases(Cases& c) {
  auto made = [&](const char* op, const char* variant, std::function<Outputs(const In&)> call, Dims shape, std::function<double(const Dims&)> f) {
    c.push_back({.op = op, .variant = variant, .inputs = {real({})}, .call = std::move(call),
                 .reference = [=](const Arrays&) {
                   Array y(shape);
                   each_index(shape, [&](const Dims& i) { y(i) = f(i); });
                   return y;
                 },
                 .flat = "a constant"});
  };
  auto zero = [](const Dims&) { return 0.0; };
  auto one = [](const Dims&) { return 1.0; };
  made("zeros", "", [](const In& x) { return zeros({2, 3}, x[0].options()); }, {2, 3}, zero);
  made("zeros", "empty", [](const In& x) { return zeros({2, 0}, x[0].options()); }, {2, 0}, zero);
  made("ones", "", [](const In& x) { return ones({2, 3}, x[0].options()); }, {2, 3}, one);
  made("full", "", [](const In& x) { return full({3}, -2.5, x[0].options()); }, {3}, [](const Dims&) { return -2.5; });
  made("full", "a scalar", [](const In& x) { return full({}, 7, x[0].options()); }, {}, [](const Dims&) { return 7.0; });
  made("zeros_like", "", [](const In& x) { return zeros_like(expand(x[0], {2, 3})); }, {2, 3}, zero);
  made("ones_like", "", [](const In& x) { return ones_like(expand(x[0], {2, 3})); }, {2, 3}, one);
  made("arange", "", [](const In& x) { return arange(1, 2.75, 0.5, x[0].options()); }, {4},
       [](const Dims& i) { return 1 + 0.5 * static_cast<double>(i[0]); });
  made("arange", "downwards", [](const In& x) { return arange(3, -1, -2, x[0].options()); }, {2},
       [](const Dims& i) { return 3 - 2 * static_cast<double>(i[0]); });
  made("arange", "n", [](const In& x) { return arange(5, {i64, x[0].device()}); }, {5}, [](const Dims& i) { return static_cast<double>(i[0]); });
  made("arange", "none", [](const In& x) { return arange(0, {i64, x[0].device()}); }, {0}, zero);
  made("linspace", "", [](const In& x) { return linspace(-1, 2, 7, x[0].options()); }, {7},
       [](const Dims& i) { return -1 + 0.5 * static_cast<double>(i[0]); });
  made("linspace", "one", [](const In& x) { return linspace(-1, 2, 1, x[0].options()); }, {1},
       [](const Dims&) { return -1.0; });
  made("eye", "square", [](const In& x) { return eye(3, -1, x[0].options()); }, {3, 3},
       [](const Dims& i) { return double(i[0] == i[1]); });
  made("eye", "wide", [](const In& x) { return eye(2, 4, x[0].options()); }, {2, 4},
       [](const Dims& i) { return double(i[0] == i[1]); });

  c.push_back({.op = "one_hot", .inputs = {index({2, 3}, 4)}, .call = [](const In& x) { return one_hot(x[0], 4); },
               .reference = [](const Arrays& xs) {
                 Dims shape = xs[0].shape;
                 shape.push_back(4);
                 Array y(shape);
                 each_index(xs[0].shape, [&](Dims i) {
                   const auto k = static_cast<int64_t>(xs[0](i));
                   i.push_back(k);
                   y(i) = 1;
                 });
                 return y;
               },
               .flat = "of integers", .exact = true, .shapes = {{{0}}, {{}}, {{1}}}, .large = {{20'011}}});

  auto same = [&](const char* op, const char* variant, Input x, std::function<Outputs(const In&)> call, double (*f)(double), const char* flat = nullptr) {
    c.push_back({.op = op, .variant = variant, .inputs = {x}, .call = std::move(call), .reference = elementwise1(f),
                 .flat = flat, .exact = true, .any_shape = true, .large = {{33'283}}});
  };
  auto itself = [](double x) { return x; };
  same("clone", "", real({2, 3}), [](const In& x) { return clone(x[0]); }, itself);
  same("contiguous", "", real({2, 3}), [](const In& x) { return contiguous(x[0]); }, itself);
  same("contiguous", "of a transpose", real({2, 3}), [](const In& x) { return x[0].rank() < 2 ? x[0] : transpose(contiguous(transpose(x[0], 0, -1)), 0, -1); }, itself);
  same("to", "f64", real({2, 3}), [](const In& x) { return to(x[0], f64); }, itself);
  same("to", "i64, towards zero", real({2, 3}, -9, 9), [](const In& x) { return to(x[0], i64); },
       [](double x) { return static_cast<double>(static_cast<int64_t>(x)); }, "the result is an integer");
  same("to", "bool", levels({2, 3}), [](const In& x) { return to(x[0], boolean); },
       [](double x) { return double(x != 0); }, "the result is bool");
  same("to", "bool to reals", mask({2, 3}), [](const In& x) { return to(x[0], f32); }, itself, "of bool");
  same("to", "bf16 and back, of small integers", levels({2, 3}), [](const In& x) { return to(to(x[0], bf16), f32); }, itself,
       "rounded too coarsely for differences");
}

}  // namespace sluice::testing
