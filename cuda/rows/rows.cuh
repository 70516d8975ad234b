// Kernels that take one row after the other. A team computes a row: a warp if rows are short, so that a block has eight
// teams, else a whole block. The threads of a team exchange values by shuffles and, across warps, through shared
// memory. Results do not depend on the schedule.
#pragma once

#include <sluice/core/number/arithmetic.h>
#include <sluice/cuda/vectors.cuh>

#include <cstring>

namespace sluice::cuda {

constexpr int64_t kShortRow = 2048;  // elements up to which a warp takes a row alone

struct Add {
  template <class T> __device__ T operator()(T a, T b) const { return sluice::detail::sum_of(a, b); }
};
/// shuffle(x) for any T of whole words, where `shuffle` takes numbers.
template <class T, class Shuffle> __device__ T in_words(T x, Shuffle shuffle) {
  if constexpr (std::is_arithmetic_v<T>) {
    return shuffle(x);
  } else {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0);
    uint32_t words[sizeof(T) / sizeof(uint32_t)];
    memcpy(words, &x, sizeof(T));
#pragma unroll
    for (uint32_t& word : words) word = shuffle(word);
    memcpy(&x, words, sizeof(T));
    return x;
  }
}
template <class T> __device__ T shuffle_xor(T x, int step) {
  return in_words(x, [step](auto y) { return __shfl_xor_sync(kAllLanes, y, step); });
}
template <class T> __device__ T shuffle_up(T x, int step) {
  return in_words(x, [step](auto y) { return __shfl_up_sync(kAllLanes, y, step); });
}
template <class T> __device__ T shuffle_from(T x, int lane) {
  return in_words(x, [lane](auto y) { return __shfl_sync(kAllLanes, y, lane); });
}

/// op over the values of the warp's lanes up to this one, in their order. op must be associative.
template <class T, class Op> __device__ T running_over_lanes(T x, Op op) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const T left = shuffle_up(x, step);
    if (lane >= step) x = op(left, x);
  }
  return x;
}

/// The running thread's place in its team of `threads`.
template <int threads> __device__ int rank_in_team() { return static_cast<int>(threadIdx.x) % threads; }

/// op over one value from each thread of the team; all get the same bits. op must be associative and commutative.
template <int threads, class T, class Op> __device__ T over_team(T x, Op op) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = op(x, shuffle_xor(x, step));
  if constexpr (threads > kWarp) {
    const Shared<T> of_warp = static_shared<T, threads / kWarp, Op>();
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    __syncthreads();  // the values of the last call have been read
    if (threadIdx.x % kWarp == 0) of_warp[warp] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < threads / kWarp; ++w) x = op(x, T(of_warp[w]));
  }
  return x;
}

// -- numbers of rows: one at a time, or eight where rows allow that -------------------------------------------------

/// Eight neighbours in a formula that is written for one number.
struct Eight {
  float x[kNeighbours];
  Eight() = default;
  template <class S> __device__ explicit Eight(const Packed<S>& from) { unpack(x, from); }
  template <class F> static __device__ Eight of(F f) {
    Eight y;
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) y.x[e] = f(e);
    return y;
  }
};
__device__ inline Eight operator+(const Eight& a, const Eight& b) {
  return Eight::of([&](int e) { return a.x[e] + b.x[e]; });
}
__device__ inline Eight operator-(const Eight& a, const Eight& b) {
  return Eight::of([&](int e) { return a.x[e] - b.x[e]; });
}
__device__ inline Eight operator*(const Eight& a, const Eight& b) {
  return Eight::of([&](int e) { return a.x[e] * b.x[e]; });
}
__device__ inline Eight operator-(const Eight& a, float b) {
  return Eight::of([&](int e) { return a.x[e] - b; });
}
__device__ inline Eight operator*(const Eight& a, float b) {
  return Eight::of([&](int e) { return a.x[e] * b; });
}
template <class T> __device__ T exp_of(T x) { return math::exp(x); }
__device__ inline Eight exp_of(const Eight& x) {
  return Eight::of([&](int e) { return math::exp(x.x[e]); });
}

