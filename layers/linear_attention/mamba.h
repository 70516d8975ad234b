// Mamba (Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", §3.2–3.4, "S6"): a state
// space layer that chooses by its input what it writes, reads and forgets. Each of the I inner channels has a state of
// N numbers, each with a decay of its own.
//
//   [x | z] = u·W_in (+ b)                         widths I, I; u is the layer's input
//   x ← silu(conv(x) + b)                          causal, over the last short_conv tokens
//   [δ | B | C] = x·W_x                            widths R, N, N; each may have a norm (Jamba)
//   Δ = softplus(δ·W_Δ + dt_bias)                  A = −e^{A_log}   [I, N]
//   h_t = e^{Δ_t A} ∘ h_{t−1} + (Δ_t x_t) B_tᵀ      y_t = h_t C_t + D ∘ x_t      h [I, N]
//   out = (y ⊙ silu(z))·W_out (+ b)
//
// It is linear_scan() with a head for each channel, q = C, k = B, v = Δ·x and the log decay Δ·A by channel of the key.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/short_convolution.h>

namespace sluice {

struct MambaOptions {
  using Layer = struct Mamba;
  int64_t dim;
  int64_t inner = 0;       // I; 0 means 2·dim
  int64_t state = 16;      // N
  int64_t short_conv = 4;  // 0: no convolution, silu alone
  int64_t dt_rank = 0;     // R; 0 means ⌈dim/16⌉
  bool conv_bias = true;
  bool bias = false;               // of W_in and W_out
  NormKind norm = NormKind::none;  // of δ, B and C, each by itself: none, rms (Jamba) or rms_plain (Falcon Mamba)
  double norm_eps = 1e-6;
  int64_t chunk = 64;
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("inner", o.inner, at_least(0), "channels that have a state; 0: 2*dim");
    f("state", o.state, at_least(1), "numbers of a channel's state");
    f("short_conv", o.short_conv, between(0, 1024), "tokens of the convolution of x; 0: none, silu alone");
    f("dt_rank", o.dt_rank, at_least(0), "rank of Delta's map; 0: dim/16, rounded up");
    f("conv_bias", o.conv_bias, "bias of the convolution");
    f("bias", o.bias, "of the maps in and out");
    f("norm", o.norm, "of what gives Delta, of B and of C: none, rms or rms_plain");
    f("norm_eps", o.norm_eps, at_least(0), "of the norms");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    describe_parameters(o, f);
  }
};

/// Causal. No residual. Initially A is −1 … −N in each channel (S4D-real), softplus(dt_bias) log-uniform on
/// [0.001, 0.1], W_Δ uniform within ±R^{−1/2}, and D is 1.
struct Mamba {
  static constexpr const char* type = "Mamba";
  static constexpr bool keeps_f32(std::string_view part) { return part == "a_log" || part == "dt_bias"; }
  MambaOptions options{};
  Linear in, select, dt, out;    // W_in, W_x, W_Δ without its bias, W_out
  ShortConvolution conv;         // over the channels of x
  Norm dt_norm, b_norm, c_norm;  // of δ, B and C
  Tensor dt_bias, a_log;         // [inner], [inner, state], of dtype exact(dtype)
  Tensor d;                      // [inner]

  Mamba() = default;
  /// Throws ValueError for options that do not fit.
  Mamba(MambaOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape; W_out's bias at padding. A document, a run of equal segments, begins with an
  /// empty state. A stream keeps inner·state numbers a sequence, and those of the convolution.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// What the scan reads, and the gate.
  struct Operands {
    Tensor z, x;       // [batch, n, inner]
    Tensor q, k, v;    // of the scan: C and B [batch, 1, n, state], Δ·x [batch, inner, n, 1]
    Tensor log_decay;  // Δ·A, [batch, inner, n, state]; f32 for x of bf16
  };
  /// Of the tokens of the call. linear_scan_state() of k, v and log_decay is h, [batch, inner, state, 1], after all of
  /// them.
  Operands operands(const Call& call) const;

  SLUICE_PARTS(in, conv, select, dt_norm, b_norm, c_norm, dt, dt_bias, a_log, d, out);
};

}  // namespace sluice
