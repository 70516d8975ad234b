// Comparisons and logic: results are bool and carry no history.
#include <sluice/ops/basic.h>

#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/operands.h>
#include <sluice/ops/elementwise/tile_operand.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice {

namespace {

/// y = f(a, b), both sides read as T; bool as bytes, whose loops vectorise.
template <class T, class F> void compare_as(const Tensor& a, const Tensor& b, Tensor& y, F f) {
  using Number = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
  using Operand = detail::TileOperand<T>;
  bool* out = y.mutable_data<bool>();
  const Operand left(a, y.shape()), right(b, y.shape());
  parallel_for(y.numel(), std::max(32 * detail::kTile, 16 * Operand::kLength), [&](int64_t begin, int64_t end) {
    alignas(64) T ta[Operand::kBuffer], tb[Operand::kBuffer];
    int64_t held_a = -1, held_b = -1;
    for (int64_t i = begin, n; i < end; i += n) {
      n = std::min(Operand::kLength, end - i);
      const T *at_a = left.in_place(i, n), *at_b = right.in_place(i, n);
      const auto* u = reinterpret_cast<const Number*>(at_a ? at_a : left.buffered(i, n, ta, held_a));
      const auto* v = reinterpret_cast<const Number*>(at_b ? at_b : right.buffered(i, n, tb, held_b));
      bool* __restrict__ to = out + i;
      for (int64_t k = 0; k < n; ++k) to[k] = f(u[k], v[k]);
    }
  });
}

template <class T> void compare_as(Compare kind, const Tensor& a, const Tensor& b, Tensor& y) {
  switch (kind) {
    case Compare::eq: return compare_as<T>(a, b, y, [](auto u, auto v) { return u == v; });
    case Compare::ne: return compare_as<T>(a, b, y, [](auto u, auto v) { return u != v; });
    case Compare::lt: return compare_as<T>(a, b, y, [](auto u, auto v) { return u < v; });
    case Compare::le: return compare_as<T>(a, b, y, [](auto u, auto v) { return u <= v; });
    case Compare::gt: return compare_as<T>(a, b, y, [](auto u, auto v) { return u > v; });
    case Compare::ge: return compare_as<T>(a, b, y, [](auto u, auto v) { return u >= v; });
    case Compare::both: return compare_as<T>(a, b, y, [](auto u, auto v) { return u && v; });
    case Compare::either: return compare_as<T>(a, b, y, [](auto u, auto v) { return u || v; });
    case Compare::finite: return compare_as<T>(a, b, y, [](auto u, auto) { return u - u == 0; });
  }
}

/// Two bool sides compare as bytes, other integers as i64, two f32 sides as f32, all else as f64. Only i64 beyond ±2^53
/// is rounded, to f64.
void compare_cpu(Compare kind, const Tensor& a, const Tensor& b, Tensor& y) {
  if (a.dtype() == f32 && b.dtype() == f32) compare_as<float>(kind, a, b, y);
  else if (is_float(a.dtype()) || is_float(b.dtype())) compare_as<double>(kind, a, b, y);
  else if (a.dtype() == boolean && b.dtype() == boolean) compare_as<bool>(kind, a, b, y);
  else compare_as<int64_t>(kind, a, b, y);
}

Tensor compare(const char* op, const Tensor& a, const Tensor& b, Compare kind) {
  detail::check_defined(op, {{"a", a}, {"b", b}});
  if (a.dtype() != b.dtype() && a.rank() > 0 && b.rank() > 0 && is_float(a.dtype()) != is_float(b.dtype()))
    fail<DTypeError>(op, ": dtypes differ — got a=", a.dtype(), ", b=", b.dtype(), " for shapes ", a, " and ", b,
                     "; convert with to(x, dtype)");
  detail::check_devices(op, {a, b});
  Tensor y = empty(broadcast(op, a.shape(), b.shape()), {boolean, a.device()}, op);
  kernel::compare(kind, a, b, y);
  return y;
}

/// c as the other side of a comparison with x: in x's float dtype, so that 0.1f == 0.1; in f64 for integers and bool.
/// Numbers of i64 round in f64: beside them a whole c is an i64, and a c beyond its range is infinite.
Tensor scalar(const char* op, const Tensor& x, double c) {
  detail::check_defined(op, x);
  detail::check_exact(op, x.dtype(), c);
  if (x.dtype() == i64 && c == std::floor(c) && c >= -0x1p63 && c < 0x1p63) return full({}, c, x.options());
  if (x.dtype() == i64 && std::abs(c) >= 0x1p63) c = std::copysign(std::numeric_limits<double>::infinity(), c);
  return full({}, c, {is_float(x.dtype()) ? x.dtype() : f64, x.device()});
}

void check_bool(const char* op, const Tensor& x, const char* name = "x") {
  detail::check_defined(op, {{name, x}});
  if (x.dtype() != boolean) fail<DTypeError>(op, ": needs bool — got ", x.dtype(), " of shape ", x);
}

}  // namespace

