// matmul's kernel for bf16.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/ops/gemm/operand.h>

namespace sluice::detail {

/// c [batch…, n, m] = a·b + bias; neither c nor k is empty. a and b have c's batch dims; `left` and `right` say how
/// their matrices are read. Sums are f32 over all of k; each is rounded once.
void matmul_bf16(const Tensor& a, Operand left, const Tensor& b, Operand right, const Tensor& bias, Tensor& c);
/// The same for one product with few rows or, if `column`, with one column; operands as ops/few_rows.h needs them.
void few_rows_bf16(const Tensor& a, Operand left, const Tensor& b, Operand right, const Tensor& bias, Tensor& c, bool column);

}  // namespace sluice::detail
