// Rotary position embedding (Su et al. 2021) and the relative position biases that GAU adds to scores.
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/core/tensor.h>

#include <vector>

namespace sluice {

enum class RopePairing {
  half,         // pairs (c, c + dim/2): FLASH's appendix, LLaMA, Qwen
  interleaved,  // pairs (2c, 2c + 1): RoFormer, bert4keras
};
constexpr const char* choices(RopePairing) { return "half interleaved"; }

struct RopeOptions {
  double base = 10000;
  RopePairing pairing = RopePairing::half;
  int64_t rot_dim = 0;  // rotate only the first rot_dim channels; 0 means all
  int64_t offset = 0;   // position of the first row, for streaming
  /// Radians per position of each pair, rot_dim/2 numbers, in place of base^(−c/(dim/2)): scaled RoPE, see yarn_rope.
  std::vector<double> frequencies = {};
  double factor = 1;  // multiplies the rotated channels (YaRN)
  /// xPos (Sun et al. 2023, with s = 512): if s = xpos ≠ 0, pair c at position p is also multiplied by ζ_c^(p/s),
  /// ζ_c = (2c/dim + 0.4)/1.4, for queries; keys, with of_keys(), are divided. p is the absolute position: in f32 it
  /// may reach about 60·s.
  double xpos = 0;

  /// The options for keys, from those for queries. Layers rotate keys with of_keys().
  RopeOptions of_keys() const {
    RopeOptions o = *this;
    o.xpos = -xpos;
    return o;
  }

  static void describe(auto& o, auto& f) {
    f("base", o.base, above(0), "angles are p * base^(-c/(dim/2))");
    f("pairing", o.pairing, "half rotates channels (c, c + dim/2), interleaved (2c, 2c + 1)");
    f("rot_dim", o.rot_dim, at_least(0), "only the first rot_dim channels are rotated; 0: all");
    f("offset", o.offset, between(-1e15, 1e15), "position of the first token");
    f("frequencies", o.frequencies, any_number(), "radians a position, of each pair (inv_freq); empty: from base");
    f("factor", o.factor, above(0), "of what is rotated (YaRN's attention factor)");
    f("xpos", o.xpos, any_number(),
      "s: queries also times z_c^(p/s), keys by it, z_c = (2c/dim + 0.4)/1.4; 0: no xPos");
  }
};

namespace detail {
/// Number of channels of the last dim of x that are rotated. Errors about options name op.
int64_t rope_width(const char* op, const Tensor& x, const RopeOptions& o);
}  // namespace detail

/// Rotates pair c of row p by the angle (p + offset) · base^(−c/(dim/2)), dim = rot_dim. x [..., n, d]:
/// positions run along dim −2. The two pairings are equal up to a fixed permutation of channels.
/// ShapeError when rot_dim is odd or larger than d, or there are not rot_dim/2 frequencies. ValueError unless base and
/// factor are above 0, all options are finite, and positions and offset lie within ±2^53.
Tensor rope(const Tensor& x, RopeOptions options = {});
/// The same with an explicit position for each row: positions [n], i64 or i32.
Tensor rope_at(const Tensor& x, const Tensor& positions, RopeOptions options = {});

/// base^(−c/(dim/2)) for c < dim/2. Dividing the frequencies by s divides positions by s (linear scaling, Chen et al.
/// 2023). NTK-aware scaling uses the base base · s^(dim/(dim − 2)). ValueError unless dim is even and in [0, 2^24] and
/// base is above 0 and finite.
std::vector<double> rope_frequencies(int64_t dim, double base = 10000);
/// YaRN (Peng et al. 2023): `options` for `scale` times the `length` that a model was trained on. Pairs that turn more
/// than beta_fast times in `length` keep their frequency. Pairs that turn fewer than beta_slow times have it divided by
/// scale. Between them is a ramp, from a whole pair to a whole pair with `truncate` (gpt-oss: without). factor becomes
/// 1 + 0.1·ln scale. dim: number of rotated channels. ValueError unless scale >= 1, length >= 1, base > 1,
/// beta_slow > 0 and beta_fast >= beta_slow.
RopeOptions yarn_rope(RopeOptions options, int64_t dim, double scale, int64_t length, double beta_fast = 32,
                      double beta_slow = 1, bool truncate = true);

/// The n×m Toeplitz matrix b_ij = w[centre + j − i] as a view of w. w holds 2·n_max − 1 values and
/// centre = n_max − 1, so a table built for n_max serves every n, m <= n_max. `row_offset` is the
/// position of row 0 (streaming).
Tensor toeplitz(const Tensor& w, int64_t n, int64_t m, int64_t row_offset = 0);

struct T5BucketOptions {
  bool causal = false;  // all buckets for the past
  int64_t buckets = 32;
  int64_t max_distance = 128;

  static void describe(auto& o, auto& f) {  // `causal` follows the layer
    f("buckets", o.buckets, between(1, 1 << 20), "number of T5 buckets");
    f("max_distance", o.max_distance, at_least(1), "distance from which T5 has one bucket");
  }
};
/// T5's bucket of the offset rel = key position − query position (Raffel et al. 2020), robust to rounding:
/// thresholds are compared in long double with a guard, so that they fall on the exact integers. ValueError unless
/// buckets is in [1, 2^20] and max_distance >= 1.
int64_t t5_bucket(int64_t rel, T5BucketOptions options = {});
/// i64 [n, m]: buckets for queries row_offset … row_offset + n − 1 and keys 0 … m − 1. ValueError unless buckets is a
/// multiple of 4 in [4, 2^20], max_distance exceeds the offsets with a bucket of their own (buckets/2 if causal, else
/// buckets/4), and row_offset >= 0.
Tensor t5_buckets(int64_t n, int64_t m, T5BucketOptions options = {}, int64_t row_offset = 0, Device device = cpu);

namespace detail {
/// Throws ValueError, naming `op`, unless t5_buckets() takes these options.
void check_t5(const char* op, const T5BucketOptions& options);
/// The bucket of each distance, an i64 tensor.
Tensor t5_buckets_of(const Tensor& distance, const T5BucketOptions& options);
}  // namespace detail

}  // namespace sluice
