// Making tensors from nothing, converting and copying them.
#pragma once

#include <sluice/core/tensor.h>

#include <concepts>
#include <type_traits>

namespace sluice {

/// A tensor of 0, or of 1. Throws ShapeError for a negative size or more than 2^46 bytes, and MemoryError if the system
/// has too little memory.
Tensor zeros(const Shape& shape, TensorOptions options = {});
Tensor ones(const Shape& shape, TensorOptions options = {});
/// In integers `value` is cut to a whole number and saturates, as in to().
Tensor full(const Shape& shape, double value, TensorOptions options = {});
/// Zeros, or ones, of the shape, dtype and device of x.
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
/// start, start + step, … before end; empty if start is end. Throws ValueError if step is 0 or leads away from end, or
/// a number is not finite.
Tensor arange(double start, double end, double step = 1, TensorOptions options = {});
namespace detail {
/// arange() of whole numbers, exact for any int64.
Tensor arange_whole(int64_t start, int64_t end, int64_t step, TensorOptions options);
}  // namespace detail
/// Whole numbers give i64: arange(2, 10), arange(10, 0, -2), and arange(n) below.
template <std::integral A, std::integral B, std::integral S = int>
Tensor arange(A start, B end, S step = 1, TensorOptions options = {.dtype = i64}) {
  return detail::arange_whole(static_cast<int64_t>(start), static_cast<int64_t>(end), static_cast<int64_t>(step),
                              options);
}
inline Tensor arange(int64_t n, TensorOptions options = {.dtype = i64}) { return arange(int64_t{0}, n, 1, options); }
template <std::floating_point F> Tensor arange(F end, TensorOptions options = {}) {
  return arange(0.0, static_cast<double>(end), 1.0, options);
}
/// n values from start to end, both included.
Tensor linspace(double start, double end, int64_t n, TensorOptions options = {});
/// The n×m identity matrix; m = −1, the default, stands for n.
Tensor eye(int64_t n, int64_t m = -1, TensorOptions options = {});
/// out[..., i] = (x == i), of shape x.shape + [classes]; x is i64 or i32, in [0, classes). The result has the dtype of
/// the options, and lies on the device of x.
Tensor one_hot(const Tensor& x, int64_t classes, TensorOptions options = {});

/// x converted to `dtype`; x itself if that is its dtype. Floats saturate in integers, and NaN becomes 0; i64 wraps in
/// i32. In bool only ±0 becomes false, not a denormal. Gradients convert back; none flow through integers and bool.
Tensor to(const Tensor& x, DType dtype);
/// x on `device`; x itself if it is there already. Gradients move back. Moving to meta drops the values; moving from
/// meta is a DeviceError.
Tensor to(const Tensor& x, Device device);
/// x itself when contiguous, else a row-major copy.
Tensor contiguous(const Tensor& x);
/// A row-major copy.
Tensor clone(const Tensor& x);

// In place: these ops bump the version, and refuse tensors whose history they would falsify.
/// Every element of x becomes value.
void fill_(Tensor& x, double value);
/// x[...] = y, broadcast and converted.
void copy_(Tensor& x, const Tensor& y);
/// fill_(x, value): without this function the number would become an f32 tensor first.
template <class T>
requires std::is_arithmetic_v<T>
void copy_(Tensor& x, T value) { fill_(x, static_cast<double>(value)); }
/// x += factor · y, y of the shape of x.
void add_(Tensor& x, const Tensor& y, double factor = 1);
/// x *= factor
void scale_(Tensor& x, double factor);

namespace detail {
/// full(), with errors in the name of `op`.
Tensor filled(const char* op, const Shape& shape, double value, TensorOptions options);
/// Throws DTypeError, naming op, if c beside a tensor of `dtype` may have been another number: an int64_t of 2^53 and
/// more may be rounded when it becomes a double. ±2^63 stand for the ends of i64.
void check_exact(const char* op, DType dtype, double c);
/// f32 for bf16, else the same: dtypes, options, tensors. An op made of several ops computes on widened inputs and
/// rounds once, by to(y, dtype).
inline DType widened(DType t) { return t == bf16 ? f32 : t; }
inline TensorOptions widened(const TensorOptions& o) { return {widened(o.dtype), o.device}; }
inline Tensor widened(const Tensor& x) { return x.defined() && x.dtype() == bf16 ? to(x, f32) : x; }
/// op(xs…) in f32, rounded once to bf16: how an op made of several ops computes bf16. Tensors among xs are widened.
template <class Op, class... X> Tensor in_f32(const Op& op, const X&... xs) {
  const auto wide = [](const auto& x) {
    if constexpr (std::same_as<decltype(x), const Tensor&>) return widened(x);
    else return x;
  };
  return to(op(wide(xs)...), bf16);
}
}  // namespace detail

}  // namespace sluice
