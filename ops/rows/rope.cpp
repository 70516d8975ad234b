// (y_a, y_b) = R(θ)·(x_a, x_b) for each pair:  y_a = x_a cos θ − x_b sin θ,  y_b = x_b cos θ + x_a sin θ
// R is orthogonal, so dx = R(−θ)·g: the same op with the sines negated. A factor of the pair is part of cos and sin.
#include <sluice/ops/rows/rope.h>

#include <sluice/core/kernel/graph.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/number/math.h>
#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rows.h>

#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <tuple>
#include <utility>

namespace sluice {

namespace {

constexpr int64_t kFarthest = int64_t{1} << 53;  // positions are exact in f64 up to here

/// cos and sin of all angles, [n, dim/2] each, in the dtype that x is rotated in.
struct Angles {
  Tensor cos, sin;
};

void rope_angles_cpu(const Tensor& positions, int64_t offset, const Tensor& frequencies, Tensor& cos, Tensor& sin) {
  const int64_t n = positions.numel(), half = cos.dim(1), *at = positions.data<int64_t>();
  const double* frequency = frequencies.data<double>();
  for (int64_t i = 0; i < n; ++i)
    if (at[i] < -kFarthest || at[i] > kFarthest) fail<ValueError>("rope_at: position ", at[i], " lies beyond ±2^53");
  dispatch_float("rope", cos.dtype(), [&]<class T>() {
    detail::for_each_row(n, half, [=, cos = cos.mutable_data<T>(), sin = sin.mutable_data<T>()](int64_t i) {
      const double position = static_cast<double>(at[i] + offset);
      T *const c = cos + i * half, *const s = sin + i * half;
      int far = 0;
      detail::vectorised([&] {
        for (int64_t k = 0; k < half; ++k) {
          const double angle = position * frequency[k];
          c[k] = static_cast<T>(math::f64::cos(angle)), s[k] = static_cast<T>(math::f64::sin(angle));
          far |= !(std::fabs(angle) < math::f64::quadrants_end);
        }
      });
      for (int64_t k = 0; far && k < half; ++k)  // the C library's
        if (const double angle = position * frequency[k]; !(std::fabs(angle) < math::f64::quadrants_end))
          c[k] = static_cast<T>(std::cos(angle)), s[k] = static_cast<T>(std::sin(angle));
    });
  });
}

void keep(const detail::DeviceGraphs& graphs, const Tensor& x) { graphs.keep(x); }
void keep(const detail::DeviceGraphs& graphs, const Angles& a) { graphs.keep(a.cos), graphs.keep(a.sin); }

/// Values on devices, by key. A cache of `most` values is emptied before the next one is added. A graph keeps the
/// values that it reads. A value made while a graph is recorded is not kept here: replays fill its memory, and a
/// recording may fail.
template <class Key, class Value> class DeviceCache {
 public:
  explicit DeviceCache(std::size_t most) : most_(most) {}
  /// The value of `key`, made by make() if it is not there.
  template <class Make> Value get(const Key& key, Device device, Make make) {
    const detail::DeviceGraphs* const graphs = detail::graphs_of(device);
    const bool recorded = graphs && graphs->recording();
    {
      const std::lock_guard lock(mutex_);
      if (const auto it = values_.find(key); it != values_.end()) {
        if (recorded) keep(*graphs, it->second);
        return it->second;
      }
    }
    Value made = make();
    if (recorded) return made;
    const std::lock_guard lock(mutex_);
    if (values_.size() >= most_) values_.clear();
    return values_.emplace(key, std::move(made)).first->second;
  }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::map<Key, Value> values_;
};

/// Numbers of an option set on a device.
Tensor kept_numbers(const std::vector<double>& numbers, Device device) {
  using Key = std::tuple<std::vector<double>, DeviceKind, int>;
  static auto* const cache = new DeviceCache<Key, Tensor>(64);  // never destroyed, as the allocator
  return cache->get({numbers, device.kind, device.index}, device, [&] { return to(Tensor::from(numbers), device); });
}

/// The factor of each pair of each row in addition to its rotation: f64, broadcasts to [n, dim/2].
Tensor growth(const Tensor& positions, int64_t dim, const RopeOptions& o) {
  std::vector<double> rate;  // log ζ_c / s
  for (int64_t c = 0; c < dim / 2; ++c)
    rate.push_back(
        o.xpos == 0 ? 0 : std::log((2 * static_cast<double>(c) / static_cast<double>(dim) + 0.4) / 1.4) / o.xpos);
  const Tensor at = to(positions, f64) + static_cast<double>(o.offset);
  return exp(unsqueeze(at, 1) * kept_numbers(rate, positions.device())) * o.factor;
}

Angles make_angles(const Tensor& positions, const RopeOptions& o, int64_t dim, DType wanted) {
  const Device device = positions.device();
  const bool grows = o.factor != 1 || o.xpos != 0;
  const DType dtype = wanted == bf16 ? f32 : wanted;
  const TensorOptions options{grows ? f64 : dtype, device};
  // The large tensors first: if memory is short, the error is about them.
  Angles a{empty({positions.numel(), dim / 2}, options, "rope"), empty({positions.numel(), dim / 2}, options, "rope")};
  const Tensor frequencies =
      kept_numbers(o.frequencies.empty() ? rope_frequencies(dim, o.base) : o.frequencies, device);
  kernel::rope_angles(positions, o.offset, frequencies, a.cos, a.sin);
  if (!grows) return a;
  const Tensor by = growth(positions, dim, o);
  return {to(a.cos * by, dtype), to(a.sin * by, dtype)};
}

/// Tables for consecutive positions. Every step needs them again.
Angles cached_angles(int64_t n, const RopeOptions& o, int64_t dim, TensorOptions options) {
  using Key =
      std::tuple<int64_t, int64_t, int64_t, double, std::vector<double>, double, double, DType, DeviceKind, int>;
  static auto* const cache = new DeviceCache<Key, Angles>(16);  // never destroyed, as the allocator
  const Key key{o.offset,
                n,
                dim,
                o.base,
                o.frequencies,
                o.factor,
                o.xpos,
                options.dtype,
                options.device.kind,
                options.device.index};
  return cache->get(key, options.device, [&] {
    return make_angles(arange(n, {i64, options.device}), o, dim, options.dtype);
  });
}

/// lo + i·hi = (a + i·b)(c + i·s) for `count` pairs. A function with __restrict__ parameters: otherwise g++ would take
/// pairs one by one for fear that results overlap operands.
template <class T>
void rotate_halves(const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ c, const T* __restrict__ s,
                   T sign, int64_t count, T* __restrict__ lo, T* __restrict__ hi) {
  for (int64_t k = 0; k < count; ++k) {
    const T sine = sign * s[k];
    lo[k] = a[k] * c[k] - b[k] * sine, hi[k] = b[k] * c[k] + a[k] * sine;
  }
}
template <class T>
void rotate_neighbours(const T* __restrict__ p, const T* __restrict__ c, const T* __restrict__ s, T sign, int64_t count,
                       T* __restrict__ q) {
  for (int64_t k = 0; k < count; ++k) {
    const T a = p[2 * k], b = p[2 * k + 1], sine = sign * s[k];
    q[2 * k] = a * c[k] - b * sine, q[2 * k + 1] = b * c[k] + a * sine;
  }
}

void rope_cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, RopePairing pairing, bool inverse) {
  const int64_t d = x.dim(3), inner = x.dim(2), n = x.dim(1), half = cos.dim(1);
  detail::dispatch_rows("rope", x.dtype(), [&]<class T>() {
    const T *pc = cos.data<T>(), *ps = sin.data<T>();
    const detail::RowsIn<T> in(x, d, 0);
    const detail::RowsOut<T> out(y, d, 1);
    const T sign = inverse ? T(-1) : T(1);
    detail::for_each_row(x.numel() / d, d, [&](int64_t row) {
      const int64_t angle = row / inner % n * half;
      const T* const p = in[row];
      T* const q = out[row];
      detail::vectorised([=] {
        if (pairing == RopePairing::half) rotate_halves(p, p + half, pc + angle, ps + angle, sign, half, q, q + half);
        else rotate_neighbours(p, pc + angle, ps + angle, sign, half, q);
      });
      std::copy(p + 2 * half, p + d, q + 2 * half);
      out.done(row);
    });
  });
}

/// Heads in the order in which a projection leaves them, [batch, n, heads, d] in memory, are read there, and the result
/// has the same order. So splitting heads before and merging them behind copies nothing, forward or backward.
Tensor rotate(const Tensor& x, const Angles& angles, RopePairing pairing, bool inverse) {
  const bool by_position = x.rank() == 4 && !x.is_contiguous() && transpose(x.detach(), 1, 2).is_contiguous();
  Tensor y = by_position ? transpose(empty(transpose(x.detach(), 1, 2).shape(), x.options(), "rope"), 1, 2)
                         : empty(x.shape(), x.options(), "rope");
  const auto rows = [&](const Tensor& t) {
    return by_position ? transpose(t, 1, 2)
                       : reshape(t, {t.numel() / (t.dim(-2) * t.dim(-1)), t.dim(-2), 1, t.dim(-1)});
  };
  if (x.numel() > 0) {
    Tensor to = rows(y);
    kernel::rope(rows(by_position ? x.detach() : contiguous(x.detach())), angles.cos, angles.sin, to, pairing, inverse);
  }
  return record("rope", std::move(y), {x}, {},
                [angles, pairing, inverse](const Tensor& g) { return rotate(g, angles, pairing, !inverse); });
}

int64_t checked_rot_dim(const char* op, const Tensor& x, const RopeOptions& o) {
  detail::check_float(op, x);
  if (x.rank() < 2) fail(op, ": needs x [..., n, d] — got ", x);
  return detail::rope_width(op, x, o);
}

}  // namespace

