// Rows of operands rounded to bf16 for tensor cores, and filled up with zeros. A thread takes eight numbers at a time:
// of all rows, or, where rows are marked, filled up or begin at odd places, of the row that its team has. Limited by
// memory.
#pragma once

#include <sluice/cuda/rows/rows.cuh>

#include <optional>

namespace sluice::cuda {

/// The length of rows of bf16 that all begin at multiples of 16 bytes.
constexpr int64_t padded_to_8(int64_t n) { return round_up(n, 8); }

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
        uint32_t pairs[kNeighbours / 2];
#pragma unroll
        for (int e = 0; e < kNeighbours / 2; ++e) pairs[e] = mark(pack_bf16(eight[2 * e], eight[2 * e + 1]), found);
        store_words(out + i, pairs);
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

/// Rounds rows that begin at multiples of 16 bytes and are not filled up, as one run of numbers: with a warp for each,
/// rows of 64 would leave three quarters of its threads idle.
template <class T> struct RoundNumbers {
  const T* from;
  sluice::detail::StridedRange walk;
  BFloat16* to;
  __device__ void operator()(int64_t i) const { to[i] = BFloat16(to_float(from[offset_at(walk, i)])); }
  __device__ void vector(int64_t i) const {
    float eight[kNeighbours];
    load_vector(eight, from + offset_at(walk, i)), store_vector(to + i, eight);
  }
};

/// Rounds the rows of x [batch, heads, rows, width], without marks.
template <class T> void round_rows(int64_t batch, const RoundRow<T>& rows) {
  const HeadRows<const T>& x = rows.x;
  const int64_t count = batch * rows.heads * rows.rows;
  const sluice::detail::StridedRange walk(
      Layout({batch, rows.heads, rows.rows, rows.width}, {x.batch, x.head, x.row, 1}, 0));
  if (rows.width == rows.ld && is_aligned_16(rows.to) && walks_in_vectors(walk, x.base, sizeof(T)))
    for_each_vector(count * rows.width, RoundNumbers<T>{x.base, walk, rows.to});
  else if (rows.ld == 1) for_each(count, rows);
  else for_each_row(count, rows.ld, rows);
}

/// The strides of batch, heads and rows at which a kernel reads bf16 in place: those of contiguous rows, or multiples
/// of 16 bytes, for TMA above 0.
enum class InPlace { contiguous, above_0, any };

/// An operand [batch, heads, rows, width] of f32 or bf16 in rows of `ld` numbers of bf16: x itself if it is bf16, `ld`
/// wide, 16-byte aligned, and at strides that the kernel reads; else a contiguous copy, rounded and filled up.
class Bf16Rows {
 public:
  Bf16Rows(const Tensor& x, int64_t ld, InPlace strides) : rows_(nullptr, x.dim(1) * x.dim(2) * ld, x.dim(2) * ld, ld) {
    if (x.dtype() == bf16 && x.dim(3) == ld && reads_in_place(x, strides)) return;
    rows_.base = copy_.emplace(static_cast<std::size_t>(x.dim(0) * x.dim(1) * x.dim(2) * ld)).get();
    x.dtype() == bf16 ? round<BFloat16>(x) : round<float>(x);
  }
  const HeadRows<const BFloat16>& rows() const { return rows_; }
  /// The first number, for kernels that read contiguous rows.
  const BFloat16* get() const { return rows_.base; }

 private:
  bool reads_in_place(const Tensor& x, InPlace strides) {
    HeadRows<const BFloat16> there(x);
    if (x.dim(0) == 1) there.batch = rows_.batch;  // the stride of a dim of size 1 is never used
    if (x.dim(1) == 1) there.head = rows_.head;
    if (x.dim(2) == 1) there.row = rows_.row;
    const bool contiguous = there.batch == rows_.batch && there.head == rows_.head && there.row == rows_.row;
    bool fits = (contiguous || strides != InPlace::contiguous) && is_aligned_16(there.base);
    for (const int64_t stride : {there.batch, there.head, there.row})
      fits &= stride % 8 == 0 && (stride > 0 || strides == InPlace::any);
    if (fits) rows_ = there;
    return fits;
  }
  template <class T> void round(const Tensor& x) {
    round_rows(x.dim(0), RoundRow<T>{HeadRows<const T>(x), x.dim(1), x.dim(2), x.dim(3), copy_->get(), rows_.row});
  }

  std::optional<Scratch<BFloat16>> copy_;
  HeadRows<const BFloat16> rows_;
};

}  // namespace sluice::cuda
