// Rows: ops/rows/reduce.h.
#include "support/op_cases.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>

// clang-format off
namespace sluice::testing {

namespace {

using Values = std::vector<double>;

double ref_sum(const Values& v) {
  double s = 0;
  for (double x : v) s += x;
  return s;
}
double ref_mean(const Values& v) { return ref_sum(v) / static_cast<double>(v.size()); }
double ref_max(const Values& v) { return *std::max_element(v.begin(), v.end()); }
double ref_min(const Values& v) { return *std::min_element(v.begin(), v.end()); }
double ref_argmax(const Values& v) { return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin()); }
double ref_argmin(const Values& v) { return static_cast<double>(std::min_element(v.begin(), v.end()) - v.begin()); }
double ref_squares(const Values& v) {
  const double m = ref_mean(v);
  double s = 0;
  for (double x : v) s += (x - m) * (x - m);
  return s;
}
double ref_var(const Values& v) { return ref_squares(v) / (static_cast<double>(v.size()) - 1); }
double ref_var0(const Values& v) { return ref_squares(v) / static_cast<double>(v.size()); }
double ref_logsumexp(const Values& v) {
  double s = 0;
  for (double x : v) s += std::exp(x);
  return std::log(s);
}
double ref_norm(const Values& v) {
  double s = 0;
  for (double x : v) s += x * x;
  return std::sqrt(s);
}
double ref_prod(const Values& v) {
  double p = 1;
  for (double x : v) p *= x;
  return p;
}
double ref_any(const Values& v) { return ref_sum(v) > 0; }
double ref_all(const Values& v) { return ref_prod(v) > 0; }

struct Choice {
  const char* name;
  Dims shape, dims;
  bool keep;
};
const Choice kChoices[] = {
    {"all dims", {2, 3, 4}, {}, false},        {"last", {3, 5}, {-1}, false},
    {"first, kept", {4, 3}, {0}, true},        {"middle", {2, 5, 3}, {1}, false},
    {"two apart", {2, 3, 4}, {0, 2}, false},   {"two adjacent, kept", {3, 2, 4}, {1, 2}, true},
    {"unsorted", {2, 3, 2}, {-1, 0}, false},   {"a scalar", {}, {}, false},
    {"a size-1 dim", {3, 1}, {1}, false},      {"all, kept", {2, 3}, {}, true},
};

}  // namespace