int64_t detail::rope_width(const char* op, const Tensor& x, const RopeOptions& o) {
  const int64_t dim = o.rot_dim ? o.rot_dim : x.dim(-1);
  if (dim < 0 || dim % 2 != 0 || dim > x.dim(-1))
    fail(op, ": rot_dim ", dim, " must be even and at most the last dim of x=", x);
  if (!(o.base > 0) || !std::isfinite(o.base))
    fail<ValueError>(op, ": base must be positive and finite — got ", o.base);
  if (o.offset < -kFarthest || o.offset > kFarthest) fail<ValueError>(op, ": offset ", o.offset, " lies beyond ±2^53");
  if (!o.frequencies.empty() && static_cast<int64_t>(o.frequencies.size()) != dim / 2)
    fail(op, ": ", o.frequencies.size(), " frequencies do not fit ", dim / 2, " pairs of channels of x=", x);
  for (double f : o.frequencies)
    if (!std::isfinite(f)) fail<ValueError>(op, ": frequencies must be finite — got ", f);
  if (!(o.factor > 0) || !std::isfinite(o.factor) || !std::isfinite(o.xpos))
    fail<ValueError>(op, ": factor must be positive and finite, xpos finite — got ", o.factor, ", ", o.xpos);
  return dim;
}

constinit decltype(kernel::rope_angles) kernel::rope_angles{"rope", &rope_angles_cpu};
constinit decltype(kernel::rope) kernel::rope{"rope", &rope_cpu, Bf16::native};

