// Making tensors from nothing, converting and copying them.
#pragma once

#include <sluice/core/tensor.h>

#include <concepts>

namespace sluice {

/// All 0, all 1. ShapeError for negative sizes and more memory than any machine has.
Tensor zeros(const Shape& shape, TensorOptions options = {});
Tensor ones(const Shape& shape, TensorOptions options = {});
/// `value` saturates in integers as to() does.
Tensor full(const Shape& shape, double value, TensorOptions options = {});
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
/// start, start+step, … below end. ValueError when step is 0 or leads away from end, and for what is not finite.
Tensor arange(double start, double end, double step = 1, TensorOptions options = {});
/// Of whole numbers i64, as arange(n): arange(2, 10), arange(10, 0, -2).
template <std::integral A, std::integral B, std::integral S = int>
Tensor arange(A start, B end, S step = 1, TensorOptions options = {.dtype = i64}) {
  return arange(static_cast<double>(start), static_cast<double>(end), static_cast<double>(step), options);
}
inline Tensor arange(int64_t n, TensorOptions options = {.dtype = i64}) {
  return arange(0, static_cast<double>(n), 1, options);
}
/// n values from start to end, both included.
Tensor linspace(double start, double end, int64_t n, TensorOptions options = {});
/// The n×m identity (m = n when omitted: −1).
Tensor eye(int64_t n, int64_t m = -1, TensorOptions options = {});
/// out[..., i] = (x == i): f32 of shape x.shape + [classes], on the device of x; x is i64 or i32, in [0, classes).
Tensor one_hot(const Tensor& x, int64_t classes, TensorOptions options = {});

/// x in another dtype; itself when it has it already. Gradients convert back; none flow through
/// integers and bool.
Tensor to(const Tensor& x, DType dtype);
/// x on another device; itself when it is there already. Gradients move back. To meta the values are dropped; from
/// meta there are none to move, a DeviceError.
Tensor to(const Tensor& x, Device device);
/// x itself when contiguous, else a row-major copy.
Tensor contiguous(const Tensor& x);
/// A row-major copy.
Tensor clone(const Tensor& x);

// In place: they bump the version and refuse tensors whose history they would falsify.
/// Every element of x becomes value.
void fill_(Tensor& x, double value);
/// x[...] = y, broadcast and converted.
void copy_(Tensor& x, const Tensor& y);
/// x += factor · y, y of the shape of x.
void add_(Tensor& x, const Tensor& y, double factor = 1);
/// x *= factor
void scale_(Tensor& x, double factor);

namespace detail {
/// full(), with errors in the name of `op`.
Tensor filled(const char* op, const Shape& shape, double value, TensorOptions options);
/// x in f32 if it is of bf16, else itself: an op made of several ops computes with it, and rounds once, by to(y, dtype).
inline Tensor widened(const Tensor& x) { return x.defined() && x.dtype() == bf16 ? to(x, f32) : x; }
}  // namespace detail

}  // namespace sluice
