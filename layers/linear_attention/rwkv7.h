// Time mixing of RWKV-7 (Peng et al. 2025, "RWKV-7 'Goose' with Expressive Dynamic State Evolution"). A state for each
// head decays by key channel, loses at the direction κ what it held there before, and is written to at k:
//
//   x_i = x + (x_{t−1} − x) ⊙ μ_i, for i of r, w, k, v, a, g     r, k, v = x_r·Wr, x_k·Wk, x_v·Wv
//   w = −e^{−1/2}·σ(tanh(x_w·A)·B + b)     a = σ(x_a·A·B + b)     g = σ(x_g·A)·B, each with an A, B and b of its own
//   κ = k ⊙ ξ, of length 1 for each head     k ← k ⊙ (1 + (a − 1) ⊙ α)
//   S_t = diag(e^{w_t})·S_{t−1} − (a_t ⊙ κ_t)ᵀ(κ_t·S_{t−1}) + k_tᵀ v_t     o_t = r_t S_t
//   y = ((GroupNorm(o) + (Σ r ⊙ k ⊙ ρ)·v) ⊙ g)·Wo, with the sum over a head's channels
//
// κ reads the state before it decays. So a token is two rows of delta_scan(): the first decays by e^w, erases
// κ ⊙ e^{−w} under the key a ⊙ κ and writes nothing; the second writes v under k, erases nothing, and is read by r.
// −w is at most e^{−1/2}, so that e^{−w} < 2.
//
// Layers of a stack after the first mix v with that of the first: v += (v_first − v) ⊙ σ(x_v·A·B + b).
#pragma once

#include <sluice/layers/linear_attention/group_norm.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

struct Rwkv7Options {
  using Layer = struct Rwkv7;
  int64_t dim;
  int64_t head_dim = 64;
  int64_t decay_rank = 0, rate_rank = 0, value_rank = 0, gate_rank = 0;  // of A·B of w, a, v and g
  bool value_residual = false;                                           // true in a stack's layers after the first
  double norm_eps = 6.4e-4;
  int64_t chunk = 64;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("head_dim", o.head_dim, at_least(1), "channels of a head");
    f("decay_rank", o.decay_rank, at_least(0), "of w; 0: 1.8 sqrt(d) as a multiple of 32");
    f("rate_rank", o.rate_rank, at_least(0), "of a; 0: 1.8 sqrt(d) as a multiple of 32");
    f("value_rank", o.value_rank, at_least(0), "of the mix of v; 0: 1.3 sqrt(d) as a multiple of 32");
    f("gate_rank", o.gate_rank, at_least(0), "of g; 0: 0.6 d^0.8 as a multiple of 32");
    f("value_residual", o.value_residual, "v is mixed with that of the first layer");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm of each head's output");
    f("chunk", o.chunk, at_least(1), "rows at once, two a token; changes rounding only");
    describe_parameters(o, f);
  }
};

/// Causal, without residual. Initially μ and the bias of w are those of the authors' first layer, ξ and α are 1, ρ is
/// 0.
struct Rwkv7 {
  static constexpr const char* type = "Rwkv7";
  static constexpr bool keeps_f32(std::string_view part) { return part == "decay_bias"; }
  Rwkv7Options options{};
  Tensor mix;                   // μ [6, dim], of r, w, k, v, a and g
  Linear r, k, v, out;          // Wr, Wk, Wv, Wo
  Linear decay_down, decay_up;  // of w, without b
  Tensor decay_bias;            // b of w [dim], of dtype exact(dtype)
  Linear rate_down, rate_up;    // of a
  Linear value_down, value_up;  // absent without value_residual
  Linear gate_down, gate_up;    // of g
  Tensor removal, rate_mix;     // ξ, α [dim]
  Tensor bonus;                 // ρ [dim]
  GroupNorm norm;

  Rwkv7() = default;
  /// Throws ValueError unless head_dim divides dim.
  Rwkv7(Rwkv7Options o, Rng& rng);
  /// x [batch, n, dim] → the same shape, as the first layer. A document begins with an empty state, and nothing before
  /// it. A stream keeps dim·head_dim numbers a sequence, and the last row.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// The same in a stack. `first_values` [batch, n, dim] is v of the first layer: pass it undefined there, to be set.
  /// ShapeError if it does not fit x.
  Tensor operator()(const Tensor& x, Tensor& first_values, const Pass& pass = {}) const;
  /// w from x_w, [batch, n, dim]; f32 for x of bf16.
  Tensor log_decay(const Tensor& x) const;

  SLUICE_PARTS(mix, r, k, v, out, decay_down, decay_up, decay_bias, rate_down, rate_up, value_down, value_up, gate_down,
               gate_up, removal, rate_mix, bonus, norm);
};

}  // namespace sluice