Tensor rope(const Tensor& x, RopeOptions o) {
  const int64_t dim = checked_rot_dim("rope", x, o);
  if (x.numel() == 0) return rotate(x, {}, o.pairing, false);
  return rotate(x, cached_angles(x.dim(-2), o, dim, x.options()), o.pairing, false);
}

Tensor rope_at(const Tensor& x, const Tensor& positions, RopeOptions o) {
  detail::check_defined("rope_at", {{"x", x}, {"positions", positions}});
  detail::check_devices("rope_at", {x, positions});
  const int64_t dim = checked_rot_dim("rope_at", x, o), n = x.dim(-2);
  if (!is_integer(positions.dtype()))
    fail<DTypeError>("rope_at: positions must be i64 or i32 — got ", positions.dtype(), " of shape ", positions);
  if (positions.shape() != Shape{n}) fail("rope_at: positions=", positions, " do not fit x=", x, "; need [", n, "]");
  if (x.numel() == 0) return rotate(x, {}, o.pairing, false);
  return rotate(x, make_angles(contiguous(to(positions.detach(), i64)), o, dim, x.dtype()), o.pairing, false);
}

std::vector<double> rope_frequencies(int64_t dim, double base) {
  if (dim < 0 || dim % 2 != 0 || dim > 1 << 24)
    fail<ValueError>("rope_frequencies: dim must be even and in [0, 2^24] — got ", dim);
  if (!(base > 0 && std::isfinite(base)))
    fail<ValueError>("rope_frequencies: base must be above 0 and finite — got ", base);
  std::vector<double> frequencies;
  for (int64_t c = 0; c < dim / 2; ++c)
    frequencies.push_back(std::pow(base, -static_cast<double>(c) / static_cast<double>(dim / 2)));
  return frequencies;
}

