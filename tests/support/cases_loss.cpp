// Rows: ops/rows/loss.h, ops/elementwise/dropout.h.
#include "support/op_cases.h"

#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>

#include <algorithm>
#include <cmath>
#include <limits>

// clang-format off
namespace sluice::testing {

namespace {

/// Σ or mean of the terms, or the terms; `count` is what the mean divides by.
Expected ref_reduced(const Array& terms, Reduction r, double n) {
  if (r == Reduction::none) return terms;
  Array y(Dims{});
  for (double v : terms.v) y.v[0] += v;
  if (r == Reduction::mean) y.v[0] /= n;
  return y;
}

/// Of logits, or of log-probabilities; with a third input, the weights of classes.
Reference ref_cross_entropy(CrossEntropyOptions o, bool of_logits = true) {
  return [o, of_logits](const Arrays& xs) {
    const Array &x = xs[0], &t = xs[1];
    const int64_t classes = x.shape.back();
    const auto weight = [&](int64_t k) { return xs.size() > 2 ? xs[2]({k}) : 1; };
    Array terms(t.shape);
    double counted = 0;
    each_index(t.shape, [&](const Dims& i) {
      const auto target = static_cast<int64_t>(t(i));
      if (target == o.ignore_index) return;
      counted += weight(target);
      Dims at = i;
      at.push_back(0);
      double total = of_logits ? 0 : 1;
      for (int64_t k = 0; of_logits && k < classes; ++k) at.back() = k, total += std::exp(x(at));
      for (int64_t k = 0; k < classes; ++k) {
        at.back() = k;
        const double q = (k == target ? 1 - o.label_smoothing : 0) + o.label_smoothing / static_cast<double>(classes);
        terms(i) -= weight(k) * q * (x(at) - std::log(total));
      }
    });
    return ref_reduced(terms, o.reduction, counted == 0 ? 1 : counted);
  };
}

/// With distributions as targets; with a third input, the weights of classes.
Reference ref_cross_entropy_of_probabilities(CrossEntropyOptions o) {
  return [o](const Arrays& xs) {
    const Array &x = xs[0], &q = xs[1];
    const int64_t classes = x.shape.back();
    Array terms(Dims(x.shape.begin(), x.shape.end() - 1));
    each_index(terms.shape, [&](const Dims& i) {
      Dims at = i;
      at.push_back(0);
      double top = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t k = 0; k < classes; ++k) at.back() = k, top = std::max(top, x(at));
      for (int64_t k = 0; k < classes; ++k) at.back() = k, total += std::exp(x(at) - top);
      for (int64_t k = 0; k < classes; ++k) {
        at.back() = k;
        const double smooth = (1 - o.label_smoothing) * q(at) + o.label_smoothing / static_cast<double>(classes);
        terms(i) -= (xs.size() > 2 ? xs[2]({k}) : 1) * smooth * (x(at) - top - std::log(total));
      }
    });
    return ref_reduced(terms, o.reduction, std::max(1.0, static_cast<double>(terms.v.size())));
  };
}

/// Philox4x32-10, for dropout's mask.
std::array<uint32_t, 4> ref_philox(uint64_t block, uint64_t seed) {
  std::array<uint32_t, 4> c{uint32_t(block), uint32_t(block >> 32), 0, 0};
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {uint32_t(b >> 32) ^ c[1] ^ k0, uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k1, uint32_t(a)};
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return c;
}

}  // namespace

