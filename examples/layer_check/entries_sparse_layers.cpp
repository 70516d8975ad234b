// Multi-head layers over sparse attention.
#include "registry.h"
#include "shared.h"

#include <sluice/layers/heads/sparse_layers.h>

namespace layer_check {

using namespace sluice;

namespace {

const std::vector<std::pair<std::string, std::string>> width{{"width", "heads*(head_dim or dim // heads)"}};

std::vector<ParameterInfo> head_parameters() {
  return joined({linear_parameters("q", "dim", "width", "qkv_bias"),
                 linear_parameters("k", "dim", "width", "qkv_bias"),
                 linear_parameters("v", "dim", "width", "qkv_bias"),
                 linear_parameters("out", "width", "dim", "out_bias")});
}
std::vector<InputInfo> inputs(bool streams) {
  InputInfo mask = key_mask_input();
  if (!streams) mask.when = "True";
  return {{.name = "x", .shape = "[batch, n, dim]"}, mask};
}

/// Of a PairScore called `p` whose kind and width are these options.
std::vector<ParameterInfo> score_parameters(const std::string& p, const std::string& kind, const std::string& size) {
  const std::string mlp = kind + " == 'mlp'";
  return joined({linear_parameters(p + "row", "dim", size, mlp, "A or W_i"),
                 linear_parameters(p + "col", "dim", size, "False", "B or W_j"),
                 {{.name = p + "distance", .shape = "[" + size + "]", .meaning = "w_d", .when = mlp},
                  {.name = p + "weight", .shape = "[" + size + "]", .meaning = "w", .when = mlp},
                  {.name = p + "bias", .shape = "[]", .meaning = "c", .when = mlp}}});
}

struct GlobalLocalCase : GlobalLocalLayerOptions {
  std::vector<int64_t> global;  // an argument of the call
  static void describe(auto& o, auto& f) {
    GlobalLocalLayerOptions::describe(o, f);
    f("global_positions", o.global, at_least(0), "distinct positions that see and are seen by all");
  }
};

void add_learned(std::vector<Layer>& all) {
  all.push_back({
      .name = "pair_score",
      .family = "sparse attention",
      .formula = kPairScoreMeaning,
      .source = "score of threshold_attention_layer",
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"}},
      .parameters = score_parameters("", "kind", "width"),
      .outputs = {{"", "[batch, n, n]"}},
  });
  all.push_back({
      .name = "threshold_attention_layer",
      .family = "sparse attention",
      .formula = "multi-head threshold_attention with a learned f, one for all heads, and a learned tau",
      .source = "a learned threshold on pairs",
      .notes = "The option tau is the initial value of param.tau only.",
      .derived = width,
      .inputs = inputs(true),
      .parameters = joined({head_parameters(), score_parameters("score.", "score", "score_width"),
                            {{.name = "tau", .shape = "[]"}}}),
      .outputs = {{"", "[batch, n, dim]"}},
  });
}

}  // namespace

void add_sparse_layers(std::vector<Layer>& all) {
  all.push_back({
      .name = "topk_attention_layer",
      .family = "sparse attention",
      .formula = "multi-head topk_attention",
      .source = "Zhao et al. 2019 (Explicit Sparse Transformer)",
      .derived = width,
      .inputs = inputs(true),
      .parameters = head_parameters(),
      .outputs = {{"", "[batch, n, dim]"}},
  });
  add_learned(all);
  all.push_back({
      .name = "sinkhorn_attention",
      .family = "sparse attention",
      .formula = "multi-head sinkhorn_attention_form",
      .source = "Tay et al. 2020",
      .derived = width,
      .inputs = inputs(false),
      .parameters = head_parameters(),
      .outputs = {{"", "[batch, n, dim]"}},
  });
  all.push_back({
      .name = "sinkhorn_block_attention",
      .family = "sparse attention",
      .formula = "multi-head sinkhorn_block_attention_form",
      .source = "Tay et al. 2020",
      .derived = width,
      .inputs = inputs(false),
      .parameters = head_parameters(),
      .outputs = {{"", "[batch, n, dim]"}},
  });
  std::vector<ParameterInfo> parameters = head_parameters();
  for (const char* name : {"global_q", "global_k", "global_v"})
    for (const ParameterInfo& p : linear_parameters(name, "dim", "width", "qkv_bias", "", "separate_global"))
      parameters.push_back(p);
  all.push_back({
      .name = "global_local_attention",
      .family = "sparse attention",
      .formula = "multi-head sliding-window attention with global positions",
      .source = "Beltagy et al. 2020 (Longformer)",
      .derived = width,
      .inputs = inputs(false),
      .parameters = parameters,
      .outputs = {{"", "[batch, n, dim]"}},
      .examples = {{{"heads", 2}, {"w", 1}, {"global_positions", Json::List{0, 3}}, {"qkv_bias", true}, {"out_bias", true}},
                   {{"separate_global", false}, {"w", 1}, {"global_positions", Json::List{2}}}},
      .draft = module_layer<GlobalLocalAttention, GlobalLocalCase>(
          [](const GlobalLocalAttention& l, const Inputs& in, const GlobalLocalCase& o) {
            return l(in["x"], {.key_mask = in["key_mask"], .positions = o.global});
          }),
  });
}

}  // namespace layer_check
