// Products with few rows, as in a decoding step. Each number of b is read once and used at once: the product is
// memory-bound, and packing or copying b would only add traffic.
#pragma once

#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace sluice::detail {

/// c [n, m] = a·b + bias in parallel, for few rows. b [k, m], or its transpose [m, k], with leading dimension ldb; bias
/// [m] or null. The same bits for any number of threads. B is T, or BFloat16 if T is float.
template <class T, class B>
void skinny_matmul(Trans tb, int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb,
                   const T* bias, T* c, int64_t ldc);

/// Calls f(first, count) for some of n rows at a time; `count`, at most 4, is a constant.
template <class F> void each_few(int64_t n, F f) {
  for (int64_t r = 0; r < n; r += 4)
    if (n - r >= 4) f(r, std::integral_constant<int, 4>());
    else if (n - r == 3) f(r, std::integral_constant<int, 3>());
    else if (n - r == 2) f(r, std::integral_constant<int, 2>());
    else f(r, std::integral_constant<int, 1>());
}

/// 64 bytes of T: a loop over an array for each of several sums would go through memory.
template <class T> struct Line { using type [[gnu::vector_size(64)]] = T; };
/// `count` numbers, and zeros, as T.
template <class T, class B> inline void read_line(const B* from, int64_t count, typename Line<T>::type& to) {
  if constexpr (sizeof(B) == sizeof(T)) {
    to = typename Line<T>::type{};
    std::memcpy(&to, from, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    using Bits [[gnu::vector_size(32)]] = uint16_t;
    Bits bits{};
    std::memcpy(&bits, from, static_cast<std::size_t>(count) * sizeof(B));
    to = reinterpret_cast<typename Line<T>::type>(__builtin_convertvector(bits, typename Line<uint32_t>::type) << 16);
  }
}

/// How far ahead a b from memory is fetched: whole rows, at least `rows` of them and 16 KiB. By L2 it comes faster.
template <class B> int64_t far_ahead(int64_t rows, int64_t ldb) {
  return ldb > 0 ? std::max(rows, ceil_div(16384 / int64_t{sizeof(B)}, ldb)) * ldb : 0;  // 0: rows without numbers
}

/// skinny_dots() of R rows. Several rows share a number of b that has been read and converted.
template <int R, bool kFar, class T, class B>
void dots_of_rows(int64_t m, int64_t k, T scale, const T* a, int64_t lda, const B* b, int64_t ldb, T* c, int64_t ldc) {
  using V [[gnu::vector_size(16)]] = T;
  constexpr int kCols = R > 2 ? 2 : 4;  // with 4 to 8 independent sums, adds wait less for one another
  constexpr int64_t lanes = kRowLanes, kLine = 64 / sizeof(T), kLines = lanes / kLine;
  const int64_t ahead = kFar ? far_ahead<B>(kCols, ldb) : kCols * ldb;
  int64_t j = 0;
  for (; j + kCols <= m; j += kCols, b += kCols * ldb) {
    typename Line<T>::type sum[R][kCols][kLines] = {};
    const auto add = [&](int64_t l, int64_t count) {
#pragma GCC unroll 4
      for (int col = 0; col < kCols; ++col)
        for (int part = 0; part < kLines && part * kLine < count; ++part) {
          const int64_t at = l + part * kLine, some = std::min(count - part * kLine, kLine);
          typename Line<T>::type x, y;
          read_line<T>(b + col * ldb + at, some, y);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) read_line<T>(a + r * lda + at, some, x), sum[r][col][part] += x * y;
        }
    };
    int64_t l = 0;
    for (; l + lanes <= k; l += lanes) {
      // The next rows: the processor does not look ahead over the end of a page of 4 KB.
      for (int col = 0; col < kCols; ++col)
        for (int i = 0; i < lanes; i += 64 / sizeof(B)) {
          if constexpr (kFar) __builtin_prefetch(b + col * ldb + ahead + l + i, 0, 2);
          else __builtin_prefetch(b + col * ldb + ahead + l + i);
        }
      add(l, lanes);
    }
    // The rest as in lanes_joined().
    if (l + 8 <= k) add(l, 8), l += 8;
    if (l + 4 <= k) add(l, 4), l += 4;
    if (l < k) add(l, k - l);
    for (int r = 0; r < R; ++r)
      for (int col = 0; col < kCols; ++col) {
        V part[lanes * sizeof(T) / sizeof(V)];  // by registers: GCC would add the lanes of arrays one by one
        std::memcpy(part, sum[r][col], sizeof part);
        for (int half = lanes * sizeof(T) / sizeof(V) / 2; half > 0; half /= 2)
          for (int i = 0; i < half; ++i) part[i] += part[i + half];
        if constexpr (sizeof(T) == 4)
          c[r * ldc + j + col] = scale * ((part[0][0] + part[0][2]) + (part[0][1] + part[0][3]));
        else c[r * ldc + j + col] = scale * (part[0][0] + part[0][1]);
      }
  }
  for (; j < m; ++j, b += ldb)
    for (int r = 0; r < R; ++r) {
      const auto term = [x = a + r * lda, b](int64_t i) { return x[i] * T(b[i]); };
      c[r * ldc + j] = scale * lanes_joined<kRowLanes>(k, T(0), term, [](T sum, T by) { return sum + by; });
    }
}

