// Random numbers by Philox4x32-10 (Salmon et al. 2011): block i of a stream is a pure function of
// (seed, i), so a fill is computed in parallel and its values do not depend on the thread count.
//
// A fill of n values takes n/4 blocks (f32, bf16, bool) or n/2 (f64, i64), rounded up, from its Rng's counter. Saving a
// run's randomness means saving two integers, seed() and offset().
#pragma once

#include <sluice/core/memory/no_copy.h>
#include <sluice/core/tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace sluice {

/// The raw generator: four random words for a counter and a key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Blocks taken from a stream.
struct RngBlocks {
  uint64_t seed = 0;   // of the stream
  uint64_t first = 0;  // the first block
  int stream = -1;     // number of the stream in its recording (RngLog), else −1
};

/// A stream of random blocks. A copy continues on its own from the same place. Not for use from
/// several threads at once.
class Rng {
 public:
  /// Where a stream stands.
  struct State {
    uint64_t seed = 0;    // which stream
    uint64_t offset = 0;  // the next unused block
  };

  /// The stream of this seed, from its beginning.
  explicit Rng(uint64_t seed = 0) : state_(std::make_shared<State>(State{seed, 0})) {}
  Rng(const Rng& o) : state_(std::make_shared<State>(o.read())) {}
  Rng(Rng&&) noexcept = default;  // the source becomes Rng(0)
  Rng& operator=(const Rng& o) {
    if (this != &o) set_state(o.seed(), o.offset());
    return *this;
  }
  Rng& operator=(Rng&&) noexcept = default;

  /// Where the stream stands: which one, and how many blocks are used up.
  uint64_t seed() const { return read().seed; }
  uint64_t offset() const { return read().offset; }
  /// Continues the stream `seed` at block `offset`.
  void set_state(uint64_t seed, uint64_t offset) {
    read();  // recordings note the state before, to return to it
    shared() = {seed, offset};
  }
  /// Takes `blocks` blocks: advances the counter and returns the index of the first.
  uint64_t reserve(uint64_t blocks) { return draw(blocks, cpu).first; }
  /// reserve() for numbers made on `device`. Throws DeviceError where a recording (RngLog) would freeze them.
  RngBlocks draw(uint64_t blocks, Device device);

 private:
  friend class RngLog;
  /// Returns the state. Recordings (RngLog) note the read, because later draws may follow from it.
  State read() const;
  State& shared() {
    if (!state_) state_ = std::make_shared<State>();
    return *state_;
  }
  // Shared with the logs that noted this Rng, so that they survive its move or its death.
  std::shared_ptr<State> state_;
};

/// Which Rngs a stretch of code draws from, where each stood, and how much it took. So the code can be run again with
/// the same numbers (gradient checkpointing: the same dropout masks):
///
///     RngLog log;
///     { RngLog::Record on(log); y = segment(x); }
///     { RngLog::Replay on(log); y_again = segment(x); }   // bit-identical
///
/// Also, recorded device work (core/kernel/graph.h) can be replayed with new numbers: those that the code would draw if
/// it ran at that time. For that, call check() after recording, pass places() to each replay, and call advance() after
/// it.
class RngLog {
 public:
  /// For its scope, notes every Rng that this thread draws from, copies, sets or asks where it stands. Scopes nest:
  /// outer logs note it too.
  ///
  /// With `graph`, blocks that this thread draws for that device carry the number of their stream in the innermost such
  /// log, and no outer log notes them. A draw for another device throws DeviceError. At the end of the scope the Rngs
  /// return to their states before it.
  class Record : private NoCopy {
   public:
    explicit Record(RngLog& log, std::optional<Device> graph = std::nullopt);
    ~Record();

   private:
    friend class Rng;
    RngLog& log_;
    std::optional<Device> graph_;
    Record* outer_;
  };

  /// For its scope, returns each noted Rng to its state at its first use; at the end their later states return. Scopes
  /// nest. Logs that record outside do not note draws inside.
  class Replay : private NoCopy {
   public:
    explicit Replay(const RngLog& log);
    ~Replay();

