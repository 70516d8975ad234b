// What reductions start from, how they join two numbers, and in which types.
#pragma once

#include <sluice/core/number/arithmetic.h>
#include <sluice/core/number/math.h>

#include <limits>
#include <type_traits>

namespace sluice::detail::reduction {

struct SumOp {
  template <class T> static constexpr T start() { return T(0); }
  template <class T> static T apply(T a, T b) { return detail::sum_of(a, b); }
};
template <bool largest> struct ExtremeOp {
  template <class T> static constexpr T start() {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity) return largest ? -Limits::infinity() : Limits::infinity();
    else return largest ? Limits::lowest() : Limits::max();
  }
  template <class T> static T better(T a, T y) { return (largest ? y > a : y < a) ? y : a; }
  template <class T> static T apply(T a, T b) {
    if constexpr (!std::is_floating_point_v<T>) return better(a, b);
    else return largest ? math::max(a, b) : math::min(a, b);
  }
};
using MaxOp = ExtremeOp<true>;
using MinOp = ExtremeOp<false>;
/// √Σx². The squares of f32 are exact in f64, and sums of them do not leave its range.
struct NormOp : SumOp {};
/// Products are computed in f64: products of some of the factors may leave the range of f32 where the whole does not.
struct ProdOp {
  template <class T> static constexpr T start() { return T(1); }
  template <class T> static T apply(T a, T b) { return detail::product_of(a, b); }
};

template <class Op> constexpr bool takes_part_in_f64 = std::is_same_v<Op, NormOp> || std::is_same_v<Op, ProdOp>;
/// Wide type of running totals.
template <class Op, class T>
using Total =
    std::conditional_t<(std::is_base_of_v<SumOp, Op> || takes_part_in_f64<Op>)&&std::is_floating_point_v<T>, double, T>;
/// Type of partial results.
template <class Op, class T> using Part = std::conditional_t<takes_part_in_f64<Op>, Total<Op, T>, T>;
/// The op that joins partial results.
template <class Op> using Join = std::conditional_t<std::is_same_v<Op, NormOp>, SumOp, Op>;

template <class Op> constexpr bool is_extreme = std::is_same_v<Op, MaxOp> || std::is_same_v<Op, MinOp>;

template <class Op, class T> Part<Op, T> term(T x) {
  const Part<Op, T> v = x;
  if constexpr (std::is_same_v<Op, NormOp>) return v * v;
  else return v;
}
template <class T, class Op, class Total> T result(Total total) {
  if constexpr (std::is_same_v<Op, NormOp>) return static_cast<T>(math::sqrt(total));
  else if constexpr (is_extreme<Op>) return static_cast<T>(total + Total(0));  // −0 + 0 is 0: 0 and −0 are a tie
  else return static_cast<T>(total);
}

}  // namespace sluice::detail::reduction
