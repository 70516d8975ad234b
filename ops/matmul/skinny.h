// Products with few rows, as in a decoding step. Each number of b is read once and used at once: the product is
// memory-bound, and packing or copying b would only add traffic.
#pragma once

#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <cstring>

namespace sluice::detail {

/// c [n, m] = a·b + bias in parallel, for n <= kSkinnyRows. b [k, m], or its transpose [m, k], with leading dimension
/// ldb; bias [m] or null. The same bits for any number of threads. B is T, or BFloat16 if T is float.
template <class T, class B>
void skinny_matmul(Trans tb, int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb,
                   const T* bias, T* c, int64_t ldc);

/// c [n, m] = scale · a bᵀ, b [m, k]. kFar: b comes from memory.
template <bool kFar = false, class T, class B>
void skinny_dots(int64_t n, int64_t m, int64_t k, T scale, const T* a, int64_t lda, const B* b, int64_t ldb, T* c,
                 int64_t ldc) {
  constexpr int lanes = kRowLanes;
  using V [[gnu::vector_size(16)]] = T;
  constexpr int kParts = lanes * sizeof(T) / sizeof(V);
  const int64_t whole = k - k % lanes;
  const int64_t ahead = kFar ? std::max<int64_t>(4 * ldb, 16384 / sizeof(B)) : 4 * ldb;
  int64_t j = 0;
  for (; j + 4 <= m; j += 4) {  // with four independent sums, adds wait less for one another
    const B *b0 = b + j * ldb, *b1 = b0 + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;
    for (int64_t r = 0; r < n; ++r) {
      const T* x = a + r * lda;
      T s0[lanes] = {}, s1[lanes] = {}, s2[lanes] = {}, s3[lanes] = {};
      const auto add = [&](int64_t l, int i) {
        s0[i] += x[l + i] * T(b0[l + i]), s1[i] += x[l + i] * T(b1[l + i]);
        s2[i] += x[l + i] * T(b2[l + i]), s3[i] += x[l + i] * T(b3[l + i]);
      };
      for (int64_t l = 0; l < whole; l += lanes) {
        // The next four rows: the processor does not look ahead over the end of a page of 4 KB. From memory they come
        // faster by L2, and from 16 KiB ahead.
        if (r == 0)
          for (const B* row : {b0, b1, b2, b3})
            for (int i = 0; i < lanes; i += 64 / sizeof(B)) {
              if constexpr (kFar) __builtin_prefetch(row + ahead + l + i, 0, 2);
              else __builtin_prefetch(row + ahead + l + i);
            }
        for (int i = 0; i < lanes; ++i) add(l, i);
      }
      int64_t l = whole;  // the rest as in lanes_joined()
      if (l + 8 <= k) {
        for (int i = 0; i < 8; ++i) add(l, i);
        l += 8;
      }
      if (l + 4 <= k) {
        for (int i = 0; i < 4; ++i) add(l, i);
        l += 4;
      }
      for (int i = 0; i < k - l; ++i) add(l, i);
      T* to = c + r * ldc + j;
      for (const T* lane : {s0, s1, s2, s3}) {
        V part[kParts];  // by registers: GCC would add the lanes of arrays one by one
        std::memcpy(part, lane, sizeof part);
        for (int half = kParts / 2; half > 0; half /= 2)
          for (int i = 0; i < half; ++i) part[i] += part[i + half];
        if constexpr (sizeof(T) == 4) *to++ = scale * ((part[0][0] + part[0][2]) + (part[0][1] + part[0][3]));
        else *to++ = scale * (part[0][0] + part[0][1]);
      }
    }
  }
  for (; j < m; ++j)
    for (int64_t r = 0; r < n; ++r) {
      const auto term = [x = a + r * lda, y = b + j * ldb](int64_t i) { return x[i] * T(y[i]); };
      c[r * ldc + j] = scale * lanes_joined<lanes>(k, T(0), term, [](T sum, T by) { return sum + by; });
    }
}

/// c [n, m] += a b, b [k, m].
template <class T, class B>
void skinny_sums(int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb, T* c, int64_t ldc) {
  constexpr int64_t kRows = 4;  // rows of b at a time: each sum is loaded and stored once for the four
  int64_t l = 0;
  for (; l + kRows <= k; l += kRows) {
    const B *b0 = b + l * ldb, *b1 = b0 + ldb, *b2 = b1 + ldb, *b3 = b2 + ldb;
    for (int64_t r = 0; r < n; ++r) {
      const T* w = a + r * lda + l;
      const T w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
      T* __restrict__ to = c + r * ldc;
      for (int64_t j = 0; j < m; ++j) to[j] += (w0 * T(b0[j]) + w1 * T(b1[j])) + (w2 * T(b2[j]) + w3 * T(b3[j]));
    }
  }
  for (; l < k; ++l)
    for (int64_t r = 0; r < n; ++r) {
      const T w = a[r * lda + l];
      const B* from = b + l * ldb;
      T* __restrict__ to = c + r * ldc;
      for (int64_t j = 0; j < m; ++j) to[j] += w * T(from[j]);
    }
}

}  // namespace sluice::detail
