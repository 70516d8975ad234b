// Sparse attention as functions: patterns, top-k, thresholds, global rows.
#include "registry.h"

#include <sluice/layers/attention/sparse_attention.h>
#include <sluice/layers/attention/sparse_masks.h>
#include <sluice/ops/shape/create.h>

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
    f("mode", o.mode, "what f > tau does");
    f("tau", o.tau, OptionRange{.infinite = true}, "threshold; \"-inf\": all pairs");
    f("temperature", o.temperature, above(0), "T of soft");
    f("include_self", o.include_self, "j = i is visible whatever f says; null: no for soft, else yes");
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
      list = random_neighbours(m, n,
                               {.k = o.k, .causal = o.causal, .heads = o.heads, .seed = static_cast<uint64_t>(o.seed)});
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

void qkv(Layer& l) {
  l.input("q [batch, heads, m, d]")
      .input("k [batch, kv_heads, n, d]")
      .input("v [batch, kv_heads, n, dv]")
      .input(Kind::boolean, "key_mask? broadcast [batch, n]");
}

void add_chosen(std::vector<Layer>& all) {
  add(all, "topk_attention", "sparse attention", "softmax over the k best scores of each row", "Zhao et al. 2019")
      .note("Gradients flow through kept scores only. output.mask shows what was kept.")
      .also(qkv)
      .input(Kind::boolean, "mask? broadcast [batch, heads, m, n]", "true: may be kept")
      .input("bias? broadcast [batch, heads, m, n]", "added to the scores")
      .output("[batch, heads, m, dv]")
      .require({{"k", 3}})
      .samples({{{"ties", "threshold"}, {"causal", true}}})
      .runs<TopKCase>([](TopKOptions o, const Inputs& in) {
        o.attention.mask.keys = in["key_mask"], o.attention.mask.dense = in["mask"], o.attention.bias = in["bias"];
        return topk_attention(in["q"], in["k"], in["v"], o);
      });
  add(all, "topk_mask", "sparse attention", "which entries of a row of scores are its k best", "Zhao et al. 2019")
      .input("scores [..., n]")
      .input(Kind::boolean, "allowed? broadcast [n]")
      .output("[..., n]", "bool")
      .require({{"k", 3}})
      .samples({{{"ties", "threshold"}}})
      .runs<TopKMaskCase>([](const TopKOptions& o, const Inputs& in) {
        return topk_mask(in["scores"].detach(), o.k, o.ties, in["allowed"]);
      });
  add(all, "threshold_attention", "sparse attention",
      "N_i = {j: f_ij > tau} (hard, no gradient to f); soft: log sigmoid((f - tau)/T) added to the scores; "
      "straight_through: values of hard, gradients of soft",
      "a learned threshold on pairs")
      .also(qkv)
      .input("f broadcast [batch, heads, m, n]", "score of pairs")
      .output("[batch, heads, m, dv]")
      .samples({{{"mode", "soft"}, {"temperature", 0.5}}, {{"mode", "straight_through"}, {"tau", "-inf"}}})
      .runs<ThresholdCase>([](ThresholdOptions o, const Inputs& in) {
        o.attention.mask.keys = in["key_mask"];
        return threshold_attention(in["q"], in["k"], in["v"], in["f"], o);
      });
}

}  // namespace

void add_sparse(std::vector<Layer>& all) {
  add(all, "pattern_attention", "sparse attention", "softmax over the neighbours N_i of a pattern",
      "Child et al. 2019, Longformer, Big Bird")
      .note(
          "i stands for the query's position: with m queries and n keys the last query sits on the last key. "
          "output.mask is the pattern as bool.")
      .also(qkv)
      .output("[batch, heads, m, dv]")
      .output("mask [pattern_heads, m, n]", "bool")
      .samples({{{"pattern", "dilated"}, {"causal", true}},
                {{"pattern", "residue"}, {"neighbours", true}},
                {{"pattern", "global_local"}, {"global_positions", Json::List{0, 4}}, {"neighbours", true}},
                {{"pattern", "random"}, {"pattern_heads", 2}},
                {{"pattern", "random"}, {"neighbours", true}},
                {{"pattern", "bigbird"}, {"window", 1}, {"random_blocks", 1}}})
      .runs<PatternCall>(run_pattern);
  add(all, "neighbour_attention", "sparse attention", "softmax over listed keys", "Child et al. 2019")
      .also(qkv)
      .input(Kind::integer, "neighbours [lists, m, K]", "keys of each row, -1 for none; lists is heads or 1")
      .output("[batch, heads, m, dv]")
      .runs<NeighbourCase>([](NeighbourOptions o, const Inputs& in) {
        o.keys = in["key_mask"];
        return neighbour_attention(in["q"], in["k"], in["v"], in["neighbours"], o);
      });
  add_chosen(all);
  add(all, "global_local_rows", "sparse attention",
      "global_local attention whose rows at global positions are computed again from projections of their own",
      "Beltagy et al. 2020 (Longformer)")
      .input("q [batch, heads, n, d]")
      .input("k [batch, kv_heads, n, d]")
      .input("v [batch, kv_heads, n, dv]")
      .input("global_q [batch, heads, len(global_positions), d]")
      .input("global_k [batch, kv_heads, n, d]")
      .input("global_v [batch, kv_heads, n, dv]")
      .input(Kind::boolean, "key_mask? broadcast [batch, n]")
      .output("[batch, heads, n, dv]")
      .require({{"w", 1}})
      .samples({{{"global_positions", Json::List{0, 3}}}})
      .runs<GlobalLocalCase>([](const GlobalLocalCase& given, const Inputs& in) {
        AttentionOptions o{.scale = given.scale, .mask = global_local_mask(given.w, given.global)};
        o.mask.keys = in["key_mask"];
        const GlobalRows rows{in["global_q"], in["global_k"], in["global_v"]};
        return global_local_attention(in["q"], in["k"], in["v"], o, rows);
      });
}

}  // namespace layer_check