RopeOptions yarn_rope(RopeOptions o, int64_t dim, double scale, int64_t length, double beta_fast, double beta_slow,
                      bool truncate) {
  if (!(scale >= 1) || !std::isfinite(scale) || length < 1 || !(beta_slow > 0) || !(beta_fast >= beta_slow) ||
      !(o.base > 1))
    fail<ValueError>("yarn_rope: needs scale >= 1, length >= 1, beta_fast >= beta_slow > 0 and a base above 1 — got ",
                     scale, ", ", length, ", ", beta_fast, ", ", beta_slow, ", base ", o.base);
  // The pair that turns `turns` times in `length`, as a fraction.
  auto pair_of = [&](double turns) {
    return static_cast<double>(dim) * std::log(static_cast<double>(length) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(o.base));
  };
  double low = pair_of(beta_fast), high = pair_of(beta_slow);
  if (truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  o.frequencies = rope_frequencies(dim, o.base);
  for (std::size_t c = 0; c < o.frequencies.size(); ++c) {
    const double divided = std::clamp((static_cast<double>(c) - low) / (high - low), 0.0, 1.0);
    o.frequencies[c] *= divided / scale + 1 - divided;
  }
  o.factor = 1 + 0.1 * std::log(scale);
  return o;
}

Tensor toeplitz(const Tensor& w, int64_t n, int64_t m, int64_t row_offset) {
  detail::check_defined("toeplitz", {{"w", w}});
  if (w.rank() != 1 || w.dim(0) % 2 == 0) fail("toeplitz: needs a table of 2·n_max − 1 values — got w=", w);
  const int64_t n_max = (w.dim(0) + 1) / 2;
  if (n < 0 || m < 0 || row_offset < 0 || n > n_max || row_offset > n_max - n || m > n_max)
    fail("toeplitz: ", n, "×", m, " from row ", row_offset, " exceeds the table for n_max=", n_max);
  if (n == 0 || m == 0) return reshape(narrow(w, 0, 0, 0), {n, m});
  // Row i starts at centre − i. unfold gives the last row first; flip reverses the order.
  const int64_t first = n_max - 1 - (row_offset + n - 1);
  return flip(unfold(narrow(w, 0, first, n + m - 1), 0, m, 1), {0});
}

int64_t t5_bucket(int64_t rel, T5BucketOptions o) {
  if (o.buckets < 1 || o.buckets > 1 << 20 || o.max_distance < 1)
    fail<ValueError>("t5_bucket: needs buckets in [1, 2^20] and max_distance >= 1 — got ", o.buckets, ", ",
                     o.max_distance);
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
  const auto log_of = [exact](int64_t n) { return std::log2(static_cast<long double>(n) / exact); };
  const long double lhs = static_cast<long double>(steps) * log_of(distance), step = log_of(o.max_distance);
  int64_t k = 0;
  while (k + 1 < steps) {
    if (lhs < static_cast<long double>(k + 1) * step - 1e-12L) break;
    ++k;
  }
  return bucket + exact + k;
}

static void t5_buckets_cpu(const Tensor& distance, const T5BucketOptions& o, Tensor& bucket) {
  const int64_t* d = distance.data<int64_t>();
  int64_t* out = bucket.mutable_data<int64_t>();
  for (int64_t i = 0; i < distance.numel(); ++i) out[i] = t5_bucket(d[i], o);
}
constinit decltype(kernel::t5_buckets) kernel::t5_buckets{"t5_buckets", &t5_buckets_cpu};

Tensor detail::t5_buckets_of(const Tensor& distance, const T5BucketOptions& o) {
  Tensor bucket = empty(distance.shape(), distance.options());
  kernel::t5_buckets(contiguous(distance), o, bucket);
  return bucket;
}

void detail::check_t5(const char* op, const T5BucketOptions& o) {
  const int64_t exact = o.buckets / (o.causal ? 2 : 4);  // N of the formula's log(N/exact) / log(max_distance/exact)
  if (o.buckets < 4 || o.buckets % 4 != 0 || o.buckets > 1 << 20 || o.max_distance <= exact)
    fail<ValueError>(op, ": T5 needs buckets divisible by 4, at most 2^20, and max_distance > ", exact, " — got ",
                     o.buckets, ", ", o.max_distance);
}

Tensor t5_buckets(int64_t n, int64_t m, T5BucketOptions o, int64_t row_offset, Device device) {
  detail::check_t5("t5_buckets", o);
  if (row_offset < 0) fail<ValueError>("t5_buckets: row_offset must not be negative — got ", row_offset);
  checked_add("t5_buckets", row_offset, checked_add("t5_buckets", std::max<int64_t>(n, 0), std::max<int64_t>(m, 0)));
  const Tensor out = empty({n, m}, {i64, device}, "t5_buckets");
  if (out.numel() == 0) return out;
  const Tensor distance =
      arange(static_cast<double>(1 - n - row_offset), static_cast<double>(m - row_offset), 1, {i64, device});
  // Each row is a window of the n + m − 1 distances; the first window is the last row.
  return clone(flip(unfold(detail::t5_buckets_of(distance, o), 0, m, 1), {0}));
}

}  // namespace sluice
