// Rows: ops/rows/softmax.h, ops/rows/norm.h.
#include "support/op_cases.h"

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/softmax.h>

#include <algorithm>
#include <cmath>

// clang-format off
namespace sluice::testing {

namespace {

using Values = std::vector<double>;

Values ref_softmax(const Values& x) {
  Values y;
  double largest = -INFINITY, total = 0;
  for (double v : x) largest = std::max(largest, v);
  if (largest == -INFINITY) return Values(x.size(), 0.0);  // nothing to attend to
  for (double v : x) total += std::exp(v - largest);
  for (double v : x) y.push_back(std::exp(v - largest) / total);
  return y;
}
Values ref_log_softmax(const Values& x) {
  Values y;
  double largest = -INFINITY, total = 0;
  for (double v : x) largest = std::max(largest, v);
  for (double v : x) total += std::exp(v - largest);
  for (double v : x) y.push_back(largest == -INFINITY ? -INFINITY : v - largest - std::log(total));
  return y;
}

/// y[.., i] = f(row)[i]·weight[i] + bias[i] over the last dim; weight and bias are inputs 1 and 2.
Reference rowwise(std::function<Values(const Values&)> f) {
  return [f](const Arrays& xs) {
    Array y = along(-1, f)({xs[0]})[0];
    each_index(y.shape, [&](const Dims& i) {
      if (xs.size() > 1) y(i) *= xs[1].v[xs[1].v.size() == 1 ? 0 : static_cast<std::size_t>(i.back())];
      if (xs.size() > 2) y(i) += xs[2]({i.back()});
    });
    return y;
  };
}
std::function<Values(const Values&)> ref_layer_norm(double eps) {
  return [eps](const Values& x) {
    const double n = static_cast<double>(x.size());
    double mean = 0, var = 0;
    for (double v : x) mean += v / n;
    for (double v : x) var += (v - mean) * (v - mean) / n;
    Values y;
    for (double v : x) y.push_back((v - mean) / std::sqrt(var + eps));
    return y;
  };
}
std::function<Values(const Values&)> ref_rms_norm(double eps) {
  return [eps](const Values& x) {
    double mean = 0;
    for (double v : x) mean += v * v / static_cast<double>(x.size());
    Values y;
    for (double v : x) y.push_back(v / std::sqrt(mean + eps));
    return y;
  };
}
/// x / max(‖x‖/√d, eps)
std::function<Values(const Values&)> ref_l2_norm(double eps) {
  return [eps](const Values& x) {
    double squares = 0;
    for (double v : x) squares += v * v;
    const double rms = std::sqrt(squares / static_cast<double>(x.size()));
    Values y;
    for (double v : x) y.push_back(v / (rms > eps ? rms : eps));
    return y;
  };
}

}  // namespace

void add_softmax_cases(Cases& c) {
  struct Choice {
    const char* name;
    Dims shape;
    int64_t dim;
  };
  for (const Choice& k : {Choice{"last dim", {3, 5}, -1}, {"first dim", {4, 3}, 0}, {"middle dim", {2, 4, 3}, 1},
                          {"one value", {3, 1}, 1}, {"empty", {0, 3}, 1}, {"a line of none", {2, 0}, 1}}) {
    for (bool log : {false, true}) {
      OpCase row{.op = log ? "log_softmax" : "softmax", .variant = k.name, .inputs = {real(k.shape, -3, 3)}, .ulps = 8};
      row.call = [log, d = k.dim](const In& x) { return log ? log_softmax(x[0], d) : softmax(x[0], d); };
      row.reference = along(k.dim, log ? ref_log_softmax : ref_softmax);
      if (k.shape == Dims{3, 5}) row.shapes = {{{2, 16}}, {{1, 17}}, {{3, 1025}}}, row.large = {{127, 257}};
      if (k.shape == Dims{4, 3}) row.shapes = {{{65, 7}}}, row.large = {{257, 65}};
      c.push_back(row);
    }
  }
  for (bool log : {false, true}) {
    const char* op = log ? "log_softmax" : "softmax";
    auto f = log ? log_softmax : softmax;
    auto reference = log ? ref_log_softmax : ref_softmax;
    c.push_back({.op = op, .variant = "a scalar", .inputs = {real({})}, .call = [f](const In& x) { return f(x[0], -1); },
                 .reference = [log](const Arrays&) { return Array({}, log ? 0 : 1); }, .exact = true});
    c.push_back({.op = op, .variant = "large values", .inputs = {real({2, 4}, 900, 904)},
                 .call = [f](const In& x) { return f(x[0], -1); }, .reference = along(-1, reference), .gradient_ulps = 400});
    c.push_back({.op = op, .variant = "masked by -inf, some rows whole", .inputs = {real({6, 2}), mask({6, 2})},
                 .call = [f](const In& x) { return f(masked_fill(x[0], x[1], -INFINITY), -1); },
                 .reference = [reference](const Arrays& xs) {
                   Array x = xs[0];
                   for (std::size_t i = 0; i < x.v.size(); ++i) x.v[i] = xs[1].v[i] != 0 ? -INFINITY : x.v[i];
                   return along(-1, reference)({x});
                 },
                 .flat = log ? "differences of infinities" : nullptr});
  }

  struct NormChoice {
    const char* name;
    int parameters;  // none, weight, weight and bias
    Dims shape;
    double eps;
  };
  for (const NormChoice& k : {NormChoice{"", 0, {3, 5}, 1e-5}, {"weight", 1, {3, 5}, 1e-5}, {"weight and bias", 2, {3, 5}, 1e-5},
                              {"three dims, large eps", 2, {2, 3, 4}, 0.3}, {"one row", 1, {4}, 1e-5},
                              {"one row, bias", 2, {4}, 1e-5}, {"no rows", 2, {0, 4}, 1e-5}}) {
    std::vector<Input> in{real(k.shape), real({k.shape.back()}), real({k.shape.back()})};
    in.resize(1 + static_cast<std::size_t>(k.parameters));
    std::vector<std::vector<Dims>> shapes;
    std::vector<Dims> large;
    for (const Dims& s : {Dims{2, 3}, {2, 17}, {40, 33}, {2, 1025}, {255, 513}}) {
      if (k.shape != Dims{3, 5}) break;
      std::vector<Dims> all{s};
      all.resize(in.size(), {s.back()});
      if (s[0] == 255) large = all;
      else shapes.push_back(all);
    }
    c.push_back({.op = "layer_norm", .variant = k.name, .inputs = in,
                 .call = [k](const In& x) { return layer_norm(x[0], x.size() > 1 ? x[1] : Tensor(), x.size() > 2 ? x[2] : Tensor(), k.eps); },
                 .reference = rowwise(ref_layer_norm(k.eps)), .ulps = 16, .gradient_ulps = 64, .shapes = shapes, .large = large});
    if (k.parameters == 2) continue;
    c.push_back({.op = "rms_norm", .variant = k.name, .inputs = in,
                 .call = [k](const In& x) { return rms_norm(x[0], x.size() > 1 ? x[1] : Tensor(), k.eps); },
                 .reference = rowwise(ref_rms_norm(k.eps)), .ulps = 16, .gradient_ulps = 64, .shapes = shapes, .large = large});
  }
  c.push_back({.op = "layer_norm", .variant = "bias without weight", .inputs = {real({3, 5}), real({5})},
               .call = [](const In& x) { return layer_norm(x[0], {}, x[1]); },
               .reference = [](const Arrays& xs) { return rowwise(ref_layer_norm(1e-5))({xs[0], Array({5}, 1), xs[1]}); },
               .ulps = 16, .gradient_ulps = 32});
  c.push_back({.op = "rms_norm", .variant = "one channel", .inputs = {positive({3, 1}), real({1})},
               .call = [](const In& x) { return rms_norm(x[0], x[1], 0.5); }, .reference = rowwise(ref_rms_norm(0.5))});
  for (ScaleNormForm form : {ScaleNormForm::rms, ScaleNormForm::l2_max})
    for (const Dims& g : {Dims{}, Dims{1}})
      c.push_back({.op = "scale_norm", .variant = form == ScaleNormForm::rms ? "rms" : "l2_max", .inputs = {real({3, 5}), real(g)},
                   .call = [form](const In& x) { return scale_norm(x[0], x[1], 1e-5, form); },
                   .reference = rowwise(form == ScaleNormForm::rms ? ref_rms_norm(1e-5) : ref_l2_norm(1e-5)), .ulps = 16,
                   .gradient_ulps = 64, .shapes = {{{0, 5}, g}, {{2, 1025}, g}}, .large = {{255, 513}, g}});
  c.push_back({.op = "scale_norm", .variant = "l2_max below eps", .inputs = {real({3, 4}, -0.1, 0.1), real({})},
               .call = [](const In& x) { return scale_norm(x[0], x[1], 0.75, ScaleNormForm::l2_max); },
               .reference = rowwise(ref_l2_norm(0.75)), .ulps = 16});
}

}  // namespace sluice::testing
