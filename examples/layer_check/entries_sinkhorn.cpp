// Sinkhorn attention: doubly stochastic weights, and sorted blocks. Without Gumbel noise, which is random.
#include "registry.h"
#include "sparse_options.h"

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

std::vector<InputInfo> square_inputs() {
  return {{.name = "q", .shape = "[batch, heads, n, d]"},
          {.name = "k", .shape = "[batch, kv_heads, n, d]"},
          {.name = "v", .shape = "[batch, kv_heads, n, dv]"},
          {.name = "key_mask", .shape = "broadcast [batch, n]", .kind = Kind::boolean, .optional = true}};
}

}  // namespace

void add_sinkhorn(std::vector<Layer>& all) {
  all.push_back({
      .name = "sinkhorn",
      .family = "sparse attention",
      .formula = "S = e^(lambda A), then columns and rows divided by their sums, iterations times",
      .source = "Tay et al. 2020, Sinkhorn 1964",
      .inputs = {{.name = "scores", .shape = "[..., n, n]", .meaning = "A"},
                 {.name = "allowed", .shape = "broadcast [n, n]", .meaning = "pairs that may be other than 0",
                  .kind = Kind::boolean, .optional = true}},
      .outputs = {{"", "[..., n, n]"}},
      .examples = {{{"variant", "literal"}, {"iterations", 3}}, {{"last", "columns"}, {"lambda", 0.5}}},
      .draft = function_layer<SinkhornOptions>([](const SinkhornOptions& given, const Inputs& in) {
                                                   SinkhornOptions o = given;
                                                   o.allowed = in["allowed"];
                                                   return sinkhorn(in["scores"], o);
                                                 }),
  });
  all.push_back({
      .name = "sinkhorn_attention_form",
      .family = "sparse attention",
      .formula = "sinkhorn(scale q k') v",
      .source = "Tay et al. 2020",
      .inputs = square_inputs(),
      .outputs = {{"", "[batch, heads, n, dv]"}},
      .examples = {{{"top_k", 2}}},
      .draft = function_layer<AttentionCase>(
          [](const SinkhornAttentionOptions& given, const Inputs& in) {
            SinkhornAttentionOptions o = given;
            o.keys = in["key_mask"];
            return sinkhorn_attention(in["q"], in["k"], in["v"], o);
          }),
  });
  all.push_back({
      .name = "sinkhorn_block_attention_form",
      .family = "sparse attention",
      .formula = "query block g attends to its own block and to sum_h P_gh (block h), P = sinkhorn of the blocks' "
                 "means",
      .source = "Tay et al. 2020",
      .inputs = square_inputs(),
      .outputs = {{"", "[batch, heads, n, dv]"},
                  {"permutation", "[batch, heads, (n + block - 1) // block, (n + block - 1) // block]", "P"}},
      .examples = {{{"block", 2}}, {{"block", 4}}},
      .draft = function_layer<BlockCase>(
          [](const SinkhornBlockOptions& given, const Inputs& in) -> Results {
            SinkhornBlockOptions o = given;
            o.keys = in["key_mask"];
            return {{"", sinkhorn_block_attention(in["q"], in["k"], in["v"], o)},
                    {"permutation", block_permutation(in["q"], in["k"], o)}};
          }),
  });
}

}  // namespace layer_check
