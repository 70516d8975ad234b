// Products of matrices by the vendor's library: cuBLASLt, loaded at first use (blas.cu); on the emulated device,
// Sluice's own GEMM (blas_emulated.cpp). Without a library, the kernel of gemm.cuh computes products.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/ops/gemm/operand.h>

namespace sluice::cuda {

/// c [n, m] = a [n, k] · b [k, m] + bias [m] (no bias for f64) for each of `batch` matrices, row-major; strides between
/// matrices count numbers.
struct BlasProduct {
  DType dtype;   // of a and b: f32, f64 or bf16
  DType result;  // of c and bias: equal to dtype, or f32 if dtype is bf16
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
  int64_t c_ld = 0;         // from row to row of c; 0: m
  bool any_size = false;    // the emulated device leaves small products to gemm.cuh, to test it; not these
};
/// Computes the product. False if it cannot: there is no library, or none of its kernels takes these sizes.
bool blas(const BlasProduct& p);

}  // namespace sluice::cuda
