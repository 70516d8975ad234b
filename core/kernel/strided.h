// Walking strided memory. Ops compute on contiguous tiles only. Operands that are transposed, expanded, sliced or of
// another dtype are first read into a small buffer by this code. So each formula needs one contiguous loop, which the
// compiler vectorises for every layout.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/layout.h>

#include <bit>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace sluice::detail {

/// Elements per tile: 2 KB of f32, several of which fit in L1 beside the outputs.
inline constexpr int64_t kTile = 512;

/// Converts one element, as to() does.
template <class T, class S> SLUICE_FN T convert(S x) {
  if constexpr (std::is_same_v<T, S>) return x;
  else if constexpr (std::is_same_v<S, BFloat16>) return convert<T>(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, BFloat16>) return BFloat16(static_cast<float>(x));
  else if constexpr (std::is_same_v<T, bool> && std::is_floating_point_v<S>) {
    // All bits but the sign: a comparison takes a denormal for 0 where denormals are flushed.
    using Bits = std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>;
    return std::bit_cast<Bits>(x) << 1 != 0;
  } else if constexpr (std::is_same_v<T, bool>) return x != S(0);
  else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<T>) {
    // Saturates, and NaN becomes 0: a plain cast would be undefined behaviour.
    constexpr double lo = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double hi = -lo;  // 2^31 or 2^63, the first value that does not fit
    double v = static_cast<double>(x);
    if (!(v > lo)) return v <= lo ? std::numeric_limits<T>::min() : T(0);
    return v >= hi ? std::numeric_limits<T>::max() : static_cast<T>(v);
  } else return static_cast<T>(x);
}

/// BFloat16(x) for long loops. Computes in halves of 16 bits, because a vector holds twice as many of them as of x.
SLUICE_FN BFloat16 rounded_to_bf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  const auto high = static_cast<uint16_t>(u >> 16), low = static_cast<uint16_t>(u);
  const auto magnitude = static_cast<uint16_t>((high & 0x7fff) + uint16_t{low != 0});  // rounded up
  const uint16_t up = low > static_cast<uint16_t>(0x8000 - (high & 1));
  const auto rounded = static_cast<uint16_t>(high + up), nan = static_cast<uint16_t>(high | 0x40);
  return std::bit_cast<BFloat16>(magnitude > 0x7f80 ? nan : rounded);
}

/// A layout with neighbouring dims merged wherever they form one evenly strided run.
struct StridedRange {
  int rank = 0;
  bool contiguous = false;
  bool wide = false;  // a dim has 2^32 elements or more
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];  // in elements

  StridedRange() = default;
  explicit StridedRange(const Layout& layout);

  /// Number of consecutive elements from `start` on, and the offset of the first, in elements. count is 0 if runs are
  /// too short to be read in place.
  struct Run {
    int64_t count = 0, offset = 0;
  };
  Run run(int64_t start) const;
};

/// True if a read in row-major order takes only one element of each cache line, as for a transposed matrix: the last
/// dim is strided and another dim is dense. A copy that keeps the dtype goes by tiles of both dims and is many times
/// faster.
bool reads_across(const Layout& layout);

/// Converts elements [start, start+n) of a range, in row-major order, to T and writes them to out.
/// `base` is the address of the first element, of type `dtype`.
template <class T>
void read_tile(const StridedRange& range, const std::byte* base, DType dtype, int64_t start, int64_t n, T* out);

/// Calls f with each of the elements [start, end), in row-major order, as a double.
void each_value(const StridedRange& range, const std::byte* base, DType dtype, int64_t start, int64_t end, auto f) {
  double tile[kTile];
  for (; start < end; start += kTile) {
    const int64_t count = end - start < kTile ? end - start : kTile;
    read_tile(range, base, dtype, start, count, tile);
    for (int64_t i = 0; i < count; ++i) f(tile[i]);
  }
}

/// Copies `from` to `to` element by element with conversion; both layouts have one shape and
/// addresses already include the offsets. Parallel.
void copy_strided(const std::byte* from, const Layout& from_layout, DType from_type, std::byte* to,
                  const Layout& to_layout, DType to_type);

}  // namespace sluice::detail
