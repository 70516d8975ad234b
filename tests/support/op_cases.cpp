#include "support/op_cases.h"

#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <cmath>

namespace sluice::testing {

const Cases& all_cases() {
  static const Cases cases = [] {
    Cases c;
    add_elementwise_cases(c);
    add_mathematics_cases(c);
    add_comparison_cases(c);
    add_activation_cases(c);
    add_reduce_cases(c);
    add_view_cases(c);
    add_join_cases(c);
    add_matmul_cases(c);
    add_create_cases(c);
    add_softmax_cases(c);
    add_index_cases(c);
    add_loss_cases(c);
    add_contract_cases(c);
    add_attention_cases(c);
    add_bias_cases(c);
    add_scan_cases(c);
    add_delta_cases(c);
    return c;
  }();
  return cases;
}

namespace {

bool is_real(const Input& x) { return x.kind <= Input::levels; }

double draw(const Input& in, Rand& rand) {
  for (;;) {
    const double x = static_cast<float>(rand.uniform(in.lo, in.hi));
    bool clear = true;
    for (double k : in.kinks) clear &= std::abs(x - k) >= in.margin;
    if (clear) return x;
  }
}

/// The i-th of n different values in [lo, hi], jittered by a quarter of their spacing.
double spaced(const Input& in, std::size_t i, std::size_t n, Rand& rand) {
  const double step = (in.hi - in.lo) / static_cast<double>(n);
  return static_cast<float>(in.lo + step * (static_cast<double>(i) + rand.uniform(0.375, 0.625)));
}

}  // namespace

Arrays input_values(const OpCase& row, const std::vector<Dims>& shapes, uint64_t seed) {
  Rand rand(seed);
  Arrays out;
  std::size_t n_distinct = 0;
  for (std::size_t k = 0; k < row.inputs.size(); ++k) {
    out.emplace_back(shapes.empty() ? row.inputs[k].shape : shapes[k]);
    if (row.inputs[k].kind == Input::distinct) n_distinct += out.back().v.size();
  }
  std::vector<std::size_t> order(n_distinct);
  for (std::size_t i = 0; i < n_distinct; ++i) order[i] = i;
  for (std::size_t i = n_distinct; i > 1; --i)
    std::swap(order[i - 1], order[static_cast<std::size_t>(rand.below(static_cast<int64_t>(i)))]);
  std::size_t used = 0;
  for (std::size_t k = 0; k < out.size(); ++k) {
    const Input& in = row.inputs[k];
    for (double& x : out[k].v) {
      switch (in.kind) {
        case Input::uniform: x = draw(in, rand); break;
        case Input::distinct: x = spaced(in, order[used++], n_distinct, rand); break;
        case Input::levels: x = static_cast<double>(rand.below(3)) - 1; break;
        case Input::mask: x = static_cast<double>(rand.below(2)); break;
        case Input::index: x = static_cast<double>(rand.below(in.n)); break;
      }
    }
  }
  return out;
}

In input_tensors(const OpCase& row, const Arrays& values, DType dtype, bool grad) {
  In out;
  for (std::size_t k = 0; k < values.size(); ++k) {
    const Input& in = row.inputs[k];
    const DType t = is_real(in) ? dtype : in.kind == Input::mask ? boolean : i64;
    out.push_back(tensor_of(values[k].v, shape_of(values[k].shape), t));
    if (grad && is_real(in) && !in.constant) out.back().requires_grad_();
  }
  return out;
}

std::vector<std::vector<double>> allowed_errors(const OpCase& row, const Arrays& values, const Expected& expected,
                                                double tolerance) {
  std::vector<std::vector<double>> allowed;
  for (const Array& y : expected) {
    allowed.emplace_back(y.v.size(), 0.0);
    if (row.exact) continue;
    double largest = 0;
    for (double v : y.v)
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
    for (std::size_t i = 0; i < y.v.size(); ++i) allowed.back()[i] = tolerance * (std::abs(y.v[i]) + 0.02 * largest);
  }
  if (row.exact) return allowed;
  constexpr double nudge = 1e-7;
  Rand rand(7);
  std::vector<std::vector<double>> condition;
  for (const Array& y : expected) condition.emplace_back(y.v.size(), 0.0);
  for (int trial = 0; trial < 6; ++trial) {
    Arrays moved = values;
    for (std::size_t k = 0; k < moved.size(); ++k)
      if (is_real(row.inputs[k]))
        for (double& x : moved[k].v) x *= 1 + (rand.bits() & 1 ? nudge : -nudge);
    const Expected y = row.reference(moved);
    for (std::size_t o = 0; o < y.size(); ++o)
      for (std::size_t i = 0; i < y[o].v.size(); ++i) {
        const double d = std::abs(y[o].v[i] - expected[o].v[i]) / nudge;
        if (d > condition[o][i]) condition[o][i] = d;
      }
  }
  for (std::size_t o = 0; o < allowed.size(); ++o)
    for (std::size_t i = 0; i < allowed[o].size(); ++i) allowed[o][i] += tolerance * condition[o][i];
  return allowed;
}

std::vector<std::vector<Dims>> shapes_of(const OpCase& row) {
  std::vector<std::vector<Dims>> out{{}};
  out.insert(out.end(), row.shapes.begin(), row.shapes.end());
  if (row.any_shape)
    for (const Dims& d : {Dims{}, {0}, {1}, {3}, {1, 1}, {2, 0, 3}, {511}, {513}, {1025}})
      out.emplace_back(row.inputs.size(), d);
  return out;
}

Tensor ones_of(const Tensor& x) { return ones({}, x.options()); }

}  // namespace sluice::testing
