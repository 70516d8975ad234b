#include <sluice/core/kernel/strided.h>

#include <sluice/core/kernel/copy_rows.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/transpose.h>
#include <sluice/core/number/select.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sluice::detail {

void write_past_caches(const void* from, void* to, int64_t to_step, int64_t bytes, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto* const f = static_cast<const std::byte*>(from) + r * bytes;
    auto* const t = static_cast<std::byte*>(to) + r * to_step;
#if defined(__SSE2__)
    for (int64_t at = 0; at < bytes; at += 64)
#pragma GCC unroll 4
      for (int64_t i = at; i < at + 64; i += 16)
        _mm_stream_si128(reinterpret_cast<__m128i*>(t + i), _mm_load_si128(reinterpret_cast<const __m128i*>(f + i)));
#else
    std::memcpy(t, f, static_cast<std::size_t>(bytes));
#endif
  }
}

namespace {

/// Runs of fewer elements are read and copied column by column: the inner loop goes along the dim before.
constexpr int64_t kShort = 7;
bool has_short_runs(const StridedRange& w) { return w.rank > 1 && w.shape[w.rank - 1] < kShort; }

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

/// Elements [start, start+n) of a range. Whole runs are copied as rows, which takes less for each than for_each_run().
template <class T> void read_range(const StridedRange& w, const T* from, int64_t start, int64_t n, T* out) {
  if (has_short_runs(w)) return read_columns(w, from, start, n, out);
  const auto read_runs = [&](int64_t i, int64_t m) {
    for_each_run(w, i, m, [=](int64_t offset, int64_t stride, int64_t count, int64_t at) {
      copy_run(from + offset, stride, count, out + i - start + at);
    });
  };
  const int64_t width = w.rank > 1 ? w.shape[w.rank - 1] : n + 1, stop = start + n;
  const int64_t first = ceil_div(start, width), last = stop / width;
  if (first >= last) return read_runs(start, n);
  read_runs(start, first * width - start);
  StridedRange others = w;
  --others.rank;
  for_each_run(others, first, last - first, [&](int64_t offset, int64_t stride, int64_t count, int64_t at) {
    copy_rows(from + offset, stride, w.strides[others.rank], out + (first + at) * width - start, width, 1, count,
              width);
  });
  read_runs(last * width, stop - last * width);
}
/// read_range(), vectorised. Not inlined: there is one for each dtype, and its loops take long to compile.
template <class T>
[[gnu::noinline]] void read_same(const StridedRange& w, const T* from, int64_t start, int64_t n, T* out) {
  using Bits = std::conditional_t<std::is_same_v<T, BFloat16>, uint16_t, T>;  // loops over structs stay scalar
  vectorised([=, &w] { read_range(w, reinterpret_cast<const Bits*>(from), start, n, reinterpret_cast<Bits*>(out)); });
}
/// convert<T>(x), of floats to integers in the type of the float and without branches.
template <class T, class S> SLUICE_FN T converted(S x) {
  if constexpr (std::is_same_v<S, BFloat16>) return converted<T>(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, BFloat16>) return rounded_to_bf16(static_cast<float>(x));
  else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr S lo = static_cast<S>(std::numeric_limits<T>::min()), hi = -lo;  // powers of two
    const T inside = static_cast<T>(math::select((x > lo) & (x < hi), x, S(0)));
    const T from_below = x <= lo ? std::numeric_limits<T>::min() : inside;
    return x >= hi ? std::numeric_limits<T>::max() : from_below;
  } else return convert<T>(x);
}
/// Not inlined: there is one for each pair of dtypes.
template <class T, class S> [[gnu::noinline]] void convert_run(const void* from_bytes, int64_t n, void* out_bytes) {
  using Number = std::conditional_t<std::is_same_v<S, bool>, uint8_t, S>;  // loops over bytes vectorise
  const auto* from = static_cast<const Number*>(from_bytes);
  T* out = static_cast<T*>(out_bytes);
  vectorised([=] {
    for (int64_t i = 0; i < n; ++i) out[i] = converted<T>(from[i]);
  });
}
ConvertRun convert_run_of(DType from, DType to) {
  ConvertRun run = nullptr;
  dispatch_all(from, [&]<class S>() { dispatch_all(to, [&]<class T>() { run = convert_run<T, S>; }); });
  return run;
}

// -- copies ---------------------------------------------------------------------------------------------------------

/// The dims of two layouts of one shape, slowest of the target first, merged where both allow it.
struct Move {
  int rank = 0;
  int64_t shape[kMaxRank], from[kMaxRank], to[kMaxRank];  // strides in elements

