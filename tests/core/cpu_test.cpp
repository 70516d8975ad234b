// The instruction set in use: never more than the machine has, and what was asked for.
#include <sluice/core/kernel/cpu.h>

#include "support/catch.h"

#include <sluice/core/error.h>

#include <algorithm>

using namespace sluice;

TEST_CASE("isa: what is set is used, and what is missing is refused", "[cpu]") {
  const Isa before = isa();
  const std::span<const Isa> all = isas();
  REQUIRE_FALSE(all.empty());
  CHECK(all.front() == Isa::base);
  CHECK(std::is_sorted(all.begin(), all.end()));
  // On Intel's processors without AMX products of bf16 are faster in f32.
  CHECK((best_isa() == all.back() || (all.back() == Isa::avx512_bf16 && best_isa() == Isa::avx512)));
#if defined(__aarch64__)
  CHECK((best_isa() == Isa::neon || best_isa() == Isa::neon_bf16));
#elif defined(__x86_64__)
  CHECK((best_isa() == Isa::base || best_isa() >= Isa::avx2));
#endif
  for (Isa i : {Isa::base, Isa::neon, Isa::neon_bf16, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
    INFO(isa_name(i));
    if (std::find(all.begin(), all.end(), i) != all.end()) {
      set_isa(i);
      CHECK(isa() == i);
    } else {
      CHECK_THROWS_AS(set_isa(i), ValueError);
      CHECK(std::find(all.begin(), all.end(), isa()) != all.end());
    }
  }
  set_isa(before);
  CHECK_FALSE(cpu_name().empty());
}

TEST_CASE("cpu_name: what Linux says of processors that have a name, and of those that have numbers", "[cpu]") {
  using detail::cpu_name_in;
  CHECK(cpu_name_in("processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Gold 6530\nflags\t\t: fpu vme\n\n"
                    "processor\t: 1\nmodel name\t: another\n") == "Intel(R) Xeon(R) Gold 6530");
  CHECK(cpu_name_in("processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n"
                    "CPU revision\t: 1\n") == "Neoverse N1");
  CHECK(cpu_name_in("CPU implementer\t: 0x41\nCPU part\t: 0xd05\n\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n") ==
        "Cortex-A76");
  CHECK(cpu_name_in("CPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\nRevision\t: d04170\n"
                    "Model\t\t: Raspberry Pi 5 Model B Rev 1.0") == "Raspberry Pi 5 Model B Rev 1.0");
  CHECK(cpu_name_in("CPU implementer\t: 0x61\nCPU part\t: 0x023\n") == "arm64 processor 0x61 0x023");
  CHECK(cpu_name_in("CPU implementer\t: 0x46\nCPU part\t: 0xd0c\n") == "arm64 processor 0x46 0xd0c");
  CHECK(cpu_name_in("") == "unknown processor");
}
