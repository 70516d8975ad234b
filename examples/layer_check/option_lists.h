// The options of multi-head layers, and of calls that are no layer.
#pragma once

#include "linear_options.h"
#include "sparse_options.h"

#include <sluice/layers/heads/fused_attention.h>
#include <sluice/layers/heads/gated_attention.h>
#include <sluice/layers/heads/gated_cross_attention.h>
#include <sluice/layers/heads/hierarchical.h>
#include <sluice/layers/heads/sparse_layers.h>
#include <sluice/layers/linear_time/gla.h>
#include <sluice/layers/linear_time/retention.h>

namespace layer_check {

using sluice::any_number, sluice::at_least, sluice::above, sluice::OptionRange;

/// A gate and the sizes that its constructor takes.
struct GateCall {
  sluice::AttentionGateOptions gate;
  int64_t dim = 0, heads = 0, head_dim = 0;
  sluice::DType dtype = sluice::f32;
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f.required("heads", o.heads, at_least(1), "heads of y; 1 for g5");
    f.required("head_dim", o.head_dim, at_least(1), "channels of a head; for g5 those of y");
    f.nested("", o.gate);
  }
};

struct MultiHeadCase : sluice::MultiHeadAttentionOptions {
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of query heads h");
    f("kv_heads", o.kv_heads, at_least(0), "key and value heads g; head i reads head i // (heads/kv_heads); 0: heads");
    f("head_dim", o.head_dim, at_least(0), "dk; 0: dim/heads");
    f("value_dim", o.value_dim, at_least(0), "dv of a head; 0: head_dim");
    f("context_dim", o.context_dim, at_least(0), "> 0: cross attention with a context this wide");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("window", o.window, at_least(0), "keys seen, a query's own position included; 0: all");
    f("dilation", o.dilation, at_least(1), "only distances that are multiples of it");
    f("global_positions", o.global, at_least(0), "positions that window and dilation do not bind");
    f("separate_global_projections", o.separate_global_projections, "global rows have Wq, Wk, Wv of their own");
    f("use_rope", o.use_rope, "rotate Q and K, after QK-norm");
    f.nested("rope_", o.rope);
    f("qk_norm", o.qk_norm, "RMS norm of each head of Q and K, eps 1e-6");
    f("scale", o.scale, any_number(), "of the scores; null: 1/sqrt(dk)");
    f("position_bias", o.position_bias, "added to the scores");
    f.nested("", o.t5);
    f("max_length", o.max_length, at_least(1), "positions of the Toeplitz table");
    f("sink", o.sink, "off_by_one e^s/(1 + sum e^s); learned e^s/(e^sink_h + sum e^s)");
    f("qkv_bias", o.qkv_bias, "biases of Wq, Wk, Wv");
    f("out_bias", o.out_bias, "bias of Wo");
    f("norm", o.norm, "pre-norm; gates read the normed x");
    f("norm_eps", o.norm_eps, at_least(0), "of the norms");
    f("sandwich_norm", o.sandwich_norm, "a second norm, on the output before the residual");
    f("residual", o.residual, "add x");
    f("gates", o.gates, "gates, in order");
    f("ablation", o.ablation, "at g1 in place of a gate");
  }
};

/// A stack of layers with windows of their own.
struct StackCall {
  MultiHeadCase layer;
  std::vector<int64_t> windows = {3, 0};
  sluice::AttentionStackOptions module_options() const { return sluice::hierarchical_options(layer, windows); }
  static void describe(auto& o, auto& f) {
    f("windows", o.windows, at_least(0), "one layer each, bottom to top: keys seen; 0: all");
    f.nested("", o.layer);
  }
};
struct LocalGlobalCall {
  MultiHeadCase layer;
  sluice::LocalGlobalOptions stages = {};
  sluice::AttentionStackOptions module_options() const { return sluice::local_global_options(layer, stages); }
  static void describe(auto& o, auto& f) {
    f.required("stage_window", o.stages.window, at_least(1), "window of the first layer");
    f("stage_dilation", o.stages.dilation, at_least(1), "second layer: keys at multiples of it; 1: all keys");
    f("stage_global_positions", o.stages.global, at_least(0),
      "second layer, not empty: these positions and the window again");
    f.nested("", o.layer);
  }
};

struct GatedAttentionCase : sluice::GatedAttentionOptions {
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("head_dim", o.head_dim, at_least(0), "width of a head; 0: dim/heads");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("output", o.output, "output gate from X, or from Q (before its gate and RoPE)");
    f("gate_query", o.gate_query, "gate Q");
    f("gate_key", o.gate_key, "gate K");
    f("gate_value", o.gate_value, "gate V");
    f("granularity", o.granularity, "a score per channel or per head, in all gates");
    f("use_rope", o.use_rope, "rotate Q and K");
    f.nested("rope_", o.rope);
    f("project_out", o.project_out, "false: y is [batch, n, heads*head_dim]");
    f("linear_bias", o.linear_bias, "biases of the projections");
  }
};
struct GatedCrossCase : sluice::GatedCrossAttentionOptions {
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f("context_dim", o.context_dim, at_least(0), "width of the context; 0: dim");
    f("heads", o.heads, at_least(1), "number of heads");
    f("head_dim", o.head_dim, at_least(0), "width of a head's queries and keys; 0: dim/heads");
    f("value_dim", o.value_dim, at_least(0), "width of a head's values; 0: head_dim; another one has a second gate");
    f("reading", o.reading, "per_query g*Attn(g*Q, K, V); pooled: the gate of mean(Q); literal: row j gates key j, m = "
                            "n; flamingo: tanh(alpha)*Attn(Q, K, V)");
    f("project_out", o.project_out, "false: y is [batch, m, heads*value_dim]");
    f("linear_bias", o.linear_bias, "biases of the projections");
  }
};
struct FusedCase : sluice::FusedAttentionOptions {
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("head_dim", o.head_dim, at_least(0), "width of a head; 0: dim/heads");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("gate", o.gate, "how many scores a token has");
    f("use_rope", o.use_rope, "rotate q and k, before phi");
    f.nested("rope_", o.rope);
    f("eps", o.eps, at_least(0), "of the linear part's denominator");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    f("project_out", o.project_out, "false: y is [batch, n, heads*head_dim]");
    f("linear_bias", o.linear_bias, "biases of the projections");
  }
};

