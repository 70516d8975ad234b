// Comparisons and logic: results are bool and carry no history.
#include <sluice/ops/elementwise.h>

#include <sluice/core/parallel.h>
#include <sluice/core/strided.h>
#include <sluice/ops/create.h>

#include <algorithm>

namespace sluice {

namespace {

/// out = f(a, b) over the broadcast shape, both sides read as T.
template <class T, class F>
Tensor compare_as(const char* op, const Tensor& a, const Tensor& b, F f) {
  Shape shape = broadcast(op, a.shape(), b.shape());
  Tensor y = empty(shape, {boolean, a.device()}, op);
  bool* out = y.mutable_data<bool>();
  detail::Walk wa(a.layout().expanded(shape)), wb(b.layout().expanded(shape));
  parallel_for(shape.numel(), 32 * detail::kTile, [&](int64_t begin, int64_t end) {
    T ta[detail::kTile], tb[detail::kTile];
    for (int64_t i = begin; i < end; i += detail::kTile) {
      int64_t n = std::min(detail::kTile, end - i);
      detail::read_tile(wa, a.raw(), a.dtype(), i, n, ta);
      detail::read_tile(wb, b.raw(), b.dtype(), i, n, tb);
      for (int64_t k = 0; k < n; ++k) out[i + k] = f(ta[k], tb[k]);
    }
  });
  return y;
}

/// Integers compare as i64, two f32 sides as f32, any other float side as f64: exact conversions all.
template <class F>
Tensor compare(const char* op, const Tensor& a, const Tensor& b, F f) {
  if (a.device() != b.device())
    fail<DeviceError>(op, ": operands on ", a.device(), " and ", b.device());
  bool real = is_float(a.dtype()) || is_float(b.dtype());
  if (a.dtype() != b.dtype() && a.rank() > 0 && b.rank() > 0 && is_float(a.dtype()) != is_float(b.dtype()))
    fail<DTypeError>(op, ": dtypes differ — got a=", a.dtype(), ", b=", b.dtype(), " for shapes ", a,
                     " and ", b);
  if (a.dtype() == f32 && b.dtype() == f32) return compare_as<float>(op, a, b, f);
  return real ? compare_as<double>(op, a, b, f) : compare_as<int64_t>(op, a, b, f);
}

/// The other side of a comparison with a number: in x's own float type, so that 0.1f == 0.1.
Tensor scalar(const Tensor& x, double c) { return full({}, c, {is_float(x.dtype()) ? x.dtype() : f64}); }

void check_bool(const char* op, const Tensor& x) {
  if (x.dtype() != boolean) fail<DTypeError>(op, ": needs bool — got ", x.dtype(), " of shape ", x);
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare("eq", a, b, [](auto x, auto y) { return x == y; }); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare("ne", a, b, [](auto x, auto y) { return x != y; }); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare("lt", a, b, [](auto x, auto y) { return x < y; }); }
Tensor le(const Tensor& a, const Tensor& b) { return compare("le", a, b, [](auto x, auto y) { return x <= y; }); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare("gt", a, b, [](auto x, auto y) { return x > y; }); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare("ge", a, b, [](auto x, auto y) { return x >= y; }); }

Tensor operator<(const Tensor& x, double c) { return lt(x, scalar(x, c)); }
Tensor operator<=(const Tensor& x, double c) { return le(x, scalar(x, c)); }
Tensor operator>(const Tensor& x, double c) { return gt(x, scalar(x, c)); }
Tensor operator>=(const Tensor& x, double c) { return ge(x, scalar(x, c)); }
Tensor operator==(const Tensor& x, double c) { return eq(x, scalar(x, c)); }
Tensor operator!=(const Tensor& x, double c) { return ne(x, scalar(x, c)); }

Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_bool("logical_and", a), check_bool("logical_and", b);
  return compare("logical_and", a, b, [](auto x, auto y) { return x && y; });
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_bool("logical_or", a), check_bool("logical_or", b);
  return compare("logical_or", a, b, [](auto x, auto y) { return x || y; });
}
Tensor logical_not(const Tensor& x) {
  check_bool("logical_not", x);
  return eq(x, full({}, 0, {boolean}));
}
Tensor isnan(const Tensor& x) { return ne(x, x); }
Tensor isfinite(const Tensor& x) {
  return compare("isfinite", x, x, [](auto v, auto) { return v - v == decltype(v)(0); });
}

}  // namespace sluice
