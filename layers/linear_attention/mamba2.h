// Mamba-2 (Dao & Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State
// Space Duality", §7): a state space layer, whose scan is linear attention with a decay for each head and token. H
// heads of P channels have a state of N columns each; there are G groups of heads.
//
//   [z | x | B | C | Δ] = u·W_in                   widths H·P, H·P, G·N, G·N, H; u is the layer's input; each may have
//                                                  a factor
//   [x | B | C] ← silu(conv([x | B | C]) + b)      causal, over the last short_conv tokens
//   Δ ← clamp(softplus(Δ + dt_bias), dt_limit)     A = −e^{A_log}   [H]
//   h_t = e^{Δ_t A}·h_{t−1} + Δ_t x_t B_tᵀ          y_t = h_t C_t + D x_t      h [P, N]; head i reads group ⌊i/(H/G)⌋
//   out = RMSNorm(y ⊙ silu(z))·W_out               the norm is over the channels of each group
//
// It is linear_scan() with q = C, k = B, v = Δ·x and the log decay Δ·A.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/short_convolution.h>

#include <limits>

namespace sluice {

struct Mamba2Options {
  using Layer = struct Mamba2;
  int64_t dim;
  int64_t heads = 0;       // H; 0 means 2·dim/head_dim
  int64_t head_dim = 64;   // P
  int64_t state = 128;     // N
  int64_t groups = 1;      // G
  int64_t short_conv = 4;  // 0: no convolution, silu alone
  bool conv_bias = true;   // b
  std::vector<double> dt_limit = {0, std::numeric_limits<double>::infinity()};
  std::vector<double> in_factors = {};  // of z, x, B, C and Δ, as in Falcon-H1; empty: 1
  bool d_per_channel = false;           // D is [H·P] instead of [H]
  bool norm = true;                     // false, as in Falcon-H1: y ⊙ silu(z)
  bool norm_before_gate = false;        // RMSNorm(y) ⊙ silu(z)
  double norm_eps = 1e-5;
  int64_t chunk = 64;
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(0), "number of heads; 0: 2*dim/head_dim");
    f("head_dim", o.head_dim, at_least(1), "channels of a head");
    f("state", o.state, at_least(1), "columns of a head's state");
    f("groups", o.groups, at_least(1), "of B and C, and of the norm; head i reads group i // (heads/groups)");
    f("short_conv", o.short_conv, between(0, 1024), "tokens of the convolution of x, B and C; 0: none, silu alone");
    f("conv_bias", o.conv_bias, "bias of the convolution");
    f("dt_limit", o.dt_limit, OptionRange{.low = 0, .infinite = true}, "[lo, hi], to which Delta is clamped");
    f("in_factors", o.in_factors, any_number(), "factors of z, x, B, C and Delta; empty: 1");
    f("d_per_channel", o.d_per_channel, "a D for each channel, not for each head");
    f("norm", o.norm, "RMSNorm of each group's channels; false: the gate alone");
    f("norm_before_gate", o.norm_before_gate, "norm(y) * silu(z), not norm(y * silu(z))");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    describe_parameters(o, f);
  }
};

/// Causal. No residual. Initially A is from U(−16, −1), softplus(dt_bias) log-uniform on [0.001, 0.1], and D is 1.
struct Mamba2 {
  static constexpr const char* type = "Mamba2";
  static constexpr bool keeps_f32(std::string_view part) { return part == "a_log" || part == "dt_bias"; }
  Mamba2Options options{};
  Linear in, out;         // W_in, W_out; no biases
  ShortConvolution conv;  // over the channels x | B | C
  Tensor dt_bias, a_log;  // [heads], of dtype exact(dtype)
  Tensor d;               // [heads] or [heads·head_dim]
  Norm norm;

  Mamba2() = default;
  /// Throws ValueError for options that do not fit.
  Mamba2(Mamba2Options o, Rng& rng);

  /// x [batch, n, dim] → the same shape; 0 at padding. A document, a run of equal segments, begins with an empty state.
  /// A stream keeps heads·head_dim·state numbers a sequence, and those of the convolution.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// What the recurrence reads.
  struct Operands {
    Tensor z;          // [batch, n, heads·head_dim]
    Tensor x;          // [batch, n, heads, head_dim]
    Tensor q, k, v;    // of the scan: C and B [batch, groups, n, state], Δ·x [batch, heads, n, head_dim]
    Tensor log_decay;  // Δ·A, [batch, heads, n]; f32 for x of bf16
  };
  /// Of the tokens of the call. linear_scan_state() of k, v and log_decay is the transpose of h after all of them.
  Operands operands(const Call& call) const;

  SLUICE_PARTS(in, conv, dt_bias, a_log, d, norm, out);
};

}  // namespace sluice
