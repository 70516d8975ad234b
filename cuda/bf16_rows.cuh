// Rows of operands rounded to bf16 for tensor cores, and filled up with zeros. A team takes a row, and a thread eight
// numbers at a time, or two. Limited by memory.
#pragma once

#include <sluice/cuda/rows/rows.cuh>

namespace sluice::cuda {

/// The length of rows of bf16 that all begin at multiples of 16 bytes.
constexpr int64_t padded_to_8(int64_t n) { return ceil_div(n, 8) * 8; }

/// What RoundRow does with rounded pairs before it stores them: nothing. `found` is kept for a row, thread by thread.
struct NoMark {
  __device__ uint32_t operator()(uint32_t pair, uint32_t&) const { return pair; }
  template <int threads> __device__ void end(int64_t, uint32_t) const {}
};

/// Rounds a row of x [batch, heads, rows, width]; in `to` rows have `ld` numbers, an even number or 1.
template <class T, class Mark = NoMark> struct RoundRow {
  HeadRows<const T> x;
  int64_t heads, rows, width;
  BFloat16* to;
  int64_t ld;
  Mark mark = {};
  __device__ const T* from(int64_t row) const { return x.at(row / rows / heads, row / rows % heads, row % rows); }
  template <int threads> __device__ void operator()(int64_t row) const {
    const T* const numbers = from(row);
    BFloat16* const out = to + row * ld;
    uint32_t found = 0;
    if (width == ld && ld % kNeighbours == 0 &&
        (reinterpret_cast<std::uintptr_t>(numbers) | reinterpret_cast<std::uintptr_t>(out)) % 16 == 0) {
      for (int64_t i = kNeighbours * rank_in_team<threads>(); i < ld; i += kNeighbours * threads) {
        float eight[kNeighbours];
        load_vector(eight, numbers + i);
        Bytes16<uint32_t> pairs;
#pragma unroll
        for (int e = 0; e < kNeighbours / 2; ++e) pairs.x[e] = mark(pack_bf16(eight[2 * e], eight[2 * e + 1]), found);
        *reinterpret_cast<Bytes16<uint32_t>*>(out + i) = pairs;
      }
    } else {
      for (int64_t i = 2 * rank_in_team<threads>(); i < ld; i += 2 * threads)
        *reinterpret_cast<uint32_t*>(out + i) = mark(
            pack_bf16(i < width ? to_float(numbers[i]) : 0.0f, i + 1 < width ? to_float(numbers[i + 1]) : 0.0f), found);
    }
    mark.template end<threads>(row, found);
  }
  /// For rows of one number.
  __device__ void operator()(int64_t row) const { to[row] = BFloat16(to_float(*from(row))); }
};

/// A contiguous copy of x [batch, heads, rows, width] of f32 or bf16, rounded, in rows of `ld` numbers.
class RoundedRows {
 public:
  RoundedRows(const Tensor& x, int64_t ld) : copy_(static_cast<std::size_t>(x.dim(0) * x.dim(1) * x.dim(2) * ld)) {
    x.dtype() == bf16 ? round<BFloat16>(x, ld) : round<float>(x, ld);
  }
  BFloat16* get() const { return copy_.get(); }

 private:
  template <class T> void round(const Tensor& x, int64_t ld) {
    const int64_t rows = x.dim(0) * x.dim(1) * x.dim(2);
    const RoundRow<T> body{HeadRows<const T>(x), x.dim(1), x.dim(2), x.dim(3), get(), ld};
    ld == 1 ? for_each(rows, body) : for_each_row(rows, ld, body);
  }

  Scratch<BFloat16> copy_;
};

}  // namespace sluice::cuda
