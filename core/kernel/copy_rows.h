// Copies runs and rows of elements, between strided views.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sluice::detail {

/// memcpy that is equally fast for every distance between source and target.
inline void copy_bytes(const void* from, void* to, int64_t bytes) {
  constexpr int64_t kPiece = 512, kPage = 4096;
  const auto* f = static_cast<const std::byte*>(from);
  auto* t = static_cast<std::byte*>(to);
  if (bytes > kPiece) {
    // memcpy copies longer pieces with rep movsb, which takes 12 times as long on Zen where (target − source) mod 4 KB
    // is from 1 to 63: loads then wait for stores.
    const auto behind = (reinterpret_cast<std::uintptr_t>(t) - reinterpret_cast<std::uintptr_t>(f)) % kPage;
    for (; behind > 0 && behind < 64 && bytes > kPiece; bytes -= kPiece, f += kPiece, t += kPiece)
      std::memcpy(t, f, kPiece);
  }
  std::memcpy(t, f, static_cast<std::size_t>(bytes));
}

/// Copies n elements, `stride` apart in the source.
template <class T> void copy_run(const T* from, int64_t stride, int64_t n, T* out) {
  if (stride == 1) copy_bytes(from, out, n * static_cast<int64_t>(sizeof(T)));
  else if (stride == 0) std::fill_n(out, n, *from);
  else if (stride == -1)  // flipped
    for (int64_t i = 0; i < n; ++i) out[i] = from[-i];
  else if (stride == 2)  // every second number: this loop becomes shuffles, the last one reads number by number
    for (int64_t i = 0; i < n; ++i) out[i] = from[2 * i];
  else
    for (int64_t i = 0; i < n; ++i) out[i] = from[i * stride];
}

template <std::size_t bytes, class T>
void copy_dense_rows(const T* from, int64_t next_f, T* to, int64_t next_t, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) std::memcpy(to + r * next_t, from + r * next_f, bytes);
}
/// Copies rows of `bytes` bytes in pieces, the last of which may overlap the one before. Not inlined, so that the other
/// loops of copy_rows() are.
template <int64_t piece, class T>
[[gnu::noinline]] void copy_rows_in_pieces(const T* from, int64_t next_f, T* to, int64_t next_t, int64_t rows,
                                           int64_t bytes) {
  for (int64_t r = 0; r < rows; ++r, from += next_f, to += next_t) {
    const auto* f = reinterpret_cast<const std::byte*>(from);
    auto* t = reinterpret_cast<std::byte*>(to);
    for (int64_t at = 0; at + piece < bytes; at += piece) std::memcpy(t + at, f + at, piece);
    std::memcpy(t + bytes - piece, f + bytes - piece, piece);
  }
}
/// Copies rows of n elements, f apart in the source and t in the target.
template <class T>
void copy_rows(const T* from, int64_t next_f, int64_t f, T* to, int64_t next_t, int64_t t, int64_t rows, int64_t n) {
  if (f == 1 && t == 1) {  // rows of heads, channels or pictures: a call per row would take longer than the copy
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    if (bytes == 32) return copy_dense_rows<32>(from, next_f, to, next_t, rows);
    if (bytes == 64) return copy_dense_rows<64>(from, next_f, to, next_t, rows);
    if (bytes == 128) return copy_dense_rows<128>(from, next_f, to, next_t, rows);
    if (bytes == 256) return copy_dense_rows<256>(from, next_f, to, next_t, rows);
    if (bytes > 64 && bytes <= 512) return copy_rows_in_pieces<64>(from, next_f, to, next_t, rows, bytes);
    if (bytes > 16 && bytes < 64) return copy_rows_in_pieces<16>(from, next_f, to, next_t, rows, bytes);
    for (int64_t r = 0; r < rows; ++r) copy_bytes(from + r * next_f, to + r * next_t, bytes);
    return;
  }
  if (f == 0 && t == 1 && n % 8 == 0) {  // each source number fills a short row, eight places at a time
    for (int64_t r = 0; r < rows; ++r, from += next_f, to += next_t)
      for (int64_t i = 0; i < n; i += 8) std::fill_n(to + i, 8, *from);
    return;
  }
  for (int64_t r = 0; r < rows; ++r, from += next_f, to += next_t) {
    if (t == 1) copy_run(from, f, n, to);
    else
      for (int64_t k = 0; k < n; ++k) to[k * t] = from[k * f];
  }
}

}  // namespace sluice::detail
