// Multi-head layers over sparse attention.
#include "registry.h"

#include <sluice/layers/attention/sparse_layers.h>

namespace layer_check {

using namespace sluice;

namespace {

struct GlobalLocalCase : GlobalLocalLayerOptions {
  std::vector<int64_t> global;  // an argument of the call
  static void describe(auto& o, auto& f) {
    GlobalLocalLayerOptions::describe(o, f);
    f("global_positions", o.global, at_least(0), "distinct positions that see and are seen by all");
  }
};

/// x and the maps of heads.
void heads(Layer& l) {
  l.derive({{"width", "heads*(head_dim or dim // heads)"}})
      .input("x [batch, n, dim]")
      .dense("q", "dim", "width", "qkv_bias")
      .dense("k", "dim", "width", "qkv_bias")
      .dense("v", "dim", "width", "qkv_bias")
      .dense("out", "width", "dim", "out_bias")
      .output("[batch, n, dim]");
}

/// Of a PairScore called `p` whose kind and width are these options.
void score(Layer& l, const std::string& p, const std::string& kind, const std::string& size) {
  const std::string mlp = kind + " == 'mlp'";
  l.dense(p + "row", "dim", size, mlp, "A or W_i")
      .dense(p + "col", "dim", size, "False", "B or W_j")
      .parameter(p + "distance [" + size + "]", "w_d", mlp)
      .parameter(p + "weight [" + size + "]", "w", mlp)
      .parameter(p + "bias []", "c", mlp);
}

}  // namespace

void add_sparse_layers(std::vector<Layer>& all) {
  add(all, "topk_attention_layer", "sparse attention", "multi-head topk_attention",
      "Zhao et al. 2019 (Explicit Sparse Transformer)")
      .also(heads)
      .key_mask();
  add(all, "pair_score", "sparse attention", kPairScoreMeaning, "score of threshold_attention_layer")
      .input("x [batch, n, dim]")
      .also([](Layer& l) { score(l, "", "kind", "width"); })
      .output("[batch, n, n]");
  add(all, "threshold_attention_layer", "sparse attention",
      "multi-head threshold_attention with a learned f, one for all heads, and a learned tau",
      "a learned threshold on pairs")
      .note("The option tau is the initial value of param.tau only.")
      .also(heads)
      .key_mask()
      .also([](Layer& l) { score(l, "score.", "score", "score_width"); })
      .parameter("tau []");
  add(all, "sinkhorn_attention", "sparse attention", "multi-head sinkhorn_attention_form", "Tay et al. 2020")
      .also(heads)
      .key_mask(true);
  add(all, "sinkhorn_block_attention", "sparse attention", "multi-head sinkhorn_block_attention_form",
      "Tay et al. 2020")
      .also(heads)
      .key_mask(true);
  Layer& global_local =
      add(all, "global_local_attention", "sparse attention",
          "multi-head sliding-window attention with global positions", "Beltagy et al. 2020 (Longformer)")
          .also(heads)
          .key_mask(true);
  for (const char* name : {"global_q", "global_k", "global_v"})
    global_local.dense(name, "dim", "width", "qkv_bias", "", "separate_global");
  global_local
      .samples(
          {{{"heads", 2}, {"w", 1}, {"global_positions", Json::List{0, 3}}, {"qkv_bias", true}, {"out_bias", true}},
           {{"separate_global", false}, {"w", 1}, {"global_positions", Json::List{2}}}})
      .draft = module_layer<GlobalLocalAttention, GlobalLocalCase>(
      [](const GlobalLocalAttention& l, const Inputs& in, const GlobalLocalCase& o) {
        return l(in["x"], {.key_mask = in["key_mask"], .positions = o.global});
      });
}

}  // namespace layer_check
