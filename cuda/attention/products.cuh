// The kernels of products.cu, between its products: rounding of operands, weights of scores and their gradients.
#pragma once

#include <sluice/cuda/attention/general.cuh>
#include <sluice/cuda/bf16_rows.cuh>

namespace sluice::cuda {

constexpr int kGroup = 4;                 // neighbouring keys that a thread takes: one block of dropout's words
constexpr int kTeams = kThreads / kWarp;  // rows of a block, with a warp for each
#ifdef __CUDACC__
constexpr int64_t kLongRow = 2048;  // of which a block takes one
#else
constexpr int64_t kLongRow = 64;
#endif

/// Rows [row, row + rows) of query heads, with keys [col, col + cols): of matrices [first, first + count), a matrix for
/// each key head of each batch. It has, of each key head's query heads, number `member`.
struct Slice {
  int64_t first, count, member, row, rows, col, cols, ld;  // ld: numbers in a row of scores and weights
};

/// A tensor [batch, heads, rows, width] of f32 or bf16, whose last dim is contiguous; null for an undefined one.
struct AnyRows {
  std::byte* base = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides in numbers
  bool narrow = false;                   // bf16
  AnyRows() = default;
  explicit AnyRows(const Tensor& x) {
    if (x.defined())
      base = const_cast<std::byte*>(address_of(x)), batch = x.strides()[0], head = x.strides()[1], row = x.strides()[2],
      narrow = x.dtype() == bf16;
  }
  __device__ float at(int64_t b, int64_t h, int64_t r, int64_t e) const {
    return load<float>(base, place(b, h, r) + e, narrow);
  }
  __device__ void add(int64_t b, int64_t h, int64_t r, int64_t e, float y) const {
    store(base, place(b, h, r) + e, at(b, h, r, e) + y, narrow);
  }
  /// Rows from `r` on of heads h·group + member, as rows and heads from 0 on.
  AnyRows part(int64_t group, int64_t member, int64_t r) const {
    AnyRows x = *this;
    x.base = address(0, member, r), x.head *= group;
    return x;
  }
  std::byte* address(int64_t b, int64_t h, int64_t r) const { return base + place(b, h, r) * (narrow ? 2 : 4); }

 private:
  SLUICE_FN int64_t place(int64_t b, int64_t h, int64_t r) const { return b * batch + h * head + r * row; }
};

/// An operand for kernels: the numbers as they are, and which rows have numbers that are not finite in bf16.
struct Marked {
  AnyRows exact;
  const uint8_t* marks;  // [batch, heads, rows]
  const int* any;        // not 0 if any row is marked
  int64_t heads, rows, width;
  __device__ bool marked(int64_t b, int64_t h, int64_t r) const { return marks[(b * heads + h) * rows + r] != 0; }
  Marked part(int64_t group, int64_t member, int64_t row) const {
    return {exact.part(group, member, row), marks + member * rows + row, any, heads / group, rows * group, width};
  }
};

struct AnyOf {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a | b; }
};
/// Puts 0 in place of what is not finite in a rounded row, and marks the row.
struct MarkRow {
  uint8_t* marks;
  int* any;
  __device__ uint32_t operator()(uint32_t pair, uint32_t& found) const {
    if ((pair & 0x7f80u) == 0x7f80u) pair &= 0xffff0000u, found = 1;
    if ((pair & 0x7f800000u) == 0x7f800000u) pair &= 0xffffu, found = 1;
    return pair;
  }
  template <int threads> __device__ void end(int64_t row, uint32_t found) const {
    found = over_team<threads>(found, AnyOf{});
    if (rank_in_team<threads>() != 0) return;
    marks[row] = static_cast<uint8_t>(found);
    if (found) *any = 1;  // every writer writes 1
  }
};