constinit decltype(kernel::compare) kernel::compare{"compare", &compare_cpu, Bf16::native};

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", a, b, Compare::eq); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", a, b, Compare::ne); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", a, b, Compare::lt); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", a, b, Compare::le); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", a, b, Compare::gt); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", a, b, Compare::ge); }

Tensor lt(const Tensor& x, double c) { return lt(x, scalar("lt", x, c)); }
Tensor le(const Tensor& x, double c) { return le(x, scalar("le", x, c)); }
Tensor gt(const Tensor& x, double c) { return gt(x, scalar("gt", x, c)); }
Tensor ge(const Tensor& x, double c) { return ge(x, scalar("ge", x, c)); }
Tensor eq(const Tensor& x, double c) { return eq(x, scalar("eq", x, c)); }
Tensor ne(const Tensor& x, double c) { return ne(x, scalar("ne", x, c)); }

Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_bool("logical_and", a, "a"), check_bool("logical_and", b, "b");
  return compare("logical_and", a, b, Compare::both);
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_bool("logical_or", a, "a"), check_bool("logical_or", b, "b");
  return compare("logical_or", a, b, Compare::either);
}
Tensor logical_not(const Tensor& x) {
  check_bool("logical_not", x);
  return eq(x, full({}, 0, x.options()));
}
Tensor isnan(const Tensor& x) {
  detail::check_defined("isnan", x);
  return ne(x, x);
}
Tensor isinf(const Tensor& x) {
  detail::check_defined("isinf", x);
  constexpr double inf = std::numeric_limits<double>::infinity();
  return (x == inf) | (x == -inf);
}
Tensor isfinite(const Tensor& x) { return compare("isfinite", x, x, Compare::finite); }

bool allclose(const Tensor& a_in, const Tensor& b_in, double rtol, double atol, bool equal_nan) {
  detail::check_defined("allclose", {{"a", a_in}, {"b", b_in}});
  if (is_float(a_in.dtype()) != is_float(b_in.dtype()))
    fail<DTypeError>("allclose: dtypes differ — got a=", a_in.dtype(), ", b=", b_in.dtype(), " for shapes ", a_in,
                     " and ", b_in, "; convert with to(x, dtype)");
  detail::check_devices("allclose", {a_in, b_in});
  broadcast("allclose", a_in.shape(), b_in.shape());
  NoGrad guard;
  const bool wide = a_in.dtype() == f64 || b_in.dtype() == f64 || !is_float(a_in.dtype());
  const Tensor a = to(a_in, wide ? f64 : f32), b = to(b_in, wide ? f64 : f32);
  Tensor close = (a == b) | (isfinite(b) & (abs(a - b) <= abs(b) * rtol + atol));
  if (equal_nan) close = close | (isnan(a) & isnan(b));
  return all(close).item() != 0;
}

}  // namespace sluice
