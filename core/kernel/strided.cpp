#include <sluice/core/kernel/strided.h>

#include <sluice/core/kernel/parallel.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sluice::detail {

namespace {

/// Runs of fewer elements are read and copied column by column: the inner loop goes along the dim before.
constexpr int64_t kShort = 7;
bool has_short_runs(const StridedRange& w) { return w.rank > 1 && w.shape[w.rank - 1] < kShort; }

template <class T> void copy_run(const T* from, int64_t stride, int64_t n, T* out) {
  if (stride == 1) std::memcpy(out, from, static_cast<std::size_t>(n) * sizeof(T));
  else if (stride == 0) std::fill_n(out, n, *from);
  else if (stride == -1)  // flipped
    for (int64_t i = 0; i < n; ++i) out[i] = from[-i];
  else if (stride == 2)  // every second number: shuffles, where the last loop reads one after the other
    for (int64_t i = 0; i < n; ++i) out[i] = from[2 * i];
  else
    for (int64_t i = 0; i < n; ++i) out[i] = from[i * stride];
}

/// Calls run(element offset, stride, count, position) for the inner runs of [start, start+n).
template <class Run> void for_each_run(const StridedRange& w, int64_t start, int64_t n, Run run) {
  if (w.rank == 0) {
    if (n > 0) run(int64_t{0}, int64_t{1}, n, int64_t{0});
    return;
  }
  int64_t index[kMaxRank], offset = 0;
  for (int d = w.rank - 1; d >= 0; start /= w.shape[d], --d)
    index[d] = start % w.shape[d], offset += index[d] * w.strides[d];
  const int last = w.rank - 1;
  for (int64_t done = 0; done < n;) {
    int64_t count = std::min(w.shape[last] - index[last], n - done);
    run(offset, w.strides[last], count, done);
    done += count;
    index[last] += count;
    offset += count * w.strides[last];
    for (int d = last; d > 0 && index[d] == w.shape[d]; --d) {
      offset += w.strides[d - 1] - w.shape[d] * w.strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

/// Elements [start, start+n) of a range whose last dim is short: column c of run r is element r·width + c.
template <class T> void read_columns(const StridedRange& w, const T* from, int64_t start, int64_t n, T* out) {
  StridedRange others = w;
  const int last = --others.rank;
  const int64_t width = w.shape[last];
  for (int64_t c = 0; c < width; ++c) {
    const int64_t first = (start + width - 1 - c) / width, end = (start + n + width - 1 - c) / width;
    for_each_run(others, first, end - first, [=](int64_t offset, int64_t stride, int64_t count, int64_t at) {
      const T* source = from + offset + c * w.strides[last];
      T* to = out + ((first + at) * width + c - start);
      for (int64_t k = 0; k < count; ++k) to[k * width] = source[k * stride];
    });
  }
}

/// Elements [start, start+n) of a range.
template <class T> void read_range(const StridedRange& w, const T* from, int64_t start, int64_t n, T* out) {
  if (has_short_runs(w)) return read_columns(w, from, start, n, out);
  for_each_run(w, start, n, [=](int64_t offset, int64_t stride, int64_t count, int64_t at) {
    copy_run(from + offset, stride, count, out + at);
  });
}
/// Not inlined: there is one for each pair of dtypes.
template <class T, class S> [[gnu::noinline]] void convert_run(const S* from, int64_t n, T* out) {
  vectorised([=] {
    for (int64_t i = 0; i < n; ++i) out[i] = convert<T>(from[i]);
  });
}

// -- copies without conversion -------------------------------------------------------------------------------------

/// The dims of two layouts of one shape, slowest of the target first, merged where both allow it.
struct Move {
  int rank = 0;
  int64_t shape[kMaxRank], from[kMaxRank], to[kMaxRank];  // strides in elements

  Move(const Layout& source, const Layout& target) {
    int order[kMaxRank], n = 0;
    for (int d = 0; d < source.rank(); ++d) {
      if (source.shape[d] == 1) continue;
      int at = n++;
      const auto step = [&](int dim) { return std::abs(target.strides[dim]); };
      for (; at > 0 && step(order[at - 1]) < step(d); --at) order[at] = order[at - 1];
      order[at] = d;
    }
    for (int i = 0; i < n; ++i) {
      const int64_t size = source.shape[order[i]], f = source.strides[order[i]], t = target.strides[order[i]];
      if (rank > 0 && from[rank - 1] == f * size && to[rank - 1] == t * size) {
        shape[rank - 1] *= size, from[rank - 1] = f, to[rank - 1] = t;
      } else {
        shape[rank] = size, from[rank] = f, to[rank] = t, ++rank;
      }
    }
    if (rank == 0) rank = 1, shape[0] = 1, from[0] = to[0] = 1;
  }
  void remove(int d) {
    --rank;
    for (; d < rank; ++d) shape[d] = shape[d + 1], from[d] = from[d + 1], to[d] = to[d + 1];
  }
  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
};

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

/// A piece of a transpose: to[c·to_stride + r] = from[r·from_stride + c].
template <class T> struct Transpose {
  static constexpr int64_t kSide = sizeof(T) == 1 ? 128 : sizeof(T) == 8 ? 32 : 64;  // a tile of 8 or 16 KB fits in L1
  static constexpr int64_t kArea = kSide * kSide, kLine = 64 / sizeof(T);
  int64_t from_stride, to_stride;
  bool stream;  // past the caches: saves reading a target that the caches would not keep

  /// Builds the tile in L1, so that lines are read and written whole and once. `next`: another tile continues the rows
  /// of this one and is prefetched.
  void tile(const T* from, T* to, int64_t rows, int64_t cols, bool next) const {
    constexpr int64_t n = 16 / sizeof(T);
    alignas(64) T buffer[kArea];
    const int64_t whole_cols = cols - cols % n;
    for (int64_t r = 0; r < rows; r += n) {
      const int64_t some = std::min(n, rows - r);
      if (next)
        for (int64_t k = r; k < r + some; ++k)
          for (int64_t c = 0; c < cols; c += kLine) __builtin_prefetch(from + k * from_stride + cols + c);
      if (some == n)
        for (int64_t c = 0; c < whole_cols; c += n)
          transpose_registers(from + r * from_stride + c, from_stride, buffer + c * rows + r, rows);
      for (int64_t c = some == n ? whole_cols : 0; c < cols; ++c)
        for (int64_t k = r; k < r + some; ++k) buffer[c * rows + k] = from[k * from_stride + c];
    }
    if (to_stride == rows) return write(buffer, to, cols * rows);
    for (int64_t c = 0; c < cols; ++c) {
      if (next && !stream)
        for (int64_t r = 0; r < rows; r += kLine) __builtin_prefetch(to + (c + cols) * to_stride + r, 1);
      write(buffer + c * rows, to + c * to_stride, rows);
    }
  }

 private:
  void write(const T* from, T* to, int64_t n) const {
    int64_t i = 0;
#if defined(__SSE2__)
    if (stream)
      for (; i + kLine <= n; i += kLine)
        for (int64_t k = 0; k < kLine; k += 16 / sizeof(T))
          _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k),
                           _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + k)));
#endif
    std::memcpy(to + i, from + i, static_cast<std::size_t>(n - i) * sizeof(T));
  }
};

