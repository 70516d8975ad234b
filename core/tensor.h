// Tensor: storage seen through a layout, with a dtype and, when gradients are wanted, a history.
//
// A Tensor is a handle: copying it shares the storage and the history. Its members state facts and
// reach the memory; everything that computes is a free function in sluice/ops, everything that walks
// the history is in sluice/autograd.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/hook_handle.h>
#include <sluice/core/layout.h>
#include <sluice/core/memory/small_vector.h>
#include <sluice/core/storage.h>

#include <functional>
#include <initializer_list>
#include <limits>
#include <vector>

namespace sluice {

class Node;
class Tensor;
void dispose(Node*);

struct TensorImpl final : RefCounted, detail::Pooled {
  Ref<Storage> storage;
  Layout layout;
  DType dtype = f32;
  bool contiguous;            // layout.is_contiguous(), asked by every op
  uint32_t output_index = 0;  // which output of `history` this is
  Ref<Node> history;          // null: a constant; a Leaf: a parameter; else the op that made it
  Ref<Node> frozen;           // the Leaf of a parameter while it requires no gradient: graphs end there

  TensorImpl(Ref<Storage> s, const Layout& l, DType t);
  TensorImpl(Ref<Storage> s, const Shape& shape, DType t);  // contiguous
  ~TensorImpl();
};
void dispose(TensorImpl*);

/// Dtype and device of a new tensor: zeros({2, 3}, {f64}).
struct TensorOptions {
  DType dtype = f32;    // of the elements
  Device device = cpu;  // where the elements lie
};

/// An n-dimensional array: storage seen through a layout. A Tensor is a handle: copies share values and history. Its
/// members state facts; everything that computes is a free function. Members of an undefined tensor throw ValueError,
/// but for defined(), requires_grad(), which is false, and zero_grad().
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  /// Lets this handle be another tensor's.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  void operator=(const Tensor&) && = delete;  // x[i] = y would write nothing: Tensor row = x[i]; copy_(row, y)
  /// A handle of `impl`, for the library's own use.
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  /// A scalar, and nested lists: Tensor({1, 2, 3}), Tensor({{1, 2}, {3, 4}}). f32.
  Tensor(float value);
  Tensor(std::initializer_list<float> row);
  Tensor(std::initializer_list<std::initializer_list<float>> rows);
  /// Does not compile: a static_assert points to from().
  template <class T> explicit Tensor(const std::vector<T>&) {
    static_assert(sizeof(T) == 0,
                  "the values of a vector become a tensor by Tensor::from(values) or Tensor::from(values, shape)");
  }
  /// Copies `values` in row-major order. Throws ShapeError unless their count is shape.numel().
  template <class T> static Tensor from(const std::vector<T>& values, const Shape& shape);
  /// A tensor [values.size()] of the values.
  template <class T> static Tensor from(const std::vector<T>& values) {
    return from(values, {static_cast<int64_t>(values.size())});
  }

  /// x[i]: select(x, 0, i), entry i of the first dim as a view with history; negative i counts from the end.
  Tensor operator[](int64_t i) const;
  /// A tensor over the memory at `data`, row-major, without a copy. `release` is called when the last tensor over the
  /// memory is gone; it must not throw. Without `release`, the memory must outlive all these tensors. Gradients and
  /// in-place ops work as for any tensor. Throws ValueError for a null address (unless numel() is 0) and for an address
  /// that is not aligned for T.
  template <class T> static Tensor from_blob(T* data, const Shape& shape, std::function<void()> release = {});
  explicit operator bool() const = delete;  // ambiguous: use x.item() > 0, all(x > 0.0).item(), any(x > 0.0).item()