   private:
    std::vector<std::pair<std::shared_ptr<Rng::State>, Rng::State>> later_;
    Record* outside_;
  };

  /// True if nothing was recorded.
  bool empty() const { return streams_.empty(); }
  /// Throws DeviceError if an Rng was set in the recording, or did not outlive it.
  void check() const;
  /// False after an Rng was destroyed or replaced by move assignment; the work must then be recorded anew.
  bool intact() const;
  /// For each stream its seed, and the number of blocks by which it has advanced since the recording.
  std::vector<uint64_t> places() const;
  /// Takes the blocks that a replay used.
  void advance();
  /// True if both logs noted the same blocks of the same streams, in the same order.
  friend bool same_draws(const RngLog& a, const RngLog& b);

 private:
  friend class Rng;
  struct Stream {
    std::shared_ptr<Rng::State> rng;
    Rng::State first;     // state at its first use
    uint64_t blocks = 0;  // number of blocks taken
    bool set = false;     // other code set the Rng to another place
    bool moved() const { return rng->seed != first.seed || rng->offset != first.offset + blocks; }
  };
  std::vector<Stream> streams_;
};

/// Arguments of kernel::random. The values are a pure function of seed and first block.
struct RandomFill {
  /// The distribution; it decides what a, b and words mean.
  enum Kind { uniform, normal, truncated_normal, bernoulli, randint, permutation };
  Kind kind;                   // what is drawn
  double a = 0, b = 0;         // uniform: bounds; normal: mean, std
  uint64_t words[2] = {0, 0};  // bernoulli: true below words[0]; randint: first value and range
  RngBlocks from = {};         // the blocks that the values are made from
};

// -- fills: f32, f64 or bf16 (rounded f32) by options.dtype, else DTypeError. ValueError for parameters outside the
// domain.

/// Uniform on [lo, hi); 24 random bits in f32, 53 in f64; rounding to bf16 may reach hi. Needs lo <= hi with a finite
/// difference.
Tensor uniform(const Shape& shape, double lo, double hi, Rng& rng, TensorOptions options = {});
/// Normal by Box-Muller. Needs a finite mean and std >= 0.
Tensor normal(const Shape& shape, double mean, double std, Rng& rng, TensorOptions options = {});
/// The normal distribution cut to mean ± 2 std (by inverse CDF, so the spread is 0.8796 std).
Tensor truncated_normal(const Shape& shape, double mean, double std, Rng& rng, TensorOptions options = {});
/// bool: true with probability p in [0, 1], in steps of 2^-32.
Tensor bernoulli(const Shape& shape, double p, Rng& rng, Device device = cpu);
/// i64, uniform on [low, high); the bias is below (high - low) / 2^64.
Tensor randint(int64_t low, int64_t high, const Shape& shape, Rng& rng, Device device = cpu);
/// i64[n]: 0 … n-1 in random order (Fisher-Yates).
Tensor permutation(int64_t n, Rng& rng, Device device = cpu);
void rand(const Shape&, TensorOptions = {}) = delete;   // draw with uniform(shape, 0, 1, rng)
void randn(const Shape&, TensorOptions = {}) = delete;  // draw with normal(shape, 0, 1, rng)
// The shape comes first. Without these normal(0, 1, {2}, rng) would be an empty tensor of shape {0}.
void uniform(double, double, std::initializer_list<int64_t>, Rng&, TensorOptions = {}) = delete;
void normal(double, double, std::initializer_list<int64_t>, Rng&, TensorOptions = {}) = delete;
void truncated_normal(double, double, std::initializer_list<int64_t>, Rng&, TensorOptions = {}) = delete;
/// An index in [0, n) with probability weights[i] / sum. Weights are finite, >= 0, and not all
/// zero.
int64_t sample_discrete(const float* weights, int64_t n, Rng& rng);

}  // namespace sluice