struct LinearAttentionCase : sluice::LinearAttentionOptions {
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("head_dim", o.head_dim, at_least(0), "width of a head's queries and keys; 0: dim/heads");
    f("value_dim", o.value_dim, at_least(0), "width of a head's values; 0: head_dim");
    f.nested("feature_map_", o.feature_map);
    f.without({"feature_map_dim"});  // follows the layer
    f("tie_feature_map", o.tie_feature_map, "one map for queries and keys");
    f("direction", o.direction, kDirectionMeaning);
    f("normalize", o.normalize, "sum: divide by phi(q) Z + eps");
    f("eps", o.eps, at_least(0), "of the denominator");
    f("scale", o.scale, any_number(), "of phi(q)");
    f("decay", o.decay, "gamma of each head: none, as given, or sigmoid of a parameter");
    f("gamma", o.gamma, OptionRange{.low = 0, .high = 1, .without_low = true},
      "of each head, in (0, 1]; empty: 1 - 2^(-5-h)");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    f("use_rope", o.use_rope, "on q and k before phi, or on phi(q) and phi(k) in the numerator");
    f.nested("rope_", o.rope);
    f("output_norm", o.output_norm, "of each head's output, weights shared by heads");
    f("linear_bias", o.linear_bias, "biases of the dense maps");
  }
};
struct RetentionCase : sluice::RetentionOptions {
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("expand_k", o.expand_k, above(0), "heads*dk = expand_k*dim");
    f("expand_v", o.expand_v, above(0), "heads*dv = expand_v*dim");
    f("gamma", o.gamma, OptionRange{.low = 0, .high = 1, .without_low = true},
      "of each head, in (0, 1]; empty: 1 - 2^(-5-h)");
    f("use_rope", o.use_rope, "rotate q and k");
    f.nested("rope_", o.rope);
    f("gate", o.gate, "times swish(x Wg)");
    f("group_norm", o.group_norm, "of each head's output: layer, rms or rms_plain");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
  }
};
struct GlaCase : sluice::GlaOptions {
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("expand_k", o.expand_k, above(0), "heads*dk = expand_k*dim");
    f("expand_v", o.expand_v, above(0), "heads*dv = expand_v*dim");
    f("gate", o.gate, "alpha for every key channel (rank-r map), or one a head");
    f("gate_rank", o.gate_rank, at_least(1), "rank of the gate's map");
    f("gate_temperature", o.gate_temperature, above(0), "alpha = sigmoid(z)^(1/gate_temperature)");
    f("scale", o.scale, any_number(), "of q; null: dk^(-1/2)");
    f("output_gate", o.output_gate, "times swish(x Wg)");
    f("norm", o.norm, "of each head's output, weights shared by heads");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
  }
};

/// The options that each sparse layer repeats.
void head_options(auto& o, auto& f) {
  f.required("dim", o.dim, at_least(1), "width d");
  f("heads", o.heads, at_least(1), "number of heads");
  f("head_dim", o.head_dim, at_least(0), "width of a head; 0: dim/heads");
  f("linear_bias", o.linear_bias, "biases of the projections");
  f("use_rope", o.use_rope, "rotate Q and K");
  f.nested("rope_", o.rope);
}
struct TopKLayerCase : sluice::TopKAttentionOptions {
  static void describe(auto& o, auto& f) {
    head_options(o, f);
    f("k", o.k, at_least(1), "keys kept");
    f("ties", o.ties, "index: exactly k, the first of equals; threshold: all >= the k-th best");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("window", o.window, at_least(0), "keys seen, a query's own position included; 0: all");
  }
};
struct ThresholdLayerCase : sluice::ThresholdAttentionOptions {
  static void describe(auto& o, auto& f) {
    head_options(o, f);
    threshold_options(o, f);
    f("causal", o.causal, "token i sees tokens j <= i");
    f("score", o.score, sluice::kPairScoreMeaning);
    f("score_width", o.score_width, at_least(1), "rank or hidden width");
  }
};
struct SinkhornLayerCase : sluice::SinkhornLayerOptions {
  static void describe(auto& o, auto& f) {
    head_options(o, f);
    f.nested("", o.sinkhorn);
    f("top_k", o.top_k, at_least(0), "> 0: keep the k largest weights of a row, scaled to sum 1");
  }
};
struct SinkhornBlockLayerCase : sluice::SinkhornBlockLayerOptions {
  static void describe(auto& o, auto& f) {
    head_options(o, f);
    f("block", o.block, at_least(1), "tokens of a block");
    f.nested("", o.sinkhorn);
  }
};
struct GlobalLocalLayerCase : sluice::GlobalLocalLayerOptions {
  std::vector<int64_t> global;  // an argument of the call
  static void describe(auto& o, auto& f) {
    head_options(o, f);
    f("w", o.w, at_least(0), "|i - j| <= w");
    f("global_positions", o.global, at_least(0), "distinct positions that see and are seen by all");
    f("separate_global", o.separate_global, "maps of their own for global queries");
  }
};

}  // namespace layer_check