/// The place of a row of a slice in its call.
struct RowOfSlice {
  int64_t b, h, kv, i;
  int from;  // of the slice's columns those of keys that the row may see are [from, from + length)
  unsigned length;
  bool any_marked;  // some scores need numbers that are not finite
  bool plain;       // the row sees all these keys, and its scores are scale · products
  __device__ RowOfSlice(const AttentionView<float>& a, const Slice& s, int64_t r, bool any)
      : any_marked(any), plain(!any && a.plain && a.mask.only_span) {
    const int64_t matrix = s.first + r / s.rows;
    b = matrix / a.kv_heads, kv = matrix % a.kv_heads, h = kv * a.group + s.member, i = s.row + r % s.rows;
    const Span seen = a.mask.keys_of(i);
    const int64_t begin = seen.begin > s.col ? seen.begin - s.col : 0,
                  end = seen.end - s.col < s.cols ? seen.end - s.col : s.cols;
    from = static_cast<int>(begin < s.cols ? begin : s.cols);
    length = end > from ? static_cast<unsigned>(end - from) : 0;
  }
  /// Of the four columns from c on those that the row sees, as bits.
  __device__ unsigned seen(const AttentionView<float>& a, const Slice& s, int c) const {
    unsigned bits = 0;
#pragma unroll
    for (int e = 0; e < kGroup; ++e) bits |= unsigned{static_cast<unsigned>(c + e - from) < length} << e;
    if (a.mask.only_span || bits == 0) return bits;
#pragma unroll
    for (int e = 0; e < kGroup; ++e)
      if ((bits >> e & 1) && !a.mask.allowed(b, h, i, s.col + c + e)) bits &= ~(1u << e);
    return bits;
  }
  /// x_i · y_j: `product` unless a row is marked.
  __device__ float dot(float product, const Marked& x, const Marked& y, int64_t j) const {
    if (!any_marked || (!x.marked(b, h, i) && !y.marked(b, kv, j))) return product;
    float sum = 0;
#pragma unroll 1  // seldom runs, and unrolled costs the kernels up to 20 registers
    for (int64_t e = 0; e < x.width; ++e) sum += x.exact.at(b, h, i, e) * y.exact.at(b, kv, j, e);
    return sum;
  }
};

/// `to`: a multiple of 8 bytes.
__device__ inline void store_rounded(BFloat16* to, const float (&x)[kGroup]) {
  store_words(to, {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])});
}

/// The gradient of a bias [batch, heads, m, n], contiguous, of f32 or bf16; null if it is not wanted. Each pair belongs
/// to one slice, so nothing is added up.
struct BiasGradient {
  void* at = nullptr;
  bool narrow = false, by_fours = false;  // by_fours: a thread's keys are neighbours that it writes at once
  explicit BiasGradient(const Tensor& x) {
    if (!x.defined()) return;
    at = address_of(x), narrow = x.dtype() == bf16;
    by_fours = x.dim(3) % kGroup == 0 && reinterpret_cast<std::uintptr_t>(at) % (kGroup * size_of(x.dtype())) == 0;
  }
  /// Sets the numbers of four keys from `i` on. Those that are not `seen` are 0 in x, and in memory before.
  __device__ void set(int64_t i, const float (&x)[kGroup], unsigned seen) const {
    if (!by_fours) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e)
        if (seen >> e & 1) store(at, i + e, x[e], narrow);
    } else if (narrow) {
      store_rounded(static_cast<BFloat16*>(at) + i, x);
    } else {
      *reinterpret_cast<Bytes16<float>*>(static_cast<float*>(at) + i) = {x[0], x[1], x[2], x[3]};
    }
  }
};

