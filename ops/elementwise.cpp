#include <sluice/ops/elementwise.h>

#include <sluice/ops/create.h>
#include <sluice/ops/map.h>

#include <cmath>

namespace sluice {

namespace detail {

namespace {
/// Scalar arguments of integer ops must be integers: 0.5 would silently become 0.
void check_scalar(const char* op, const Tensor& x, double c) {
  if (is_integer(x.dtype()) && c != std::floor(c))
    fail<DTypeError>(op, ": a ", x.dtype(), " tensor ", x, " and the fraction ", c,
                     "; convert with to(x, f32)");
}
}  // namespace
}  // namespace detail

namespace fm = formula;

Tensor like(const Tensor& x, double c) {
  return full({}, c, {is_float(x.dtype()) ? x.dtype() : f32, x.device()});
}

Tensor add(const Tensor& a, const Tensor& b) { return map(fm::Add{}, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return map(fm::Sub{}, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return map(fm::Mul{}, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return map(fm::Div{}, a, b); }
Tensor neg(const Tensor& x) { return map(fm::Neg{}, x); }
Tensor scale(const Tensor& x, double factor) {
  detail::check_scalar("scale", x, factor);
  return map(fm::Scale{factor}, x);
}
Tensor add_scalar(const Tensor& x, double c) {
  detail::check_scalar("add_scalar", x, c);
  return map(fm::AddScalar{c}, x);
}
Tensor operator-(double c, const Tensor& x) {
  detail::check_scalar("sub", x, c);
  return map(fm::SubFrom{c}, x);
}
Tensor operator/(double c, const Tensor& x) { return map(fm::DivInto{c}, x); }
namespace {
struct Reciprocal : fm::DivInto {
  static constexpr const char* name = "reciprocal";
};
}  // namespace
Tensor reciprocal(const Tensor& x) { return map(Reciprocal{1}, x); }
Tensor pow(const Tensor& x, double exponent) { return map(fm::PowScalar{exponent}, x); }
Tensor pow(const Tensor& x, const Tensor& exponent) { return map(fm::Pow{}, x, exponent); }
Tensor square(const Tensor& x) { return map(fm::Square{}, x); }
Tensor maximum(const Tensor& a, const Tensor& b) { return map(fm::Maximum{}, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return map(fm::Minimum{}, a, b); }
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& w) {
  return map(fm::Lerp{}, a, b, w);
}

Tensor clamp(const Tensor& x, double lo, double hi) {
  if (!(lo <= hi)) fail<ValueError>("clamp: needs lo <= hi — got lo=", lo, ", hi=", hi);
  return map(fm::Clamp{lo, hi}, x);
}

Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  if (mask.dtype() != boolean)
    fail<DTypeError>("where: the mask must be bool — got ", mask.dtype(), " of shape ", mask);
  return map(fm::Where{}, mask, a, b);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  if (mask.dtype() != boolean)
    fail<DTypeError>("masked_fill: the mask must be bool — got ", mask.dtype(), " of shape ", mask);
  return map(fm::MaskedFill{value}, x, mask);
}

}  // namespace sluice
