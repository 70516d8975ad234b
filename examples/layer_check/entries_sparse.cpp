// Sparse attention as functions: patterns, top-k, thresholds, global rows.
#include "shared.h"
#include "registry.h"
#include "sparse_options.h"

#include <sluice/layers/heads/sparse_masks.h>
#include <sluice/ops/create.h>

namespace layer_check {

using namespace sluice;

namespace {

enum class Pattern { sliding, dilated, residue, global_local, random, bigbird };
constexpr const char* choices(Pattern) { return "sliding dilated residue global_local random bigbird"; }

struct PatternCall {
  Pattern pattern = Pattern::sliding;
  bool neighbours = false, causal = false;
  int64_t w = 2, dilation = 2, k = 3, seed = 0, heads = 1;
  std::vector<int64_t> global;
  BigBirdOptions bigbird{.block = 2};
  std::optional<double> scale;

  static void describe(auto& o, auto& f) {
    f("pattern", o.pattern,
      "sliding |i - j| <= w; dilated |i - j| <= w*dilation, a multiple of dilation; residue: any multiple; "
      "global_local: sliding, or i or j global; random: k drawn keys and j = i; bigbird: blocks");
    f("neighbours", o.neighbours, "run by gathering listed neighbours instead of masking tiles");
    f("causal", o.causal, "and j <= i");
    f("w", o.w, at_least(0), "one-sided width");
    f("dilation", o.dilation, at_least(1), "of dilated and residue");
    f("global_positions", o.global, at_least(0), "positions of global_local");
    f("k", o.k, at_least(0), "keys that a row of random draws");
    f("seed", o.seed, at_least(0),
      "of random and bigbird: which keys are drawn is this library's own choice, see output.mask");
    f("pattern_heads", o.heads, at_least(1), "patterns drawn, one per head; 1: one for all");
    f("block", o.bigbird.block, at_least(1), "bigbird: tokens of a block");
    f("window", o.bigbird.window, at_least(1), "bigbird: blocks around the query's, odd");
    f("random_blocks", o.bigbird.random, at_least(0), "bigbird: blocks that a row draws");
    f("first_global", o.bigbird.first_global, "bigbird: the first block sees and is seen by all");
    f("last_global", o.bigbird.last_global, "bigbird: the last block too");
    f("scale", o.scale, any_number(), "of q k; null: 1/sqrt(d)");
  }
};

constexpr const char* kTiesMeaning = "index: exactly k, the first of equals; threshold: all >= the k-th best";
struct TopKCase : TopKOptions {
  static void describe(auto& o, auto& f) {
    f.required("k", o.k, at_least(1), "keys kept; rows with fewer allowed keep all");
    f("ties", o.ties, kTiesMeaning);
    f("causal", o.attention.mask.causal, "query i of m sees keys j <= i + n - m");
    f("window", o.attention.mask.window, at_least(0), "keys seen, a query's own position included; 0: all");
    f("scale", o.attention.scale, any_number(), "of q k; null: 1/sqrt(d)");
  }
};
struct TopKMaskCase : TopKOptions {
  static void describe(auto& o, auto& f) {
    f.required("k", o.k, at_least(1), "entries kept");
    f("ties", o.ties, kTiesMeaning);
  }
};
struct ThresholdCase : ThresholdOptions {
  static void describe(auto& o, auto& f) {
    threshold_options(o, f);
    f("causal", o.attention.mask.causal, "query i of m sees keys j <= i + n - m");
    f("scale", o.attention.scale, any_number(), "of q k; null: 1/sqrt(d)");
  }
};
struct NeighbourCase : NeighbourOptions {
  static void describe(auto& o, auto& f) { f("scale", o.scale, any_number(), "of q k; null: 1/sqrt(d)"); }
};
struct GlobalLocalCase {
  int64_t w;
  std::vector<int64_t> global;
  std::optional<double> scale;
  static void describe(auto& o, auto& f) {
    f.required("w", o.w, at_least(0), "|i - j| <= w");
    f("global_positions", o.global, at_least(0), "distinct positions");
    f("scale", o.scale, any_number(), "of q k; null: 1/sqrt(d)");
  }
};

Results run_pattern(const PatternCall& o, const Inputs& in) {
  const Tensor q = in["q"], k = in["k"], v = in["v"];
  const int64_t m = q.dim(2), n = k.dim(2);
  AttentionMask mask;
  Tensor list;
  switch (o.pattern) {
    case Pattern::sliding: mask = sliding_mask(o.w, o.causal); break;
    case Pattern::dilated: mask = dilated_mask(o.w, o.dilation, o.causal); break;
    case Pattern::residue: mask = residue_mask(o.dilation, o.causal); break;
    case Pattern::global_local: mask = global_local_mask(o.w, o.global, o.causal); break;
    case Pattern::random:
      list = random_neighbours(m, n, {.k = o.k, .causal = o.causal, .heads = o.heads,
                                      .seed = static_cast<uint64_t>(o.seed)});
      mask.dense = mask_of_neighbours(list, n);
      break;
    case Pattern::bigbird: {
      BigBirdOptions b = o.bigbird;
      b.causal = o.causal, b.heads = o.heads, b.seed = static_cast<uint64_t>(o.seed);
      mask = bigbird_mask(n, b);
    }
  }
  const Tensor shown = dense_mask(mask, m, n, o.heads);
  if (o.neighbours && !list.defined()) list = neighbours_of(mask, m, n, o.heads);
  Tensor y;
  if (o.neighbours) {
    y = neighbour_attention(q, k, v, to(list, q.device()), {.scale = o.scale, .keys = in["key_mask"]});
  } else {
    mask = to(mask, q.device());
    mask.keys = in["key_mask"];
    y = attention(q, k, v, {.scale = o.scale, .mask = mask});
  }
  return {{"", y}, {"mask", shown}};
}

void add_chosen(std::vector<Layer>& all) {
  all.push_back({
      .name = "topk_attention",
      .family = "sparse attention",
      .formula = "softmax over the k best scores of each row",
      .source = "Zhao et al. 2019",
      .notes = "Gradients flow through kept scores only. output.mask shows what was kept.",
      .inputs = qkv_inputs({{.name = "mask", .shape = "broadcast [batch, heads, m, n]", .meaning = "true: may be kept",
                             .kind = Kind::boolean, .optional = true},
                            {.name = "bias", .shape = "broadcast [batch, heads, m, n]", .meaning =
                             "added to the scores",
                             .optional = true}}),
      .outputs = {{"", "[batch, heads, m, dv]"}},
      .required = {{"k", 3}},
      .examples = {{{"ties", "threshold"}, {"causal", true}}},
      .sizes = {{"m", 4}},
      .draft = function_layer<TopKCase>(
          [](const TopKOptions& given, const Inputs& in) {
            TopKOptions o = given;
            o.attention.mask.keys = in["key_mask"], o.attention.mask.dense = in["mask"], o.attention.bias = in["bias"];
            return topk_attention(in["q"], in["k"], in["v"], o);
          }),
  });
  all.push_back({
      .name = "topk_mask",
      .family = "sparse attention",
      .formula = "which entries of a row of scores are its k best",
      .source = "Zhao et al. 2019",
      .inputs = {{.name = "scores", .shape = "[..., n]"},
                 {.name = "allowed", .shape = "broadcast [n]", .kind = Kind::boolean, .optional = true}},
      .outputs = {{"", "[..., n]", "bool"}},
      .required = {{"k", 3}},
      .examples = {{{"ties", "threshold"}}},
      .draft = function_layer<TopKMaskCase>(
          [](const TopKOptions& o, const Inputs& in) {
            return topk_mask(in["scores"].detach(), o.k, o.ties, in["allowed"]);
          }),
  });
  all.push_back({
      .name = "threshold_attention",
      .family = "sparse attention",
      .formula = "N_i = {j: f_ij > tau} (hard, no gradient to f); soft: log sigmoid((f - tau)/T) added to the scores; "
                 "straight_through: values of hard, gradients of soft",
      .source = "a learned threshold on pairs",
      .inputs = qkv_inputs({{.name = "f", .shape = "broadcast [batch, heads, m, n]", .meaning = "score of pairs"}}),
      .outputs = {{"", "[batch, heads, m, dv]"}},
      .examples = {{{"mode", "soft"}, {"temperature", 0.5}}, {{"mode", "straight_through"}, {"tau", "-inf"}}},
      .sizes = {{"m", 6}},
      .draft = function_layer<ThresholdCase>(
          [](const ThresholdOptions& given, const Inputs& in) {
            ThresholdOptions o = given;
            o.attention.mask.keys = in["key_mask"];
            return threshold_attention(in["q"], in["k"], in["v"], in["f"], o);
          }),
  });
}

}  // namespace

std::vector<InputInfo> qkv_inputs(std::vector<InputInfo> more) {
  std::vector<InputInfo> all{{.name = "q", .shape = "[batch, heads, m, d]"},
                             {.name = "k", .shape = "[batch, kv_heads, n, d]"},
                             {.name = "v", .shape = "[batch, kv_heads, n, dv]"},
                             {.name = "key_mask", .shape = "broadcast [batch, n]", .kind = Kind::boolean, .optional =
                              true}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void add_sparse(std::vector<Layer>& all) {
  all.push_back({
      .name = "pattern_attention",
      .family = "sparse attention",
      .formula = "softmax over the neighbours N_i of a pattern",
      .source = "Child et al. 2019, Longformer, Big Bird",
      .notes = "i stands for the query's position: with m queries and n keys the last query sits on the last key. "
               "output.mask is the pattern as bool.",
      .inputs = qkv_inputs({}),
      .outputs = {{"", "[batch, heads, m, dv]"}, {"mask", "[pattern_heads, m, n]", "bool"}},
      .examples = {{{"pattern", "dilated"}, {"causal", true}}, {{"pattern", "residue"}, {"neighbours", true}},
                   {{"pattern", "global_local"}, {"global_positions", Json::List{0, 4}}, {"neighbours", true}},
                   {{"pattern", "random"}, {"pattern_heads", 2}}, {{"pattern", "random"}, {"neighbours", true}},
                   {{"pattern", "bigbird"}, {"window", 1}, {"random_blocks", 1}}},
      .draft = function_layer<PatternCall>(run_pattern),
  });
  all.push_back({
      .name = "neighbour_attention",
      .family = "sparse attention",
      .formula = "softmax over listed keys",
      .source = "Child et al. 2019",
      .inputs = qkv_inputs({{.name = "neighbours", .shape = "[lists, m, K]",
                             .meaning = "keys of each row, -1 for none; lists is heads or 1", .kind = Kind::integer,
                             .sample = Sample::index, .below = "n"}}),
      .outputs = {{"", "[batch, heads, m, dv]"}},
      .sizes = {{"lists", 1}, {"K", 3}, {"m", 4}},
      .draft = function_layer<NeighbourCase>(
          [](const NeighbourOptions& given, const Inputs& in) {
            NeighbourOptions o = given;
            o.keys = in["key_mask"];
            return neighbour_attention(in["q"], in["k"], in["v"], in["neighbours"], o);
          }),
  });
  add_chosen(all);
  all.push_back({
      .name = "global_local_rows",
      .family = "sparse attention",
      .formula = "global_local attention whose rows at global positions are computed again from projections of their "
                 "own",
      .source = "Beltagy et al. 2020 (Longformer)",
      .inputs = {{.name = "q", .shape = "[batch, heads, n, d]"},
                 {.name = "k", .shape = "[batch, kv_heads, n, d]"},
                 {.name = "v", .shape = "[batch, kv_heads, n, dv]"},
                 {.name = "global_q", .shape = "[batch, heads, len(global_positions), d]"},
                 {.name = "global_k", .shape = "[batch, kv_heads, n, d]"},
                 {.name = "global_v", .shape = "[batch, kv_heads, n, dv]"},
                 {.name = "key_mask", .shape = "broadcast [batch, n]", .kind = Kind::boolean, .optional = true}},
      .outputs = {{"", "[batch, heads, n, dv]"}},
      .required = {{"w", 1}},
      .examples = {{{"global_positions", Json::List{0, 3}}}},
      .draft = function_layer<GlobalLocalCase>(
          [](const GlobalLocalCase& given, const Inputs& in) {
            AttentionOptions o{.scale = given.scale, .mask = global_local_mask(given.w, given.global)};
            o.mask.keys = in["key_mask"];
            const GlobalRows rows{in["global_q"], in["global_k"], in["global_v"]};
            return global_local_attention(in["q"], in["k"], in["v"], o, rows);
          }),
  });
}

}  // namespace layer_check