/// Each item of a move has `pieces` pieces. Calls run(first, last, from offset, to offset) for each item that has some
/// of the pieces [begin, end): those are its pieces [first, last).
template <class Run> void for_each_item(const Move& m, int64_t pieces, int64_t begin, int64_t end, Run run) {
  int64_t index[kMaxRank], f = 0, t = 0, item = begin / pieces;
  for (int d = m.rank - 1; d >= 0; item /= m.shape[d], --d)
    index[d] = item % m.shape[d], f += index[d] * m.from[d], t += index[d] * m.to[d];
  for (int64_t at = begin / pieces * pieces; at < end; at += pieces) {
    run(std::max(begin - at, int64_t{0}), std::min(end - at, pieces), f, t);
    for (int d = m.rank - 1; d >= 0; --d) {
      f += m.from[d], t += m.to[d];
      if (++index[d] < m.shape[d]) break;
      f -= m.from[d] * m.shape[d], t -= m.to[d] * m.shape[d], index[d] = 0;
    }
  }
}

/// Copies short runs, along the last dim of m, column by column.
template <class T> void copy_columns(const T* from, T* to, Move m) {
  constexpr int64_t kNear = 128;  // runs at a time, whose lines stay in L1
  const int last = m.rank - 1;
  const int64_t width = m.shape[last], f = m.from[last], t = m.to[last];
  const int64_t runs = m.shape[last - 1], next_f = m.from[last - 1], next_t = m.to[last - 1];
  const int64_t pieces = ceil_div(runs, kNear);
  m.remove(last), m.remove(last - 1);
  const int64_t grain = std::max<int64_t>(1, 64 * kTile / (std::min(runs, kNear) * width));
  parallel_for(m.count() * pieces, grain, [=](int64_t begin, int64_t end) {
    for_each_item(m, pieces, begin, end, [=](int64_t p, int64_t stop, int64_t from_at, int64_t to_at) {
      for (; p < stop; ++p) {
        const int64_t first = p * kNear, n = std::min(kNear, runs - first);
        for (int64_t c = 0; c < width; ++c) {
          const T* source = from + from_at + first * next_f + c * f;
          T* target = to + to_at + first * next_t + c * t;
          for (int64_t k = 0; k < n; ++k) target[k * next_t] = source[k * next_f];
        }
      }
    });
  });
}

