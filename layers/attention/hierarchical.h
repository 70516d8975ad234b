// Stacks of attention layers whose reach grows with height: layer ℓ has its own window w_ℓ, and the last layers see all
// tokens. The windows of the lower layers form words and phrases, and full attention above connects them.
#pragma once

#include <sluice/layers/attention/multi_head_attention.h>

#include <vector>

namespace sluice {

struct AttentionStackOptions {
  using Layer = struct AttentionStack;
  std::vector<MultiHeadAttentionOptions> layers;  // from bottom to top; all must have the same dim
};

/// Returns one layer for each entry of `windows`; the layers differ in the window only. A window w is AttentionMask's:
/// w keys including a query's own position, 0 for full attention. `layer` should have a norm and a residual, which a
/// stack needs.
AttentionStackOptions hierarchical_options(const MultiHeadAttentionOptions& layer, const std::vector<int64_t>& windows);

struct LocalGlobalOptions {
  int64_t window;  // of the first stage; >= 1
  /// The second stage is full attention or sparse attention. With dilation > 1 a query sees keys at distances that are
  /// multiples of `dilation`. With `global` positions a query sees these positions and the window.
  int64_t dilation = 1;
  std::vector<int64_t> global = {};
};
/// Two stages: local attention, then attention over long distances (Longformer, BigBird).
AttentionStackOptions local_global_options(const MultiHeadAttentionOptions& layer, const LocalGlobalOptions& stages);

struct AttentionStack {
  static constexpr const char* type = "AttentionStack";
  std::vector<MultiHeadAttention> layers;

  AttentionStack() = default;
  /// Throws ValueError without layers, for layers of different dims and for cross attention.
  AttentionStack(AttentionStackOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. Every layer receives the pass. In a stream, a layer with a window of W and no
  /// global positions keeps (W − 1)·dilation + 1 tokens; any other layer keeps all tokens.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(layers);
};

}  // namespace sluice
