// The tensors among the arguments of a kernel.
#pragma once

#include <sluice/core/tensor.h>

#include <type_traits>

namespace sluice::detail {

/// Calls f(tensor) for the defined tensors of a kernel's argument: a Tensor, a pointer to one (null: none), a range of
/// them, or a struct with a member `void each_tensor(auto f) const`. Anything else holds none.
template <class A, class F> void each_tensor(const A& a, F&& f) {
  if constexpr (std::is_same_v<A, Tensor>) {
    if (a.defined()) f(a);
  } else if constexpr (std::is_convertible_v<A, const Tensor*>) {
    if (a) each_tensor(*a, f);
  } else if constexpr (requires { a.each_tensor(f); }) {
    a.each_tensor([&](const auto& x) { each_tensor(x, f); });
  } else if constexpr (requires {
                         typename A::value_type;
                         a.begin();
                       }) {
    if constexpr (std::is_same_v<std::remove_const_t<typename A::value_type>, Tensor> ||
                  std::is_convertible_v<typename A::value_type, const Tensor*>)
      for (const auto& x : a) each_tensor(x, f);
  }
}
/// Calls f(tensor), which may change it, for all tensors of a struct with such a member, undefined ones too.
template <class A, class F> void change_tensors(A& a, F&& f) {
  a.each_tensor([&]<class X>(const X& x) {
    if constexpr (std::is_same_v<X, Tensor>) f(const_cast<Tensor&>(x));
    else change_tensors(const_cast<X&>(x), f);
  });
}
template <class A> constexpr bool holds_tensors() {
  using T = std::remove_cvref_t<A>;
  if constexpr (std::is_same_v<T, Tensor> || std::is_convertible_v<T, const Tensor*>) return true;
  else if constexpr (requires(const T& a) { a.each_tensor([](const auto&) {}); }) return true;
  else if constexpr (requires { typename T::value_type; }) return holds_tensors<typename T::value_type>();
  else return !std::is_copy_assignable_v<T>;  // a struct that cannot be assigned holds references, maybe to tensors
}

}  // namespace sluice::detail