/// Element i of a row, or the `width` elements from i on.
template <int width> struct Place { int64_t i; };

/// Numbers that are computed with as T; of f32 or, if T is float, bf16.
template <class T> struct Numbers {
  void* at = nullptr;
  bool narrow = false;
  Numbers() = default;
  explicit Numbers(T* x) : at(x) {}
  explicit Numbers(const Tensor& x) {
    if (x.defined()) at = address_of(x), narrow = x.dtype() == bf16;
  }
  bool in_vectors(int64_t row_length) const { return is_aligned_16(at) && row_length % kNeighbours == 0; }
  __device__ explicit operator bool() const { return at; }
  __device__ Numbers from(int64_t first) const {
    Numbers y = *this;
    y.at = static_cast<std::byte*>(at) + first * static_cast<int64_t>(narrow ? sizeof(BFloat16) : sizeof(T));
    return y;
  }
  __device__ T operator[](int64_t i) const { return load<T>(at, i, narrow); }
  __device__ T operator()(Place<1> p) const { return load<T>(at, p.i, narrow); }
  __device__ Eight operator()(Place<kNeighbours> p) const {
    Eight y;
    load_vector(y.x, at, p.i, narrow);
    return y;
  }
  /// Eight numbers that are S. Loops that ask which it is would not have several loads under way.
  template <class S> __device__ Packed<S> packed(int64_t i) const {
    return *reinterpret_cast<const Packed<S>*>(static_cast<const S*>(at) + i);
  }
  template <class S> __device__ Eight eight(int64_t i) const { return Eight(packed<S>(i)); }
  __device__ void set(Place<1> p, T value) const { store<T>(at, p.i, value, narrow); }
  __device__ void set(Place<kNeighbours> p, const Eight& value) const { store_vector(at, p.i, value.x, narrow); }
};
/// The dtype that a kernel computes with.
inline DType computed(DType dtype) { return dtype == bf16 ? f32 : dtype; }

/// A row of n numbers in memory, which threads take by eights if `vectors`.
template <class T> struct RowLength {
  using Number = T;
  int64_t n;
  bool vectors;
  template <class... A> RowLength(int64_t n, const A&... numbers) : n(n), vectors(std::is_same_v<T, float>) {
    ((vectors &= numbers.in_vectors(n)), ...);
  }
  __device__ Numbers<T> row(const Numbers<T>& x, int64_t row) const { return x.from(row * n); }
};

constexpr int kHeldPieces = 2;      // eights of a row that a thread holds
constexpr int64_t kHeldRow = 4096;  // numbers of a row up to which a block holds it

/// A row of n numbers that a team holds in registers, as they lie in memory, so that nothing waits for one load before
/// the others are under way. They are S, and lie in eights.
template <class S, int threads> struct HeldLength {
  using Number = float;
  int64_t n;
  struct Piece : Place<kNeighbours> {
    int index;
  };
  struct Row {
    Packed<S> x[kHeldPieces];
    __device__ Eight operator()(Piece p) const { return Eight(x[p.index]); }
  };
  __device__ Row row(const Numbers<float>& x, int64_t row) const {
    Row y;
    if (x) each([&](Piece p) { y.x[p.index] = x.template packed<S>(row * n + p.i); });
    return y;
  }
  template <class Body> __device__ void each(Body body) const {
#pragma unroll
    for (int piece = 0; piece < kHeldPieces; ++piece) {
      const int64_t i = (piece * threads + rank_in_team<threads>()) * kNeighbours;
      if (i < n) body(Piece{{i}, piece});
    }
  }
};

