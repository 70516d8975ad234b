#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_gau_rows(RowList& rows) {
  rows.add<Gau>(
          "gau", kScored, R"({"dim": 4, "key_dim": 6, "expansion": 5, "linear_bias": false})",
          {R"({"bias": "toeplitz", "norm": "none", "causal": true, "max_length": 70, "gamma_std": 1})",
           R"({"bias": "rope", "norm": "scale", "kind": "softmax_plus", "attention_dropout": 0.3})",
           R"({"bias": "t5", "norm": "rms_plain", "placement": "post", "kind": "laplace", "linear_bias": true})",
           R"({"heads": 2, "expansion": 6, "bias": "rope", "rope_rot_dim": 2, "use_rope": false, "causal": true})",
           R"({"top_k": 2, "length": "constant", "kind": "rownorm", "causal": true, "dropout": 0.3})",
           R"({"causal": true, "window": 3, "kind": "lucid"})", R"({"kind": "paper_code"})", R"({"kind": "paper_eq"})",
           R"({"causal": true, "kind": "softmax", "bias": "rope", "length": "constant", "placement": "post", "heads": 2,
           "key_dim": 8, "expansion": 6, "top_k": 3, "rope_pairing": "interleaved", "rope_offset": 3,
           "attention_dropout": 0.3})",
           R"({"causal": true, "kind": "softmax_plus", "bias": "t5", "window": 4})",
           R"({"causal": true, "kind": "laplace", "bias": "toeplitz", "max_length": 70, "length": "constant"})",
           R"({"causal": true, "kind": "paper_code", "bias": "t5"})",
           R"({"causal": true, "kind": "paper_eq", "top_k": 3})",
           R"({"causal": true, "kind": "softmax", "qk_norm": true, "norm_eps": 0.01, "residual": false,
           "rope_xpos": 16})",
           R"({"causal": true, "kind": "softmax_plus", "min_length": 1, "heads": 2, "expansion": 6, "qk_norm": true,
           "qk_norm_kind": "layer", "qk_norm_eps": 0.1, "placement": "post", "residual": false, "rope_rot_dim": 2,
           "rope_frequencies": [0.7], "rope_factor": 1.2})"})
      .nonlinear_after_dropout = Json::Object{{"placement", "post"}};
  rows.add<CrossGau>("cross_gau", kCrossed, R"({"dim": 4, "key_dim": 6, "expansion": 5})",
                     {R"({"context_dim": 3, "kind": "softmax", "dropout": 0.3})", R"({"kind": "rownorm"})",
                      R"({"kind": "softmax_plus", "min_length": 2, "norm_eps": 0.01})"});
  rows.add<TutorialGau>("tutorial_gau", kMasked, R"({"dim": 4, "expansion": 6})",
                        {R"({"causal": true, "project_out": true})", R"({"sigmoid_gate": false, "gelu_tanh": true})"});
  rows.add<Flash>(
      "flash", kDocuments, R"({"dim": 4, "key_dim": 6, "expansion": 5, "chunk": 4, "linear_bias": false})",
      {R"({"bias": "toeplitz", "norm": "layer", "causal": true})",
       R"({"bias": "rope", "norm": "none", "scaling": "paper_code", "token_shift": true})",
       R"({"bias": "t5", "norm": "rms", "scaling": "lucid", "linear_bias": true, "dropout": 0.3})",
       R"({"causal": true, "token_shift": true, "kind": "softmax", "scaling": "lucid", "attention_dropout": 0.3})",
       R"({"causal": true, "kind": "rownorm", "bias": "rope", "scaling": "paper_code", "length": "visible"})",
       R"({"causal": true, "kind": "softmax_plus", "bias": "t5", "scaling": "eq", "chunk": 1, "token_shift": true})",
       R"({"causal": true, "kind": "laplace", "linear": false, "bias": "rope", "rope_pairing": "interleaved",
           "rope_offset": 3})",
       R"({"causal": true, "quadratic": false, "chunk": 3})",
       R"({"kind": "paper_eq", "across_chunks": false, "length": "visible", "attention_dropout": 0.3})",
       R"({"kind": "paper_code", "scaling": "lucid", "count_padding": true})",
       R"({"kind": "softmax_plus", "scaling": "chunk", "min_length": 2, "norm_eps": 0.01})",
       R"({"causal": true, "scaling": "chunk", "rope_xpos": 16})"});
  rows.add<ScaledSinusoidal>("scaled_sinusoidal", {}, R"({"dim": 4})", {R"({"base": 100})"});
  rows.add<FlashBlock>("flash_block", kDocuments, R"({"dim": 4, "key_dim": 6, "expansion": 5, "chunk": 4})",
                       {R"({"layers": 3, "causal": true, "norm": "layer"})"});
  rows.add<FlashModel>("flash_model", kDocuments,
                       R"({"layers": 1, "dim": 4, "key_dim": 6, "expansion": 5, "chunk": 4})",
                       {R"({"layers": 2, "causal": true, "vocabulary": 11, "outputs": 11, "model_dropout": 0.3})",
                        R"({"causal": true, "positions": false, "final_norm": "layer", "norm_eps": 0.01})"})
      .nonlinear_after_dropout = Json::Object{};
  LayerRow& mc_tfm = rows.add<McTfm>(
      "mc_tfm", kDocuments, R"({"dim": 8, "heads": 2, "chunk": 4})",
      {R"({"causal": true, "linear_bias": false})",
       R"({"norm": "scale", "hidden": 5, "use_rope": false, "dropout": 0.3, "scaling": "lucid",
                                "count_padding": true, "across_chunks": false})",
       R"({"causal": true, "kind": "softmax_plus", "min_length": 2, "norm_eps": 0.01, "rope_xpos": 16})"});
  mc_tfm.bare = {{"heads", 2}}, mc_tfm.nonlinear_after_dropout = Json::Object{};
}

}  // namespace sluice::detail
