#include <sluice/ops/elementwise.h>

#include <sluice/ops/create.h>
#include <sluice/ops/map.h>

#include <cmath>

namespace sluice {

namespace detail {

OperandCheck check_operands(const char* op, const Tensor* const* xs, std::size_t n, bool integral) {
  const Tensor& first = *xs[0];
  DType common = boolean;
  bool all_same = first.is_contiguous();
  const Device device = first.device();
  for (std::size_t k = 0; k < n; ++k) {
    const Tensor& x = *xs[k];
    if (k > 0 && all_same)
      all_same = x.is_contiguous() && x.shape() == first.shape();
    if (x.device() != device)
      fail<DeviceError>(op, ": operands on ", device, " and ", x.device());
    DType t = x.dtype();
    if (t == boolean) {
      all_same &= n == 1;  // read through a buffer, as 0 and 1
      continue;
    }
    if (common != boolean && t != common)
      fail<DTypeError>(op, ": dtypes differ — got ", common, " and ", t,
                       " for shapes ", first, " and ", x, "; convert with to(x, dtype)");
    common = t;
  }
  bool ok = common == f32 || common == f64 || (integral && is_integer(common));
  if (!ok)
    fail<DTypeError>(op, ": needs ", integral ? "f32, f64, i64 or i32" : "f32 or f64", " — got ",
                     common, " of shape ", first,
                     common == bf16 ? "; bf16 is a storage type, convert with to(x, f32)" : "");
  return {common, all_same};
}

const Tensor& unit(DType dtype) {
  static const Tensor ones[] = {full({}, 1, {f32}), full({}, 1, {f64})};
  return ones[dtype == f64];
}
bool is_unit(const Tensor& x) {
  return x.ref() == unit(f32).ref() || x.ref() == unit(f64).ref();
}

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
  detail::check_scalar("mul", x, factor);
  return map(fm::Affine{factor, 0}, x);
}
Tensor add_scalar(const Tensor& x, double c) {
  detail::check_scalar("add", x, c);
  return map(fm::Affine{1, c}, x);
}
Tensor operator-(double c, const Tensor& x) {
  detail::check_scalar("sub", x, c);
  return map(fm::Affine{-1, c}, x);
}
Tensor operator/(double c, const Tensor& x) { return map(fm::DivInto{c}, x); }
Tensor reciprocal(const Tensor& x) { return map(fm::DivInto{1}, x); }
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
  return where(mask, like(x, value), x);
}

}  // namespace sluice