void add_reduce_cases(Cases& c) {
  using Reduce = Tensor (*)(const Tensor&, const Shape&, bool);
  /// Every choice of dims. `tall` also runs shapes whose loops are cut in blocks or among threads.
  auto reduce = [&](const char* op, Reduce f, double (*reference)(const Values&), Input x, bool tall,
                    const char* flat = nullptr, bool exact = false, double ulps = 8) {
    for (const Choice& k : kChoices) {
      x.shape = k.shape;
      OpCase row{.op = op, .variant = k.name, .inputs = {x}};
      row.call = [f, k](const In& v) { return f(v[0], shape_of(k.dims), k.keep); };
      row.reference = reduced(k.dims, k.keep, reference);
      row.flat = flat, row.exact = exact, row.ulps = ulps;
      if (k.shape.size() == 2 && k.dims.size() == 1 && tall) {
        row.shapes = {{{1, 7}}, {{3, 17}}, {{1025, 3}}, {{3, 1025}}, {{2, 2100}}, {{300, 257}}};
        row.large = {{382, 257}};
      }
      if (k.shape.size() == 3 && k.dims.size() == 1 && tall) {
        row.shapes = {{{1, 1, 1}}, {{2, 130, 300}}};
        row.large = {{2, 129, 1025}};
      }
      if (k.shape.size() == 3 && k.dims.empty() && tall) {
        row.shapes = {{{1, 1, 70'001}}};
        row.large = {{5, 1, 19'661}};
      }
      if (row.flat == nullptr && k.dims == Dims{0, 2}) row.large = {{tall ? 20 : 2, 50, 65}};  // a long product is 0
      c.push_back(row);
    }
  };
  reduce("sum", sum, ref_sum, real({}), true);
  reduce("mean", mean, ref_mean, real({}), true);
  reduce("max", static_cast<Reduce>(max), ref_max, distinct({}), true, nullptr, true);
  reduce("min", static_cast<Reduce>(min), ref_min, distinct({}), true, nullptr, true);
  reduce("logsumexp", logsumexp, ref_logsumexp, real({}), true);
  reduce("norm", norm, ref_norm, positive({}), true);
  reduce("prod", prod, ref_prod, away({}, {0}, -1.5, 1.5, 0.5), false);
  reduce("any", any, ref_any, mask({}), true, "the result is bool", true);
  reduce("all", all, ref_all, mask({}), true, "the result is bool", true);

  // Integers and bool. A mean is f32, of sums that are exact.
  const auto of_integers = [&](const char* op, Reduce f, double (*reference)(const Values&), Input x, bool exact) {
    x.shape = {3, 4};
    const std::size_t before = c.size();
    reduce(op, f, reference, x, true, "integers", exact);
    for (std::size_t i = before; i < c.size(); ++i) {
      c[i].variant = x.kind == Input::mask ? "of bool" : "of i32";
      if (x.kind != Input::mask) c[i].call = [call = c[i].call](const In& v) { return call({to(v[0], i32) - 20}); };
      if (x.kind != Input::mask) c[i].reference = [r = c[i].reference](const Arrays& v) {
        Arrays shifted = v;
        for (double& a : shifted[0].v) a -= 20;
        return r(shifted);
      };
    }
  };
  for (const Input& x : {index({}, 50), mask({})}) {
    of_integers("mean", mean, [](const Values& v) { return double(float(ref_mean(v))); }, x, true);
    of_integers("max", static_cast<Reduce>(max), ref_max, x, true);
    of_integers("min", static_cast<Reduce>(min), ref_min, x, true);
  }

  for (const Choice& k : kChoices) {
    if (count(k.shape) == 1 || k.dims == Dims{1}) continue;  // one value has no spread: its own rows below
    const Input x = distinct(k.shape);
    const bool tall = k.shape.size() == 2 && k.dims.size() == 1;
    auto spread = [&](const char* op, auto f, double (*reference)(const Values&)) {
      OpCase row{.op = op, .variant = k.name, .inputs = {x}, .ulps = 16};
      row.call = [f, k](const In& v) { return f(v[0], shape_of(k.dims), k.keep); };
      row.reference = reduced(k.dims, k.keep, reference);
      if (tall) row.shapes = {{{3, 1025}}, {{2100, 2}}}, row.large = {{382, 257}};
      c.push_back(row);
    };
    spread("var", [](const Tensor& v, const Shape& d, bool keep_dims) { return var(v, d, keep_dims); }, ref_var);
    spread("var", [](const Tensor& v, const Shape& d, bool keep_dims) { return var(v, d, keep_dims, 0); }, ref_var0);
    spread("std_dev", [](const Tensor& v, const Shape& d, bool keep_dims) { return std_dev(v, d, keep_dims); },
           [](const Values& v) { return std::sqrt(ref_var(v)); });
    spread("std_dev", [](const Tensor& v, const Shape& d, bool keep_dims) { return std_dev(v, d, keep_dims, 0); },
           [](const Values& v) { return std::sqrt(ref_var0(v)); });
  }
  c.push_back({.op = "var", .variant = "one value, correction 0", .inputs = {real({3, 1})},
               .call = [](const In& x) { return var(x[0], {1}, false, 0); },
               .reference = reduced({1}, false, [](const Values&) { return 0.0; }), .exact = true});

  auto arg = [&](const char* op, Tensor (*f)(const Tensor&, int64_t, bool), double (*reference)(const Values&)) {
    struct ArgChoice {
      const char* name;
      Dims shape;
      int64_t dim;
      bool keep;
    };
    for (const ArgChoice& k : {ArgChoice{"last", {3, 5}, -1, false}, {"first, kept", {4, 3}, 0, true},
                               {"middle", {2, 5, 3}, 1, false}, {"one dim", {6}, 0, false}}) {
      for (Input x : {distinct(k.shape), levels(k.shape)}) {  // ties: the first wins
        OpCase row{.op = op, .variant = k.name, .inputs = {x}, .flat = "the result is an index", .exact = true};
        row.call = [f, k](const In& v) { return f(v[0], k.dim, k.keep); };
        row.reference = reduced({k.dim}, k.keep, reference);
        if (k.shape.size() == 2) row.shapes = {{{1, 1}}, {{1025, 3}}, {{3, 1025}}}, row.large = {{382, 257}};
        c.push_back(row);
      }
    }
  };
  arg("argmax", argmax, ref_argmax);
  arg("argmin", argmin, ref_argmin);

  // Empty ranges, and results without elements.
  c.push_back({.op = "argmax", .variant = "of no rows", .inputs = {real({0, 3})},
               .call = [](const In& x) { return argmax(x[0], 1, false); },
               .reference = [](const Arrays&) { return Array({0}, 0); }, .flat = "an index", .exact = true});
  auto empty_rows = [&](const char* op, Reduce f, double value) {
    c.push_back({.op = op, .variant = "an empty range", .inputs = {real({3, 0, 2})},
                 .call = [f](const In& x) { return f(x[0], {1}, false); },
                 .reference = [value](const Arrays&) { return Array({3, 2}, value); }, .exact = true});
    c.push_back({.op = op, .variant = "all of nothing", .inputs = {real({0})},
                 .call = [f](const In& x) { return f(x[0], {}, false); },
                 .reference = [value](const Arrays&) { return Array({}, value); }, .exact = true});
  };
  empty_rows("sum", sum, 0);
  empty_rows("mean", mean, NAN);
  for (OpCase& r : c)
    if (r.op == std::string_view("mean") && count(r.inputs[0].shape) == 0) r.flat = "0/0";
  empty_rows("logsumexp", logsumexp, -INFINITY);
  empty_rows("norm", norm, 0);
  empty_rows("prod", prod, 1);
  auto no_rows = [&](const char* op, Reduce f) {
    c.push_back({.op = op, .variant = "no rows", .inputs = {real({0, 3})},
                 .call = [f](const In& x) { return f(x[0], {1}, true); },
                 .reference = [](const Arrays&) { return Array({0, 1}); }, .exact = true});
  };
  no_rows("max", static_cast<Reduce>(max));
  no_rows("min", static_cast<Reduce>(min));
  no_rows("sum", sum);
  no_rows("logsumexp", logsumexp);
  no_rows("norm", norm);
  no_rows("prod", prod);

  // Where a naive formula fails.
  c.push_back({.op = "logsumexp", .variant = "large values", .inputs = {real({2, 4}, 900, 904)},
               .call = [](const In& x) { return logsumexp(x[0], {1}); },
               .reference = reduced({1}, false, [](const Values& v) {
                 double s = 0;
                 for (double x : v) s += std::exp(x - 900);
                 return 900 + std::log(s);
               }),
               .gradient_ulps = 400});  // e^(x − y), with y rounded at 900
  c.push_back({.op = "prod", .variant = "zeros", .inputs = {levels({3, 4})},
               .call = [](const In& x) { return prod(x[0], {1}); }, .reference = reduced({1}, false, ref_prod)});
  c.push_back({.op = "sum", .variant = "of bool, a count", .inputs = {mask({3, 4})},
               .call = [](const In& x) { return sum(x[0], {1}); }, .reference = reduced({1}, false, ref_sum),
               .flat = "an integer", .exact = true, .large = {{33'283, 2}}});
  c.push_back({.op = "sum", .variant = "of i64", .inputs = {index({3, 4}, 100)},
               .call = [](const In& x) { return sum(x[0], {0}); }, .reference = reduced({0}, false, ref_sum),
               .flat = "an integer", .exact = true});
  c.push_back({.op = "prod", .variant = "of i64", .inputs = {index({3, 3, 5}, 9)},
               .call = [](const In& x) { return prod(x[0] - 9, {0, 2}); },
               .reference = [](const Arrays& v) {
                 Arrays shifted = v;
                 for (double& a : shifted[0].v) a -= 9;  // none is 0
                 return reduced({0, 2}, false, ref_prod)(shifted);
               },
               .flat = "an integer", .exact = true, .large = {{2, 1033, 3}}});
  c.push_back({.op = "prod", .variant = "of bool", .inputs = {mask({3, 4})},
               .call = [](const In& x) { return prod(x[0], {1}, keep); }, .reference = reduced({1}, true, ref_prod),
               .flat = "an integer", .exact = true});
  c.push_back({.op = "sum", .variant = "of a sum, 3 dims apart", .inputs = {real({2, 3, 2, 2, 3})},
               .call = [](const In& x) { return sum(x[0], {0, 2, 4}); }, .reference = reduced({0, 2, 4}, false, ref_sum),
               .ulps = 8, .large = {{5, 9, 10, 17, 10}}});
}

}  // namespace sluice::testing
