// Softmax attention and its relatives, with masks, biases and sinks.
#include "shared.h"
#include "registry.h"

#include <sluice/ops/attention/attention.h>
#include <sluice/ops/attention/attention_reference.h>

namespace layer_check {

using namespace sluice;

namespace {

struct MaskOptions {
  AttentionMask mask;
  static void describe(auto& o, auto& f) {
    f("causal", o.mask.causal, "p_j <= p_i, where p_i = i + n - m and p_j = j");
    f("window", o.mask.window, at_least(0),
      "W > 0: |p_i - p_j| <= (W - 1)*dilation (W = w + 1 for a one-sided w); 0: none");
    f("dilation", o.mask.dilation, at_least(1), "p_i - p_j is a multiple of it");
    f("global_positions", o.mask.global, at_least(0),
      "positions that window and dilation do not bind, neither as query nor as key");
    f("block", o.mask.block, at_least(0), "size of the blocks of input.blocks");
  }
};

enum class Form { tiled, definition, flash1, flash2 };
constexpr const char* choices(Form) { return "tiled definition flash1 flash2"; }

struct AttentionCall : MaskOptions {
  Form form = Form::tiled;
  AttentionOptions options;
  bool lse = false, map = false;
  static void describe(auto& o, auto& f) {
    f("form", o.form, "the library's tiled kernels; the m x n definition; FlashAttention's or FlashAttention-2's order, "
                      "softmax without sink");
    f("weighting", o.options.weighting, "how scores become weights");
    f("scale", o.options.scale, any_number(), "of q k; null: 1/sqrt(d)");
    f("softcap", o.options.softcap, at_least(0), "c: x = scale q k becomes c*tanh(x/c); 0: none");
    MaskOptions::describe(o, f);
    f("tile_rows", o.options.tile_rows, at_least(0), "rows of a tile; 0: chosen; changes rounding only");
    f("tile_cols", o.options.tile_cols, at_least(0), "columns of a tile; 0: chosen");
    f("lse", o.lse, "write output.lse; softmax only");
    f("map", o.map, "write output.map");
  }
};

/// Inputs of a mask over m queries and n keys.
std::vector<InputInfo> mask_inputs() {
  return {{.name = "key_mask", .shape = "broadcast [batch, n]", .meaning = "true for real keys", .kind = Kind::boolean,
           .optional = true},
          {.name = "query_segments", .shape = "broadcast [batch, m]",
           .meaning = "document numbers, with key_segments: only equal ones see each other", .kind = Kind::integer,
           .optional = true, .sample = Sample::index},
          {.name = "key_segments", .shape = "broadcast [batch, n]", .kind = Kind::integer, .optional = true,
           .sample = Sample::index},
          {.name = "blocks", .shape = "broadcast [heads, (m + block - 1) // block, (n + block - 1) // block]",
           .meaning = "blocks of queries x keys that may see each other", .kind = Kind::boolean, .optional = true,
           .when = "block > 0"},
          {.name = "mask", .shape = "broadcast [batch, heads, m, n]", .meaning = "true: may be seen",
           .kind = Kind::boolean, .optional = true}};
}
AttentionMask mask_of(const AttentionMask& given, const Inputs& in) {
  AttentionMask mask = given;
  mask.keys = in["key_mask"];
  mask.query_segments = in["query_segments"], mask.key_segments = in["key_segments"];
  mask.blocks = in["blocks"], mask.dense = in["mask"];
  if (!mask.blocks.defined()) mask.block = 0;
  return mask;
}

std::vector<InputInfo> attention_inputs() {
  std::vector<InputInfo> all{
      {.name = "q", .shape = "[batch, heads, m, d]"},
      {.name = "k", .shape = "[batch, kv_heads, n, d]", .meaning = "query head h reads head h // (heads/kv_heads)"},
      {.name = "v", .shape = "[batch, kv_heads, n, dv]"},
      {.name = "bias", .shape = "broadcast [batch, heads, m, n]", .meaning = "added to scores", .optional = true},
      {.name = "relative_bias", .shape = "broadcast [heads, n + m - 1]",
       .meaning = "added to scores by distance: entry n - 1 + p_j - p_i", .optional = true},
      {.name = "sink", .shape = "broadcast [heads]",
       .meaning = "one more score per head whose value is 0; zeros give softmax-off-by-one", .optional = true,
       .when = "weighting == 'softmax' and form in ('tiled', 'definition')"},
      {.name = "row_scale", .shape = "broadcast [batch, heads, m]",
       .meaning = "rho; its gradient is not computed: zeros", .optional = true}};
  for (const InputInfo& i : mask_inputs()) all.push_back(i);
  return all;
}

Results run_attention(const AttentionCall& call, const Inputs& in) {
  const Tensor q = in["q"], k = in["k"], v = in["v"];
  AttentionOptions o = call.options;
  o.mask = mask_of(call.mask, in);
  o.bias = in["bias"], o.relative_bias = in["relative_bias"], o.sink = in["sink"];
  if (in["row_scale"].defined()) o.row_scale = in["row_scale"].detach();
  if (call.form != Form::tiled && call.lse)
    fail<ValueError>("attention: only the form tiled gives lse");
  Results results;
  if (call.lse) {
    auto [out, lse] = attention_with_lse(q, k, v, o);
    results = {{"", out}, {"lse", lse}};
  } else if (call.form == Form::tiled) {
    results = {{"", attention(q, k, v, o)}};
  } else if (call.form == Form::definition) {
    results = {{"", attention_reference(q, k, v, o)}};
  } else {
    const TileOrder order = call.form == Form::flash1 ? TileOrder::flash1 : TileOrder::flash2;
    auto size = [](int64_t given) { return given ? given : 64; };
    results = {{"", attention_in_order(q, k, v, order, size(o.tile_rows), size(o.tile_cols), o)}};
  }
  if (call.map) results.push_back({"map", attention_map(q, k, o)});
  return results;
}

}  // namespace

void add_attention(std::vector<Layer>& all) {
  all.push_back({
      .name = "attention",
      .family = "attention",
      .formula = "O = w(s) V, s_ij = rho_i (cap(scale q_i k_j) + bias_ij); softmax e^s/(sum e^s [+ e^sink]), relu2 "
                 "relu(s)^2, laplace, sigmoid, linear s",
      .source = "FlashAttention (Dao et al. 2022, 2023)",
      .notes = "Longformer's sliding window w is window w + 1; dilated, global-local and block-sparse patterns are "
               "window, dilation, global_positions and blocks. A row that sees no key gives 0.",
      .inputs = attention_inputs(),
      .outputs = {{"", "[batch, heads, m, dv]"},
                  {"lse", "[batch, heads, m]", "log of each row's divisor", "lse"},
                  {"map", "[batch, heads, m, n]", "the weights", "map"}},
      .examples = {{{"causal", true}, {"lse", true}, {"scale", 0.3}, {"map", true}, {"tile_rows", 2}, {"tile_cols", 3}},
                   {{"weighting", "relu2"}, {"window", 2}},
                   {{"softcap", 0.8}, {"causal", true}},
                   {{"weighting", "laplace"}, {"window", 3}, {"dilation", 2}, {"form", "definition"}},
                   {{"weighting", "sigmoid"}, {"window", 2}, {"global_positions", Json::List{0, 4}}},
                   {{"weighting", "linear"}, {"block", 2}},
                   {{"form", "flash1"}, {"tile_rows", 2}, {"tile_cols", 3}},
                   {{"form", "flash2"}, {"causal", true}}},
      .sizes = {{"m", 4}},
      .draft = function_layer<AttentionCall>(run_attention),
  });
  all.push_back({
      .name = "merge_attention",
      .family = "attention",
      .formula = "LSE = log(e^lse_a + e^lse_b), O = e^(lse_a - LSE) out_a + e^(lse_b - LSE) out_b",
      .source = "split-KV decoding (FlashDecoding, 2023)",
      .inputs = {{.name = "out_a", .shape = "[batch, heads, m, dv]"},
                 {.name = "lse_a", .shape = "[batch, heads, m]"},
                 {.name = "out_b", .shape = "[batch, heads, m, dv]"},
                 {.name = "lse_b", .shape = "[batch, heads, m]"}},
      .outputs = {{"", "[batch, heads, m, dv]"}, {"lse", "[batch, heads, m]"}},
      .draft = plain_function([](const Inputs& in) -> Results {
        auto [out, lse] = merge_attention({in["out_a"], in["lse_a"]}, {in["out_b"], in["lse_b"]});
        return {{"", out}, {"lse", lse}};
      }),
  });
  std::vector<InputInfo> inputs = mask_inputs();
  inputs.insert(inputs.begin(), {.name = "scores", .shape = "[batch, heads, m, n]",
                                 .meaning = "read for their shape only"});
  all.push_back({
      .name = "visible_pairs",
      .family = "attention",
      .formula = "the pairs (i, j) that a mask allows, as bool",
      .source = "the rules of attention",
      .inputs = inputs,
      .outputs = {{"", "broadcast [batch, heads, m, n]", "bool"}},
      .examples = {{{"causal", true}, {"window", 3}, {"dilation", 2}, {"global_positions", Json::List{1}}},
                   {{"block", 2}}},
      .draft = function_layer<MaskOptions>(
          [](const MaskOptions& o, const Inputs& in) {
            const Tensor& s = in["scores"];
            return visible_pairs(mask_of(o.mask, in), s.dim(0), s.dim(1), s.dim(2), s.dim(3));
          }),
  });
}

}  // namespace layer_check
