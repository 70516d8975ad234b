// SLUICE_PARTS(a, b, …): a module's list of members, which layers/nn/module.h reads. A macro, because C++20 cannot name
// a struct's members.
#pragma once

#include <concepts>

/// Defines visit() for a module whose parts have the names of its members; at most 80 parts.
#define SLUICE_PARTS(...)                                                                            \
  static void visit(auto& self, auto&& f) { SLUICE_ALL_PARTS(__VA_OPT__(SLUICE_PART(__VA_ARGS__))) } \
  static_assert(true)
/// Defines visit() for a module that derives from another one. The parts of the base come first.
#define SLUICE_PARTS_BEHIND(Base, ...)                     \
  static void visit(auto& self, auto&& f) {                \
    Base::visit(self, f);                                  \
    SLUICE_ALL_PARTS(__VA_OPT__(SLUICE_PART(__VA_ARGS__))) \
  }                                                        \
  static_assert(true)
#define SLUICE_PART(x, ...)                    \
  ::sluice::detail::visit_part(f, #x, self.x); \
  __VA_OPT__(SLUICE_NEXT_PART SLUICE_NOTHING()()(__VA_ARGS__))
#define SLUICE_NEXT_PART() SLUICE_PART
#define SLUICE_NOTHING()
#define SLUICE_ALL_PARTS(...) SLUICE_PARTS_3(SLUICE_PARTS_3(SLUICE_PARTS_3(SLUICE_PARTS_3(__VA_ARGS__))))
#define SLUICE_PARTS_3(...) SLUICE_PARTS_2(SLUICE_PARTS_2(SLUICE_PARTS_2(SLUICE_PARTS_2(__VA_ARGS__))))
#define SLUICE_PARTS_2(...) SLUICE_PARTS_1(SLUICE_PARTS_1(SLUICE_PARTS_1(SLUICE_PARTS_1(__VA_ARGS__))))
#define SLUICE_PARTS_1(...) __VA_ARGS__

namespace sluice::detail {

/// Whether M has a name, M::type. A member `type` that is no text, such as BERT's embedding of token types, is a part.
template <class M>
concept HasType = requires {
  { M::type } -> std::convertible_to<const char*>;
};

/// Visits a member for SLUICE_PARTS. A member that is in_place lists its own members in its place.
template <class T> void visit_part(auto& f, const char* name, T& x) {
  if constexpr (requires { T::in_place; }) T::visit(x, f);
  else f(name, x);
}

}  // namespace sluice::detail
