// Rows: ops/scan/linear_scan.h, ops/scan/causal_conv.h.
#include "support/op_cases.h"
#include "support/scan_samples.h"

#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/scan/linear_scan.h>

#include <cmath>

// clang-format off
namespace sluice::testing {

namespace {

enum class Decay { none, scalar, shared, keys, values };

}  // namespace

void add_scan_cases(Cases& c) {
  const char* names[2][2][2] = {{{"", "continued"}, {"bias", "bias, continued"}},
                                {{"silu", "silu, continued"}, {"silu, bias", "silu, bias, continued"}}};
  for (int64_t width : {1, 2, 4, 5})
    for (bool silu : {false, true})
      for (bool biased : {false, true})
        for (bool continued : {false, true}) {
          OpCase row{.op = "causal_conv1d", .variant = names[silu][biased][continued], .ulps = 8};
          auto dims = [=](int64_t batch, int64_t n, int64_t channels) {
            std::vector<Dims> d{{batch, n, channels}, {width, channels}};
            if (biased) d.push_back({channels});
            if (continued) d.push_back({batch, width - 1, channels});
            return d;
          };
          for (const Dims& d : dims(2, 5, 2)) row.inputs.push_back(real(d));
          row.call = [=](const In& x) {
            return causal_conv1d(x[0], x[1], biased ? x[2] : Tensor(), continued ? x.back() : Tensor(),
                                 silu ? Act::silu : Act::identity);
          };
          row.reference = [=](const Arrays& xs) {
            Array y(xs[0].shape);
            each_index(y.shape, [&](const Dims& i) {
              if (biased) y(i) = xs[2]({i[2]});
              for (int64_t j = 0; j < width; ++j) {
                const int64_t at = i[1] - (width - 1) + j;
                if (at >= 0) y(i) += xs[1]({j, i[2]}) * xs[0]({i[0], at, i[2]});
                else if (continued) y(i) += xs[1]({j, i[2]}) * xs.back()({i[0], at + width - 1, i[2]});
              }
              if (silu) y(i) /= 1 + std::exp(-y(i));
            });
            return y;
          };
          row.shapes = {dims(1, 1, 1), dims(2, 2, 3), dims(3, 13, 2), dims(0, 3, 2), dims(2, 0, 2), dims(2, 3, 0)};
          if (width == 4) row.large = dims(3, 205, 1025);  // beyond the channels, rows and sequences of a task
          row.bitwise = false;
          c.push_back(row);
        }
  struct Sizes {
    int64_t batch, heads, n, m, e;
  };
  auto dims = [](Decay decay, Sizes s) {
    std::vector<Dims> d{{s.batch, s.heads, s.n, s.m}, {s.batch, s.heads, s.n, s.m}, {s.batch, s.heads, s.n, s.e}};
    if (decay == Decay::scalar) d.push_back({s.batch, s.heads, s.n});
    if (decay == Decay::shared) d.push_back({1, s.heads, 1});
    if (decay == Decay::keys) d.push_back({s.batch, s.heads, s.n, s.m});
    if (decay == Decay::values) d.push_back({s.batch, s.heads, s.n, s.e});
    return d;
  };
  struct Kind {
    Decay decay;
    const char* name;
  };
  for (const Kind& kind : {Kind{Decay::none, "no decay"},
                           {Decay::scalar, "scalar decay"},
                           {Decay::shared, "decay of a head"},
                           {Decay::keys, "decay of keys"},
                           {Decay::values, "decay of values"}})
    for (int way = 0; way < 4; ++way)
      for (int64_t chunk : {1, 3, 64}) {
        const Decay decay = kind.decay;
        const LinearScanOptions o{.chunk = chunk,
                                  .reverse = way % 2 == 1,
                                  .decay_on_values = decay == Decay::values,
                                  .exclusive = way > 1};
        const int64_t n = chunk == 3 ? 4 : 2;
        OpCase row{.op = "linear_scan", .variant = kind.name, .ulps = 16};
        if (decay == Decay::shared) row.gradient_ulps = 2000;  // one number, a sum of many that cancel
        for (const Dims& d : dims(decay, {1, 1, n, 1, 1}))
          row.inputs.push_back(row.inputs.size() < 3 ? real(d) : real(d, -1.5, -0.05));
        auto decay_of = [](const In& x) { return x.size() > 3 ? x[3] : Tensor(); };
        row.call = [=](const In& x) { return linear_scan(x[0], x[1], x[2], decay_of(x), o); };
        row.reference = [=](const Arrays& xs) { return scan_by_steps(xs, o); };
        for (const Sizes& s : {Sizes{1, 1, 3, 2, 1},
                               {2, 2, 7, 3, 2},
                               {1, 2, 13, 2, 5},
                               {1, 1, 0, 2, 2},
                               {0, 1, 3, 2, 2},
                               {1, 0, 3, 2, 2},
                               {1, 1, 3, 0, 2},
                               {1, 1, 3, 2, 0}})
          row.shapes.push_back(dims(decay, s));
        if (chunk == 64)
          row.shapes.push_back(dims(decay, {1, 1, 65, 2, 3})), row.shapes.push_back(dims(decay, {1, 1, 100, 2, 3})),
              row.large = dims(decay, {1, 2, 129, 17, 129});
        c.push_back(row);
      }

  // The state after the last step, and what a state from before adds.
  auto sum_after = [](const Array& g, const Dims& at, int64_t from) {  // Σ_{s >= from} g_s
    double total = 0;
    for (int64_t s = from; s < g.shape[2]; ++s)
      total += g.stretched(at.size() == 4 ? Dims{at[0], at[1], s, at[3]} : Dims{at[0], at[1], s});
    return total;
  };
  for (Decay decay : {Decay::none, Decay::scalar, Decay::keys})
    for (bool initial : {false, true}) {
      const bool with_decay = decay != Decay::none;
      auto shapes = [=](Sizes s) {
        std::vector<Dims> d{{s.batch, s.heads, s.n, s.m}, {s.batch, s.heads, s.n, s.e}};
        if (with_decay)
          d.push_back(decay == Decay::keys ? Dims{s.batch, s.heads, s.n, s.m} : Dims{s.batch, s.heads, s.n});
        if (initial) d.push_back({s.batch, s.heads, s.m, s.e});
        return d;
      };
      OpCase row{.op = "linear_scan_state", .variant = initial ? "continued" : "", .ulps = 16};
      for (const Dims& d : shapes({1, 1, 3, 2, 1}))
        row.inputs.push_back(with_decay && row.inputs.size() == 2 ? real(d, -1.5, -0.05) : real(d));
      row.call = [=](const In& x) {
        return linear_scan_state(x[0], x[1], with_decay ? x[2] : Tensor(), initial ? x.back() : Tensor());
      };
      row.reference = [=](const Arrays& xs) {
        const int64_t n = xs[0].shape[2];
        Array y({xs[0].shape[0], xs[0].shape[1], xs[0].shape[3], xs[1].shape[3]});
        each_index(y.shape, [&](const Dims& i) {
          auto kept = [&](int64_t from) {
            if (!with_decay) return 1.0;
            return std::exp(
                sum_after(xs[2], decay == Decay::keys ? Dims{i[0], i[1], 0, i[2]} : Dims{i[0], i[1], 0}, from));
          };
          for (int64_t t = 0; t < n; ++t)
            y(i) += kept(t + 1) * xs[0]({i[0], i[1], t, i[2]}) * xs[1]({i[0], i[1], t, i[3]});
          if (initial) y(i) += kept(0) * xs.back()(i);
        });
        return y;
      };
      for (const Sizes& s :
           {Sizes{2, 2, 7, 3, 2}, {1, 1, 70, 2, 3}, {1, 1, 0, 2, 2}, {1, 1, 3, 0, 2}, {1, 1, 3, 2, 0}, {0, 1, 3, 2, 2}})
        row.shapes.push_back(shapes(s));
      row.large = shapes({2, 3, 40, 5, 7}), row.bitwise = false;
      c.push_back(row);
      if (initial) continue;

      row = {.op = "linear_scan_carry",
             .variant = with_decay ? decay == Decay::keys ? "decay of keys" : "scalar decay" : "",
             .ulps = 16};
      auto carried = [=](Sizes s) {
        std::vector<Dims> d{{s.batch, s.heads, s.n, s.m}, {s.batch, s.heads, s.m, s.e}};
        if (with_decay)
          d.push_back(decay == Decay::keys ? Dims{s.batch, s.heads, s.n, s.m} : Dims{s.batch, s.heads, s.n});
        return d;
      };
      for (const Dims& d : carried({1, 1, 3, 2, 1}))
        row.inputs.push_back(row.inputs.size() == 2 ? real(d, -1.5, -0.05) : real(d));
      row.call = [=](const In& x) { return linear_scan_carry(x[0], x[1], with_decay ? x[2] : Tensor()); };
      row.reference = [=](const Arrays& xs) {
        const int64_t m = xs[0].shape[3];
        Array y({xs[0].shape[0], xs[0].shape[1], xs[0].shape[2], xs[1].shape[3]});
        each_index(y.shape, [&](const Dims& i) {
          for (int64_t ch = 0; ch < m; ++ch) {
            double g = 0;
            for (int64_t s = 0; with_decay && s <= i[2]; ++s)
              g += decay == Decay::keys ? xs[2]({i[0], i[1], s, ch}) : xs[2]({i[0], i[1], s});
            y(i) += xs[0]({i[0], i[1], i[2], ch}) * std::exp(g) * xs[1]({i[0], i[1], ch, i[3]});
          }
        });
        return y;
      };
      for (const Sizes& s : {Sizes{2, 2, 7, 3, 2}, {1, 1, 0, 2, 2}, {1, 1, 3, 0, 2}, {1, 1, 3, 2, 0}, {0, 1, 3, 2, 2}})
        row.shapes.push_back(carried(s));
      row.large = carried({2, 3, 40, 5, 7}), row.bitwise = false;
      c.push_back(row);
    }
}

}  // namespace sluice::testing
