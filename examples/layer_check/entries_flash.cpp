// FLASH: mixed-chunk attention, as a function and as a layer, stacks of it, and the block of MC-TFM++.
#include "registry.h"

#include <sluice/layers/gau/flash.h>

namespace layer_check {

using namespace sluice;

namespace {

struct SegmentOptions {
  int64_t chunk = 256;
  bool causal = false;
  static void describe(auto& o, auto& f) {
    f("chunk", o.chunk, at_least(1), "tokens of a chunk");
    f("causal", o.causal, "earlier chunks only");
  }
};

void tokens(Layer& l) {
  l.key_mask()
      .input(Kind::integer, "segments? [batch, n]", "document numbers that do not decrease", "len(stream) == 0")
      .only(Range::ascending);
}

void add_functions(std::vector<Layer>& all) {
  add(all, "mixed_chunk_attention", "flash", "quad + lin of flash, from given queries, keys and values",
      "Hua et al. 2022")
      .input("q_quad [batch, heads, n, s]")
      .input("k_quad [batch, heads, n, s]")
      .input("q_lin [batch, heads, n, s]")
      .input("k_lin [batch, heads, n, s]")
      .input("v [batch, heads, n, e]")
      .input("relative_bias? [1, width]",
             "b by distance in a chunk: width = 2*T - 1, T >= min(n, chunk), entry T - 1 + j - i")
      .input(Kind::boolean, "key_mask? [batch, n]")
      .input(Kind::integer, "segments? [batch, n]")
      .only(Range::ascending)
      .output("[batch, heads, n, e]")
      .samples({{{"chunk", 4}, {"causal", true}},
                {{"chunk", 3}, {"scaling", "lucid"}, {"kind", "softmax"}},
                {{"chunk", 4}, {"scaling", "eq"}, {"across_chunks", false}}})
      .runs<MixedChunkOptions>([](const MixedChunkOptions& o, const Inputs& in) {
        return mixed_chunk_attention(in["q_quad"], in["k_quad"], in["q_lin"], in["k_lin"], in["v"], o,
                                     in["relative_bias"], in["key_mask"], in["segments"]);
      });
  add(all, "segment_mask", "flash",
      "chunks g and h may interact when their ranges of document numbers overlap, and h < g if causal",
      "Hua et al. 2022, appendix")
      .input(Kind::integer, "segments [batch, n]")
      .only(Range::ascending)
      .input(Kind::boolean, "key_mask? [batch, n]")
      .output("[batch, (n + chunk - 1) // chunk, (n + chunk - 1) // chunk]", "bool")
      .samples({{{"chunk", 2}, {"causal", true}}})
      .runs<SegmentOptions>([](const SegmentOptions& o, const Inputs& in) {
        return segment_mask(in["segments"], o.chunk, o.causal, in["key_mask"]);
      });
}

}  // namespace

void add_flash(std::vector<Layer>& all) {
  const Layer flash =
      add(all, "flash", "flash",
          "as gau, with q_quad, k_quad, q_lin, k_lin = gamma_i*Z + beta_i, RoPE on all; y = x + (U * (quad + lin)) Wo; "
          "quad_g = kind(q_quad k_quad', b, mask, C) V inside chunk g; lin_g = 1/N_g q_lin sum_h k_lin_h' V_h, all "
          "chunks h, or h < g if causal",
          "Hua et al. 2022")
          .derive({{"e", "expansion or 2*dim"}, {"s", "key_dim"}})
          .input("x [batch, n, dim]")
          .also(tokens)
          .norm("norm", "norm", "dim")
          .dense("in", "dim", "2*e + s", "linear_bias", "columns U | V | Z")
          .dense("out", "e", "dim", "linear_bias", "Wo")
          .parameter("gamma [4, s]", "rows q_quad, k_quad, q_lin, k_lin")
          .parameter("beta [4, s]", "rows q_quad, k_quad, q_lin, k_lin")
          .parameter("toeplitz_bias [2*chunk - 1]", "b_ij = w[chunk - 1 + j - i]", "bias == 'toeplitz'")
          .parameter("rope_bias [2, s]", "", "bias == 'rope'")
          .parameter("t5_bias [buckets, 1]", "", "bias == 't5'")
          .output("[batch, n, dim]");
  add_functions(all);
  add(all, "flash_block", "flash", "a stack of flash layers", "Hua et al. 2022")
      .derive(flash.derived)
      .input("x [batch, n, dim]")
      .also(tokens)
      .parts(flash, "layers.{i}.", "layers")
      .output("[batch, n, dim]");
  add(all, "flash_model", "flash", "(embedding) -> + scaled sinusoidal positions -> flash layers -> norm -> (logits)",
      "Hua et al. 2022")
      .derive(flash.derived)
      .input(Kind::integer, "x [batch, n]", "tokens", "vocabulary > 0")
      .input("x [batch, n, dim]", "", "vocabulary == 0")
      .also(tokens)
      .parameter("embedding.weight [vocabulary, dim]", "", "vocabulary > 0")
      .parameter("positions.scale [1]", "", "positions")
      .parts(flash, "body.layers.{i}.", "layers")
      .norm("norm", "(final_norm or norm)", "dim")
      .dense("head", "dim", "outputs", "linear_bias", "logits", "outputs > 0")
      .output("[batch, n, outputs or dim]");
  add(all, "mc_tfm", "flash",
      "q, k, v = heads of norm(x) W; q_lin = gamma_0 q + beta_0, k_lin = gamma_1 k + beta_1, RoPE on all; x <- x + "
      "(quad + lin) Wo; x <- x + glu(norm(x))",
      "Hua et al. 2022 (MC-TFM++)")
      .derive({{"hidden_width", "hidden or (dim*8//3 + 7)//8*8"}})
      .input("x [batch, n, dim]")
      .also(tokens)
      .norm("attention_norm", "norm", "dim")
      .dense("qkv", "dim", "3*dim", "linear_bias", "columns q | k | v")
      .parameter("gamma [2, dim]", "rows q_lin, k_lin")
      .parameter("beta [2, dim]", "rows q_lin, k_lin")
      .dense("out", "dim", "dim", "linear_bias")
      .norm("glu_norm", "norm", "dim")
      .dense("glu.value", "dim", "hidden_width", "linear_bias")
      .dense("glu.gate", "dim", "hidden_width", "linear_bias")
      .dense("glu.out", "hidden_width", "dim", "linear_bias")
      .output("[batch, n, dim]");
}

}  // namespace layer_check
