#include <sluice/core/number/random.h>

#include <sluice/core/error.h>
#include <sluice/core/kernel/kernel.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/normal_batch.h>
#include <sluice/core/number/philox.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace sluice {

namespace {

using namespace detail;  // philox.h

constexpr int64_t kBatch = kPhiloxBatch;

/// Fills y by emit(words, out), which makes PerBlock values from each block of four words and always converts a whole
/// batch. The first block is `start`.
template <int PerBlock, class T, class Emit> void fill(Tensor& y, uint64_t seed, uint64_t start, Emit emit) {
  constexpr int64_t kValues = kBatch * PerBlock;
  const int64_t n = y.numel(), blocks = ceil_div(n, PerBlock);
  T* out = y.mutable_data<T>();
  parallel_for(blocks, 64 * kBatch, [&](int64_t begin, int64_t end) {
    uint32_t words[4 * kBatch];
    T tile[kValues];
    for (int64_t b = begin; b < end; b += kBatch) {
      philox_batch(seed, start + static_cast<uint64_t>(b), kBatch, words);
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

void check_float(const char* op, DType t) {
  if (!is_float(t)) fail<DTypeError>(op, ": needs f32, f64 or bf16 — got ", t);
}

void check_normal(const char* op, double mean, double std, DType dtype) {
  check_float(op, dtype);
  const auto finite = [&](double v) { return std::isfinite(dtype == f64 ? v : static_cast<float>(v)); };
  if (!(std >= 0) || !finite(std) || !finite(mean))
    fail<ValueError>(op, ": needs a finite mean and std >= 0 — got mean=", mean, ", std=", std, " for ", dtype);
}

template <class T> void fill_floats(const RandomFill& f, Tensor& y) {
  constexpr int64_t kValues = kBatch * kPerBlock<T>;
  const T a = static_cast<T>(f.a), b = static_cast<T>(f.b);
  switch (f.kind) {
    case RandomFill::uniform: {
      const T span = b - a;
      // a + u·span may round up to b, which is outside.
      const T last = span > 0 ? std::nextafter(b, a) : a;
      return fill<kPerBlock<T>, T>(y, f.from.seed, f.from.first, [=](const uint32_t* words, T* out) {
        for (int64_t i = 0; i < kValues; ++i) out[i] = uniform_value(words, i, a, span, last);
      });
    }
    case RandomFill::normal:
      return fill<kPerBlock<T>, T>(y, f.from.seed, f.from.first, [=](const uint32_t* words, T* out) {
        if constexpr (sizeof(T) == 4) normal_batch(words, a, b, out);
        else
          for (int64_t i = 0; i < kValues; i += 2) normal_pair(words, i, a, b, out[i], out[i + 1]);
      });
    default: {                                            // truncated_normal
      const double edge = std::erf(std::numbers::sqrt2);  // P(|z| < 2)
      fill<kPerBlock<T>, T>(y, f.from.seed, f.from.first, [=](const uint32_t* words, T* out) {
        for (int64_t i = 0; i < kValues; ++i)
          out[i] = static_cast<T>(f.a + f.b * truncated_normal_value<T>(words, i, edge));
      });
    }
  }
}

/// Fisher-Yates: position i is settled at step i, counted from the end.
void fill_permutation(const RandomFill& f, Tensor& y) {
  const int64_t n = y.numel();
  int64_t* p = y.mutable_data<int64_t>();
  std::iota(p, p + n, int64_t{0});
  uint32_t words[4 * kBatch];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t in_batch = i % (2 * kBatch), left = n - i;
    if (in_batch == 0) philox_batch(f.from.seed, f.from.first + static_cast<uint64_t>(i / 2), kBatch, words);
    std::swap(p[left - 1], p[scaled_word(word64(words, in_batch), static_cast<uint64_t>(left))]);
  }
}

void random_cpu(const RandomFill& f, Tensor& y) {
  const uint64_t a = f.words[0], b = f.words[1];
  switch (f.kind) {
    case RandomFill::bernoulli:
      return fill<4, bool>(y, f.from.seed, f.from.first, [a](const uint32_t* words, bool* out) {
        for (int64_t i = 0; i < 4 * kBatch; ++i) out[i] = words[i] < a;
      });
    case RandomFill::randint:
      return fill<2, int64_t>(y, f.from.seed, f.from.first, [a, b](const uint32_t* words, int64_t* out) {
        for (int64_t i = 0; i < 2 * kBatch; ++i) out[i] = static_cast<int64_t>(a + scaled_word(word64(words, i), b));
      });
    case RandomFill::permutation: return fill_permutation(f, y);
    default: return dispatch_float("random", y.dtype(), [&]<class T>() { fill_floats<T>(f, y); });
  }
}

/// Returns a new tensor filled by `f`. Takes the seed and the first block from rng.
Tensor filled(const char* op, const Shape& shape, TensorOptions options, Rng& rng, RandomFill f) {
  Tensor y = empty(shape, options, op);
  const int64_t per_block = 16 / std::max<int64_t>(4, size_of(options.dtype));  // bool, bf16: one word, as f32
  f.from = rng.draw(static_cast<uint64_t>(ceil_div(y.numel(), per_block)), options.device);
  kernel::random(f, y);
  return y;
}

constinit thread_local RngLog::Record* recording = nullptr;  // innermost first
constinit thread_local RngLog::Record* outside = nullptr;    // of the innermost Replay: from here on none notes

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round, key[0] += kPhiloxWeyl0, key[1] += kPhiloxWeyl1)
    philox_round(c[0], c[1], c[2], c[3], key[0], key[1]);
  return c;
}

Rng::State Rng::read() const {
  if (!state_) return {};
  for (RngLog::Record* r = recording; r && r != outside; r = r->outer_) {
    auto& streams = r->log_.streams_;
    if (!r->graph_ && std::none_of(streams.begin(), streams.end(), [&](const auto& s) { return s.rng == state_; }))
      streams.push_back({state_, *state_});
  }
  return *state_;
}

RngBlocks Rng::draw(uint64_t blocks, Device device) {
  State& state = shared();
  RngBlocks result{state.seed, state.offset};
  bool again = false, graphed = false;  // a Replay has counted the blocks already; only the innermost graph notes them
  for (RngLog::Record* r = recording; r; r = r->outer_) {
    again |= r == outside;
    if (r->graph_ && std::exchange(graphed, true)) continue;
    if (r->graph_ && device != *r->graph_)
      fail<DeviceError>("random numbers made on ", device,
                        ": cannot be recorded in a graph, whose replays would repeat them");
    auto& streams = r->log_.streams_;
    auto stream = std::find_if(streams.begin(), streams.end(), [&](const auto& s) { return s.rng == state_; });
    if (!again) {
      if (stream == streams.end()) stream = streams.insert(stream, {state_, state});
      stream->set |= stream->moved();
      stream->blocks += blocks;
    }
    if (r->graph_ && stream != streams.end()) result.stream = static_cast<int>(stream - streams.begin());
  }
  state.offset += blocks;
  return result;
}

RngLog::Record::Record(RngLog& log, std::optional<Device> graph)
    : log_(log), graph_(graph), outer_(std::exchange(recording, this)) {}
RngLog::Record::~Record() {
  recording = outer_;
  if (!graph_) return;
  for (Stream& s : log_.streams_) {
    s.set |= s.moved();
    *s.rng = s.first;
  }
}

RngLog::Replay::Replay(const RngLog& log) {
  later_.reserve(log.streams_.size());  // nothing below throws, so no generator keeps the replayed state
  for (const Stream& s : log.streams_) later_.emplace_back(s.rng, std::exchange(*s.rng, s.first));
  outside_ = std::exchange(outside, recording);
}
RngLog::Replay::~Replay() {
  for (const auto& [rng, later] : later_) *rng = later;
  outside = outside_;
}

void RngLog::check() const {
  for (const Stream& s : streams_)
    if (s.set)
      fail<DeviceError>(
          "a random generator was set to another place: cannot be recorded in a graph, which moves it on");
  if (!intact())
    fail<DeviceError>(
        "a random generator was made and lost: cannot be recorded in a graph; make it outside, and draw from it by "
        "reference");
}
bool RngLog::intact() const {
  return std::none_of(streams_.begin(), streams_.end(), [](const Stream& s) { return s.rng.use_count() == 1; });
}

bool same_draws(const RngLog& a, const RngLog& b) {
  const auto same = [](const RngLog::Stream& x, const RngLog::Stream& y) {
    return x.first.seed == y.first.seed && x.first.offset == y.first.offset && x.blocks == y.blocks;
  };
  return std::equal(a.streams_.begin(), a.streams_.end(), b.streams_.begin(), b.streams_.end(), same);
}

std::vector<uint64_t> RngLog::places() const {
  std::vector<uint64_t> places;
  for (const Stream& s : streams_) places.push_back(s.rng->seed), places.push_back(s.rng->offset - s.first.offset);
  return places;
}

void RngLog::advance() {
  for (const Stream& s : streams_) s.rng->offset += s.blocks;
}

constinit decltype(kernel::random) kernel::random{"random", &random_cpu};

Tensor uniform(const Shape& shape, double lo, double hi, Rng& rng, TensorOptions options) {
  check_float("uniform", options.dtype);
  dispatch_float("uniform", options.dtype == f64 ? f64 : f32, [&]<class T>() {
    if (!(lo <= hi) || !std::isfinite(static_cast<T>(hi) - static_cast<T>(lo)))
      fail<ValueError>("uniform: needs lo <= hi with a finite hi − lo — got lo=", lo, ", hi=", hi);
  });
  return filled("uniform", shape, options, rng, {.kind = RandomFill::uniform, .a = lo, .b = hi});
}

Tensor normal(const Shape& shape, double mean, double std, Rng& rng, TensorOptions options) {
  check_normal("normal", mean, std, options.dtype);
  return filled("normal", shape, options, rng, {.kind = RandomFill::normal, .a = mean, .b = std});
}

Tensor truncated_normal(const Shape& shape, double mean, double std, Rng& rng, TensorOptions options) {
  check_normal("truncated_normal", mean, std, options.dtype);
  return filled("truncated_normal", shape, options, rng, {.kind = RandomFill::truncated_normal, .a = mean, .b = std});
}

Tensor bernoulli(const Shape& shape, double p, Rng& rng, Device device) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("bernoulli: needs 0 <= p <= 1 — got p=", p);
  const uint64_t limit = static_cast<uint64_t>(std::llround(p * 0x1p32));
  return filled("bernoulli", shape, {boolean, device}, rng, {.kind = RandomFill::bernoulli, .words = {limit}});
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, Rng& rng, Device device) {
  if (low >= high) fail<ValueError>("randint: needs low < high — got low=", low, ", high=", high);
  const uint64_t base = static_cast<uint64_t>(low), range = static_cast<uint64_t>(high) - base;
  return filled("randint", shape, {i64, device}, rng, {.kind = RandomFill::randint, .words = {base, range}});
}

Tensor permutation(int64_t n, Rng& rng, Device device) {
  if (n < 0) fail<ValueError>("permutation: needs n >= 0 — got n=", n);
  return filled("permutation", {n}, {i64, device}, rng, {.kind = RandomFill::permutation});
}

int64_t sample_discrete(const float* weights, int64_t n, Rng& rng) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      fail<ValueError>("sample_discrete: needs finite weights >= 0 — got weights[", i, "]=", double{weights[i]});
    total += weights[i];
  }
  if (!(total > 0)) fail<ValueError>("sample_discrete: needs a positive weight — got ", n, " weights that sum to 0");
  const RngBlocks from = rng.draw(1, cpu);
  const PhiloxWords drawn = philox_block(from.seed, from.first);
  double left = random_bits<double>(drawn.word, 0) * kUnit<double> * total;
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
