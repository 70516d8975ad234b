// A scan whose state is a row or a column goes step by step, without matrix products: denominators of linear attention,
// Mamba, and their gradients. The state is f64.
#pragma once

#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/number/math.h>
#include <sluice/ops/rows/rows.h>
#include <sluice/ops/scan/column_backward.h>
#include <sluice/ops/scan/scan_operands.h>

#include <algorithm>
#include <cmath>

namespace sluice::detail {

/// A decay of all numbers of a state.
struct SameDecay {
  double factor;
  double operator[](int64_t) const { return factor; }
};

/// The steps of a piece. kept(row)[c] is what the decay on the way to a row leaves of number c of the state. `size`, of
/// the state, may be a constant.
template <class T, class Size>
void thin_steps(const ScanOperands<T>& s, const ScanPiece& p, Size size, double* state, auto kept) {
  for (int64_t i = 0; i < p.count; ++i) {
    const int64_t row = s.row_of(p, i);
    const T *query = s.q.at(p.b, p.h / s.group, row), *key = s.k.at(p.b, p.h / s.group, row);
    const T* const value = s.v.at(p.b, p.h, row) + p.col;
    T* const y = s.out.at(p.b, p.h, row) + p.col;
    const auto factors = kept(row);
    const auto read = [&] {
      if (p.cols == 1) y[0] = T(wide_dot(query, state, size));
      else
        for (int64_t c = 0; c < size; ++c) y[c] = T(double(query[0]) * state[c]);
    };
    const double only = p.cols == 1 ? double(value[0]) : double(key[0]);
    const T* const others = p.cols == 1 ? key : value;
    if (s.o.exclusive) {
      for (int64_t c = 0; c < size; ++c) state[c] *= double(factors[c]);
      read();
      for (int64_t c = 0; c < size; ++c) state[c] += double(others[c]) * only;
    } else {
      for (int64_t c = 0; c < size; ++c) state[c] = state[c] * double(factors[c]) + double(others[c]) * only;
      read();
    }
  }
}

/// Goes through a piece, and from `state` to the state after it. sums [m·cols] and factors [count, m·cols] are scratch.
template <class T>
[[gnu::noinline]] void thin_scan(const ScanOperands<T>& s, const ScanPiece& p, T* state, double* sums, T* factors) {
  const int64_t size = s.m * p.cols;
  const int64_t later = s.o.reverse ? 1 : 0;  // the decay on the way to a row is that of row + later
  std::copy_n(state, size, sums);
  if (s.by_channel && s.channels != 1)
    vectorised([&] {
      with_width(size, [&](auto width) {
        const int64_t known = std::min(p.count, s.n - p.first - later);
        const T* const given = s.decays(p, p.first + later);
        if (width == s.channels) decay_factors(given, factors, known * width);
        else
          for (int64_t i = 0; i < known; ++i) decay_factors(given + i * s.channels, factors + i * width, width);
        std::fill_n(factors + known * width, (p.count - known) * width, T(1));
        thin_steps(s, p, width, sums, [=, first = p.first](int64_t row) { return factors + (row - first) * width; });
      });
    });
  else
    vectorised([&] {
      thin_steps(s, p, size, sums, [&](int64_t row) {
        return SameDecay{s.g && row + later < s.n ? std::exp(double(*s.decays(p, row + later))) : 1};
      });
    });
  std::copy_n(sums, size, state);
}

}  // namespace sluice::detail