void add_loss_cases(Cases& c) {
  const char* names[] = {"mean", "sum", "none"};
  for (Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const char* name = names[static_cast<int>(r)];
    auto pair = [&](const char* op, Input a, Input b, auto f, double (*term)(double, double)) {
      c.push_back({.op = op, .variant = name, .inputs = {a, b}, .call = [f, r](const In& x) { return f(x[0], x[1], r); },
                   .reference = [term, r](const Arrays& xs) {
                     return ref_reduced(elementwise2(term)(xs)[0], r, static_cast<double>(xs[0].v.size()));
                   },
                   .ulps = 8, .shapes = {{{1}, {1}}, {{}, {}}, {{1025}, {1025}}}, .large = {{33'283}, {33'283}}});
    };
    pair("mse_loss", real({3, 4}), real({3, 4}), mse_loss, [](double x, double y) { return (x - y) * (x - y); });
    pair("bce_with_logits", real({3, 4}, -4, 4), real({3, 4}, 0, 1), [](const Tensor& x, const Tensor& t, Reduction how) { return bce_with_logits(x, t, how); }, [](double x, double t) {
      const double p = 1 / (1 + std::exp(-x));
      return -t * std::log(p) - (1 - t) * std::log(1 - p);
    });
    pair("l1_loss", distinct({3, 4}), distinct({3, 4}), l1_loss, [](double x, double y) { return std::abs(x - y); });
    pair("huber_loss", real({3, 4}, 1, 3), real({3, 4}, -3, -1), [](const Tensor& x, const Tensor& y, Reduction how) { return huber_loss(x, y, 1.5, how); },
         [](double x, double y) { return 1.5 * (std::abs(x - y) - 0.75); });  // beyond δ
    pair("huber_loss", real({3, 4}, 0.3, 0.9), real({3, 4}, -0.4, 0.1), [](const Tensor& x, const Tensor& y, Reduction how) { return huber_loss(x, y, 1.5, how); },
         [](double x, double y) { return 0.5 * (x - y) * (x - y); });
    c.push_back({.op = "bce_with_logits", .variant = "weights of positives", .inputs = {real({3, 4}, -4, 4), real({3, 4}, 0, 1), positive({4})},
                 .call = [r](const In& x) { return bce_with_logits(x[0], x[1], r, x[2]); },
                 .reference = [r](const Arrays& xs) {
                   const Array terms = elementwise3([](double x, double t, double w) {
                     const double p = 1 / (1 + std::exp(-x));
                     return -w * t * std::log(p) - (1 - t) * std::log(1 - p);
                   })(xs)[0];
                   return ref_reduced(terms, r, static_cast<double>(terms.v.size()));
                 },
                 .ulps = 8, .large = {{53, 641}, {53, 641}, {641}}});
    c.push_back({.op = "kl_div", .variant = name, .inputs = {real({3, 4}, -3, 0), real({3, 4}, 0.05, 1)},
                 .call = [r](const In& x) { return kl_div(x[0], x[1], r); },
                 .reference = [r](const Arrays& xs) {
                   const Array t = elementwise2([](double q, double p) { return p * (std::log(p) - q); })(xs)[0];
                   return ref_reduced(t, r, static_cast<double>(t.v.size()) / static_cast<double>(t.shape.back()));
                 },
                 .ulps = 8, .shapes = {{{4}, {4}}, {{5, 300}, {5, 300}}}, .large = {{129, 257}, {129, 257}}});

    auto ce = [&](const char* variant, Dims shape, CrossEntropyOptions o) {
      o.reduction = r;
      Dims targets(shape.begin(), shape.end() - 1);
      c.push_back({.op = "cross_entropy", .variant = variant, .inputs = {real(shape, -3, 3), index(targets, shape.back())},
                   .call = [o](const In& x) { return cross_entropy(x[0], x[1], o); }, .reference = ref_cross_entropy(o),
                   .ulps = 8});
    };
    // Few classes or many: the targets are the first, the middle and the last.
    auto many = [&](const char* variant, CrossEntropyOptions o) {
      ce(variant, {2, 3}, o);
      OpCase& row = c.back();
      row.shapes = {{{5, 257}, {5}}}, row.large = {{127, 257}, {127}};
      row.call = [call = row.call](const In& x) { return call({x[0], x[1] * static_cast<double>(x[0].dim(-1) / 2)}); };
      row.reference = [reference = row.reference](const Arrays& xs) {
        Arrays spread = xs;
        for (double& t : spread[1].v) t *= static_cast<double>(xs[0].shape.back() / 2);
        return reference(spread);
      };
    };
    // With weights of classes, and of log-probabilities.
    auto nll = [&](const char* variant, Dims shape, bool weighted, CrossEntropyOptions o) {
      o.reduction = r;
      Dims targets(shape.begin(), shape.end() - 1);
      for (bool of_logits : {false, true}) {
        if (of_logits && !weighted) continue;  // above
        OpCase row{.op = of_logits ? "cross_entropy" : "nll_loss", .variant = variant,
                   .inputs = {real(shape, -3, of_logits ? 3 : 0), index(targets, shape.back())},
                   .call = [o, of_logits, weighted](const In& x) {
                     CrossEntropyOptions with = o;
                     if (weighted) with.weight = x[2];
                     return of_logits ? cross_entropy(x[0], x[1], with) : nll_loss(x[0], x[1], with);
                   },
                   .reference = ref_cross_entropy(o, of_logits), .ulps = 8};
        if (weighted) row.inputs.push_back(constant(positive({shape.back()})));
        if (shape.size() == 2 && shape[1] == 3) {
          row.large = {{4099, 3}, {4099}};
          if (weighted) row.large.push_back({3});
        }
        c.push_back(row);
      }
    };
    nll(name, {5, 3}, false, {});
    nll("weights", {5, 3}, true, {});
    nll("weights, three dims", {2, 3, 17}, true, {});
    nll("weights, ignored targets", {6, 3}, true, {.ignore_index = 1});
    nll("label smoothing", {4, 3}, false, {.label_smoothing = 0.2});
    nll("weights, smoothing and ignored targets", {4, 3}, true, {.ignore_index = 2, .label_smoothing = 0.1});
    nll("one row", {4}, true, {});
    nll("all ignored", {3, 1}, true, {.ignore_index = 0});
    if (r != Reduction::none) nll("no rows", {0, 3}, true, {});

    auto soft = [&](const char* variant, Dims shape, bool weighted, double smoothing) {
      const CrossEntropyOptions o{.label_smoothing = smoothing, .reduction = r};
      OpCase row{.op = "cross_entropy", .variant = variant, .inputs = {real(shape, -3, 3), positive(shape)},
                 .call = [o](const In& x) {
                   CrossEntropyOptions with = o;
                   if (x.size() > 2) with.weight = x[2];
                   return cross_entropy(x[0], x[1], with);
                 },
                 .reference = ref_cross_entropy_of_probabilities(o), .ulps = 8};
      if (weighted) row.inputs.push_back(constant(positive({shape.back()})));
      else row.shapes = {{{1, 1}, {1, 1}}, {{3, 257}, {3, 257}}}, row.large = {{127, 257}, {127, 257}};
      c.push_back(row);
    };
    soft("probabilities", {5, 3}, false, 0);
    soft("probabilities, smoothing", {4, 3}, false, 0.2);
    soft("probabilities, weights", {2, 3, 5}, true, 0);
    soft("probabilities, weights and smoothing", {4}, true, 0.1);
    if (r != Reduction::none) soft("probabilities, no rows", {0, 3}, true, 0.1);

    ce(name, {5, 3}, {});
    ce("three dims", {2, 3, 17}, {});
    many("many classes", {});
    many("many classes, smoothing", {.ignore_index = 1, .label_smoothing = 0.3});
    ce("ignored targets", {6, 3}, {.ignore_index = 1});
    ce("label smoothing", {4, 3}, {.label_smoothing = 0.2});
    ce("smoothing and ignored targets", {4, 3}, {.ignore_index = 2, .label_smoothing = 0.1});
    ce("one row", {4}, {});
    ce("all ignored", {3, 1}, {.ignore_index = 0});
    if (r != Reduction::none) ce("no rows", {0, 3}, {});
  }
  c.push_back({.op = "kl_div", .variant = "p = 0 counts for nothing", .inputs = {real({2, 3}, -3, 0), constant(mask({2, 3}))},
               .call = [](const In& x) { return kl_div(x[0], x[1] * ones_of(x[0]), Reduction::sum); },
               .reference = [](const Arrays& xs) {
                 Array y(Dims{});
                 for (std::size_t i = 0; i < xs[0].v.size(); ++i) y.v[0] -= xs[1].v[i] * xs[0].v[i];
                 return y;
               }});

  for (double p : {0.25, 0.5})
    c.push_back({.op = "dropout", .variant = p < 0.5 ? "a quarter" : "a half", .inputs = {real({3, 5})},
                 .call = [p](const In& x) {
                   Rng rng(42);
                   rng.set_state(42, 0xFFFF'FFFF);  // the next block's number takes two words
                   return dropout(x[0], p, rng);
                 },
                 .reference = [p](const Arrays& xs) {
                   Array y = xs[0];
                   for (std::size_t i = 0; i < y.v.size(); ++i) {
                     const double u = std::ldexp(ref_philox(0xFFFF'FFFF + i / 4, 42)[i % 4], -32);
                     y.v[i] = u < p ? 0 : y.v[i] / (1 - p);
                   }
                   return y;
                 },
                 .any_shape = true, .large = {{33'283}}});
  for (double p : {0.0, 1.0})
    c.push_back({.op = "dropout", .variant = p == 0 ? "none" : "all", .inputs = {real({3, 5})},
                 .call = [p](const In& x) {
                   Rng rng(1);
                   return dropout(x[0], p, rng);
                 },
                 .reference = elementwise([p](const std::vector<double>& v) { return p == 0 ? v[0] : 0 * v[0]; }), .exact = true});
}

}  // namespace sluice::testing