/// Transposes the dims `across` and last, in tiles.
template <class T> void copy_transposed(const T* from, T* to, Move m, int across) {
  using Tiles = Transpose<T>;
  const int last = m.rank - 1;
  const int64_t run = m.shape[last], n = m.shape[across];
  Tiles tiles{m.from[last], m.to[across], false};
  int64_t rows = std::min(run, Tiles::kSide);
  const int64_t cols = std::min(n, Tiles::kArea / rows);
  rows = std::min(run, Tiles::kArea / cols);
  // Writes past the caches only if all lines are written whole.
  const auto in_lines = [](int64_t count) { return count % Tiles::kLine == 0; };
  tiles.stream = m.count() * static_cast<int64_t>(sizeof(T)) >= (int64_t{8} << 20) &&
                 reinterpret_cast<std::uintptr_t>(to) % 64 == 0 && in_lines(rows);
  for (int d = 0; d < last; ++d) tiles.stream &= in_lines(m.to[d]);
  m.remove(last), m.remove(across);
  const int64_t across_tiles = ceil_div(n, cols), each = across_tiles * ceil_div(run, rows);
  const int64_t grain = std::max<int64_t>(1, 64 * kTile / (rows * cols));
  parallel_for(m.count() * each, grain, [=](int64_t begin, int64_t end) {
    for_each_item(m, each, begin, end, [=](int64_t tile, int64_t stop, int64_t from_at, int64_t to_at) {
      for (; tile < stop; ++tile) {
        const int64_t r = tile / across_tiles * rows, c = tile % across_tiles * cols;
        tiles.tile(from + from_at + r * tiles.from_stride + c, to + to_at + c * tiles.to_stride + r,
                   std::min(rows, run - r), std::min(cols, n - c), c + 2 * cols <= n);
      }
    });
#if defined(__SSE2__)
    if (tiles.stream) _mm_sfence();
#endif
  });
}

/// Copies runs along the last dim, split where they are long.
template <class T> void copy_runs(const T* from, T* to, Move m) {
  const int last = m.rank - 1;
  const int64_t run = m.shape[last], f = m.from[last], t = m.to[last];
  const int64_t piece = std::min(run, 64 * kTile), pieces = ceil_div(run, piece);
  m.remove(last);
  parallel_for(m.count() * pieces, std::max<int64_t>(1, 64 * kTile / piece), [=](int64_t begin, int64_t end) {
    for_each_item(m, pieces, begin, end, [=](int64_t p, int64_t stop, int64_t from_at, int64_t to_at) {
      const int64_t first = p * piece, n = std::min(stop * piece, run) - first;
      const T* source = from + from_at + first * f;
      T* target = to + to_at + first * t;
      if (t == 1) copy_run(source, f, n, target);
      else
        for (int64_t k = 0; k < n; ++k) target[k * t] = source[k * f];
    });
  });
}

template <class T>
void copy_bits(const std::byte* from_bytes, const Layout& from_layout, std::byte* to_bytes, const Layout& to_layout) {
  if (from_layout.numel() == 0) return;
  const T* from = reinterpret_cast<const T*>(from_bytes);
  T* to = reinterpret_cast<T*>(to_bytes);
  const Move m(from_layout, to_layout);
  const int last = m.rank - 1;
  int across = last;  // the dim along which the source is contiguous, if only the target is along the last one
  if (m.to[last] == 1 && m.from[last] != 0 && m.from[last] != 1)
    for (int d = 0; d < last; ++d) {
      const bool fills = m.shape[d] * static_cast<int64_t>(sizeof(T)) >= 16;  // at least a register
      if (m.from[d] == 1 && fills && (across == last || m.shape[d] > m.shape[across])) across = d;
    }
  if (across != last) return copy_transposed(from, to, m, across);
  if (last > 0 && m.shape[last] < kShort && m.shape[last] < m.shape[last - 1]) return copy_columns(from, to, m);
  copy_runs(from, to, m);
}

}  // namespace

