// How exactly products are computed.
#pragma once

#include <sluice/core/memory/no_copy.h>
#include <sluice/core/dtype.h>

namespace sluice {

/// How products of f32 tensors are computed.
enum class Precision {
  f32,   // operands as they are: the default
  bf16,  // operands rounded to bf16 (8 bits of mantissa, denormals to 0), sums in f32
};

/// The precision of products of f32 tensors (matmul, linear, attention, linear_scan, delta_scan) that this thread
/// calls: that of its innermost PrecisionScope, or else that of the process. Weights, gradients, results and all other
/// operations stay f32. The precision has no effect on products of f64, on products with one row or one column (these
/// are memory-bound), on scans with a decay per channel, and on gradients of decays.
///
/// On processors with AMX large products of f32 are made of six products of bf16 (ops/gemm/rungs/amx_f32.cpp). Their
/// errors are those of fused multiply-adds, and a little more near the least normal number, 2⁻¹²⁶. Beside roundings,
/// which are relative, Σ a_p·b_p over k numbers is off by up to 2⁻¹²³·k, by 2⁻¹²⁶·|b_p| for each a_p ≠ 0 below 2⁻¹⁰³,
/// and by 2⁻¹²⁶·|a_p| for each b_p ≠ 0 below 2⁻¹⁰³. (Multiply-adds that flush denormals: 2⁻¹²⁶·k, and only below
/// 2⁻¹²⁶.) With SLUICE_ISA=avx512 these products are computed by multiply-adds.
///
/// AMX, AVX-512 BF16 and BFMMLA flush denormals in every mode. After set_flush_denormals(false) no product uses them,
/// in f32 or bf16.
///
/// A product of a backward pass uses the precision in force when it runs; a product that checkpoint() computes again
/// uses that of the forward pass. On processors with AMX tiles bf16 is up to ten times as fast as f32, with AVX-512
/// BF16 up to twice as fast; on arm64 with BFMMLA one instruction does the work of four. Elsewhere operands are rounded
/// to the same values, and results differ in the rounding of sums.
Precision precision();
/// The precision of products of tensors of dtype t: always bf16 for tensors of bf16, else precision().
inline Precision precision_of(DType t) { return t == bf16 ? Precision::bf16 : precision(); }
/// Sets the precision of the process. Must not be called while another thread computes.
void set_precision(Precision p);

/// Sets the precision of this thread during its life:
///
///     {
///       PrecisionScope scope(Precision::bf16);
///       backward(loss(model(x)));
///     }
struct PrecisionScope : detail::Restored<int> {
  /// Sets p, and at its end what was set before.
  [[nodiscard]] explicit PrecisionScope(Precision p);
};

}  // namespace sluice
