// (y_a, y_b) = R(θ)·(x_a, x_b) for each pair:  y_a = x_a cos θ − x_b sin θ,  y_b = x_b cos θ + x_a sin θ
// R is orthogonal, so dx = R(−θ)·g: the same op with the sines negated.
#include <sluice/ops/rope.h>

#include <sluice/core/node.h>
#include <sluice/ops/create.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows.h>
#include <sluice/ops/view.h>

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

namespace sluice {

namespace {

constexpr int64_t kFarthest = int64_t{1} << 53;  // positions are exact in f64 up to here

/// cos and sin of all angles, [n, dim/2] each, in the dtype that x is rotated in.
struct Angles {
  Tensor cos, sin;
};

void rope_angles_cpu(const Tensor& positions, int64_t offset, double base, Tensor& cos, Tensor& sin) {
  const int64_t n = positions.numel(), half = cos.dim(1), *at = positions.data<int64_t>();
  for (int64_t i = 0; i < n; ++i)
    if (at[i] < -kFarthest || at[i] > kFarthest) fail<ValueError>("rope_at: position ", at[i], " lies beyond ±2^53");
  dispatch_float("rope", cos.dtype(), [&]<class T>() {
    T *pc = cos.mutable_data<T>(), *ps = sin.mutable_data<T>();
    for (int64_t k = 0; k < half; ++k) {
      const double frequency = std::pow(base, -static_cast<double>(k) / static_cast<double>(half));
      for (int64_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(at[i] + offset) * frequency;
        pc[i * half + k] = static_cast<T>(std::cos(angle)), ps[i * half + k] = static_cast<T>(std::sin(angle));
      }
    }
  });
}

Angles make_angles(const Tensor& positions, int64_t offset, int64_t dim, double base, DType dtype) {
  const TensorOptions options{dtype == bf16 ? f32 : dtype, positions.device()};
  Angles a{empty({positions.numel(), dim / 2}, options), empty({positions.numel(), dim / 2}, options)};
  kernel::rope_angles(positions, offset, base, a.cos, a.sin);
  return a;
}

/// Tables for consecutive positions are asked for again at every step: a few are kept.
Angles cached_angles(int64_t offset, int64_t n, int64_t dim, double base, TensorOptions options) {
  using Key = std::tuple<int64_t, int64_t, int64_t, double, DType, DeviceKind, int>;
  static std::mutex mutex;
  static std::map<Key, Angles>* cache = new std::map<Key, Angles>;  // never destroyed, as the allocator
  const Key key{offset, n, dim, base, options.dtype, options.device.kind, options.device.index};
  {
    std::lock_guard lock(mutex);
    if (auto it = cache->find(key); it != cache->end()) return it->second;
  }
  Angles a = make_angles(arange(n, {i64, options.device}), offset, dim, base, options.dtype);
  std::lock_guard lock(mutex);
  if (cache->size() >= 16) cache->clear();
  return cache->emplace(key, a).first->second;
}

void rope_cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, RopePairing pairing, bool inverse) {
  const int64_t d = x.dim(-1), n = x.dim(-2), half = cos.dim(1);
  detail::dispatch_rows("rope", x.dtype(), [&]<class T>() {
    const T *pc = cos.data<T>(), *ps = sin.data<T>();
    const detail::RowsIn<T> in(x, d, 0);
    const detail::RowsOut<T> out(y, d, 1);
    const T sign = inverse ? T(-1) : T(1);
    detail::for_each_row(x.numel() / d, d, [&](int64_t row) {
      const T *p = in[row], *c = pc + row % n * half, *s = ps + row % n * half;
      T* q = out[row];
      if (pairing == RopePairing::half) {
        for (int64_t k = 0; k < half; ++k) {
          const T a = p[k], b = p[k + half], sk = sign * s[k];
          q[k] = a * c[k] - b * sk;
          q[k + half] = b * c[k] + a * sk;
        }
      } else {
        for (int64_t k = 0; k < half; ++k) {
          const T a = p[2 * k], b = p[2 * k + 1], sk = sign * s[k];
          q[2 * k] = a * c[k] - b * sk;
          q[2 * k + 1] = b * c[k] + a * sk;
        }
      }
      std::copy(p + 2 * half, p + d, q + 2 * half);
      out.done(row);
    });
  });
}

Tensor rotate(const Tensor& x, const Angles& angles, RopePairing pairing, bool inverse);

struct Rope final : Node {
  Angles angles;
  RopePairing pairing;
  bool inverse;
  Rope(const Angles& a, RopePairing p, bool i) : angles(a), pairing(p), inverse(i) {}
  static const char* op_name() { return "rope"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override { return {rotate(g, angles, pairing, !inverse)}; }
};

Tensor rotate(const Tensor& x, const Angles& angles, RopePairing pairing, bool inverse) {
  Tensor y = empty(x.shape(), x.options());
  if (x.numel() > 0)
    kernel::rope(contiguous(x.detach()), angles.cos, angles.sin, y, pairing, inverse);
  return record<Rope>(std::move(y), {x}, {}, angles, pairing, inverse);
}

int64_t checked_rot_dim(const char* op, const Tensor& x, const RopeOptions& o) {
  detail::check_float(op, x);
  if (x.rank() < 2) fail(op, ": needs x [..., n, d] — got ", x);
  const int64_t dim = o.rot_dim ? o.rot_dim : x.dim(-1);
  if (dim < 0 || dim % 2 != 0 || dim > x.dim(-1))
    fail(op, ": rot_dim ", dim, " must be even and at most the last dim of x=", x);
  if (!(o.base > 0) || !std::isfinite(o.base)) fail<ValueError>(op, ": base must be positive and finite — got ", o.base);
  if (o.offset < -kFarthest || o.offset > kFarthest)
    fail<ValueError>(op, ": offset ", o.offset, " lies beyond ±2^53");
  return dim;
}

}  // namespace

constinit decltype(kernel::rope_angles) kernel::rope_angles{"rope", &rope_angles_cpu};
constinit decltype(kernel::rope) kernel::rope{"rope", &rope_cpu, Bf16::native};

Tensor rope(const Tensor& x, RopeOptions o) {
  const int64_t dim = checked_rot_dim("rope", x, o);
  if (x.numel() == 0) return rotate(x, {}, o.pairing, false);
  return rotate(x, cached_angles(o.offset, x.dim(-2), dim, o.base, x.options()), o.pairing, false);
}

Tensor rope_at(const Tensor& x, const Tensor& positions, RopeOptions o) {
  const int64_t dim = checked_rot_dim("rope_at", x, o), n = x.dim(-2);
  if (!is_integer(positions.dtype()))
    fail<DTypeError>("rope_at: positions must be i64 or i32 — got ", positions.dtype());
  if (positions.shape() != Shape{n}) fail("rope_at: positions=", positions, " do not fit x=", x, "; need [", n, "]");
  if (x.numel() == 0) return rotate(x, {}, o.pairing, false);
  return rotate(x, make_angles(contiguous(to(positions.detach(), i64)), o.offset, dim, o.base, x.dtype()), o.pairing, false);
}

Tensor toeplitz(const Tensor& w, int64_t n, int64_t m, int64_t row_offset) {
  if (w.rank() != 1 || w.dim(0) % 2 == 0)
    fail("toeplitz: needs a table of 2·n_max − 1 values — got w=", w);
  const int64_t n_max = (w.dim(0) + 1) / 2;
  if (n < 0 || m < 0 || row_offset < 0 || n > n_max || row_offset > n_max - n || m > n_max)
    fail("toeplitz: ", n, "×", m, " from row ", row_offset, " exceeds the table for n_max=", n_max);
  if (n == 0 || m == 0) return reshape(narrow(w, 0, 0, 0), {n, m});
  // Row i starts at centre − i: the last row first, then every later start is an earlier row.
  const int64_t first = n_max - 1 - (row_offset + n - 1);
  return flip(unfold(narrow(w, 0, first, n + m - 1), 0, m, 1), {0});
}

int64_t t5_bucket(int64_t rel, T5BucketOptions o) {
  if (o.buckets < 1 || o.buckets > 1 << 20 || o.max_distance < 1)
    fail<ValueError>("t5_bucket: needs buckets in [1, 2^20] and max_distance >= 1 — got ", o.buckets, ", ", o.max_distance);
  rel = std::clamp(rel, -INT64_MAX, INT64_MAX);
  int64_t count = o.buckets, bucket = 0, distance = -rel;
  if (o.causal) {
    distance = std::max<int64_t>(distance, 0);
  } else {
    count /= 2;
    if (rel > 0) bucket = count;
    distance = std::abs(distance);
  }
  const int64_t exact = count / 2, steps = count - exact;
  if (distance < exact) return bucket + distance;
  // The formula's floor(log(N/exact)/log(max/exact)·steps) >= k  ⇔  N^steps >= max^k · exact^(steps−k),
  // compared in long double, which is exact enough to hit the integer thresholds.
  int64_t k = 0;
  while (k + 1 < steps) {
    const long double lhs = static_cast<long double>(steps) * std::log2(static_cast<long double>(distance) / exact);
    const long double rhs = static_cast<long double>(k + 1) * std::log2(static_cast<long double>(o.max_distance) / exact);
    if (lhs < rhs - 1e-12L) break;
    ++k;
  }
  return bucket + exact + k;
}

namespace {
void t5_buckets_cpu(const Tensor& distance, const T5BucketOptions& o, Tensor& bucket) {
  const int64_t* d = distance.data<int64_t>();
  int64_t* out = bucket.mutable_data<int64_t>();
  for (int64_t i = 0; i < distance.numel(); ++i) out[i] = t5_bucket(d[i], o);
}
}  // namespace
constinit decltype(kernel::t5_buckets) kernel::t5_buckets{"t5_buckets", &t5_buckets_cpu};

Tensor detail::t5_buckets_of(const Tensor& distance, const T5BucketOptions& o) {
  Tensor bucket = empty(distance.shape(), distance.options());
  kernel::t5_buckets(contiguous(distance), o, bucket);
  return bucket;
}

Tensor t5_buckets(int64_t n, int64_t m, T5BucketOptions o, int64_t row_offset, Device device) {
  if (o.buckets < 4 || o.buckets % 4 != 0 || o.buckets > 1 << 20 || o.max_distance <= o.buckets)
    fail<ValueError>("t5_buckets: needs buckets divisible by 4, at most 2^20, and max_distance > buckets — got ", o.buckets,
                     ", ", o.max_distance);
  if (row_offset < 0) fail<ValueError>("t5_buckets: row_offset must not be negative — got ", row_offset);
  checked_add("t5_buckets", row_offset, checked_add("t5_buckets", std::max<int64_t>(n, 0), std::max<int64_t>(m, 0)));
  const Tensor out = empty({n, m}, {i64, device}, "t5_buckets");
  if (out.numel() == 0) return out;
  const Tensor distance = arange(static_cast<double>(1 - n - row_offset), static_cast<double>(m - row_offset), 1, {i64, device});
  // A row is a window of the distances of the last row.
  return clone(flip(unfold(detail::t5_buckets_of(distance, o), 0, m, 1), {0}));
}

}  // namespace sluice
