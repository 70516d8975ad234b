// matmul's kernel for bf16.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/ops/gemm/operand.h>

namespace sluice::detail {

/// c [batch…, n, m] = a·b + bias, none empty; a and b have c's batch dims, and are read as told. Sums are f32 over all of
/// k; each is rounded once.
void matmul_bf16(const Tensor& a, Operand left, const Tensor& b, Operand right, const Tensor& bias, Tensor& c);
/// The same for one product of few rows or of one column (operands as ops/few_rows.h wants them).
void few_rows_bf16(const Tensor& a, Operand left, const Tensor& b, Operand right, const Tensor& bias, Tensor& c, bool column);

}  // namespace sluice::detail
