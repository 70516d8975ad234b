#include <sluice/ops/elementwise/elementwise.h>

#include <sluice/core/operands.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

#include <cmath>

namespace sluice {

namespace detail {

namespace {
/// Scalar arguments of integer ops must be integers: 0.5 would silently become 0.
void check_scalar(const char* op, const Tensor& x, double c) {
  check_defined(op, x);
  if (is_integer(x.dtype()) && c != std::floor(c))
    fail<DTypeError>(op, ": an ", x.dtype(), " tensor ", x, " and the fraction ", c, "; convert with to(x, f32)");
}
/// A scalar argument of an integer kernel must be an integer of its dtype, and one that no double had to round.
void check_whole(const char* op, const Tensor& x, double c) {
  check_scalar(op, x, c);
  const double end = x.dtype() == i32 ? 0x1p31 : 0x1p63;
  if (is_integer(x.dtype()) && !(c >= -end && c < end))
    fail<DTypeError>(op, ": ", c, " does not fit into ", x.dtype(), " beside ", x);
  check_exact(op, x.dtype(), c);
}
/// c as an operand beside x: in x's dtype, saturated, and on x's device.
Tensor beside(const char* op, const Tensor& x, double c) {
  check_scalar(op, x, c), check_exact(op, x.dtype(), c);
  if (x.dtype() == boolean && c != 0 && c != 1) fail<DTypeError>(op, ": a bool tensor ", x, " and the number ", c);
  return full({}, c, x.options());
}
}  // namespace
}  // namespace detail

namespace fm = formula;

Tensor like(const Tensor& x, double c) {
  detail::check_defined("like", x);
  return full({}, c, {is_float(x.dtype()) ? x.dtype() : f32, x.device()});
}

Tensor add(const Tensor& a, const Tensor& b) { return map(fm::Add{}, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return map(fm::Sub{}, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return map(fm::Mul{}, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return map(fm::Div{}, a, b); }
Tensor neg(const Tensor& x) { return map(fm::Neg{}, x); }
Tensor scale(const Tensor& x, double factor) {
  detail::check_whole("scale", x, factor);
  return map(fm::Scale{factor}, x);
}
Tensor add_scalar(const Tensor& x, double c) {
  detail::check_whole("add_scalar", x, c);
  return map(fm::AddScalar{c}, x);
}
Tensor operator-(const Tensor& x, double c) {
  detail::check_whole("sub", x, c);
  if (is_integer(x.dtype())) return sub(x, detail::beside("sub", x, c));  // −c may be out of their range
  return add_scalar(x, -c);
}
Tensor operator-(double c, const Tensor& x) {
  detail::check_whole("sub", x, c);
  return map(fm::SubFrom{c}, x);
}
Tensor operator/(const Tensor& x, double c) {
  detail::check_defined("div", x);
  // A power of two has an exact inverse, unless that is no normal number of x's dtype: a denormal counts as 0.
  int exponent = 0;
  const int most = x.dtype() == f64 ? 1023 : 127;
  const bool power_of_two = std::abs(std::frexp(c, &exponent)) == 0.5 && exponent > -most && exponent <= most;
  const double inverse = 1 / c;
  if (is_integer(x.dtype()) && !(std::isfinite(inverse) && inverse == std::floor(inverse)))
    fail<DTypeError>("div: an ", x.dtype(), " tensor ", x, " cannot be divided by ", c, "; convert with to(x, f32)");
  if (power_of_two || is_integer(x.dtype())) return scale(x, inverse);
  return map(fm::DivBy{c}, x);
}
Tensor operator/(double c, const Tensor& x) { return map(fm::DivInto{c}, x); }
Tensor reciprocal(const Tensor& x) { return map(fm::Reciprocal{}, x); }
Tensor pow(const Tensor& x, double exponent) {
  detail::check_defined("pow", x);
  if (is_integer(x.dtype())) {
    detail::check_whole("pow", x, exponent);
    if (exponent < 0)
      fail<ValueError>("pow: an ", x.dtype(), " tensor ", x, " to the power ", exponent, "; convert with to(x, f32)");
    return map(fm::PowScalar{exponent}, x);
  }
  detail::check_float("pow", x);
  if (exponent == 2) return square(x);
  if (exponent == 3) return map(fm::Cube{}, x);
  if (exponent == -1) return reciprocal(x);
  if (exponent == 0.5) return map(fm::PowHalf{}, x);
  if (exponent == -0.5) return map(fm::PowMinusHalf{}, x);
  return map(fm::PowScalar{exponent}, x);
}
Tensor pow(const Tensor& x, const Tensor& exponent) { return map(fm::Pow{}, x, exponent); }
Tensor pow(double base, const Tensor& exponent) { return pow(detail::beside("pow", exponent, base), exponent); }
Tensor square(const Tensor& x) { return map(fm::Square{}, x); }
Tensor remainder(const Tensor& a, const Tensor& b) { return map(fm::Remainder{}, a, b); }
Tensor remainder(const Tensor& a, double b) { return remainder(a, detail::beside("remainder", a, b)); }
Tensor remainder(double a, const Tensor& b) { return remainder(detail::beside("remainder", b, a), b); }
Tensor floor_divide(const Tensor& a, const Tensor& b) { return map(fm::FloorDivide{}, a, b); }
Tensor floor_divide(const Tensor& a, double b) { return floor_divide(a, detail::beside("floor_divide", a, b)); }
Tensor floor_divide(double a, const Tensor& b) { return floor_divide(detail::beside("floor_divide", b, a), b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return map(fm::Maximum{}, a, b); }
Tensor maximum(const Tensor& a, double b) { return maximum(a, detail::beside("maximum", a, b)); }
Tensor minimum(const Tensor& a, const Tensor& b) { return map(fm::Minimum{}, a, b); }
Tensor minimum(const Tensor& a, double b) { return minimum(a, detail::beside("minimum", a, b)); }
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& w) { return map(fm::Lerp{}, a, b, w); }
Tensor lerp(const Tensor& a, const Tensor& b, double w) {
  detail::check_defined("lerp", {{"a", a}, {"b", b}});
  if (is_integer(a.dtype())) detail::check_float("lerp", a);
  if (is_float(a.dtype()) || is_float(b.dtype())) return map(fm::LerpBy{w}, a, b);
  return lerp(a, b, like(a, w));
}

Tensor clamp(const Tensor& x, std::optional<double> least, std::optional<double> most) {
  detail::check_defined("clamp", x);
  constexpr double none = std::numeric_limits<double>::infinity();
  const double lo = least.value_or(-none), hi = most.value_or(none);
  if (!(lo <= hi)) fail<ValueError>("clamp: needs lo <= hi — got lo=", lo, ", hi=", hi);
  const double end = x.dtype() == i32 ? 0x1p31 : 0x1p63;
  if (is_integer(x.dtype()) && !(lo >= -end && hi < end))  // a bound that x's dtype does not have
    return minimum(maximum(x, detail::beside("clamp", x, lo)), detail::beside("clamp", x, hi));
  detail::check_whole("clamp", x, lo), detail::check_whole("clamp", x, hi);
  return map(fm::Clamp{lo, hi}, x);
}

static void check_mask(const char* op, const Tensor& mask) {
  detail::check_defined(op, {{"mask", mask}});
  if (mask.dtype() != boolean) fail<DTypeError>(op, ": the mask must be bool — got ", mask.dtype(), " of shape ", mask);
}

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  check_mask("where", mask);
  detail::check_defined("where", {{"a", a}, {"b", b}});
  if (a.dtype() == boolean && b.dtype() == boolean) return to(map(fm::Where{}, mask, to(a, i32), b), boolean);
  return map(fm::Where{}, mask, a, b);
}
Tensor where(const Tensor& mask, const Tensor& a, double b) { return where(mask, a, detail::beside("where", a, b)); }
Tensor where(const Tensor& mask, double a, const Tensor& b) { return where(mask, detail::beside("where", b, a), b); }
Tensor where(const Tensor& mask, double a, double b) {
  check_mask("where", mask);
  return where(mask, full({}, a, {f32, mask.device()}), b);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_mask("masked_fill", mask);
  detail::check_defined("masked_fill", x);
  detail::check_devices("masked_fill", {x, mask});
  broadcast("masked_fill", x.shape(), mask.shape());
  if (!is_float(x.dtype())) return where(mask, detail::beside("masked_fill", x, value), x);
  return map(fm::MaskedFill{value}, x, mask);
}

static Tensor& replace(const char* op, Tensor& x, Tensor y) {
  if (x.requires_grad() && x.is_leaf())
    fail<AutogradError>(op, ": x ", x,
                        " is a parameter, and a result would take its place; use y = x + …, or add_ and "
                        "scale_ under NoGrad to edit its values");
  return x = std::move(y);
}
Tensor& operator+=(Tensor& x, const Tensor& y) { return replace("+=", x, x + y); }
Tensor& operator-=(Tensor& x, const Tensor& y) { return replace("-=", x, x - y); }
Tensor& operator*=(Tensor& x, const Tensor& y) { return replace("*=", x, x * y); }
Tensor& operator/=(Tensor& x, const Tensor& y) { return replace("/=", x, x / y); }
Tensor& operator+=(Tensor& x, double c) { return replace("+=", x, x + c); }
Tensor& operator-=(Tensor& x, double c) { return replace("-=", x, x - c); }
Tensor& operator*=(Tensor& x, double c) { return replace("*=", x, x * c); }
Tensor& operator/=(Tensor& x, double c) { return replace("/=", x, x / c); }

}  // namespace sluice