StridedRange::StridedRange(const Layout& l) {
  contiguous = l.is_contiguous();
  if (contiguous) {
    rank = 1, shape[0] = l.numel(), strides[0] = 1;
    return;
  }
  for (int i = 0; i < l.rank(); ++i) {
    if (l.shape[i] == 1) continue;
    if (rank > 0 && strides[rank - 1] == l.strides[i] * l.shape[i]) {
      shape[rank - 1] *= l.shape[i];
      strides[rank - 1] = l.strides[i];
    } else {
      shape[rank] = l.shape[i], strides[rank] = l.strides[i];
      ++rank;
    }
  }
  for (int d = 0; d < rank; ++d) wide |= shape[d] >> 32 != 0;
}

StridedRange::Run StridedRange::run(int64_t start) const {
  constexpr int64_t kLeast = 192;  // below, one copy of many runs is cheaper than a call for each run
  if (rank == 0 || strides[rank - 1] != 1 || shape[rank - 1] < kLeast) return {};
  Run r{shape[rank - 1] - start % shape[rank - 1], 0};
  for (int d = rank - 1; d >= 0; start /= shape[d], --d) r.offset += start % shape[d] * strides[d];
  return r;
}

bool reads_across(const Layout& l) {
  constexpr int64_t kLine = 16, kInCache = 1 << 13;  // elements
  const int last = l.rank() - 1;
  if (last < 1 || l.numel() < kInCache || l.shape[last] < kLine || std::abs(l.strides[last]) < kLine) return false;
  for (int d = 0; d < last; ++d)
    if (l.strides[d] == 1 && l.shape[d] >= kLine) return true;
  return false;
}

/// Not inlined, as a loop over tiles would have it once for each dtype of the source.
template <class T>
[[gnu::noinline]] void read_tile(const StridedRange& walk, const std::byte* base, DType dtype, int64_t start, int64_t n,
                                 T* out) {
  dispatch_all(dtype, [&]<class S>() {
    const S* from = reinterpret_cast<const S*>(base);
    if constexpr (std::is_same_v<T, S>) {
      vectorised([=, &walk] { read_range(walk, from, start, n, out); });
    } else if (walk.rank == 0 || (!has_short_runs(walk) && (walk.strides[walk.rank - 1] | 1) == 1)) {
      for_each_run(walk, start, n, [=](int64_t offset, int64_t stride, int64_t count, int64_t at) {
        if (stride == 1) convert_run(from + offset, count, out + at);
        else std::fill_n(out + at, count, convert<T>(from[offset]));
      });
    } else {  // gathered first: to do both at once would take a loop for each pair of dtypes
      S tile[kTile];
      for (int64_t i = 0; i < n; i += kTile) {
        const int64_t m = std::min(kTile, n - i);
        vectorised([=, &walk, &tile] { read_range(walk, from, start + i, m, tile); });
        convert_run(tile, m, out + i);
      }
    }
  });
}
template void read_tile(const StridedRange&, const std::byte*, DType, int64_t, int64_t, float*);
template void read_tile(const StridedRange&, const std::byte*, DType, int64_t, int64_t, double*);
template void read_tile(const StridedRange&, const std::byte*, DType, int64_t, int64_t, BFloat16*);
template void read_tile(const StridedRange&, const std::byte*, DType, int64_t, int64_t, int64_t*);
template void read_tile(const StridedRange&, const std::byte*, DType, int64_t, int64_t, int32_t*);
template void read_tile(const StridedRange&, const std::byte*, DType, int64_t, int64_t, bool*);

void copy_strided(const std::byte* from, const Layout& from_layout, DType from_type, std::byte* to,
                  const Layout& to_layout, DType to_type) {
  if (from_type == to_type) {
    switch (size_of(to_type)) {
      case 1: return copy_bits<uint8_t>(from, from_layout, to, to_layout);
      case 2: return copy_bits<uint16_t>(from, from_layout, to, to_layout);
      case 4: return copy_bits<uint32_t>(from, from_layout, to, to_layout);
      default: return copy_bits<uint64_t>(from, from_layout, to, to_layout);
    }
  }
  const StridedRange source(from_layout), target(to_layout);
  const int64_t n = from_layout.numel();
  dispatch_all(to_type, [&]<class T>() {
    T* out = reinterpret_cast<T*>(to);
    parallel_for(n, 64 * kTile, [&](int64_t begin, int64_t end) {
      if (target.contiguous) return read_tile(source, from, from_type, begin, end - begin, out + begin);
      T tile[kTile];
      for (int64_t i = begin; i < end; i += kTile) {
        int64_t m = std::min(kTile, end - i);
        read_tile(source, from, from_type, i, m, tile);
        for_each_run(target, i, m, [&](int64_t offset, int64_t stride, int64_t count, int64_t at) {
          for (int64_t k = 0; k < count; ++k) out[offset + k * stride] = tile[at + k];
        });
      }
    });
  });
}

}  // namespace sluice::detail
