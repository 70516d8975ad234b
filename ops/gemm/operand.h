// Matrices in tensors of any layout, as GEMM reads them.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/ops/gemm/gemm.h>

#include <algorithm>
#include <climits>
#include <optional>

namespace sluice::detail {

/// One matrix as GEMM reads it: row-major with leading dimension ld, or its transpose.
struct Operand {
  Trans trans = Trans::no;
  int64_t ld = 1;
  int64_t at(int64_t row, int64_t col) const { return trans == Trans::no ? row * ld + col : col * ld + row; }
};

/// Returns how the last two dims of x are read without a copy, or nullopt if they need one.
inline std::optional<Operand> operand(const Tensor& x) {
  const int r = x.rank();
  const int64_t rows = x.shape()[r - 2], cols = x.shape()[r - 1];
  const int64_t rs = x.strides()[r - 2], cs = x.strides()[r - 1];
  // Lines of `width` numbers, `step` apart: they must not overlap, and BLAS takes an int.
  const auto apart = [](int64_t step, int64_t width) { return step >= std::max<int64_t>(1, width) && step <= INT_MAX; };
  if ((cs == 1 || cols <= 1) && (rows <= 1 || apart(rs, cols)))
    return Operand{Trans::no, rows <= 1 ? std::max<int64_t>(1, cols) : rs};
  if ((rs == 1 || rows <= 1) && (cols <= 1 || apart(cs, rows)))
    return Operand{Trans::yes, cols <= 1 ? std::max<int64_t>(1, rows) : cs};
  return std::nullopt;
}

/// True if a CPU cannot multiply matrices [n, k] · [k, m]: BLAS counts rows and columns by int.
inline bool beyond_blas(Device device, int64_t n, int64_t k, int64_t m) {
  return device == cpu && k > 0 && std::max({n, k, m}) > INT_MAX;
}

}  // namespace sluice::detail
