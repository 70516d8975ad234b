// How exactly products are computed.
#pragma once

#include <sluice/core/dtype.h>

namespace sluice {

enum class Precision {
  f32,   ///< as their operands are: the default
  bf16,  ///< operands rounded to bf16 (8 bits of mantissa), sums in f32
};

/// The precision of products of f32 tensors (matmul, linear, attention, linear_scan) that this thread calls: that of its
/// innermost PrecisionScope, or else of the process. All else stays f32, and so do weights, gradients and results; products of
/// f64, and those with one row or one column, which memory limits, never change.
///
/// On processors with AMX large products of f32 are made of six products of bf16 (ops/gemm/amx_f32.cpp), with errors as
/// those of fused multiply-adds; SLUICE_ISA=avx512 has them computed by these.
///
/// A product of a backward pass goes by the precision in force when it runs. On processors with AMX tiles bf16 is up to
/// ten times as fast as f32; elsewhere operands are rounded to the same values, and results differ in the rounding of
/// sums.
Precision precision();
/// Of products of tensors of a dtype: those of bf16 have operands of bf16 whatever the precision.
inline Precision precision_of(DType t) { return t == bf16 ? Precision::bf16 : precision(); }
/// Of the process. Not to be called while another thread computes.
void set_precision(Precision p);

/// The precision of this thread while it lives:
///
///     {
///       PrecisionScope scope(Precision::bf16);
///       backward(loss(model(x)));
///     }
class PrecisionScope {
 public:
  explicit PrecisionScope(Precision p);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  int before_;
};

}  // namespace sluice
