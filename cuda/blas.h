// Products of matrices by the vendor's library: cuBLASLt, loaded when it is first needed (blas.cu); on the emulated device
// by Sluice's own GEMM (blas_emulated.cpp). Where there is no library, the kernel of gemm.cuh serves.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/ops/gemm/operand.h>

namespace sluice::cuda {

/// c [n, m] = a [n, k] · b [k, m] + bias [m] (not f64) for each of `batch` matrices, row-major; strides between matrices in numbers.
struct BlasProduct {
  DType dtype;   // of a and b: f32, f64 or bf16
  DType result;  // of c and bias: the same, or f32 of bf16
  int64_t n, m, k;
  const void* a;
  sluice::detail::Operand left;
  const void* b;
  sluice::detail::Operand right;
  const void* bias;  // or null
  void* c;
  int64_t batch = 1, a_stride = 0, b_stride = 0, c_stride = 0;
  Precision precision = Precision::f32;
  bool accumulate = false;  // c += instead of c =
};
/// False if it cannot: no library, or none of its kernels takes these sizes.
bool blas(const BlasProduct& p);

}  // namespace sluice::cuda
