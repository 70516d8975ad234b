// Rotary embeddings: a thread a pair, or a channel that stays. Limited by memory.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/reduce.cuh>
#include <sluice/ops/create.h>
#include <sluice/ops/rope.h>

#include <cmath>

namespace sluice::cuda {

namespace {

constexpr int64_t kFarthest = int64_t{1} << 53;  // positions are exact in f64 up to here

/// Places of positions that lie beyond ±kFarthest, and the first of them.
struct FarPlaces {
  const int64_t* at;
  int64_t none;
  __device__ int64_t operator()(int64_t i, int64_t, int64_t) const { return at[i] < -kFarthest || at[i] > kFarthest ? i : none; }
};
struct First {
  using Total = int64_t;
  __device__ static Total start() { return std::numeric_limits<int64_t>::max(); }
  __device__ Total operator()(Total a, Total b) const { return b < a ? b : a; }
};

template <class T>
void rope_angles_as(const int64_t* at, int64_t offset, double base, Tensor& cos, Tensor& sin) {
  const int64_t half = cos.dim(1);
  const Scratch<double> frequencies(static_cast<std::size_t>(half));
  double* frequency = frequencies.get();
  for_each(half, [=] __device__(int64_t k) { frequency[k] = math::pow(base, -static_cast<double>(k) / static_cast<double>(half)); });
  T *pc = data_of<T>(cos), *ps = data_of<T>(sin);
  for_each(cos.numel(), [=] __device__(int64_t i) {
    const double angle = static_cast<double>(at[i / half] + offset) * frequency[i % half];
    pc[i] = static_cast<T>(math::cos(angle)), ps[i] = static_cast<T>(math::sin(angle));
  });
}

template <class T>
void rope_as(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, RopePairing pairing, bool inverse) {
  const int64_t d = x.dim(-1), n = x.dim(-2), half = cos.dim(1), rest = d - 2 * half, each = half + rest;
  const T *in = data_of<T>(x), *pc = data_of<T>(cos), *ps = data_of<T>(sin);
  T* out = data_of<T>(y);
  const int64_t between = pairing == RopePairing::half ? half : 1, step = pairing == RopePairing::half ? 1 : 2;
  for_each(x.numel() / d * each, [=] __device__(int64_t i) {
    const int64_t row = i / each, k = i % each;
    const T* p = in + row * d;
    T* q = out + row * d;
    if (k >= half) {
      q[half + k] = p[half + k];
      return;
    }
    const int64_t first = k * step, second = first + between, angle = row % n * half + k;
    const T a = p[first], b = p[second], c = pc[angle], s = inverse ? -ps[angle] : ps[angle];
    q[first] = a * c - b * s;
    q[second] = b * c + a * s;
  });
}

}  // namespace

void rope_angles(const Tensor& positions, int64_t offset, double base, Tensor& cos, Tensor& sin) {
  const int64_t *at = data_of<int64_t>(positions), n = positions.numel();
  if (n == 0) return;
  const Scratch<int64_t> first(1);
  reduce_to<First>({1, n, 1}, FarPlaces{at, n}, StorePart<int64_t>{first.get()});
  if (const int64_t bad = first.first(); bad < n)
    fail<ValueError>("rope_at: position ", value_at(at + bad), " lies beyond ±2^53");
  if (cos.numel() == 0) return;
  dispatch_float("rope", cos.dtype(), [&]<class T>() { rope_angles_as<T>(at, offset, base, cos, sin); });
}

void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, RopePairing pairing, bool inverse) {
  dispatch_float("rope", x.dtype(), [&]<class T>() { rope_as<T>(x, cos, sin, y, pairing, inverse); });
}

/// By the host: the rule compares in long double, which no device has, and there are no more distances than rows and columns.
void t5_buckets(const Tensor& distance, const T5BucketOptions& options, Tensor& bucket) {
  Tensor here = empty(distance.shape(), {i64, cpu});
  kernel::t5_buckets(to(distance, cpu), options, here);
  copy_to_device(address_of(bucket), here.raw(), static_cast<std::size_t>(bucket.numel()) * sizeof(int64_t));
}

}  // namespace sluice::cuda
