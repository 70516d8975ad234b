// Softmax attention and its relatives, with masks, biases and sinks.
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
    f("form", o.form,
      "the library's tiled kernels; the m x n definition; FlashAttention's or FlashAttention-2's "
      "order, softmax without sink");
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
void mask_inputs(Layer& l) {
  l.input(Kind::boolean, "key_mask? broadcast [batch, n]", "true for real keys")
      .input(Kind::integer, "query_segments? broadcast [batch, m]",
             "document numbers, with key_segments: only equal ones see each other")
      .input(Kind::integer, "key_segments? broadcast [batch, n]")
      .input(Kind::boolean, "blocks? broadcast [heads, (m + block - 1) // block, (n + block - 1) // block]",
             "blocks of queries x keys that may see each other", "block > 0")
      .input(Kind::boolean, "mask? broadcast [batch, heads, m, n]", "true: may be seen");
}
AttentionMask mask_of(const AttentionMask& given, const Inputs& in) {
  AttentionMask mask = given;
  mask.keys = in["key_mask"];
  mask.query_segments = in["query_segments"], mask.key_segments = in["key_segments"];
  mask.blocks = in["blocks"], mask.dense = in["mask"];
  if (!mask.blocks.defined()) mask.block = 0;
  return mask;
}

Results run_attention(const AttentionCall& call, const Inputs& in) {
  const Tensor q = in["q"], k = in["k"], v = in["v"];
  AttentionOptions o = call.options;
  o.mask = mask_of(call.mask, in);
  o.bias = in["bias"], o.relative_bias = in["relative_bias"], o.sink = in["sink"];
  if (in["row_scale"].defined()) o.row_scale = in["row_scale"].detach();
  if (call.form != Form::tiled && call.lse) fail<ValueError>("attention: only the form tiled gives lse");
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
  add(all, "attention", "attention",
      "O = w(s) V, s_ij = rho_i (cap(scale q_i k_j) + bias_ij); softmax e^s/(sum e^s [+ e^sink]), relu2 relu(s)^2, "
      "laplace, sigmoid, linear s",
      "FlashAttention (Dao et al. 2022, 2023)")
      .note(
          "Longformer's sliding window w is window w + 1; dilated, global-local and block-sparse patterns are "
          "window, dilation, global_positions and blocks. A row that sees no key gives 0.")
      .input("q [batch, heads, m, d]")
      .input("k [batch, kv_heads, n, d]", "query head h reads head h // (heads/kv_heads)")
      .input("v [batch, kv_heads, n, dv]")
      .input("bias? broadcast [batch, heads, m, n]", "added to scores")
      .input("relative_bias? broadcast [heads, n + m - 1]", "added to scores by distance: entry n - 1 + p_j - p_i")
      .input("sink? broadcast [heads]", "one more score per head whose value is 0; zeros give softmax-off-by-one",
             "weighting == 'softmax' and form in ('tiled', 'definition')")
      .input("row_scale? broadcast [batch, heads, m]", "rho; its gradient is not computed: zeros")
      .also(mask_inputs)
      .output("[batch, heads, m, dv]")
      .output("lse [batch, heads, m]", "log of each row's divisor", "lse")
      .output("map [batch, heads, m, n]", "the weights", "map")
      .samples({{{"causal", true}, {"lse", true}, {"scale", 0.3}, {"map", true}, {"tile_rows", 2}, {"tile_cols", 3}},
                {{"weighting", "relu2"}, {"window", 2}},
                {{"softcap", 0.8}, {"causal", true}},
                {{"weighting", "laplace"}, {"window", 3}, {"dilation", 2}, {"form", "definition"}},
                {{"weighting", "sigmoid"}, {"window", 2}, {"global_positions", Json::List{0, 4}}},
                {{"weighting", "linear"}, {"block", 2}},
                {{"form", "flash1"}, {"tile_rows", 2}, {"tile_cols", 3}},
                {{"form", "flash2"}, {"causal", true}}})
      .runs<AttentionCall>(run_attention);
  add(all, "merge_attention", "attention",
      "LSE = log(e^lse_a + e^lse_b), O = e^(lse_a - LSE) out_a + e^(lse_b - LSE) out_b",
      "split-KV decoding (FlashDecoding, 2023)")
      .input("out_a [batch, heads, m, dv]")
      .input("lse_a [batch, heads, m]")
      .input("out_b [batch, heads, m, dv]")
      .input("lse_b [batch, heads, m]")
      .output("[batch, heads, m, dv]")
      .output("lse [batch, heads, m]")
      .runs([](const Inputs& in) -> Results {
        auto [out, lse] = merge_attention({in["out_a"], in["lse_a"]}, {in["out_b"], in["lse_b"]});
        return {{"", out}, {"lse", lse}};
      });
  add(all, "visible_pairs", "attention", "the pairs (i, j) that a mask allows, as bool", "the rules of attention")
      .input("scores [batch, heads, m, n]", "read for their shape only")
      .also(mask_inputs)
      .output("broadcast [batch, heads, m, n]", "bool")
      .samples(
          {{{"causal", true}, {"window", 3}, {"dilation", 2}, {"global_positions", Json::List{1}}}, {{"block", 2}}})
      .runs<MaskOptions>([](const MaskOptions& o, const Inputs& in) {
        const Tensor& s = in["scores"];
        return visible_pairs(mask_of(o.mask, in), s.dim(0), s.dim(1), s.dim(2), s.dim(3));
      });
}

}  // namespace layer_check
