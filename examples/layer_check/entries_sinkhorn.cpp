// Sinkhorn attention: doubly stochastic weights, and sorted blocks. Without Gumbel noise, which is random.
#include "registry.h"
#include "sparse_options.h"

namespace layer_check {

using namespace sluice;

void sinkhorn_options(Options& v, SinkhornOptions& o) {
  static const Choices<SinkhornVariant> variants{{"correct", SinkhornVariant::correct},
                                                 {"literal", SinkhornVariant::literal}};
  static const Choices<SinkhornLast> lasts{{"rows", SinkhornLast::rows}, {"columns", SinkhornLast::columns}};
  v("lambda", o.lambda, "inverse temperature");
  v("iterations", o.iterations, "of both steps");
  v("variant", o.variant, variants, "literal: A <- T_row(T_col(e^(lambda A))), as printed");
  v("last", o.last, lasts, "which sums are exactly 1");
}

namespace {

std::vector<InputInfo> square_inputs() {
  return {{.name = "q", .shape = "[batch, heads, n, d]"},
          {.name = "k", .shape = "[batch, kv_heads, n, d]"},
          {.name = "v", .shape = "[batch, kv_heads, n, dv]"},
          {.name = "key_mask", .shape = "broadcast [batch, n]", .kind = Kind::boolean, .optional = true}};
}

void block_options(Options& v, SinkhornBlockOptions& o) {
  v("block", o.block, "tokens B of a block");
  sinkhorn_options(v, o.sinkhorn);
  v("scale", o.scale, "of q k; null: 1/sqrt(d)");
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
      .prepare = function_layer<SinkhornOptions>(sinkhorn_options,
                                                 [](const SinkhornOptions& given, const Inputs& in) {
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
      .prepare = function_layer<SinkhornAttentionOptions>(
          [](Options& v, SinkhornAttentionOptions& o) {
            sinkhorn_options(v, o.sinkhorn);
            v("scale", o.scale, "of q k; null: 1/sqrt(d)");
            v("top_k", o.top_k, "> 0: keep the k largest weights of a row, scaled to sum 1");
          },
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
      .prepare = function_layer<SinkhornBlockOptions>(
          block_options,
          [](const SinkhornBlockOptions& given, const Inputs& in) -> Results {
            SinkhornBlockOptions o = given;
            o.keys = in["key_mask"];
            return {{"", sinkhorn_block_attention(in["q"], in["k"], in["v"], o)},
                    {"permutation", block_permutation(in["q"], in["k"], o)}};
          }),
  });
}

}  // namespace layer_check
