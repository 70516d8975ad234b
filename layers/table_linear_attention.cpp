#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_linear_attention_rows(RowList& rows) {
  rows.add<FeatureMap>(
      "feature_map", {}, R"({"dim": 3})",
      {R"({"kind": "identity"})", R"({"kind": "exp"})", R"({"kind": "relu", "features": 4})", R"({"kind": "t2r"})",
       R"({"kind": "poly_elem", "degree": 3})", R"({"kind": "poly_kernel"})",
       R"({"kind": "poly_kernel", "smoothing": 0.5})", R"({"kind": "favor", "features": 4})",
       R"({"kind": "favor", "features": 4, "offset": 0.1})", R"({"kind": "fourier", "smoothing": 0.1})",
       R"({"kind": "mlp", "hidden": 4})", R"({"kind": "hedgehog"})"});
  rows.add<LinearAttention>(
          "linear_attention", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
          {R"({"direction": "causal", "decay": "learned", "output_norm": "rms", "qkv_bias": true, "out_bias": true})",
           R"({"direction": "bidirectional", "decay": "fixed", "gamma": [0.9, 0.5], "dropout": 0.3})",
           R"({"direction": "two_direction_mean", "feature_map_kind": "t2r", "tie_feature_map": false,
           "feature_map_offset": 0.1})",
           R"({"feature_map_kind": "mlp", "feature_map_heads": 2, "head_dim": 3, "value_dim": 2})",
           R"({"direction": "causal", "feature_map_kind": "favor", "feature_map_features": 6, "use_rope": "features"})",
           R"({"direction": "causal", "normalize": "none", "use_rope": "inputs"})",
           R"({"direction": "causal", "feature_map_kind": "hedgehog", "decay": "fixed", "gamma": [0.9, 0.5],
           "use_rope": "inputs", "rope_offset": 2})",
           R"({"direction": "two_direction_mean", "decay": "learned", "use_rope": "features", "output_norm": "layer"})",
           R"({"direction": "causal", "kv_heads": 1, "short_conv": 3, "output_norm": "rms", "norm_eps": 0.1,
               "output_gate": true,
           "decay": "fixed", "gamma": [0.9, 0.5], "use_rope": "inputs", "rope_xpos": 16})",
           R"({"kv_heads": 1, "value_dim": 3, "short_conv": 2, "output_gate": true})"})
      .bare = {{"dim", 16}};
  rows.add<GroupNorm>("group_norm", {}, R"({"groups": 2, "dim": 3})",
                      {R"({"kind": "rms"})", R"({"kind": "rms_plain"})", R"({"shared": true})",
                       R"({"kind": "rms", "shared": true})", R"({"bias": false})"});
  rows.add<Retention>(
          "retention", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 3})",
          {R"({"gate": false, "group_norm": "rms_plain", "expand_k": 0.5, "dropout": 0.3})",
           R"({"group_norm": "rms", "use_rope": false, "gamma": [0.9, 1]})",
           R"({"group_norm": "rms", "shared_norm": true, "kv_heads": 1, "short_conv": 3, "rope_xpos": 16})"})
      .bare = {{"heads", 2}};
  rows.add<Gla>(
      "gla", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 3, "gate_temperature": 2})",
      {R"({"gate": "per_head", "output_gate": false, "norm": "none", "scale": 1, "dropout": 0.3})",
       R"({"expand_k": 1, "gate_rank": 3, "norm": "layer"})", R"({"kv_heads": 1, "short_conv": 3, "norm_eps": 0.1})",
       R"({"gate": "per_head", "kv_heads": 1, "short_conv": 2})"});
  rows.add<LightningAttention>(
          "lightning_attention", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 3})",
          {R"({"heads": 4, "kv_heads": 2, "head_dim": 3, "value_dim": 5, "norm_eps": 0.1, "dropout": 0.3})",
           R"({"gamma": [0.3, 1]})"})
      .bare = {{"heads", 2}};
  rows.add<DeltaNet>("delta_net", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
                     {R"({"value_heads": 4, "key_dim": 3, "value_dim": 1, "beta_scale": 2, "output_gate": true})",
                      R"({"qk_activation": "elu1", "qk_norm": "sum", "short_conv": 0, "dropout": 0.3})",
                      R"({"qk_activation": "identity", "use_beta": false, "updates": 2, "norm_eps": 0.1})"});
  rows.add<GatedDeltaNet>(
      "gated_delta_net", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
      {R"({"value_heads": 4, "key_dim": 3, "value_dim": 1, "beta_scale": 2, "updates": 3, "output_gate": "sigmoid"})",
       R"({"short_conv": 0, "output_gate": "none", "norm_eps": 0.1, "dropout": 0.3})"});
  rows.add<Kda>("kda", kDocuments, R"({"dim": 4, "heads": 2, "chunk": 3})",
                {R"({"value_heads": 4, "key_dim": 3, "beta_scale": 2, "lower_bound": -5, "gate_bias": true})",
                 R"({"updates": 2, "short_conv": 2})",
                 R"({"full_rank": true, "lower_bound": -5, "value_heads": 4, "value_dim": 3})",
                 R"({"erase_write": true, "value_heads": 4, "rank": 3, "short_conv": 2, "dropout": 0.3})",
                 R"({"erase_write": true, "beta_scale": 2, "short_conv": 0, "norm_eps": 0.1})"});
  rows.add<Mamba>("mamba", kDocuments, R"({"dim": 4, "inner": 6, "state": 3, "dt_rank": 2, "chunk": 3})",
                  {R"({"inner": 0, "dt_rank": 0, "state": 1, "norm": "rms", "bias": true, "conv_bias": false})",
                   R"({"short_conv": 0, "norm": "rms_plain", "norm_eps": 0.1})", R"({"short_conv": 2, "dt_rank": 1})"});
  rows.add<Mamba2>("mamba2", kDocuments,
                   R"({"dim": 4, "heads": 4, "head_dim": 3, "state": 5, "groups": 2, "chunk": 3})",
                   {R"({"heads": 0, "head_dim": 2, "groups": 1, "dt_limit": [0.5, 0.8], "norm_before_gate": true})",
                    R"({"short_conv": 0, "norm": false, "d_per_channel": true})",
                    R"({"short_conv": 2, "conv_bias": false, "norm_eps": 0.1, "dt_limit": [0.6, "inf"],
                        "in_factors": [0.5, -1.5, 0.7, 1.3, 0.9]})"})
      .bare = {{"head_dim", 4}};
  rows.add<RgLru>("rg_lru", kDocuments, R"({"dim": 4, "inner": 6, "heads": 2})",
                  {R"({"inner": 0, "heads": 1, "short_conv": 0, "bias": false})", R"({"heads": 3, "short_conv": 2})"});
  rows.add<Mlstm>("mlstm", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 3})",
                  {R"({"heads": 4, "kv_heads": 2, "expand_k": 1, "expand_v": 2, "gate_cap": 0, "chunk": 2})",
                   R"({"expand_k": 1, "gate_cap": 2.5, "eps": 0.1, "norm_eps": 0.1, "dropout": 0.3})"})
      .bare = {{"heads", 2}};
  rows.add<Rwkv7>("rwkv7", kDocuments, R"({"dim": 6, "head_dim": 3, "chunk": 3})",
                  {R"({"dim": 8, "head_dim": 4, "decay_rank": 2, "rate_rank": 3, "gate_rank": 5})",
                   R"({"head_dim": 6, "norm_eps": 0.1, "value_residual": true, "value_rank": 2})"})
      .bare = {{"head_dim", 3}};
}

}  // namespace sluice::detail
