// Rotary embeddings: a thread takes eight pairs, or a team takes a row and a thread a pair. Limited by memory.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/rows/rows.cuh>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/rope.h>

namespace sluice::cuda {

namespace {

constexpr int64_t kFarthest = int64_t{1} << 53;  // positions are exact in f64 up to here

template <class T>
void rope_angles_as(const int64_t* at, int64_t offset, const double* frequency, Tensor& cos, Tensor& sin) {
  const int64_t half = cos.dim(1);
  T *pc = data_of<T>(cos), *ps = data_of<T>(sin);
  for_each(cos.numel(), [=] __device__(int64_t i) {
    const double angle = static_cast<double>(at[i / half] + offset) * frequency[i % half];
    pc[i] = static_cast<T>(math::cos(angle)), ps[i] = static_cast<T>(math::sin(angle));
  });
}

template <class T> struct RopeRow {
  Numbers<T> x, y;
  const T *cos, *sin;
  int64_t d, inner, n, half;
  bool interleaved, inverse;
  template <int threads> __device__ void operator()(int64_t row) const {
    const T *c = cos + row / inner % n * half, *s = sin + row / inner % n * half;
    const Numbers<T> p = x.from(row * d), q = y.from(row * d);
    for (int64_t k = rank_in_team<threads>(); k < half; k += threads) {
      const int64_t i = interleaved ? 2 * k : k, j = interleaved ? i + 1 : k + half;
      const T a = p[i], b = p[j], ck = c[k], sk = inverse ? -s[k] : s[k];
      q.set(Place<1>{i}, a * ck - b * sk);
      q.set(Place<1>{j}, b * ck + a * sk);
    }
    for (int64_t i = 2 * half + rank_in_team<threads>(); i < d; i += threads) q.set(Place<1>{i}, p[i]);
  }
};

/// Eight pairs of rows that are rotated whole, d = 2 half.
template <bool interleaved> struct RopePairs {
  RopeRow<float> r;
  int64_t pieces;  // of half a row
  __device__ void operator()(int64_t index) const {
    const int64_t row = index / pieces, k = index % pieces * kNeighbours, at = row * r.d,
                  angle = row / r.inner % r.n * r.half + k;
    const int64_t i = at + (interleaved ? 2 * k : k), j = interleaved ? i + kNeighbours : i + r.half;
    float u[kNeighbours], v[kNeighbours], c[kNeighbours], s[kNeighbours];
    load_vector(u, r.x.at, i, r.x.narrow), load_vector(v, r.x.at, j, r.x.narrow);
    load_vector(c, r.cos + angle), load_vector(s, r.sin + angle);
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) {
      float& a = !interleaved ? u[e] : e < 4 ? u[2 * e % kNeighbours] : v[2 * e % kNeighbours];
      float& b = !interleaved ? v[e] : e < 4 ? u[2 * e % kNeighbours + 1] : v[2 * e % kNeighbours + 1];
      const float first = a, second = b, sine = r.inverse ? -s[e] : s[e];
      a = first * c[e] - second * sine, b = second * c[e] + first * sine;
    }
    store_vector(r.y.at, i, u, r.y.narrow), store_vector(r.y.at, j, v, r.y.narrow);
  }
};

}  // namespace

void rope_angles(const Tensor& positions, int64_t offset, const Tensor& frequencies, Tensor& cos, Tensor& sin) {
  const int64_t *at = data_of<int64_t>(positions), n = positions.numel();
  if (n == 0) return;
  if (const int64_t bad = first_outside(at, n, -kFarthest, kFarthest + 1, 0); bad < n)
    fail<ValueError>("rope_at: position ", value_at(at + bad), " lies beyond ±2^53");
  if (cos.numel() == 0) return;
  dispatch_float("rope", cos.dtype(),
                 [&]<class T>() { rope_angles_as<T>(at, offset, data_of<double>(frequencies), cos, sin); });
}

void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, RopePairing pairing, bool inverse) {
  dispatch_float("rope", computed(x.dtype()), [&]<class T>() {
    const int64_t d = x.dim(-1), half = cos.dim(1);
    const RopeRow<T> row{.x = Numbers<T>(x),
                         .y = Numbers<T>(y),
                         .cos = data_of<T>(cos),
                         .sin = data_of<T>(sin),
                         .d = d,
                         .inner = x.dim(2),
                         .n = x.dim(1),
                         .half = half,
                         .interleaved = pairing == RopePairing::interleaved,
                         .inverse = inverse};
    if constexpr (std::is_same_v<T, float>)
      if (d == 2 * half && row.x.in_vectors(half) && row.y.in_vectors(half) && is_aligned_16(row.cos) &&
          is_aligned_16(row.sin))
        return row.interleaved ? for_each(x.numel() / (2 * kNeighbours), RopePairs<true>{row, half / kNeighbours})
                               : for_each(x.numel() / (2 * kNeighbours), RopePairs<false>{row, half / kNeighbours});
    for_each_row(x.numel() / d, d, row);
  });
}

/// Runs on the host: the rule compares in long double, which no GPU has. There are at most rows + columns distances.
void t5_buckets(const Tensor& distance, const T5BucketOptions& options, Tensor& bucket) {
  Tensor here = empty(distance.shape(), {i64, cpu});
  kernel::t5_buckets(to(distance, cpu), options, here);
  transfer(cpu, here, bucket);
}

}  // namespace sluice::cuda
