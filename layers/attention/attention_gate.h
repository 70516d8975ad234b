// The gate of gated attention (Qiu et al. 2025, "Gated Attention for Large Language Models", arXiv 2505.06708):
//
//   Y' = Y ⊙ σ(X·W)        X is the layer's input after its pre-norm
//
// at one of five places of an attention layer. The default is the best variant of the paper: head-specific,
// elementwise, multiplicative, sigmoid, G1.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/attention/attention.h>

namespace sluice {

enum class GatePosition {
  g1,  // SDPA output   [batch, heads, n, value_dim]
  g2,  // value         [batch, kv_heads, n, value_dim]; X of the key side
  g3,  // key           [batch, kv_heads, n, head_dim]; X of the key side
  g4,  // query         [batch, heads, n, head_dim]
  g5,  // dense output  [batch, n, dim]
};
constexpr const char* choices(GatePosition) { return "g1 g2 g3 g4 g5"; }
enum class GateGranularity {
  elementwise,  // a score for every channel: W [dim, heads·head_dim]
  headwise,     // a score for every head: W [dim, heads]; at G5 a score for each of `heads` equal parts of the channels
};
constexpr const char* choices(GateGranularity) { return "elementwise headwise"; }
enum class GateMode { multiply, add };  // Y ⊙ s or Y + s (the paper adds with SiLU)
enum class GateSharing {
  none,    // head-specific
  scores,  // scores averaged over heads; W keeps its full size
  logits,  // logits averaged over heads, then activated
};
constexpr const char* choices(GateSharing) { return "none scores logits"; }
constexpr const char* choices(GateMode) { return "multiply add"; }
enum class GateSource {
  input,  // X
  query,  // Q of the layer, all heads side by side, before norms, gates and RoPE
};
constexpr const char* choices(GateSource) { return "input query"; }

struct AttentionGateOptions {
  GatePosition position = GatePosition::g1;
  GateGranularity granularity = GateGranularity::elementwise;
  GateMode mode = GateMode::multiply;
  Act activation = Act::sigmoid;  // sigmoid, silu, ns_sigmoid, identity, softplus (Laguna)
  GateSharing sharing = GateSharing::none;
  GateSource source = GateSource::input;  // what takes the place of X, at G1, G4 and G5; the layer hands it over
  /// Scores are act(θ) for a learned vector θ, initially 0, instead of act(X·W).
  bool input_independent = false;
  /// G3 and G4: the gate applies after QK-norm instead of right after the projection.
  bool after_qk_norm = false;
  bool bias = false;       // x·W + b, a b for every score
  bool head_bias = false;  // elementwise, G1 to G4: x·W + b, one b for all channels of a head (Beam)
  double bias_init = 0;
  Init init = Init::paper();

  static void describe(auto& o, auto& f) {
    f("position", o.position, "g1 SDPA output, g2 value, g3 key, g4 query, g5 dense output");
    f("granularity", o.granularity, "a score for every channel or for every head");
    f("mode", o.mode, "y*s or y + s");
    f("activation", o.activation, "s = act(x W)");
    f("sharing", o.sharing, "none: head-specific; scores or logits averaged over heads");
    f("source", o.source, "g1, g4, g5: x, or Q of all heads before norms, gates and RoPE, takes the place of x");
    f("input_independent", o.input_independent, "scores from a vector theta instead of x");
    f("after_qk_norm", o.after_qk_norm, "g3, g4: after QK-norm instead of right after the projection");
    f("bias", o.bias, "x W + b, a b for every score");
    f("head_bias", o.head_bias, "elementwise, g1 to g4: x W + b, one b for all channels of a head");
    f.training("bias_init", o.bias_init, any_number(), "initial b");
    f.nested("init_", o.init);
  }
};

struct AttentionGate {
  static constexpr const char* type = "AttentionGate";
  AttentionGateOptions options{};
  int64_t heads = 0, head_dim = 0;  // of the gated tensor; G5: heads = 1 unless headwise, heads · head_dim = dim
  Linear map;                       // dim → heads·head_dim or heads
  Tensor theta;                     // [heads·head_dim] or [heads], with input_independent
  Tensor head_bias;                 // [heads]

  AttentionGate() = default;
  /// `dim` is the width of X. heads and head_dim are those of the tensor at the position (kv_heads for G2 and G3).
  /// Throws ValueError for options that do not go together.
  AttentionGate(AttentionGateOptions o, int64_t dim, int64_t heads, int64_t head_dim, Rng& rng, DType dtype = f32);
  /// Returns the gate scores [batch, heads, n, head_dim or 1] (G5: [batch, n, dim or heads]) of x [batch, n, dim].
  /// Shared scores have one head. Input-independent scores are [1, heads, 1, ·] (G5: [1, 1, ·]). Both broadcast.
  Tensor scores(const Tensor& x) const;
  /// Returns y gated by x. The shape of y is that of the position.
  Tensor operator()(const Tensor& y, const Tensor& x) const;
  /// Returns sequence_attention(q, k, v, options, rng) gated by x, in one kernel on devices that have one.
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& x, const AttentionOptions& options,
                Rng* rng) const;
  /// Returns true if attend() may compute attention and gate in one kernel. This needs a sigmoid gate at G1 that
  /// multiplies, depends on the input and is not shared between heads; queries that a GPU's tensor cores can gate
  /// (detail::may_gate); and a sequence that is not split over ranks.
  bool may_fuse(const Tensor& q) const;
  SLUICE_PARTS(map, theta, head_bias);

 private:
  Tensor logits(const Tensor& x) const;  // [batch, n, heads, ·]; with shared logits their mean [batch, n, 1, ·]
  Tensor activated(const Tensor& logits) const;
};

}  // namespace sluice
