// Instruction sets of the processor, found once at run time. Kernels with versions for several sets choose by isa().
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

/// Instruction sets that kernels are written or compiled for. Each includes the earlier ones of its architecture.
enum class Isa {
  base,         // the compiler's target (x86-64: SSE2); exists on every architecture
  neon,         // arm64: NEON, which every arm64 processor has
  neon_bf16,    // NEON with matrix products of bf16 (BFMMLA)
  avx2,         // x86-64-v3: AVX2, FMA, F16C, BMI, LZCNT, MOVBE
  avx512,       // x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  avx512_bf16,  // AVX-512 with products of bf16 (VDPBF16PS)
  amx,          // AVX-512 BF16, and AMX tiles of bf16
};

/// The instruction set in use. At the start the best that processor and system have, or the one named by the
/// environment variable SLUICE_ISA (base, neon, neon_bf16, avx2, avx512, avx512_bf16, amx) if this machine has it.
/// Throws ValueError if the variable names none of these.
Isa isa();
/// The instruction sets of this machine, the weakest first.
std::span<const Isa> isas();
/// The best instruction set of this machine: the last of isas(), or the one before it where that is faster.
Isa best_isa();
/// For tests and comparisons. Throws ValueError if this machine lacks `isa`. Must not be called while another thread
/// computes.
void set_isa(Isa isa);
/// "avx512", as SLUICE_ISA spells it.
const char* isa_name(Isa isa);

/// The processor's own name, e.g. "AMD EPYC 9B14", "Neoverse N1".
std::string cpu_name();

namespace detail {
/// The processor's name in the text of Linux's /proc/cpuinfo. On arm64 the text has numbers, which a table translates.
std::string cpu_name_in(std::string_view cpuinfo);
}  // namespace detail

}  // namespace sluice
