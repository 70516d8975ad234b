// Rows folded to the 16 lanes in which they are joined, and to what fills no lane. One row alone is a chain of
// dependent steps, most of them within its last 16 lanes; folded rows are joined side by side, in the same order.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/ops/rows/reduce_ops.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sluice::detail::reduction {

inline constexpr int kFoldLanes = 16;  // of a folded row

/// Length of a folded row of n numbers. Extremes leave no rest, because they read some numbers twice.
template <class Op> int64_t folded_count(int64_t n) { return kFoldLanes + (is_extreme<Op> ? 0 : n % kFoldLanes); }

template <class T, int n> struct VectorOf { typedef T Type __attribute__((vector_size(n * sizeof(T)))); };
/// A register of AVX-512; on other processors several registers.
template <class P> struct Lanes {
  static constexpr int size = 64 / sizeof(P);
  using Vector = typename VectorOf<P, size>::Type;
};

/// The terms of the numbers from x on, one a lane.
template <class Op, class P, class From> [[gnu::always_inline]] inline typename Lanes<P>::Vector terms(const From* x) {
  using Wide = std::conditional_t<std::is_same_v<From, BFloat16>, float, From>;
  P numbers[Lanes<P>::size];
  for (int k = 0; k < Lanes<P>::size; ++k) numbers[k] = static_cast<P>(static_cast<Wide>(x[k]));
  typename Lanes<P>::Vector v;
  std::memcpy(&v, numbers, sizeof v);
  if constexpr (std::is_same_v<Op, NormOp>) return v * v;
  else return v;
}

/// Op's join, lane by lane. Extremes take no notice of NaN.
template <class Op, class V> [[gnu::always_inline]] inline V lanes_join(V a, V b) {
  if constexpr (std::is_same_v<Op, MaxOp>) return b > a ? b : a;
  else if constexpr (std::is_same_v<Op, MinOp>) return b < a ? b : a;
  else return Op::apply(a, b);
}

/// Folds rows of n numbers, n >= lanes, that are `step` apart, to rows of folded_count<Op>(n), `width` apart. Lanes are
/// joined as detail::lanes_joined<lanes>() joins them. A lane with a NaN becomes NaN.
template <class Op, int lanes, class P, class From>
[[gnu::always_inline]] inline void fold_rows(const From* x, int64_t step, int64_t rows, int64_t n, P* to,
                                             int64_t width) {
  using V = typename Lanes<P>::Vector;
  constexpr int size = Lanes<P>::size, all = lanes / size, few = kFoldLanes / size;
  const int64_t whole = (is_extreme<Op> ? n - 1 : n) / lanes * lanes;
  From neutral[lanes / 2];  // stands for the halves of the lanes that the rest of a row does not fill
  std::fill_n(neutral, lanes / 2, From(Op::template start<float>()));
  for (int64_t r = 0; r < rows; ++r, x += step, to += width) {
    V lane[all], odd[all] = {};  // odd: NaN, or 0
    for (int k = 0; k < all; ++k) lane[k] = V{} + Op::template start<P>();
    const auto join_all = [&](const From* from) {
      for (int k = 0; k < all; ++k) {
        const V v = terms<Op, P>(from + k * size);
        lane[k] = lanes_join<Op>(lane[k], v);
        if constexpr (is_extreme<Op>) odd[k] = v != v ? v : odd[k];
      }
    };
    for (int64_t i = 0; i < whole; i += lanes) join_all(x + i);
    if constexpr (is_extreme<Op>) join_all(x + n - lanes);
    const From* rest = x + whole;
    for (int half = all / 2; half >= few; half /= 2) {
      const bool filled = x + n - rest >= half * size;
      const From* const more = filled ? rest : neutral;
      for (int k = 0; k < half; ++k) {
        lane[k] = lanes_join<Op>(lane[k], lane[k + half]);
        if constexpr (is_extreme<Op>) odd[k] += odd[k + half];
        else lane[k] = lanes_join<Op>(lane[k], terms<Op, P>(more + k * size));
      }
      rest += filled ? half * size : 0;
    }
    for (int k = 0; k < few; ++k) {
      if constexpr (is_extreme<Op>) lane[k] = odd[k] != odd[k] ? odd[k] : lane[k];
      else {  // the last numbers of the row, whose first ones the lanes then cover
        const V last = terms<Op, P>(x + n - kFoldLanes + k * size);
        std::memcpy(to + n % kFoldLanes + k * size, &last, sizeof last);
      }
    }
    for (int k = 0; k < few; ++k) std::memcpy(to + k * size, &lane[k], sizeof(V));
  }
}

}  // namespace sluice::detail::reduction
