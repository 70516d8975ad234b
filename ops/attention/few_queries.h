// Products of a few rows, as a step of decoding has them: each key and value is read once and used at once, so that
// memory sets the pace and packing would only add to it.
#pragma once

#include <sluice/ops/rows.h>

namespace sluice::detail {

/// More rows than this are work for gemm. So many queries, or fewer, also share their keys among threads.
inline constexpr int64_t kFewQueries = 4;

/// s [rows, cols] = scale · q kᵀ, q [rows, d], k [cols, d]; *_row: elements from one row to the next.
template <class T>
void few_scores(int64_t rows, int64_t cols, int64_t d, T scale, const T* q, int64_t q_row, const T* k, int64_t k_row,
                T* s, int64_t s_row) {
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t r = 0; r < rows; ++r) s[r * s_row + j] = scale * row_dot(q + r * q_row, k + j * k_row, d);
}

/// acc [rows, dv] += p v, p [rows, cols], v [cols, dv].
template <class T>
void few_sums(int64_t rows, int64_t cols, int64_t dv, const T* p, int64_t p_row, const T* v, int64_t v_row, T* acc,
              int64_t acc_row) {
  constexpr int64_t kKeys = 4;  // at a time: sums are loaded and stored once for all
  int64_t j = 0;
  for (; j + kKeys <= cols; j += kKeys) {
    const T *v0 = v + j * v_row, *v1 = v0 + v_row, *v2 = v1 + v_row, *v3 = v2 + v_row;
    for (int64_t r = 0; r < rows; ++r) {
      const T* w = p + r * p_row + j;
      const T w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
      T* __restrict__ to = acc + r * acc_row;
      for (int64_t c = 0; c < dv; ++c) to[c] += (w0 * v0[c] + w1 * v1[c]) + (w2 * v2[c] + w3 * v3[c]);
    }
  }
  for (; j < cols; ++j)
    for (int64_t r = 0; r < rows; ++r) {
      const T w = p[r * p_row + j];
      const T* from = v + j * v_row;
      T* __restrict__ to = acc + r * acc_row;
      for (int64_t c = 0; c < dv; ++c) to[c] += w * from[c];
    }
}

}  // namespace sluice::detail
