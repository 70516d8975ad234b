// Sinkhorn attention: doubly stochastic weights, and sorted blocks. Without Gumbel noise, which is random.
#include "registry.h"

#include <sluice/layers/attention/sinkhorn.h>

namespace layer_check {

using namespace sluice;

namespace {

struct AttentionCase : SinkhornAttentionOptions {
  static void describe(auto& o, auto& f) {
    f.nested("", o.sinkhorn);
    f("scale", o.scale, any_number(), "of q k; null: 1/sqrt(d)");
    f("top_k", o.top_k, at_least(0), "> 0: keep the k largest weights of a row, scaled to sum 1");
  }
};
struct BlockCase : SinkhornBlockOptions {
  static void describe(auto& o, auto& f) {
    f("block", o.block, at_least(1), "tokens B of a block");
    f.nested("", o.sinkhorn);
    f("scale", o.scale, any_number(), "of q k; null: 1/sqrt(d)");
  }
};

void qkv(Layer& l) {
  l.input("q [batch, heads, n, d]")
      .input("k [batch, kv_heads, n, d]")
      .input("v [batch, kv_heads, n, dv]")
      .input(Kind::boolean, "key_mask? broadcast [batch, n]");
}

}  // namespace

void add_sinkhorn(std::vector<Layer>& all) {
  add(all, "sinkhorn", "sparse attention",
      "S = e^(lambda A), then columns and rows divided by their sums, iterations times",
      "Tay et al. 2020, Sinkhorn 1964")
      .input("scores [..., n, n]", "A")
      .input(Kind::boolean, "allowed? broadcast [n, n]", "pairs that may be other than 0")
      .output("[..., n, n]")
      .samples({{{"variant", "literal"}, {"iterations", 3}}, {{"last", "columns"}, {"lambda", 0.5}}})
      .runs<SinkhornOptions>([](SinkhornOptions o, const Inputs& in) {
        o.allowed = in["allowed"];
        return sinkhorn(in["scores"], o);
      });
  add(all, "sinkhorn_attention_form", "sparse attention", "sinkhorn(scale q k') v", "Tay et al. 2020")
      .also(qkv)
      .output("[batch, heads, n, dv]")
      .samples({{{"top_k", 2}}})
      .runs<AttentionCase>([](SinkhornAttentionOptions o, const Inputs& in) {
        o.keys = in["key_mask"];
        return sinkhorn_attention(in["q"], in["k"], in["v"], o);
      });
  add(all, "sinkhorn_block_attention_form", "sparse attention",
      "query block g attends to its own block and to sum_h P_gh (block h), P = sinkhorn of the blocks' means",
      "Tay et al. 2020")
      .also(qkv)
      .output("[batch, heads, n, dv]")
      .output("permutation [batch, heads, (n + block - 1) // block, (n + block - 1) // block]", "P")
      .samples({{{"block", 2}}, {{"block", 4}}})
      .runs<BlockCase>([](SinkhornBlockOptions o, const Inputs& in) -> Results {
        o.keys = in["key_mask"];
        return {{"", sinkhorn_block_attention(in["q"], in["k"], in["v"], o)},
                {"permutation", block_permutation(in["q"], in["k"], o)}};
      });
}

}  // namespace layer_check