struct Largest {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

/// P ⊙ Z in bf16 from the scores' products, and lse. A team takes a row, a thread four neighbouring keys at a time.
template <bool softmax, int threads>
__global__ void __launch_bounds__(kThreads) weigh_rows(AttentionView<float> a, Slice s, Marked q, Marked k,
                                                       const float* products, BFloat16* weights, float* lse) {
  constexpr int teams = kThreads / threads, step = threads * kGroup;
  const int rank = rank_in_team<threads>();
  const bool any_marked = *q.any != 0 || *k.any != 0;
  for (int64_t r = int64_t{blockIdx.x} * teams + threadIdx.x / threads; r < s.count * s.rows;
       r += int64_t{gridDim.x} * teams) {
    const RowOfSlice row(a, s, r, any_marked);
    const float* const own = products + r * s.ld;
    const auto read = [&](int c) {
      return c < s.cols ? *reinterpret_cast<const Bytes16<float>*>(own + c) : Bytes16<float>{};
    };
    Bytes16<float> next = read(rank * kGroup);  // of the next round of a loop: its load is under way during this one
    // Scores of keys from col + c on; −∞ at hidden ones, whose bits are not set in the result.
    const auto scores = [&](float(&y)[kGroup], int c) {
      constexpr float inf = std::numeric_limits<float>::infinity();
      const Bytes16<float> four = next;
      next = read(c + step);
      const unsigned seen = row.seen(a, s, c);
      if (row.plain) {
#pragma unroll
        for (int e = 0; e < kGroup; ++e) y[e] = seen >> e & 1 ? four.x[e] * a.scale : -inf;
        return seen;
      }
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        const int64_t j = s.col + c + e;
        y[e] = seen >> e & 1 ? a.score(row.b, row.h, row.i, j, row.dot(four.x[e], q, k, j)) : -inf;
      }
      return seen;
    };
    float shift = 0, factor = 1, y[kGroup];
    if constexpr (softmax) {
      constexpr float inf = std::numeric_limits<float>::infinity();
      float top = -inf, total = 0;
      for (int c = rank * kGroup; c < s.cols; c += step) {
        scores(y, c);
        float now = top;
#pragma unroll
        for (int e = 0; e < kGroup; ++e) now = y[e] > now ? y[e] : now;
        shift = now == -inf ? 0.0f : now, total *= math::exp(top - shift), top = now;
#pragma unroll
        for (int e = 0; e < kGroup; ++e) total += math::exp(y[e] - shift);
      }
      next = read(rank * kGroup);
      const float all = over_team<threads>(top, Largest{});
      shift = all == -inf ? 0.0f : all;
      total = over_team<threads>(total * math::exp(top - shift), Add{});
      const RowEnd<float> end(a.sink_of(row.h), all, total);
      factor = end.factor;
      if (rank == 0) lse[a.row_of(row.b, row.h, row.i)] = end.lse;
    }
    for (int c = rank * kGroup; c < s.cols; c += step) {
      const unsigned seen = scores(y, c);
      sluice::detail::PhiloxWords words{};
      if (a.drops && seen) words = a.words(row.b, row.h, row.i, s.col + c);
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        if (!(seen >> e & 1)) {
          y[e] = 0;
          continue;
        }
        y[e] = softmax ? math::exp(y[e] - shift) * factor : weight_and_slope(a.weighting, y[e]).v;
        if (a.drops) y[e] *= a.kept(words, e);
      }
      store_rounded(weights + r * s.ld + c, y);
    }
  }
}