  Move(const Layout& source, const Layout& target) {
    for (const int64_t d : target.order_in_memory()) {
      const int i = static_cast<int>(d);
      const int64_t size = source.shape[i], f = source.strides[i], t = target.strides[i];
      if (size == 1) continue;
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
  void swap(int a, int b) { std::swap(shape[a], shape[b]), std::swap(from[a], from[b]), std::swap(to[a], to[b]); }
  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
};

/// Each item of a move has `pieces` pieces. Calls run(first, last, from offset, to offset) for each item with pieces in
/// [begin, end); [first, last) are these pieces, counted within the item.
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
template <class T>
void copy_transposed(const std::byte* from_bytes, std::byte* to, Move m, int across, ConvertRun convert,
                     int64_t to_size) {
  const T* from = reinterpret_cast<const T*>(from_bytes);
  using Tiles = Transpose<T>;
  const int last = m.rank - 1;
  const int64_t run = m.shape[last], n = m.shape[across];
  Tiles tiles{m.from[last], m.to[across], convert, to_size, false};
  int64_t rows = std::min(run, Tiles::kSide);
  const int64_t cols = std::min(n, Tiles::kArea / rows);
  rows = std::min(run, Tiles::kArea / cols);
  // Writes past the caches only if all lines are written whole.
  const auto in_lines = [](int64_t count) { return count % Tiles::kLine == 0; };
  tiles.stream = !convert && m.count() * static_cast<int64_t>(sizeof(T)) >= (int64_t{8} << 20) &&
                 reinterpret_cast<std::uintptr_t>(to) % 64 == 0 && in_lines(rows);
  for (int d = 0; d < last; ++d) tiles.stream &= in_lines(m.to[d]);
  m.remove(last), m.remove(across);
  const int64_t across_tiles = ceil_div(n, cols), each = across_tiles * ceil_div(run, rows);
  const int64_t grain = std::max<int64_t>(1, 64 * kTile / (rows * cols));
  parallel_for(m.count() * each, grain, [=](int64_t begin, int64_t end) {
    for_each_item(m, each, begin, end, [=](int64_t tile, int64_t stop, int64_t from_at, int64_t to_at) {
      for (; tile < stop; ++tile) {
        const int64_t r = tile / across_tiles * rows, c = tile % across_tiles * cols;
        tiles.tile(from + from_at + r * tiles.from_stride + c, to + (to_at + c * tiles.to_stride + r) * to_size,
                   std::min(rows, run - r), std::min(cols, n - c), c + 2 * cols <= n);
      }
    });
#if defined(__SSE2__)
    if (tiles.stream) _mm_sfence();
#endif
  });
}

/// Copies runs along the last dim, several at a time, or split where they are long.
template <class T> void copy_runs(const T* from, T* to, Move m) {
  constexpr int64_t piece = 64 * kTile;
  const int last = m.rank - 1;
  const int64_t run = m.shape[last], f = m.from[last], t = m.to[last];
  const bool split = last == 0 || run >= piece;
  const int64_t rows = split ? run : m.shape[last - 1];  // what is cut into pieces
  const int64_t next_f = split ? f : m.from[last - 1], next_t = split ? t : m.to[last - 1];
  const int64_t each = std::min(rows, split ? piece : ceil_div(piece, run)), pieces = ceil_div(rows, each);
  m.remove(last);
  if (!split) m.remove(last - 1);
  const int64_t grain = std::max<int64_t>(1, piece / (split ? each : each * run));
  parallel_for(m.count() * pieces, grain, [=](int64_t begin, int64_t end) {
    for_each_item(m, pieces, begin, end, [=](int64_t p, int64_t stop, int64_t from_at, int64_t to_at) {
      const int64_t first = p * each, n = std::min(stop * each, rows) - first;
      const T* source = from + from_at + first * next_f;
      T* target = to + to_at + first * next_t;
      if (split) copy_rows(source, 0, f, target, 0, t, 1, n);
      else copy_rows(source, next_f, f, target, next_t, t, n, run);
    });
  });
}

/// The dim along which the source is contiguous, if the target, but not the source, is contiguous along the last dim.
/// Else the last dim.
int dim_across(const Move& m, int64_t size) {
  const int last = m.rank - 1;
  int across = last;
  if (m.to[last] == 1 && m.from[last] != 0 && m.from[last] != 1)
    for (int d = 0; d < last; ++d) {
      const bool fills = m.shape[d] * size >= 16;  // at least a register
      if (m.from[d] == 1 && fills && (across == last || m.shape[d] > m.shape[across])) across = d;
    }
  return across;
}
/// Calls f<T> with the unsigned integer T of `size` bytes.
template <class F> void dispatch_size(int64_t size, F f) {
  if (size == 1) return f.template operator()<uint8_t>();
  if (size == 2) return f.template operator()<uint16_t>();
  if (size == 4) return f.template operator()<uint32_t>();
  f.template operator()<uint64_t>();
}
template <class T> void copy_bits(const std::byte* from_bytes, std::byte* to_bytes, Move m) {
  const T* from = reinterpret_cast<const T*>(from_bytes);
  T* to = reinterpret_cast<T*>(to_bytes);
  const int last = m.rank - 1;
  // Behind another short dim, as in windows, columns go along the dim before it.
  if (last > 1 && m.shape[last] < kShort && m.shape[last - 1] < std::min(kShort, m.shape[last - 2]))
    m.swap(last - 1, last - 2);
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
      read_same(walk, from, start, n, out);
    } else if (walk.rank == 0 || (!has_short_runs(walk) && (walk.strides[walk.rank - 1] | 1) == 1)) {
      for_each_run(walk, start, n, [=](int64_t offset, int64_t stride, int64_t count, int64_t at) {
        if (stride == 1) convert_run<T, S>(from + offset, count, out + at);
        else std::fill_n(out + at, count, convert<T>(from[offset]));
      });
    } else {  // gathered first: to do both at once would take a loop for each pair of dtypes
      S tile[kTile];
      for (int64_t i = 0; i < n; i += kTile) {
        const int64_t m = std::min(kTile, n - i);
        read_same(walk, from, start + i, m, tile);
        convert_run<T, S>(tile, m, out + i);
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
  const int64_t n = from_layout.numel(), size = size_of(from_type);
  if (n == 0) return;
  const Move m(from_layout, to_layout);
  if (const int across = dim_across(m, size); across != m.rank - 1) {
    const ConvertRun convert = from_type == to_type ? nullptr : convert_run_of(from_type, to_type);
    return dispatch_size(size, [&]<class T>() { copy_transposed<T>(from, to, m, across, convert, size_of(to_type)); });
  }
  if (from_type == to_type) return dispatch_size(size, [&]<class T>() { copy_bits<T>(from, to, m); });
  const StridedRange source(from_layout), target(to_layout);
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