  /// False for a tensor that was default-constructed or moved from.
  bool defined() const { return bool(impl_); }
  /// Sizes of the dimensions; distances between neighbours along them, in elements. Those of a temporary are copies,
  /// which outlive it: for (int64_t n : (a + b).shape()).
  const Shape& shape() const& { return impl().layout.shape; }
  const Shape& strides() const& { return impl().layout.strides; }
  const Layout& layout() const& { return impl().layout; }
  Shape shape() && { return impl().layout.shape; }
  Shape strides() && { return impl().layout.strides; }
  Layout layout() && { return impl().layout; }
  /// Number of dimensions; 0 for a scalar.
  int rank() const { return shape().rank(); }
  /// Size of a dimension; negative dims count from the end.
  int64_t dim(int64_t d) const {
    if (rank() == 0) fail("dim: a scalar has no dims — asked for dim ", d);
    return shape()[wrap_dim("dim", d, rank())];
  }
  /// Number of elements.
  int64_t numel() const { return shape().numel(); }
  /// Dtype of the elements, device of the memory, and both as options.
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device(); }
  TensorOptions options() const { return {dtype(), device()}; }
  /// True if elements lie in row-major order without gaps.
  bool is_contiguous() const { return impl().contiguous; }
  /// Number of in-place writes to the storage.
  uint32_t version() const { return impl().storage->version(); }
  /// True if both are views of one storage.
  bool shares_storage(const Tensor& o) const { return impl().storage == o.impl().storage; }
  /// True if there is no other handle of this tensor, no other view of its storage, and no other owner of its memory
  /// (from_blob): writing to it changes no other.
  bool is_sole_owner() const {
    const TensorImpl& t = impl();
    return t.use_count() == 1 && t.storage->use_count() == 1 && !t.storage->is_borrowed();
  }

  /// Pointer to the first element. Throws DTypeError unless T is the dtype's type, DeviceError where the host has no
  /// access. Writing through the mutable pointer does not bump the version: call bump_version() after editing a tensor
  /// that history may have saved.
  template <class T> const T* data() const {
    check_type(dtype_of<T>());
    return reinterpret_cast<const T*>(raw());
  }
  template <class T> T* mutable_data() {
    check_type(dtype_of<T>());
    return reinterpret_cast<T*>(raw());
  }
  /// Address of the first element, whatever the dtype. Throws ValueError if undefined, DeviceError as data() does.
  std::byte* raw() const {
    const TensorImpl& t = impl();
    return t.storage->data() + t.layout.offset * size_of(t.dtype);
  }
  /// Must be called after values were edited through a pointer, so that backward notices the edit.
  void bump_version() { impl().storage->bump_version(); }

  /// The value of a one-element tensor, copied to cpu first, as for every read of values. T is double, float, to
  /// which f64 is rounded, bool or an integer type. Throws ShapeError for other numbers of elements, and ValueError if
  /// T cannot hold the value: an i64 beyond 2^53 as double, a fraction as int, 2 as bool.
  template <class T = double> T item() const {
    static_assert(std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_integral_v<T>,
                  "item<T>() reads a number: T is double, float, bool or an integer type");
    if constexpr (std::is_integral_v<T>) {
      constexpr uint64_t most = std::numeric_limits<T>::max(), limit = std::numeric_limits<int64_t>::max();
      return static_cast<T>(
          whole_item(std::numeric_limits<T>::min(), static_cast<int64_t>(most < limit ? most : limit)));
    } else {
      return number_item<T>();
    }
  }
  /// All values in row-major order, converted to T.
  template <class T = float> std::vector<T> to_vector() const;

  // -- history ---------------------------------------------------------------------------------
  /// True for a leaf that collects gradients and for the result of a recorded op.
  bool requires_grad() const { return impl_ && bool(impl_->history); }
  /// Makes this tensor a leaf that collects gradients (or a constant again). Throws DTypeError unless it holds f32, f64
  /// or bf16, and AutogradError on the result of a recorded op.
  Tensor& requires_grad_(bool on = true) &;
  Tensor requires_grad_(bool on = true) && { return requires_grad_(on); }  // *this is an lvalue: calls the other one
  /// True for a leaf or a constant: not the result of a recorded op.
  bool is_leaf() const;
  /// The gradient that backward() accumulated here; undefined before.
  const Tensor& grad() const;
  /// Replaces the gradient.
  void set_grad(Tensor g);
  /// Forgets the gradient.
  void zero_grad() { set_grad({}); }
  /// The same storage without history.
  Tensor detach() const;
  /// Calls `hook` with each gradient that reaches this tensor; a defined result replaces the gradient. A hook must not
  /// edit the gradient in place, which others may receive, too. The handle's remove() takes the hook away.
  HookHandle register_hook(std::function<Tensor(const Tensor&)> hook);

  /// The implementation object, for the library's own use. Throws ValueError if undefined.
  TensorImpl& impl() const {
    if (!impl_)
      fail<ValueError>(
          "tensor: this Tensor is undefined (default-constructed, moved from, or a grad() that "
          "backward() has not filled)");
    return *impl_;
  }
  const Ref<TensorImpl>& ref() const { return impl_; }

 private:
  template <class To> To number_item() const;
  int64_t whole_item(int64_t least, int64_t greatest) const;
  void check_type(DType t) const {
    if (t != dtype()) fail<DTypeError>("data: tensor holds ", dtype(), ", asked for ", t);
  }
  Ref<TensorImpl> impl_;
};