/// P ⊙ Z and scale · dS ⊙ cap' in bf16 from the products of the scores and of dP; the gradient of a bias; and dS in f32
/// in place of dP if `keeps`. A team takes a row.
template <bool softmax, int threads>
__global__ void __launch_bounds__(kThreads)
    differentiate_rows(AttentionView<float> a, Slice s, Marked q, Marked k, Marked g, Marked v, const float* products,
                       float* dp, BFloat16* weights, BFloat16* ds, BiasGradient bias, bool keeps) {
  constexpr int teams = kThreads / threads, step = threads * kGroup;
  const int rank = rank_in_team<threads>();
  const bool any_marked = *q.any != 0 || *k.any != 0 || *g.any != 0 || *v.any != 0;
  for (int64_t r = int64_t{blockIdx.x} * teams + threadIdx.x / threads; r < s.count * s.rows;
       r += int64_t{gridDim.x} * teams) {
    const RowOfSlice row(a, s, r, any_marked);
    const int64_t at = a.row_of(row.b, row.h, row.i);
    const float lse = softmax ? a.lse[at] : 0.0f, delta = softmax ? a.delta[at] : 0.0f,
                rho = a.rho(row.b, row.h, row.i);
    for (int c = rank * kGroup; c < s.cols; c += step) {
      const int64_t place = r * s.ld + c;
      const Bytes16<float> of_s = *reinterpret_cast<const Bytes16<float>*>(products + place);
      Bytes16<float> of_dp = *reinterpret_cast<const Bytes16<float>*>(dp + place);
      const unsigned seen = row.seen(a, s, c);
      sluice::detail::PhiloxWords words{};
      if (a.drops && seen) words = a.words(row.b, row.h, row.i, s.col + c);
      float w[kGroup], d[kGroup];
#pragma unroll
      for (int e = 0; e < kGroup; ++e) {
        const int64_t j = s.col + c + e;
        if (!(seen >> e & 1)) {
          w[e] = d[e] = of_dp.x[e] = 0;
          continue;
        }
        const float keep = a.drops ? a.kept(words, e) : 1.0f;
        if (row.plain) {
          const PairGradient<float> p(a, of_s.x[e] * a.scale, of_dp.x[e], keep, lse, delta, 1.0f);
          w[e] = p.weight, d[e] = p.ds * a.scale, of_dp.x[e] = p.ds;
          continue;
        }
        const float dot = row.dot(of_s.x[e], q, k, j);
        const PairGradient<float> p(a, a.score(row.b, row.h, row.i, j, dot), row.dot(of_dp.x[e], g, v, j), keep, lse,
                                    delta, rho);
        w[e] = p.weight, d[e] = p.ds * a.slope(dot) * a.scale, of_dp.x[e] = p.ds;
      }
      if (bias.at && seen) bias.set(at * a.n + s.col + c, of_dp.x, seen);
      store_rounded(weights + place, w);
      store_rounded(ds + place, d);
      if (keeps) *reinterpret_cast<Bytes16<float>*>(dp + place) = of_dp;
    }
  }
}

/// Adds a slice's dS along its diagonals to the gradient of a relative bias. A thread takes an entry of the table.
inline void add_diagonals(const AttentionView<float>& a, const Slice& s, const float* ds, float* relative,
                          int64_t of_head) {
  const int64_t entries = s.cols + s.rows - 1, least = s.col - (s.row + s.rows - 1) + a.m - 1;
  const int64_t m = a.m, kv_heads = a.kv_heads, group = a.group;
  for_each(s.count * entries, [=] __device__(int64_t index) {
    const int64_t in_slice = index / entries, entry = least + index % entries, matrix = s.first + in_slice;
    const int64_t shift = entry - (m - 1) + s.row - s.col;  // the column of the slice's first row
    const int64_t begin = shift < 0 ? -shift : 0, end = s.cols - shift < s.rows ? s.cols - shift : s.rows;
    const float* const at = ds + in_slice * s.rows * s.ld + shift;
    float sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += at[i * s.ld + i];
    relative[(matrix / kv_heads * kv_heads * group + matrix % kv_heads * group + s.member) * of_head + entry] += sum;
  });
}

/// f.operator()<threads>(): the threads of a team for the rows of a slice. A warp for each row of a slice of few long
/// ones would leave too few bytes under way.
template <class F> void with_teams(const Slice& s, F f) {
  const bool few = s.count * s.rows < 64 * multiprocessors() && s.cols >= kLongRow;
  few ? f.template operator()<kThreads>() : f.template operator()<kWarp>();
}

}  // namespace sluice::cuda
