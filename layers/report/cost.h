// What a layer costs, from its options alone: parameters, operations, memory, streaming state.
#pragma once

#include <sluice/layers/gau/flash.h>
#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/layers/heads/fused_attention.h>
#include <sluice/layers/heads/gated_attention.h>
#include <sluice/layers/heads/gated_cross_attention.h>
#include <sluice/layers/heads/hierarchical.h>
#include <sluice/layers/heads/multi_head_attention.h>
#include <sluice/layers/linear_time/gla.h>
#include <sluice/layers/linear_time/linear_attention.h>
#include <sluice/layers/linear_time/retention.h>
#include <sluice/layers/nn/gated_residual.h>
#include <sluice/layers/nn/mlp.h>

namespace sluice {

/// Of one layer and one sequence.
struct Cost {
  /// Trained values: count(layer).
  int64_t parameters = 0;
  /// Operations of the matrix products of a forward pass, a multiply-add counting 2. Norms, activations, biases and
  /// masks are not counted. As papers do, causality does not halve an attention map; a window of W leaves W keys
  /// a query (2W − 1 if not causal), at the ends of a sequence too. Scans are counted in their chunk form.
  int64_t flops = 0;
  /// Elements of the attention maps, which an implementation that materialises them holds; attention() does not.
  int64_t attention_elements = 0;
  /// Elements held besides activations and maps: gate scores, and states of linear terms.
  int64_t extra_elements = 0;
  /// Numbers that a stream carries after the sequence; 0 where a layer cannot be streamed.
  int64_t state = 0;

  Cost& operator+=(const Cost& o);
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
  /// So many equal layers.
  friend Cost operator*(int64_t layers, const Cost& c) {
    return {layers * c.parameters, layers * c.flops, layers * c.attention_elements, layers * c.extra_elements,
            layers * c.state};
  }
  friend bool operator==(const Cost&, const Cost&) = default;
};

// n is the number of tokens. ValueError for options that the layer refuses, where that matters here.

Cost cost(const MlpOptions& o, int64_t n);            // 2·2nde
Cost cost(const GluOptions& o, int64_t n);            // 3·2nde
Cost cost(const GauOptions& o, int64_t n);            // 2n(3de + ds) + 2n²(s + e); state n(s + e)
Cost cost(const TutorialGauOptions& o, int64_t n);    // 2n·2.5de + 2n²e
Cost cost(const FlashOptions& o, int64_t n);          // 2n(3de + ds) + 2nC(s + e) + 4nse; state se + C(2s + e)
Cost cost(const LinearAttentionOptions& o, int64_t n);  // 8nd² + 4nhm·dv; state h(m·dv + m)
Cost cost(const GlaOptions& o, int64_t n);
Cost cost(const RetentionOptions& o, int64_t n);
Cost cost(const GatedAttentionOptions& o, int64_t n);
Cost cost(const FusedAttentionOptions& o, int64_t n);
Cost cost(const GatedResidualOptions& o, int64_t n);
Cost cost(const AttentionStackOptions& o, int64_t n);
/// 4nd²(1 + kv_heads/heads) + 4nkd for k visible keys; state 2·kv_heads·dk·min(n, window). Cross attention reads
/// a context of `context_length` tokens.
Cost cost(const MultiHeadAttentionOptions& o, int64_t n, int64_t context_length = 0);
/// m queries, a context of n tokens.
Cost cost(const CrossGauOptions& o, int64_t m, int64_t n);
Cost cost(const GatedCrossAttentionOptions& o, int64_t m, int64_t n);
/// A gate alone, its arguments as its constructor's: 2n·dim·heads·head_dim for an elementwise one.
Cost cost(const AttentionGateOptions& o, int64_t dim, int64_t heads, int64_t head_dim, int64_t n);

}  // namespace sluice
