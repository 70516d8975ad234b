// Stacks of attention layers that see more the higher they stand: layer ℓ has a window w_ℓ of its own, the last ones
// see everything. Windows below make words and phrases, full attention above connects them.
#pragma once

#include <sluice/layers/heads/multi_head_attention.h>

#include <utility>
#include <vector>

namespace sluice {

struct AttentionStackOptions {
  std::vector<MultiHeadAttentionOptions> layers;  // bottom to top, all of one dim
};

/// One layer for each entry of `windows`, alike but for the window: AttentionMask's, w keys including a query's own
/// position, 0 for full attention. Give `layer` a norm and a residual, as a stack of such layers wants them.
AttentionStackOptions hierarchical_options(const MultiHeadAttentionOptions& layer, const std::vector<int64_t>& windows);

struct LocalGlobalOptions {
  int64_t window;  // of the first stage
  /// The second stage is full attention, or sparse: keys at multiples of `dilation` from the query, or, with
  /// `global` positions, those positions and the window again.
  int64_t dilation = 1;
  std::vector<int64_t> global = {};
};
/// Two stages: local attention, then attention over long distances (Longformer, BigBird).
AttentionStackOptions local_global_options(const MultiHeadAttentionOptions& layer, const LocalGlobalOptions& stages);

struct AttentionStack {
  static constexpr const char* type = "AttentionStack";
  std::vector<MultiHeadAttention> layers;

  AttentionStack() = default;
  /// ValueError without layers, for different dims and for cross attention.
  AttentionStack(AttentionStackOptions o, Rng& rng);

  /// x [batch, n, dim] → the same; the pass is that of every layer. In a stream a layer with a window of W keeps W
  /// tokens, a full one all of them.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  static void visit(auto& self, auto&& f) { f("layers", self.layers); }
};

}  // namespace sluice
