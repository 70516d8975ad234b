// Rows: ops/scan/delta_scan.h.
#include "support/delta_samples.h"
#include "support/op_cases.h"

namespace sluice::testing {

namespace {

using Sizes = DeltaSizes;

std::vector<Dims> operands(DeltaDecay decay, bool initial, bool rule, const Sizes& s) {
  std::vector<Dims> d{{s.batch, s.heads, s.n, s.dk}, {s.batch, s.heads, s.n, s.dk}};
  if (rule) d.insert(d.end(), {{s.batch, s.value_heads, s.n, s.dv}, {s.batch, s.value_heads, s.n}});
  else d.insert(d.end(), {{s.batch, s.value_heads, s.n, s.dk}, {s.batch, s.value_heads, s.n, s.dv}});
  if (decay == DeltaDecay::scalar) d.push_back({s.batch, s.value_heads, s.n});
  if (decay == DeltaDecay::keys) d.push_back({s.batch, s.value_heads, s.n, s.dk});
  if (initial) d.push_back({s.batch, s.value_heads, s.dk, s.dv});
  return d;
}

/// Sizes at which any part may be empty, and some beyond a chunk.
std::vector<Sizes> all_sizes(int64_t chunk) {
  std::vector<Sizes> all{{1, 1, 1, 3, 2, 1}, {2, 2, 2, 7, 3, 2}, {1, 2, 4, 6, 2, 3},
                         {1, 1, 3, 2, 2, 2}, {1, 1, 1, 0, 2, 2}, {0, 1, 1, 3, 2, 2},
                         {1, 0, 0, 3, 2, 2}, {1, 1, 1, 3, 0, 2}, {1, 1, 1, 3, 2, 0}};
  if (chunk == 64) all.push_back({1, 1, 2, 65, 2, 3}), all.push_back({1, 1, 1, 100, 3, 2});
  return all;
}

}  // namespace

void add_delta_cases(Cases& c) {
  const char* const names[] = {"no decay", "decay of a head", "decay of keys"};
  for (DeltaDecay decay : kDeltaDecays)
    for (bool initial : {false, true})
      for (int64_t chunk : {1, 3, 64}) {
        const DeltaScanOptions o{.chunk = chunk};
        const std::size_t decay_at = 4, last = decay == DeltaDecay::none ? 4 : 5;
        const auto given = [=](const In& x, std::size_t i, bool there) { return there ? x[i] : Tensor(); };
        const bool decays = decay != DeltaDecay::none;
        const auto inputs_of = [=](bool rule) {
          std::vector<Input> inputs;
          const int64_t n = chunk == 3 ? 5 : 3;  // with chunk 3 one chunk and two steps
          for (const Dims& d : operands(decay, initial, rule, {1, 1, 2, n, 2, 1}))
            inputs.push_back(inputs.size() == 1 || (inputs.size() == 2 && !rule) ? real(d, -0.4, 0.4)
                             : inputs.size() == 3 && rule                        ? real(d, 0, 2)
                             : decays && inputs.size() == decay_at               ? real(d, -1.5, -0.05)
                                                                                 : real(d));
          return inputs;
        };
        OpCase row{.op = "delta_scan", .variant = names[static_cast<int>(decay)], .ulps = 16, .gradient_ulps = 200};
        row.inputs = inputs_of(false);
        row.call = [=](const In& x) {
          const DeltaScanResult y =
              delta_scan(x[0], x[1], x[2], x[3], given(x, decay_at, decays), given(x, last, initial), o);
          return std::vector<Tensor>{y.out, y.state};
        };
        row.reference = [=](const Arrays& x) {
          Arrays y =
              delta_by_steps(x[0], x[1], x[2], x[3], decays ? &x[decay_at] : nullptr, initial ? &x[last] : nullptr);
          y.pop_back();
          return y;
        };
        for (const Sizes& s : all_sizes(chunk)) row.shapes.push_back(operands(decay, initial, false, s));
        if (chunk == 64) row.large = operands(decay, initial, false, {1, 2, 4, 129, 17, 65});
        row.bitwise = false;
        c.push_back(row);

        row.op = "delta_rule", row.inputs = inputs_of(true), row.shapes.clear();
        row.call = [=](const In& x) {
          const DeltaScanResult y =
              delta_rule(x[0], x[1], x[2], x[3], given(x, decay_at, decays), given(x, last, initial), o);
          return std::vector<Tensor>{y.out, y.state};
        };
        row.reference = [=](const Arrays& x) {
          const int64_t group = x[1].shape[1] > 0 ? x[2].shape[1] / x[1].shape[1] : 1;
          Array erase({x[2].shape[0], x[2].shape[1], x[2].shape[2], x[1].shape[3]}), write(x[2].shape);
          each_index(erase.shape, [&](const Dims& i) {
            erase(i) = x[3]({i[0], i[1], i[2]}) * x[1]({i[0], i[1] / group, i[2], i[3]});
          });
          each_index(write.shape, [&](const Dims& i) { write(i) = x[3]({i[0], i[1], i[2]}) * x[2](i); });
          Arrays y =
              delta_by_steps(x[0], x[1], erase, write, decays ? &x[decay_at] : nullptr, initial ? &x[last] : nullptr);
          y.pop_back();
          return y;
        };
        for (const Sizes& s : all_sizes(chunk)) row.shapes.push_back(operands(decay, initial, true, s));
        if (chunk == 64) row.large = operands(decay, initial, true, {1, 2, 4, 129, 17, 65});
        c.push_back(row);
        if (initial) continue;

        const auto without_q = [=](Sizes s) {
          s.heads = s.value_heads;
          std::vector<Dims> d = operands(decay, false, false, s);
          d.erase(d.begin());
          return d;
        };
        row.op = "delta_values", row.inputs.clear(), row.shapes.clear();
        for (const Dims& d : without_q({1, 1, 1, chunk == 3 ? 5 : 3, 2, 2}))
          row.inputs.push_back(row.inputs.size() < 2              ? real(d, -0.9, 0.9)
                               : decays && row.inputs.size() == 3 ? real(d, -1.5, -0.05)
                                                                  : real(d));
        row.call = [=](const In& x) { return delta_values(x[0], x[1], x[2], given(x, 3, decays), o); };
        row.reference = [=](const Arrays& x) {
          return delta_by_steps(x[0], x[0], x[1], x[2], decays ? &x[3] : nullptr, nullptr)[2];
        };
        for (const Sizes& s : all_sizes(chunk)) row.shapes.push_back(without_q(s));
        row.large.clear();
        if (chunk == 64) row.large = without_q({1, 2, 3, 129, 17, 65});
        c.push_back(row);
      }
}

}  // namespace sluice::testing
