// One row for each whole pool of B keys, a learned mean of theirs (DeepSeek-V4; key_pools.h says which keys a pool
// holds). For the keys x_0 … x_{B−1} of pool i, and those x'_0 … x'_{B−1} of the pool before it:
//
//   c_b = x_b·Wv   g_b = x_b·Wg + p_b                          d channels each
//   row_i = RoPE(RMSNorm(Σ_b softmax_b(g)_b ⊙ c_b))            channel by channel
//
// With `overlap` x·Wv, x·Wg and p have 2d channels: the sum runs over 2B keys, of which the own pool's have the last d
// channels and those of the pool before it the first d. RoPE turns the last rope_dim channels of a row by the position
// of its own first key.
#pragma once

#include <sluice/layers/attention/key_pools.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>

#include <string_view>

namespace sluice {

struct PoolCompressionOptions {
  int64_t dim, width;     // of x, of a row (d)
  int64_t pool = 4;       // B
  bool overlap = true;    // rows also read the pool before
  int64_t rope_dim = 64;  // last channels that RoPE turns; 0: none
  RopeOptions rope = {.pairing = RopePairing::interleaved};
  double norm_eps = 1e-6;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f.required("width", o.width, at_least(1), "d, channels of a row");
    f("pool", o.pool, at_least(1), "B, keys of a pool");
    f("overlap", o.overlap, "a row also reads the keys of the pool before");
    f("rope_dim", o.rope_dim, at_least(0), "last channels of a row that RoPE turns; 0: none");
    f.nested("rope_", o.rope);
    f("norm_eps", o.norm_eps, at_least(0), "of RMSNorm");
    describe_parameters(o, f);
  }
};

struct PoolCompression {
  static constexpr const char* type = "PoolCompression";
  static constexpr bool keeps_f32(std::string_view part) { return part == "position"; }
  PoolCompressionOptions options{};
  Linear value, gate;  // Wv, Wg: dim → d, or 2d with overlap
  Tensor position;     // p, [B, d or 2d], of dtype exact(dtype)
  Norm norm;

  PoolCompression() = default;
  /// Throws ValueError for options that do not fit.
  PoolCompression(PoolCompressionOptions o, Rng& rng);
  /// What pooled() reads of each token of x [batch, n, dim]: [batch, n, 2d or 4d].
  Tensor rows(const Tensor& x) const;
  /// The row of each whole pool, [batch, ⌊n/B⌋, d], of the rows() of all keys, of which `keys` (bool [batch or 1, n];
  /// undefined: all) marks the real ones. Differentiable.
  Tensor pooled(const Tensor& rows, const Tensor& keys = {}) const;

  SLUICE_PARTS(value, gate, position, norm);
};

namespace detail {
/// `turn` of the last `count` channels of x; the channels before them stay.
Tensor last_channels(const Tensor& x, int64_t count, const std::function<Tensor(const Tensor&)>& turn);
}  // namespace detail

}  // namespace sluice
