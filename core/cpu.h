// What the processor can do, asked once at run time: kernels that exist for several instruction sets choose by it.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

/// Instruction sets that kernels are written or compiled for; each has those of its architecture before it.
enum class Isa {
  base,       ///< what the compiler was told (x86-64: SSE2), on every architecture
  neon,       ///< arm64: NEON, which each such processor has
  neon_bf16,  ///< NEON with products of matrices of bf16 (BFMMLA)
  avx2,       ///< x86-64-v3: AVX2, FMA, F16C
  avx512,     ///< x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  amx,        ///< AVX-512 with BF16, and AMX tiles of bf16
};

/// The instruction set in use: at the start the best that processor and system have, or the one that the environment
/// variable SLUICE_ISA names (base, neon, neon_bf16, avx2, avx512, amx) if this machine has it.
Isa isa();
/// Those that there are here, the least first.
std::span<const Isa> isas();
/// The best one there is here.
Isa best_isa();
/// For tests and comparisons: ValueError if it is not there. Not to be called while another thread computes.
void set_isa(Isa isa);
const char* isa_name(Isa isa);

/// The processor's own name, e.g. "AMD EPYC 9B14", "Neoverse N1".
std::string cpu_name();

namespace detail {
/// The name in the text of Linux's /proc/cpuinfo; of arm64, which has numbers there, by a table.
std::string cpu_name_in(std::string_view cpuinfo);
}  // namespace detail

}  // namespace sluice
