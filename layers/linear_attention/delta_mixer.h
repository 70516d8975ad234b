// The parts that the layers of the delta rule share (ops/scan/delta_scan.h), around a layer's own decay and gate:
//
//   before: q, k, v = silu(conv(x·Wq | x·Wk | x·Wv)) in heads, q and k of length 1, q times dk^{−1/2}, β = c·σ(x·Wβ)
//   behind: y = (RMSNorm(o) ⊙ gate)·Wo, each value head normed by itself with one weight [dv]
//
// H heads of q and k serve HV value heads; value head i reads q and k of head ⌊i/(HV/H)⌋.
//
// With m `updates` a token writes m times, each time with its own k, v and β. Its decay acts before the first update,
// and q reads after the last (Siems et al. 2025, "DeltaProduct": a token's step of the state is a product of m
// Householder matrices). This is the same scan over m·n rows: all rows of a token but the first have g = 0, all but the
// last q = 0.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/layers/nn/short_convolution.h>
#include <sluice/ops/scan/delta_scan.h>

namespace sluice {

/// The sizes and the other options that all layers of the family have, as `heads` of their own options.
struct DeltaOptions {
  int64_t dim;
  int64_t heads = 4;        // H, of q and k
  int64_t value_heads = 0;  // HV; 0 means heads
  int64_t key_dim = 0;      // dk of a head; 0 means dim/heads
  int64_t value_dim = 0;    // dv of a value head; 0 means key_dim
  int64_t short_conv = 4;   // tokens of the convolution of q, k and v; 0: none
  double beta_scale = 1;    // c: with 2, I − β·kᵀk may have negative eigenvalues, down to −1
  int64_t updates = 1;      // m of a token
  double norm_eps = 1e-5;
  int64_t chunk = 64;
  double dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "H, heads of q and k");
    f("value_heads", o.value_heads, at_least(0), "HV, a multiple of heads; head i reads q, k of i // (HV/H); 0: heads");
    f("key_dim", o.key_dim, at_least(0), "dk, width of a head's q and k; 0: dim/heads");
    f("value_dim", o.value_dim, at_least(0), "dv, width of a value head; 0: key_dim");
    f("short_conv", o.short_conv, between(0, 1024),
      "q, k and v pass a causal convolution over so many tokens; 0: none");
    f("beta_scale", o.beta_scale, between(0, 2), "c of beta = c sigmoid(x Wbeta)");
    f("updates", o.updates, at_least(1), "m, writes of a token, each with k, v and beta of its own");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm of each head's output");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    f.training("dropout", o.dropout, probability(), "on the output");
    describe_parameters(o, f);
  }
};

/// The maps that every layer of the family has. A layer derives from it and lists the members in its own `visit`.
struct DeltaMixer {
  Linear q, k, v, out;    // dim → H·dk, m·H·dk, m·HV·dv; HV·dv → dim
  Linear beta;            // dim → m·HV
  ShortConvolution conv;  // over the channels q | k | v
  Norm norm;              // of dv channels

  SLUICE_PARTS(q, k, v, out, beta, conv, norm);

 protected:
  /// What the scan takes, by token and update.
  struct Rows {
    Tensor q;  // [batch, n, H, dk]
    Tensor k;  // [batch, n·m, H, dk]
    Tensor v;  // [batch, n·m, HV, dv]
  };
  /// Makes the members. Throws ValueError, naming `layer`, for sizes that do not fit. Fills in the defaults of `o`.
  /// `activation` is that of q and k; v has SiLU.
  void draw(const char* layer, DeltaOptions& o, Rng& rng, Act activation = Act::silu);
  /// q, k and v of the call's tokens, activated; q and k not yet normalised.
  Rows rows(const DeltaOptions& o, const Call& call, Act activation = Act::silu) const;
  /// rows() with q and k of length 1 for each head, and q times dk^{−1/2}. A row of zeros stays zero.
  Rows unit_rows(const DeltaOptions& o, const Call& call, Act activation = Act::silu) const;
  /// β [batch, n·m, HV, 1].
  Tensor strength(const DeltaOptions& o, const Call& call) const;
  /// The delta rule over all tokens so far, [batch, HV, n, dv]: erase is e ⊙ k, write is w ⊙ v, for gates e
  /// [batch, n·m, HV, dk or 1] and w [batch, n·m, HV, dv or 1]; log_decay [batch, n, HV(, dk)] or undefined. Padding
  /// writes nothing and decays nothing. A document begins with an empty state.
  static Tensor scanned(const DeltaOptions& o, Call& call, const Rows& x, const Tensor& log_decay, const Tensor& erase,
                        const Tensor& write);
  /// y from the result of scanned(). `gate` [batch, n, HV·dv] are the logits of a factor φ; undefined: no factor.
  Tensor finish(const DeltaOptions& o, const Call& call, const Tensor& attended, const Tensor& gate = {},
                Act activation = Act::silu) const;
};

namespace detail {
/// Puts t [batch, n, …] into row `at` of each token's `updates` rows; the others are zeros: [batch, n·updates, …].
/// Undefined for undefined.
Tensor among_updates(const Tensor& t, int64_t updates, int64_t at);
}  // namespace detail

}  // namespace sluice
