#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_attention_rows(RowList& rows) {
  LayerRow& heads = rows.add<MultiHeadAttention>(
      "multi_head_attention",
      {.key_mask = true, .segments = true, .positions = true, .context = true, .scores = true, .streams = true},
      R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4})",
      {R"({"causal": true, "use_rope": true, "qk_norm": true, "norm": "rms", "residual": true, "gates": [{}]})",
       R"({"context_dim": 5, "gates": [{"position": "g2"}, {"position": "g4"}], "attention_dropout": 0.3})",
       R"({"causal": true, "gates": [{"granularity": "headwise", "bias": true}, {"position": "g2", "sharing": "scores"},
           {"position": "g3", "mode": "add", "activation": "silu"}, {"position": "g4", "after_qk_norm": true},
           {"position": "g5", "input_independent": true}]})",
       R"({"window": 2, "dilation": 2, "global_positions": [0], "separate_global_projections": true,
           "attention_dropout": 0.3})",
       R"({"causal": true, "position_bias": "t5", "sink": "learned", "qkv_bias": true, "out_bias": true,
           "dropout": 0.3})",
       R"({"position_bias": "toeplitz", "max_length": 70, "sink": "off_by_one", "ablation": "head_norm",
           "value_dim": 3, "project_out": false})",
       R"({"causal": true, "position_bias": "alibi", "norm": "layer", "sandwich_norm": true, "ablation": "silu"})",
       R"({"causal": true, "use_rope": true, "growth_beta": 0.7, "growth_length": 3, "window": 5, "gates": [{}],
           "qkv_limit": 0.3})",
       R"({"causal": true, "window": 3, "use_rope": true})",
       R"({"causal": true, "window": 3, "dilation": 2, "global_positions": [4, 0], "sink": "learned",
           "position_bias": "toeplitz", "max_length": 70, "kv_heads": 1})",
       R"({"causal": true, "heads": 2, "use_rope": true, "rope_frequencies": [1, 0.3], "rope_factor": 1.2,
           "softcap": 1.5, "qk_norm": true, "qk_norm_kind": "layer", "qk_norm_over": "width", "qk_norm_eps": 0.1,
           "position_bias": "t5",
           "gates": [{"source": "query"},
                     {"position": "g5", "granularity": "headwise", "bias": true, "source": "query"}]})",
       R"({"qk_norm": true, "qk_norm_over": "per_head", "qk_norm_late": true, "use_rope": true, "rope_rot_dim": 2,
           "rope_xpos": 8, "softcap": 2, "sink": "learned", "ablation": "head_norm", "ablation_eps": 0.1})",
       R"({"causal": true, "qk_norm": true, "qk_norm_kind": "rms_plain", "scale": 1.7, "ablation": "head_norm",
           "ablation_norm": "rms_plain", "gates": [{"head_bias": true}]})",
       R"({"causal": true, "value_dim": 3, "ablation": "head_norm", "ablation_norm": "layer",
           "gates": [{"granularity": "headwise", "activation": "softplus"},
                     {"position": "g2", "activation": "softplus", "sharing": "logits", "head_bias": true}]})",
       R"({"causal": true, "forget_gate": "input", "forget_gate_bias": 1, "window": 3, "norm": "rms", "gates": [{}],
           "position_bias": "alibi", "scale": 0.7, "attention_dropout": 0.3})",
       R"({"causal": true, "forget_gate": "learned", "forget_decay_first": 2, "forget_decay_last": 9, "kv_heads": 1,
           "window": 3, "global_positions": [1], "use_rope": true, "ablation": "head_norm", "ablation_per_head": true,
           "ablation_norm": "layer"})",
       R"({"kv_shift": true, "norm": "rms", "qk_norm": true, "gates": [{"position": "g3"}], "ablation": "head_norm",
           "ablation_norm": "rms_plain", "ablation_per_head": true})",
       R"({"causal": true, "use_rope": true, "qk_norm": true, "tied_values": true, "v_norm": true, "scale": 1})",
       R"({"causal": true, "chunk_size": 3, "growth_beta": 0.7, "growth_length": 3, "growth_offset": 1, "sink": "learned",
           "v_norm": true, "gates": [{"position": "g2"}]})"});
  heads.refuses_segments = "chunk_size";
  heads.nonlinear_after_dropout =
      Json::Object{{"ablation", "silu"}, {"ablation", "head_norm"}, {"sandwich_norm", true}};
  rows.add<GatedAttention>(
      "gated_attention", kPositioned, R"({"dim": 4, "heads": 2})",
      {R"({"causal": true, "gate_query": true, "gate_key": true, "gate_value": true, "use_rope": true})",
       R"({"output": "from_query", "granularity": "headwise", "qkv_bias": true, "attention_dropout": 0.3})",
       R"({"causal": true, "head_dim": 3, "output": "none", "project_out": false})"});
  rows.add<GatedCrossAttention>("gated_cross_attention", kCrossed, R"({"dim": 4, "heads": 2})",
                                {R"({"reading": "pooled", "value_dim": 3, "context_dim": 5, "attention_dropout": 0.3})",
                                 R"({"reading": "flamingo", "qkv_bias": true, "out_bias": true})"});
  rows.add<ForgettingAttention>(
          "forgetting_attention", kPositioned,
          R"({"dim": 4, "heads": 4, "kv_heads": 2, "head_dim": 3, "gate_bias": 1})",
          {R"({"kv_heads": 4, "use_rope": true, "rope_rot_dim": 2, "attention_dropout": 0.3})",
           R"({"kv_heads": 1, "value_dim": 2, "qkv_bias": true, "residual": true, "dropout": 0.3})",
           R"({"kv_shift": true, "qk_norm": true, "output_norm": true, "output_gate": true, "value_dim": 2})",
           R"({"kv_shift": true, "qk_norm": true, "shared_qk_norm": true, "qk_norm_eps": 0.1, "output_norm": true,
           "output_norm_eps": 0.2, "use_rope": true, "rope_rot_dim": 2})",
           R"({"gate": "learned", "decay_first": 1, "decay_last": 5, "attention_dropout": 0.3})",
           R"({"gate": "fixed", "kv_heads": 1, "decay_first": 3, "decay_last": 0.5})",
           R"({"gate": "none", "kv_shift": true, "kv_heads": 4})"})
      .nonlinear_after_dropout = Json::Object{{"output_norm", true}};
  rows.add<Mla>(
          "mla", kScored,
          R"({"dim": 6, "heads": 2, "nope_dim": 3, "rope_dim": 4, "value_dim": 5, "kv_rank": 7, "causal": true})",
          {R"({"q_rank": 5, "gate": "headwise", "form": "absorbed", "kv_rank": 3, "q_factor": 1.1, "kv_factor": 0.8})",
           R"({"gate": "elementwise", "use_rope": false, "scale": 0.4, "attention_dropout": 0.3, "kv_rank": 2})",
           R"({"causal": false, "rope_norm": true, "norm_eps": 0.1, "rope_pairing": "half", "form": "absorbed"})",
           R"({"q_rank": 3, "rope_frequencies": [1, 0.3], "rope_factor": 1.2, "rope_norm": true, "form": "expanded",
           "dropout": 0.3})",
           R"({"heads": 1, "rope_dim": 0, "growth_beta": 0.7, "growth_length": 2})",
           R"({"q_rank": 3, "topk": 3, "index_heads": 3, "index_dim": 5, "form": "absorbed"})",
           R"({"q_rank": 2, "topk": 2, "index_heads": 2, "index_dim": 6, "index_pairing": "interleaved",
           "causal": false,
           "rope_frequencies": [1, 0.3], "q_factor": 1.5})",
           R"({"q_rank": 3, "raw_latent": true, "gate": "elementwise", "topk": 3, "index_heads": 3, "index_dim": 5})",
           R"({"q_rank": 5, "raw_latent": true, "gate": "headwise", "q_factor": 1.1, "sink": true})",
           R"({"gate": "elementwise", "sink": true, "rope_pairing": "half", "form": "absorbed", "kv_rank": 3})",
           R"({"q_rank": 3, "use_rope": false, "topk": 4, "index_pool": 2, "index_heads": 3, "index_dim": 5})",
           R"({"q_rank": 3, "rope_dim": 0, "topk": 3, "index_pool": 3, "index_heads": 2, "index_dim": 4,
           "form": "absorbed", "attention_dropout": 0.3})"})
      .refuses_segments = "index_pool";
  rows.add<NsaAttention>(
      "nsa_attention", kMasked,
      R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4, "block": 2, "stride": 1, "select": 2, "count": 3,
          "window": 3, "local": 1})",
      {R"({"block": 4, "stride": 2, "select": 4, "count": 2, "initial": 0, "use_rope": true, "dropout": 0.3})",
       R"({"kv_heads": 4, "block": 1, "select": 1, "count": 4, "local": 3, "value_dim": 3, "qkv_bias": true})",
       R"({"kv_heads": 1, "block": 3, "stride": 3, "select": 3, "window": 1, "attention_dropout": 0.3})",
       R"({"separate_keys": true, "compression": "linear", "use_rope": true, "value_dim": 3, "qkv_bias": true})",
       R"({"kv_heads": 1, "separate_keys": true, "compression": "mlp", "compression_hidden": 3, "block": 3, "stride": 1,
           "attention_dropout": 0.3})",
       R"({"compression": "mlp", "block": 2, "stride": 2, "select": 4, "dropout": 0.3})"});
  rows.add<MobaAttention>(
      "moba_attention", kMasked, R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4, "block": 2, "topk": 2})",
      {R"({"block": 3, "topk": 1, "use_rope": true, "dropout": 0.3})",
       R"({"kv_heads": 1, "block": 1, "topk": 3, "value_dim": 3, "residual": true, "attention_dropout": 0.3})"});
  rows.add<MsaAttention>(
      "msa_attention", kMasked, R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4, "block": 2, "count": 2})",
      {R"({"block": 3, "count": 2, "local": 2, "use_rope": true, "rope_rot_dim": 2, "index_dim": 5, "norm_eps": 0.1,
           "dropout": 0.3})",
       R"({"shared_choice": true, "qk_norm": false, "use_rope": true, "rope_xpos": 8, "attention_dropout": 0.3})",
       R"({"kv_heads": 1, "block": 1, "count": 3, "value_dim": 3, "index_dim": 2, "residual": true})"});
  rows.add<QsaAttention>(
      "qsa_attention", {.key_mask = true, .positions = true, .scores = true, .streams = true},
      R"({"dim": 6, "heads": 4, "kv_heads": 2, "head_dim": 4, "topk": 4, "pool": 2, "index_heads": 3, "index_dim": 4})",
      {R"({"topk": 3, "pool": 3, "use_rope": true, "rope_rot_dim": 2, "index_dim": 5, "norm_eps": 0.1,
           "dropout": 0.3})",
       R"({"topk": 1, "pool": 1, "use_rope": true, "rope_pairing": "interleaved", "gate": false, "value_dim": 3})",
       R"({"kv_heads": 1, "qk_norm": false, "residual": true, "qkv_bias": true, "attention_dropout": 0.3})"});
  rows.add<CompressedAttention>(
          "compressed_attention", kDocuments,
          R"({"dim": 6, "heads": 4, "head_dim": 4, "q_rank": 5, "rope_dim": 2, "window": 3, "pool": 2, "topk": 2,
              "index_heads": 3, "index_dim": 4, "out_groups": 2, "out_rank": 3})",
          {R"({"topk": 0, "overlap": false, "pool": 3, "rope_dim": 4, "rope_frequencies": [1, 0.3], "rope_factor": 1.2,
               "dropout": 0.3})",
           R"({"pool": 0, "rope_dim": 0, "window": 4, "norm_eps": 0.1, "attention_dropout": 0.3})",
           R"({"pool": 1, "topk": 1, "index_dim": 5, "rope_pairing": "half", "window": 1, "out_groups": 4,
               "sink": false})",
           R"({"heads": 1, "out_groups": 1, "pool": 3, "topk": 1, "rope_dim": 4, "rope_base": 10,
               "attention_dropout": 0.3})",
           R"({"use_rope": false, "pool": 1, "topk": 3, "heads": 2})"})
      .refuses_segments = "pool";
  rows.add<DiffAttention>(
          "diff_attention", kDocuments, R"({"dim": 8, "heads": 4, "kv_heads": 2, "head_dim": 4, "causal": true})",
          {R"({"version": 1})", R"({"version": 1, "pairing": "halves", "norm": "rms_plain", "norm_eps": 0.1})",
           R"({"version": 1, "kv_heads": 1, "causal": false, "lambda_init": 0.5, "attention_dropout": 0.3})",
           R"({"kv_heads": 4, "use_rope": false, "causal": false, "attention_dropout": 0.3})",
           R"({"kv_heads": 1, "dropout": 0.3})",
           R"({"version": 1, "heads": 2, "norm": "none", "rope_pairing": "half", "rope_rot_dim": 2})"})
      .nonlinear_after_dropout = Json::Object{{"version", 1}};
  rows.add<FusedAttention>("fused_attention", kMasked, R"({"dim": 4, "heads": 2})",
                           {R"({"causal": true, "gate": "per_head", "use_rope": true, "chunk": 3})",
                            R"({"gate": "per_token", "project_out": false, "attention_dropout": 0.3})",
                            R"({"causal": true, "head_dim": 3, "qkv_bias": true})"});
  rows.add<TopKAttention>("topk_attention_layer", kScored, R"({"dim": 4, "heads": 2, "k": 2})",
                          {R"({"ties": "threshold", "qkv_bias": true, "attention_dropout": 0.3})",
                           R"({"causal": true, "use_rope": true, "window": 4})",
                           R"({"causal": true, "ties": "threshold", "head_dim": 4, "out_bias": true})"});
  rows.add<PairScore>("pair_score", {}, R"({"dim": 4})", {R"({"kind": "mlp", "width": 3})"});
  rows.add<ThresholdAttention>(
      "threshold_attention_layer", kScored, R"({"dim": 4, "heads": 2})",
      {R"({"score": "mlp", "score_width": 3, "mode": "soft"})",
       R"({"mode": "soft", "causal": true, "attention_dropout": 0.3})", R"({"mode": "hard", "causal": true})",
       R"({"score": "mlp", "causal": true, "use_rope": true})"});
  rows.add<SinkhornAttention>(
      "sinkhorn_attention", {.key_mask = true}, R"({"dim": 4, "heads": 2})",
      {R"({"top_k": 3, "attention_dropout": 0.3})", R"({"variant": "literal", "iterations": 3, "use_rope": true})",
       R"({"last": "columns", "iterations": 2, "qkv_bias": true})"});
  rows.add<SinkhornBlockAttention>("sinkhorn_block_attention", {.key_mask = true},
                                   R"({"dim": 4, "heads": 2, "block": 2})",
                                   {R"({"attention_dropout": 0.3, "out_bias": true})",
                                    R"({"block": 4, "last": "columns", "iterations": 1, "use_rope": true})"});
  rows.add<GlobalLocalAttention>(
      "global_local_attention", {.key_mask = true, .segments = true, .positions = true, .scores = true},
      R"({"dim": 4, "heads": 2, "w": 1})", {R"({"separate_global": false, "attention_dropout": 0.3})"});
}

}  // namespace sluice::detail
