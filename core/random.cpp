#include <sluice/core/random.h>

#include <sluice/core/parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace sluice {

namespace {

constexpr uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;    // Philox multipliers
constexpr uint32_t kWeyl0 = 0x9E3779B9,
                   kWeyl1 = 0xBB67AE85;  // key increments: golden ratio, sqrt 3

inline void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0,
                         uint32_t k1) {
  uint64_t p0 = uint64_t{c0} * kMul0, p1 = uint64_t{c2} * kMul1;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c1 = static_cast<uint32_t>(p1);
  c3 = static_cast<uint32_t>(p0);
}

constexpr int64_t kBatch = 64;  // blocks computed side by side, for the vectoriser

/// Blocks first … first+kBatch-1, four words each.
void philox_batch(uint64_t seed, uint64_t first, uint32_t* words) {
  uint32_t c0[kBatch], c1[kBatch], c2[kBatch] = {}, c3[kBatch] = {};
  for (int64_t i = 0; i < kBatch; ++i) {
    uint64_t block = first + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(block), c1[i] = static_cast<uint32_t>(block >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += kWeyl0, k1 += kWeyl1)
    for (int64_t i = 0; i < kBatch; ++i) philox_round(c0[i], c1[i], c2[i], c3[i], k0, k1);
  for (int64_t i = 0; i < kBatch; ++i) {
    words[4 * i] = c0[i], words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i], words[4 * i + 3] = c3[i];
  }
}

/// Fills y with values that emit(words, out) makes, PerBlock of them from each block of four words;
/// emit always converts a whole batch.
template <int PerBlock, class T, class Emit>
void fill(Tensor& y, Rng& rng, Emit emit) {
  constexpr int64_t kValues = kBatch * PerBlock;
  const int64_t n = y.numel(), blocks = (n + PerBlock - 1) / PerBlock;
  const uint64_t seed = rng.seed(), start = rng.reserve(static_cast<uint64_t>(blocks));
  T* out = reinterpret_cast<T*>(y.raw());
  parallel_for(blocks, 64 * kBatch, [&](int64_t begin, int64_t end) {
    uint32_t words[4 * kBatch];
    T tile[kValues];
    for (int64_t b = begin; b < end; b += kBatch) {
      philox_batch(seed, start + static_cast<uint64_t>(b), words);
      const int64_t at = b * PerBlock, count = std::min(kValues, n - at);
      if (count == kValues) {
        emit(words, out + at);
      } else {
        emit(words, tile);
        std::copy_n(tile, count, out + at);
      }
    }
  });
}

uint64_t word64(const uint32_t* words, int64_t i) {
  return uint64_t{words[2 * i + 1]} << 32 | words[2 * i];
}

// A float takes one word (24 bits of it), a double two (53 bits).
template <class T>
inline constexpr int kPerBlock = 16 / sizeof(T);
template <class T>
inline constexpr T kUnit = sizeof(T) == 4 ? T(0x1p-24) : T(0x1p-53);
/// Integer in [0, 1/kUnit), exact in T.
template <class T>
T bits(const uint32_t* words, int64_t i) {
  if constexpr (sizeof(T) == 4) return static_cast<T>(static_cast<int32_t>(words[i] >> 8));
  else return static_cast<T>(static_cast<int64_t>(word64(words, i) >> 11));
}

Tensor make(const char* op, const Shape& shape, TensorOptions options) {
  if (options.device != cpu) fail<DeviceError>(op, ": no kernel for ", options.device);
  return empty(shape, options, op);
}

void check_normal(const char* op, double mean, double std) {
  if (!(std >= 0) || !std::isfinite(std) || !std::isfinite(mean))
    fail<ValueError>(op, ": needs a finite mean and std >= 0 — got mean=", mean, ", std=", std);
}

/// erf(y) = x for |x| < 1: Winitzki's formula (error 2e-3), then two Halley steps, each of which
/// cubes the error.
double erf_inverse(double x) {
  constexpr double a = 0.147;
  const double log_term = std::log1p(-x * x), b = 2 / (std::numbers::pi * a) + log_term / 2;
  double y = std::copysign(std::sqrt(std::max(0.0, std::sqrt(b * b - log_term / a) - b)), x);
  for (int step = 0; step < 2; ++step) {
    double u = (std::erf(y) - x) * std::exp(y * y) / (2 * std::numbers::inv_sqrtpi);
    y -= u / (1 + y * u);
  }
  return y;
}

constinit thread_local RngTape::Record* recording = nullptr;

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round, key[0] += kWeyl0, key[1] += kWeyl1)
    philox_round(c[0], c[1], c[2], c[3], key[0], key[1]);
  return c;
}

uint64_t Rng::reserve(uint64_t blocks) {
  State& state = shared();
  for (RngTape::Record* r = recording; r; r = r->outer_) {
    auto& first = r->tape_.first_;
    auto same = [&](const auto& noted) { return noted.first == state_; };
    if (std::none_of(first.begin(), first.end(), same)) first.emplace_back(state_, state);
  }
  uint64_t before = state.offset;
  state.offset += blocks;
  return before;
}

RngTape::Record::Record(RngTape& tape) : tape_(tape), outer_(recording) { recording = this; }
RngTape::Record::~Record() { recording = outer_; }

RngTape::Replay::Replay(const RngTape& tape) : outer_(std::exchange(recording, nullptr)) {
  for (const auto& [rng, first] : tape.first_) {
    later_.emplace_back(rng, *rng);
    *rng = first;
  }
}
RngTape::Replay::~Replay() {
  for (const auto& [rng, later] : later_) *rng = later;
  recording = outer_;
}

