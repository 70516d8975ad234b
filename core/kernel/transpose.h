// Transposes tile by tile, between strided views.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace sluice::detail {

/// Converts n neighbouring elements.
using ConvertRun = void (*)(const void* from, int64_t n, void* out);
/// Copies rows of whole lines of 64 bytes with stores that bypass the caches. Rows of the target are `to_step` bytes
/// apart.
void write_past_caches(const void* from, void* to, int64_t to_step, int64_t bytes, int64_t rows);

/// Interleaves the elements of a and b: lo from their first halves, hi from their second halves.
template <class V, std::size_t... i>
[[gnu::always_inline]] inline void interleave(V a, V b, V& lo, V& hi, std::index_sequence<i...>) {
  constexpr int n = sizeof...(i);
  lo = __builtin_shufflevector(a, b, (i % 2 * n + i / 2)...);
  hi = __builtin_shufflevector(a, b, (i % 2 * n + n / 2 + i / 2)...);
}

/// to[c][r] = from[r][c] for n rows r and n columns c, where n elements fill a register of 16 bytes, which every
/// processor has.
template <class T>
[[gnu::always_inline]] inline void transpose_registers(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  constexpr int n = 16 / sizeof(T);
  typedef T V __attribute__((vector_size(16)));
  V x[n], y[n];
  for (int r = 0; r < n; ++r) std::memcpy(&x[r], from + r * from_stride, 16);
#pragma GCC unroll 4
  for (int done = 1; done < n; done *= 2) {
#pragma GCC unroll 8
    for (int k = 0; k < n / 2; ++k)
      interleave(x[k], x[k + n / 2], y[2 * k], y[2 * k + 1], std::make_index_sequence<n>());
#pragma GCC unroll 16
    for (int k = 0; k < n; ++k) x[k] = y[k];
  }
  for (int r = 0; r < n; ++r) std::memcpy(to + r * to_stride, &x[r], 16);
}

/// to [n, rows] = x [rows, n]: rows that are short and follow one another.
template <class T> void transpose_rows(const T* __restrict__ x, int64_t rows, int64_t n, T* __restrict__ to) {
  constexpr int64_t side = 16 / sizeof(T);
  const int64_t squares = rows / side * side;
  int64_t i = 0;
  for (; i + side <= n; i += side)
    for (int64_t r = 0; r < squares; r += side) transpose_registers(x + r * n + i, n, to + i * rows + r, rows);
  for (int64_t r = squares; r < rows; ++r)
    for (int64_t k = 0; k < i; ++k) to[k * rows + r] = x[r * n + k];
  for (; i < n; ++i)
    for (int64_t r = 0; r < rows; ++r) to[i * rows + r] = x[r * n + i];
}

/// to[c·rows + r] = from[r·from_stride + c] for a number of rows that the compiler knows: planes become pixels. Returns
/// the number of columns.
template <int rows, class T>
int64_t interleave_rows(const T* __restrict__ from, int64_t from_stride, T* __restrict__ to, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c)
    for (int r = 0; r < rows; ++r) to[c * rows + r] = from[r * from_stride + c];
  return cols;
}

/// A piece of a transpose: to[c·to_stride + r] = from[r·from_stride + c], converted where `convert` is not null.
template <class T> struct Transpose {
  static constexpr int64_t kSide = sizeof(T) == 1 ? 128 : sizeof(T) == 8 ? 32 : 64;  // a tile of 8 or 16 KB fits in L1
  static constexpr int64_t kArea = kSide * kSide, kLine = 64 / sizeof(T);
  int64_t from_stride, to_stride;
  ConvertRun convert;
  int64_t to_size;  // bytes of an element of the target
  bool stream;      // write past the caches: saves reading a target that the caches would not keep

  /// Builds the tile in L1, so that lines are read and written whole and once. `next`: another tile continues the rows
  /// of this one and is prefetched.
  void tile(const T* from, std::byte* to, int64_t rows, int64_t cols, bool next) const {
    constexpr int64_t n = 16 / sizeof(T);
    alignas(64) T buffer[kArea];
    const int64_t whole_cols = cols - cols % n;
    for (int64_t r = 0; r < rows; r += n) {
      const int64_t some = std::min(n, rows - r);
      if (next)
        for (int64_t k = r; k < r + some; ++k)
          for (int64_t at = 0; at < cols; at += kLine) __builtin_prefetch(from + k * from_stride + cols + at);
      int64_t c = 0;
      if (some == n)
        for (; c < whole_cols; c += n)
          transpose_registers(from + r * from_stride + c, from_stride, buffer + c * rows + r, rows);
      else if (rows == 2) c = interleave_rows<2>(from, from_stride, buffer, cols);
      else if (rows == 3) c = interleave_rows<3>(from, from_stride, buffer, cols);
      for (; c < cols; ++c)
        for (int64_t k = r; k < r + some; ++k) buffer[c * rows + k] = from[k * from_stride + c];
    }
    const int64_t bytes = rows * static_cast<int64_t>(sizeof(T));
    if (stream && bytes % 64 == 0) return write_past_caches(buffer, to, to_stride * to_size, bytes, cols);
    if (to_stride == rows) return write(buffer, to, cols * rows);
    for (int64_t c = 0; c < cols; ++c) {
      std::byte* const line = to + c * to_stride * to_size;
      if (next)
        for (int64_t at = 0; at < rows * to_size; at += 64)
          __builtin_prefetch(line + cols * to_stride * to_size + at, 1);
      write(buffer + c * rows, line, rows);
    }
  }

 private:
  void write(const T* from, std::byte* to, int64_t n) const {
    if (convert) return convert(from, n, to);
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
  }
};

}  // namespace sluice::detail
