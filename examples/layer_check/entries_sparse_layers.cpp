// Multi-head layers over sparse attention.
#include "registry.h"
#include "sparse_options.h"

#include <sluice/layers/heads/sparse_layers.h>

namespace layer_check {

using namespace sluice;

namespace {

/// The options that each of these layers repeats.
template <class O>
void head_options(Options& v, O& o) {
  v.required("dim", o.heads.dim, 8, "width d");
  v("heads", o.heads.heads, "number of heads");
  v("head_dim", o.heads.head_dim, "width of a head; 0: dim/heads");
  v("qkv_bias", o.heads.qkv_bias, "biases of Wq, Wk, Wv");
  v("out_bias", o.heads.out_bias, "bias of Wo");
  v("use_rope", o.heads.use_rope, "rotate Q and K");
  rope_options(v, o.heads.rope);
}
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

const Choices<PairScoreKind>& score_kinds() {
  static const Choices<PairScoreKind> all{{"bilinear", PairScoreKind::bilinear}, {"mlp", PairScoreKind::mlp}};
  return all;
}
constexpr const char* kScoreMeaning =
    "f: bilinear (x_i A)(x_j B)'; mlp w act(x_i W_i + x_j W_j + (i - j) w_d + b) + c";

/// Of a PairScore called `p` whose kind and width are these options.
std::vector<ParameterInfo> score_parameters(const std::string& p, const std::string& kind, const std::string& size) {
  const std::string mlp = kind + " == 'mlp'";
  return joined({linear_parameters(p + "row", "dim", size, mlp, "A or W_i"),
                 linear_parameters(p + "col", "dim", size, "False", "B or W_j"),
                 {{.name = p + "distance", .shape = "[" + size + "]", .meaning = "w_d", .when = mlp},
                  {.name = p + "weight", .shape = "[" + size + "]", .meaning = "w", .when = mlp},
                  {.name = p + "bias", .shape = "[]", .meaning = "c", .when = mlp}}});
}

struct GlobalLocalCall : GlobalLocalLayerOptions {
  std::vector<int64_t> global;
};

void add_learned(std::vector<Layer>& all) {
  all.push_back({
      .name = "pair_score",
      .family = "sparse attention",
      .formula = kScoreMeaning,
      .source = "score of threshold_attention_layer",
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"}},
      .parameters = score_parameters("", "kind", "width"),
      .outputs = {{"", "[batch, n, n]"}},
      .examples = {{{"kind", "mlp"}, {"width", 5}}},
      .prepare = module_layer<PairScore, PairScoreOptions>(
          [](Options& v, PairScoreOptions& o) {
            v.required("dim", o.dim, 8, "width of x");
            v("kind", o.kind, score_kinds(), "bilinear or mlp");
            v("width", o.width, "rank or hidden width");
            v("activation", o.activation, activations(), "of mlp");
          },
          [](const PairScore& l, const Inputs& in) { return l(in["x"]); }),
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
      .examples = {{{"heads", 2}, {"score", "mlp"}, {"score_width", 5}, {"mode", "soft"}},
                   {{"mode", "hard"}, {"causal", true}, {"stream", std::vector<double>{4, 2}}}},
      .prepare = module_layer<ThresholdAttention, ThresholdAttentionOptions>(
          [](Options& v, ThresholdAttentionOptions& o) {
            head_options(v, o);
            threshold_options(v, o.mode, o.tau, o.temperature, o.include_self);
            v("causal", o.heads.causal, "token i sees tokens j <= i");
            v("score", o.score, score_kinds(), kScoreMeaning);
            v("score_width", o.score_width, "rank or hidden width");
          },
          [](const ThresholdAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .examples = {{{"heads", 2}, {"k", 2}, {"ties", "threshold"}, {"qkv_bias", true}, {"out_bias", true}},
                   {{"heads", 2}, {"k", 2}, {"causal", true}, {"use_rope", true},
                    {"stream", std::vector<double>{4, 2}}}},
      .prepare = module_layer<TopKAttention, TopKAttentionOptions>(
          [](Options& v, TopKAttentionOptions& o) {
            head_options(v, o);
            v("k", o.k, "keys kept");
            v("ties", o.ties, topk_ties(), "index: exactly k, the first of equals; threshold: all >= the k-th best");
            v("causal", o.heads.causal, "token i sees tokens j <= i");
            v("window", o.window, "keys seen, a query's own position included; 0: all");
          },
          [](const TopKAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .examples = {{{"heads", 2}, {"top_k", 3}, {"variant", "literal"}}},
      .prepare = module_layer<SinkhornAttention, SinkhornLayerOptions>(
          [](Options& v, SinkhornLayerOptions& o) {
            head_options(v, o);
            sinkhorn_options(v, o.sinkhorn);
            v("top_k", o.top_k, "> 0: keep the k largest weights of a row, scaled to sum 1");
          },
          [](const SinkhornAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .examples = {{{"heads", 2}, {"block", 2}}},
      .prepare = module_layer<SinkhornBlockAttention, SinkhornBlockLayerOptions>(
          [](Options& v, SinkhornBlockLayerOptions& o) {
            head_options(v, o);
            v("block", o.block, "tokens of a block");
            sinkhorn_options(v, o.sinkhorn);
          },
          [](const SinkhornBlockAttention& l, const Inputs& in) { return l(in["x"], in["key_mask"]); }),
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
      .examples = {{{"heads", 2}, {"w", 1}, {"global_positions", std::vector<double>{0, 3}}, {"qkv_bias", true},
                    {"out_bias", true}},
                   {{"separate_global", false}, {"w", 1}, {"global_positions", std::vector<double>{2}}}},
      .prepare = module_layer<GlobalLocalAttention, GlobalLocalCall>(
          [](Options& v, GlobalLocalCall& o) {
            head_options(v, o);
            v("w", o.w, "|i - j| <= w");
            v("global_positions", o.global, "distinct positions that see and are seen by all");
            v("separate_global", o.separate_global, "maps of their own for global queries");
          },
          [](const GlobalLocalAttention& l, const Inputs& in, const GlobalLocalCall& o) {
            return l(in["x"], o.global, in["key_mask"]);
          }),
  });
}

}  // namespace layer_check
