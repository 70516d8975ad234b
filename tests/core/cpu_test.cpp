// The instruction set in use: never more than the machine has, and what was asked for.
#include <sluice/core/cpu.h>

#include "support/catch.h"

#include <sluice/core/error.h>

using namespace sluice;

TEST_CASE("isa: what is set is used, and what is missing is refused", "[cpu]") {
  const Isa before = isa();
  CHECK(before <= best_isa());
  for (Isa i : {Isa::base, Isa::avx2, Isa::avx512, Isa::amx}) {
    INFO(isa_name(i));
    if (i <= best_isa()) {
      set_isa(i);
      CHECK(isa() == i);
    } else {
      CHECK_THROWS_AS(set_isa(i), ValueError);
      CHECK(isa() <= best_isa());
    }
  }
  set_isa(before);
  CHECK_FALSE(cpu_name().empty());
}
