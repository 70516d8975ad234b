#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_nn_rows(RowList& rows) {
  rows.add<Linear>("linear", {}, R"({"in_dim": 5, "out_dim": 7})", {R"({"bias": false})"});
  rows.add<Embedding>("embedding", {}, R"({"count": 11, "dim": 4})");
  rows.add<Mlp>("mlp", {}, R"({"dim": 4})",
                {R"({"bias": false, "hidden": 5, "activation": "silu", "dropout": 0.3})", R"({"xielu": true})"});
  rows.add<Glu>("glu", {}, R"({"dim": 4})",
                {R"({"bias": true, "hidden": 5, "kind": "silu_glu", "dropout": 0.3})",
                 R"({"kind": "geglu_tanh", "gate_scale": -0.7})", R"({"limit": 0.4, "hidden": 5})",
                 R"({"kind": "geglu_tanh", "sparsity": 0.6, "hidden": 5})",
                 R"({"kind": "swiglu_oai", "limit": 0.4, "hidden": 5})"});
  rows.add<Moe>(
      "moe", {}, R"({"dim": 4, "experts": 3})",
      {R"({"hidden": 5, "top_k": 1, "norm_topk": false, "scale": 2, "shared_hidden": 3})",
       R"({"router": "sigmoid", "experts": 5, "router_bias": true, "shared_hidden": 2, "shared_gate": false,
           "norm_topk_eps": 0.1})",
       R"({"experts": 1, "top_k": 1})",
       R"({"experts": 6, "groups": 3, "top_groups": 2, "top_k": 3, "norm_topk": false, "scale": 2})",
       R"({"router": "sigmoid", "experts": 8, "groups": 4, "top_groups": 2, "group_best": 2, "router_bias": true,
           "top_k": 3, "scale": 2.5, "shared_hidden": 3, "shared_gate": false})",
       R"({"logit_bias": true, "expert_bias": true, "activation": "swiglu_oai", "swiglu_limit": 0.3,
           "swiglu_alpha": 1.3, "hidden": 5, "shared_hidden": 3})",
       R"({"activation": "swiglu_limited", "swiglu_limit": 0.3, "hidden": 5, "shared_hidden": 3,
           "shared_gate": false})",
       R"({"router": "sigmoid", "norm_topk": false, "weigh_input": true, "shared_hidden": 3, "shared_gate": false})",
       R"({"router": "sqrt_softplus", "experts": 5, "router_bias": true, "scale": 1.5})",
       R"({"activation": "relu2", "latent": 2, "hidden": 5, "shared_hidden": 3, "expert_bias": true})",
       R"({"activation": "geglu_tanh", "norms": true, "norm_eps": 0.01, "expert_factor": true, "hidden": 5,
           "shared_hidden": 3})"});
  rows.add<Norm>(
      "norm", {}, R"({"dim": 4})",
      {R"({"kind": "none"})", R"({"kind": "rms"})", R"({"kind": "rms_plain"})", R"({"kind": "scale"})",
       R"({"kind": "scale_l2"})", R"({"parts": 2, "eps": 0.01})", R"({"parts": 2, "kind": "rms"})",
       R"({"parts": 4, "kind": "rms_plain", "eps": 0.1})", R"({"bias": false})", R"({"bias": false, "parts": 2})",
       R"({"kind": "layer_plain"})", R"({"kind": "layer_plain", "parts": 2, "eps": 0.01})"});
  rows.add<ShortConvolution>("short_convolution", kDocuments, R"({"dim": 4})",
                             {R"({"width": 2, "bias": true, "activation": "identity"})"});
  rows.add<GatedShortConvolution>("gated_short_convolution", kDocuments, R"({"dim": 3})",
                                  {R"({"width": 2, "bias": true})"});
  rows.add<GatedResidual>("gated_residual", {.branch = true}, R"({"dim": 4})",
                          {R"({"kind": "per_channel"})", R"({"kind": "input"})", R"({"kind": "input_token"})"});
  rows.add<HyperConnection>("hyper_connection", {}, R"({"dim": 2, "streams": 3, "iterations": 3})",
                            {R"({"streams": 1, "eps": 0.01, "norm_eps": 0.1})", R"({"kind": "gated", "norm_eps": 0.1})",
                             R"({"kind": "gated", "dim": 4, "streams": 2, "rank": 3})"});
}

}  // namespace sluice::detail