/// Calls body(place) for each place of the row that is this thread's.
template <int threads, class T, class Body> __device__ void each_place(const RowLength<T>& row, Body body) {
  if constexpr (std::is_same_v<T, float>)
    if (row.vectors) {
#pragma unroll 4
      for (int64_t i = rank_in_team<threads>() * kNeighbours; i < row.n; i += threads * kNeighbours)
        body(Place<kNeighbours>{i});
      return;
    }
#pragma unroll 4
  for (int64_t i = rank_in_team<threads>(); i < row.n; i += threads) body(Place<1>{i});
}
template <int threads, class S, class Body> __device__ void each_place(const HeldLength<S, threads>& row, Body body) {
  row.each(body);
}

/// Σ term(place) over the row; all threads get the same bits.
template <int threads, class Length, class Term> __device__ auto row_total(const Length& row, Term term) {
  typename Length::Number total = 0;
  each_place<threads>(row, [&](auto place) {
    const auto y = term(place);
    if constexpr (std::is_same_v<decltype(y), const Eight>) {
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) total += y.x[e];
    } else {
      total += y;
    }
  });
  return over_team<threads>(total, Add());
}

template <int threads, class Row>
__global__ void __launch_bounds__(kThreads, 3) for_each_row_kernel(Row body, int64_t rows) {
  const int64_t teams = blockDim.x / threads, team = threadIdx.x / threads;
  for (int64_t row = blockIdx.x * teams + team; row < rows; row += gridDim.x * teams)
    body.template operator()<threads>(row);
}
template <int threads, class Row> void launch_rows(int64_t rows, const Row& body) {
  const int64_t teams = threads == kWarp ? std::min<int64_t>(rows, kThreads / kWarp) : 1;
  launch(for_each_row_kernel<threads, Row>, grid_of(ceil_div(rows, teams)),
         dim3(static_cast<unsigned>(teams * threads)), 0, body, rows);
}
/// body<threads>(row) for 0 <= row < rows, called by every thread of the row's team. `width`: elements of a row.
template <class Row> void for_each_row(int64_t rows, int64_t width, Row body) {
  if (rows == 0) return;
  if (width <= kShortRow) launch_rows<kWarp>(rows, body);
  else launch_rows<kThreads>(rows, body);
}

template <class T, class Row> struct ReadRow {
  Row body;
  RowLength<T> length;
  template <int threads> __device__ void operator()(int64_t row) const {
    body.template operator()<threads>(row, length);
  }
};
template <class S, class Row> struct HoldRow {
  Row body;
  int64_t n;
  template <int threads> __device__ void operator()(int64_t row) const {
    body.template operator()<threads>(row, HeldLength<S, threads>{n});
  }
};
template <class S, class Row> void hold_each_row(int64_t rows, const HoldRow<S, Row>& body) {
  constexpr int64_t of_thread = kHeldPieces * kNeighbours;
  if (body.n <= kWarp * of_thread) launch_rows<kWarp>(rows, body);
  else if (body.n <= 64 * of_thread) launch_rows<64>(rows, body);
  else if (body.n <= 128 * of_thread) launch_rows<128>(rows, body);
  else launch_rows<256>(rows, body);
  static_assert(kHeldRow <= 256 * of_thread);
}
/// Calls body<threads>(row, length) for rows of n of several `numbers`, of which some may be null. Rows that are short,
/// of one dtype and lie in eights are held in registers; others are read from memory each time.
template <class T, class Row, class... N>
void for_each_row_of(int64_t rows, int64_t n, const Row& body, const N&... numbers) {
  if (rows == 0) return;
  const RowLength<T> length(n, numbers...);
  if constexpr (std::is_same_v<T, float>)
    if (length.vectors && n <= kHeldRow) {
      if (((numbers.narrow || !numbers.at) && ...)) return hold_each_row(rows, HoldRow<BFloat16, Row>{body, n});
      if ((!numbers.narrow && ...)) return hold_each_row(rows, HoldRow<float, Row>{body, n});
    }
  for_each_row(rows, n, ReadRow<T, Row>{body, length});
}

}  // namespace sluice::cuda