Tensor uniform(const Shape& shape, double lo, double hi, Rng& rng, TensorOptions options) {
  return dispatch_float("uniform", options.dtype, [&]<class T>() {
    const T low = static_cast<T>(lo), span = static_cast<T>(hi) - low;
    if (!(lo <= hi) || !std::isfinite(span))
      fail<ValueError>("uniform: needs finite lo <= hi — got lo=", lo, ", hi=", hi);
    // low + u·span may round up to hi, which is outside.
    const T last = span > 0 ? std::nextafter(static_cast<T>(hi), low) : low;
    Tensor y = make("uniform", shape, options);
    fill<kPerBlock<T>, T>(y, rng, [=](const uint32_t* words, T* out) {
      for (int64_t i = 0; i < kBatch * kPerBlock<T>; ++i)
        out[i] = std::min(low + bits<T>(words, i) * kUnit<T> * span, last);
    });
    return y;
  });
}

Tensor normal(const Shape& shape, double mean, double std, Rng& rng, TensorOptions options) {
  check_normal("normal", mean, std);
  return dispatch_float("normal", options.dtype, [&]<class T>() {
    const T m = static_cast<T>(mean), s = static_cast<T>(std);
    Tensor y = make("normal", shape, options);
    fill<kPerBlock<T>, T>(y, rng, [=](const uint32_t* words, T* out) {
      for (int64_t i = 0; i < kBatch * kPerBlock<T>; i += 2) {
        T u = (bits<T>(words, i) + 1) * kUnit<T>;  // (0, 1], so that the log is finite
        T angle = bits<T>(words, i + 1) * kUnit<T> * (2 * std::numbers::pi_v<T>);
        T radius = s * std::sqrt(-2 * std::log(u));
        out[i] = m + radius * std::cos(angle);
        out[i + 1] = m + radius * std::sin(angle);
      }
    });
    return y;
  });
}

Tensor truncated_normal(const Shape& shape, double mean, double std, Rng& rng,
                        TensorOptions options) {
  check_normal("truncated_normal", mean, std);
  return dispatch_float("truncated_normal", options.dtype, [&]<class T>() {
    const double edge = std::erf(std::numbers::sqrt2);  // P(|z| < 2)
    Tensor y = make("truncated_normal", shape, options);
    fill<kPerBlock<T>, T>(y, rng, [=](const uint32_t* words, T* out) {
      for (int64_t i = 0; i < kBatch * kPerBlock<T>; ++i) {
        double u = (static_cast<double>(bits<T>(words, i)) + 0.5) * kUnit<T>;  // (0, 1)
        double z = std::numbers::sqrt2 * erf_inverse((2 * u - 1) * edge);
        out[i] = static_cast<T>(mean + std * std::clamp(z, -2.0, 2.0));
      }
    });
    return y;
  });
}

Tensor bernoulli(const Shape& shape, double p, Rng& rng) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("bernoulli: needs 0 <= p <= 1 — got p=", p);
  const uint64_t limit = static_cast<uint64_t>(std::llround(p * 0x1p32));
  Tensor y = empty(shape, {.dtype = boolean}, "bernoulli");
  fill<4, bool>(y, rng, [=](const uint32_t* words, bool* out) {
    for (int64_t i = 0; i < 4 * kBatch; ++i) out[i] = words[i] < limit;
  });
  return y;
}

namespace {
/// floor(w · range / 2^64): uniform on [0, range).
uint64_t scale(uint64_t w, uint64_t range) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(w) * range >> 64);
}
}  // namespace

Tensor randint(int64_t low, int64_t high, const Shape& shape, Rng& rng) {
  if (low >= high) fail<ValueError>("randint: needs low < high — got low=", low, ", high=", high);
  const uint64_t base = static_cast<uint64_t>(low), range = static_cast<uint64_t>(high) - base;
  Tensor y = empty(shape, {.dtype = i64}, "randint");
  fill<2, int64_t>(y, rng, [=](const uint32_t* words, int64_t* out) {
    for (int64_t i = 0; i < 2 * kBatch; ++i)
      out[i] = static_cast<int64_t>(base + scale(word64(words, i), range));
  });
  return y;
}

Tensor permutation(int64_t n, Rng& rng) {
  if (n < 0) fail<ValueError>("permutation: needs n >= 0 — got n=", n);
  Tensor y = empty({n}, {.dtype = i64}, "permutation");
  int64_t* p = y.mutable_data<int64_t>();
  std::iota(p, p + n, int64_t{0});
  const uint64_t seed = rng.seed(), start = rng.reserve(static_cast<uint64_t>((n + 1) / 2));
  uint32_t words[4 * kBatch];
  for (int64_t i = 0; i < n; ++i) {  // position i is settled at step i, counted from the end
    const int64_t in_batch = i % (2 * kBatch);
    if (in_batch == 0) philox_batch(seed, start + static_cast<uint64_t>(i / 2), words);
    const int64_t left = n - i;
    const uint64_t pick = scale(word64(words, in_batch), static_cast<uint64_t>(left));
    std::swap(p[left - 1], p[pick]);
  }
  return y;
}

int64_t sample_discrete(const float* weights, int64_t n, Rng& rng) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      fail<ValueError>("sample_discrete: needs finite weights >= 0 — got weights[", i, "]=",
                       double{weights[i]});
    total += weights[i];
  }
  if (!(total > 0))
    fail<ValueError>("sample_discrete: needs a positive weight — got ", n,
                     " weights that sum to 0");
  uint32_t words[4 * kBatch];
  philox_batch(rng.seed(), rng.reserve(1), words);
  double left = bits<double>(words, 0) * kUnit<double> * total;
  int64_t chosen = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (weights[i] == 0) continue;
    chosen = i;  // kept if rounding leaves something over at the end
    if (left < weights[i]) break;
    left -= weights[i];
  }
  return chosen;
}

}  // namespace sluice
