// Kernels without bf16: a call gets f32 copies of all bf16 tensors among its arguments, and its results are rounded.
#pragma once

#include <sluice/core/kernel/kernel_arguments.h>

#include <utility>

namespace sluice::detail {

/// The f32 copies of one call. Operands are copied at once; finish() rounds the f32 results into the bf16 ones.
class Widening {
 public:
  explicit Widening(bool updates) : updates_(updates) {}
  Tensor operand(const Tensor& x) const;
  Tensor result(const Tensor& y);
  void finish() const;

 private:
  static void copy(const Tensor& from, Tensor& to);
  bool updates_;
  SmallVector<std::pair<Tensor, Tensor>, 4> results_;  // the bf16 result and its f32 copy
};

/// A kernel's argument with all its tensors widened. Tensors in an argument that is const or by value are operands,
/// others are results. A struct argument must own its tensors. A struct that borrows them (through references, or as
/// `static constexpr bool borrows` says) needs kernels that take bf16.
template <class A> class Widened {
  using T = std::remove_cvref_t<std::remove_pointer_t<std::remove_cvref_t<A>>>;
  static constexpr bool pointer = std::is_pointer_v<std::remove_cvref_t<A>>;

 public:
  Widened(Widening& w, const std::remove_reference_t<A>& a) : copy_(initial(a)) {
    if constexpr (pointer)
      if (a) copy_ = *a, there_ = true;
    constexpr bool operand =
        std::is_const_v<std::remove_pointer_t<std::remove_reference_t<A>>> || (!pointer && !std::is_reference_v<A>);
    each_tensor(copy_, [&](const Tensor& x) { const_cast<Tensor&>(x) = operand ? w.operand(x) : w.result(x); });
  }
  auto get() -> std::conditional_t<pointer, T*, T&> {
    if constexpr (pointer) return there_ ? &copy_ : nullptr;
    else return copy_;
  }

 private:
  static T initial(const std::remove_reference_t<A>& a) {
    if constexpr (pointer) return T();
    else return a;
  }
  T copy_;
  bool there_ = false;
};
template <class A>
requires(!holds_tensors<A>()) class Widened<A> {
 public:
  Widened(Widening&, std::remove_reference_t<A>& a) : a_(a) {}
  A get() { return static_cast<A>(a_); }

 private:
  std::remove_reference_t<A>& a_;
};
/// True for a struct whose reference members may be tensors: that is why it cannot be assigned.
template <class A> constexpr bool borrows_tensors() {
  if constexpr (requires { std::remove_cvref_t<A>::borrows; }) return std::remove_cvref_t<A>::borrows;
  else return !std::is_scalar_v<std::remove_cvref_t<A>> && !std::is_copy_assignable_v<std::remove_cvref_t<A>>;
}

}  // namespace sluice::detail