/// c [n, m] = scale · a bᵀ, b [m, k]. kFar: b comes from memory.
template <bool kFar = false, class T, class B>
void skinny_dots(int64_t n, int64_t m, int64_t k, T scale, const T* a, int64_t lda, const B* b, int64_t ldb, T* c,
                 int64_t ldc) {
  each_few(n, [&](int64_t r, auto rows) {
    dots_of_rows<rows, kFar>(m, k, scale, a + r * lda, lda, b, ldb, c + r * ldc, ldc);
  });
}

/// skinny_sums() of R rows.
template <int R, bool kFar, class T, class B>
void sums_of_rows(int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb, T* c, int64_t ldc) {
  constexpr int kRows = 4;  // rows of b at a time: each sum is loaded and stored once for the four
  constexpr int64_t kLine = 64 / sizeof(T);
  const int64_t ahead = far_ahead<B>(32, ldb);
  int64_t l = 0;
  for (; l + kRows <= k; l += kRows, b += kRows * ldb) {
    T w[R][kRows];
    for (int r = 0; r < R; ++r) std::copy_n(a + r * lda + l, kRows, w[r]);
    const auto add = [&](int64_t j, int64_t count) {
      typename Line<T>::type y[kRows], sum;
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        if constexpr (kFar) __builtin_prefetch(b + i * ldb + ahead + j, 0, 2);
        read_line<T>(b + i * ldb + j, count, y[i]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        T* const to = c + r * ldc + j;
        read_line<T>(to, count, sum);
        sum += (w[r][0] * y[0] + w[r][1] * y[1]) + (w[r][2] * y[2] + w[r][3] * y[3]);
        std::memcpy(to, &sum, static_cast<std::size_t>(count) * sizeof(T));
      }
    };
    int64_t j = 0;
    for (; j + kLine <= m; j += kLine) add(j, kLine);
    if (j < m) add(j, m - j);
  }
  for (; l < k; ++l, b += ldb)
    for (int r = 0; r < R; ++r) {
      const T w = a[r * lda + l];
      T* __restrict__ to = c + r * ldc;
      for (int64_t j = 0; j < m; ++j) to[j] += w * T(b[j]);
    }
}

/// c [n, m] += a b, b [k, m]. kFar: b comes from memory.
template <bool kFar = false, class T, class B>
void skinny_sums(int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb, T* c, int64_t ldc) {
  each_few(n,
           [&](int64_t r, auto rows) { sums_of_rows<rows, kFar>(m, k, a + r * lda, lda, b, ldb, c + r * ldc, ldc); });
}

}  // namespace sluice::detail
