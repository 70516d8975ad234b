// Tests on every instruction set that the machine has.
#pragma once

#include "support/catch.h"

#include <sluice/core/kernel/cpu.h>

namespace sluice::testing {

/// An instruction set in use, until the end of the scope.
struct IsaScope {
  Isa before = isa();
  explicit IsaScope(Isa i) { set_isa(i); }
  ~IsaScope() { set_isa(before); }
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;
};

/// f() with it in use.
template <class F> auto with_isa(Isa i, F f) {
  const IsaScope scope(i);
  return f();
}

/// Calls f(i), or f(), for each of them.
template <class F> void for_each_isa(F f) {
  for (Isa i : isas()) {
    const IsaScope scope(i);
    INFO(isa_name(i));
    if constexpr (requires { f(i); }) f(i);
    else f();
  }
}

}  // namespace sluice::testing
