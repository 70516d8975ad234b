// Sums over ranks, always in the order of ranks: ((x0 + x1) + x2) + …. So the same ranks give the same bits, however
// the values were split and sent.
#pragma once

#include <sluice/core/dtype.h>

#include <cstddef>
#include <vector>

namespace sluice {

enum class ReduceOp { sum, max, min };

namespace detail {
/// y[i] = the op over pieces[0][i], pieces[1][i], …, n values each; y may be one of the pieces. bf16 is added in f32
/// and rounded once. A NaN makes max and min NaN. DTypeError naming `op` unless f32, f64, bf16 or i64.
void reduce_pieces(const char* op, ReduceOp how, DType dtype, const std::vector<const std::byte*>& pieces, std::byte* y,
                   int64_t n);
void check_reducible(const char* op, DType dtype);
}  // namespace detail
}  // namespace sluice