/// A short list: inputs, outputs, gradients.
using Tensors = SmallVector<Tensor, 4>;

/// An uninitialised, contiguous tensor. Throws ShapeError naming `op` for a negative size or more than 2^46 bytes, and
/// MemoryError if the system has too little.
Tensor empty(const Shape& shape, TensorOptions options = {}, const char* op = "empty");
inline Tensor empty_like(const Tensor& x) { return empty(x.shape(), x.options()); }
/// The same storage seen through another layout, without history (ops record their own).
Tensor alias(const Tensor& x, const Layout& layout);

void append_text(std::string& s, const Tensor& x);  // "[2,3]", for error messages

namespace detail {
/// Throws DTypeError naming `op` unless x holds f32, f64 or bf16.
inline void check_float(const char* op, const Tensor& x) {
  if (!x.defined()) fail<ValueError>(op, ": the tensor is undefined (default-constructed or moved from)");
  if (!is_float(x.dtype())) fail<DTypeError>(op, ": needs f32, f64 or bf16 — got ", x.dtype(), " of shape ", x);
}
/// An operand with its name in errors.
using NamedOperand = std::pair<const char*, const Tensor&>;
/// Throws DTypeError naming `op` unless all are f32, all f64 or all bf16; DeviceError; ValueError for an undefined one.
void check_floats(const char* op, std::initializer_list<NamedOperand> operands);
/// Throws ShapeError, DTypeError or DeviceError naming `op` unless g can be the gradient of x, which is `what`.
void check_gradient(const char* op, const Tensor& g, const char* what, const Tensor& x);
/// The address of x's first element, on its device.
inline std::byte* address_of(const Tensor& x) {
  return x.impl().storage->device_data() + x.layout().offset * size_of(x.dtype());
}
/// Copies elements of `from` to `to` (same shape), converting dtypes, also between devices. No history.
void copy_elements(const Tensor& from, Tensor& to);
/// x itself if it is on cpu, else a copy on cpu. DeviceError naming `op` on meta, which has no values.
Tensor on_cpu(const char* op, const Tensor& x);
}  // namespace detail

template <class T> Tensor Tensor::from(const std::vector<T>& values, const Shape& shape) {
  if (static_cast<int64_t>(values.size()) != checked_numel("from", shape))
    fail("from: ", values.size(), " values do not fill shape ", shape);
  Tensor t = empty(shape, {.dtype = dtype_of<T>()});
  T* p = t.mutable_data<T>();
  for (const T& v : values) *p++ = v;  // std::vector<bool> has no data()
  return t;
}

namespace detail {
Tensor borrowed(std::byte* data, std::size_t alignment, const Shape& shape, DType dtype, std::function<void()> release);
}
template <class T> Tensor Tensor::from_blob(T* data, const Shape& shape, std::function<void()> release) {
  return detail::borrowed(reinterpret_cast<std::byte*>(data), alignof(T), shape, dtype_of<T>(), std::move(release));
}

template <class T> std::vector<T> Tensor::to_vector() const {
  Tensor flat = empty(shape(), {.dtype = dtype_of<T>()});
  detail::copy_elements(detail::on_cpu("to_vector", *this), flat);
  const T* p = flat.data<T>();
  return std::vector<T>(p, p + flat.numel());
}

/// `dim` of x counted from the front. Throws ShapeError naming `op` for a scalar, and for a dim that x does not have.
inline int dim_of(std::string_view op, int64_t dim, const Tensor& x) {
  if (x.rank() == 0) fail(op, ": a scalar has no dims");
  return wrap_dim(op, dim, x.rank());
}

}  // namespace sluice
