// Layers of other packages in Sluice's words: the options that make ours theirs, and their names of the weights. Used
// by port_*.cpp, and by the test that checks every gradient of them.
#pragma once

#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/port/pytorch.h>

namespace sluice::examples {

template <class Options> struct Port {
  Options options;
  PyTorchRules rules;
};

/// Qwen3-Next's gated attention: query and gate in one map, norms that store w − 1, partial RoPE.
inline Port<MultiHeadAttentionOptions> qwen3_next() {
  constexpr int64_t dim = 10, heads = 4, kv_heads = 2, head_dim = 8;
  MultiHeadAttentionOptions o = qwen_attention_options(dim, heads, kv_heads, head_dim);
  o.norm = NormKind::none, o.heads.residual = false;  // in transformers the decoder layer does both
  o.heads.rope.rot_dim = head_dim / 2;                // partial_rotary_factor
  o.heads.dtype = f64;
  return {o,
          {{"^q\\.", "q_proj.", {.part = 0, .groups = heads}},  // [heads, query | gate]
           {"^gates\\.0\\.map\\.", "q_proj.", {.part = 1, .groups = heads}},
           {"^([kv])\\.", "$1_proj."},
           {"^out\\.", "o_proj."},
           {"^([qk]_norm)\\.", "$1.", {.add = 1}}}};  // w − 1
}

/// A layer of GAU-α (Su 2022): softmax_plus attention, interleaved RoPE, post-norm, no biases.
inline Port<GauOptions> gau_alpha() {
  GauOptions o = gau_alpha_options(8, /*layers=*/24, /*dropout=*/0);
  o.expansion = 12, o.key_dim = 6, o.norm_eps = 1e-12;
  o.dtype = f64;
  constexpr int64_t single = PyTorchPiece::single;  // gamma's rows, which the file has as two vectors
  return {o,
          {{"^in", "gau.i_dense"},
           {"^out", "gau.o_dense"},
           {"^gamma", "", {.pieces = {{"gau.q_scaleoffset.weight", single}, {"gau.k_scaleoffset.weight", single}}}},
           {"^beta", ""}}};  // GAU-α has none: it stays 0
}

/// lucidrains' FLASHTransformer, a causal language model.
inline Port<FlashModelOptions> flash_transformer() {
  constexpr int64_t dim = 8, e = 16, s = 6;
  FlashOptions layer{.dim = dim, .expansion = e, .key_dim = s, .chunk = 4, .causal = true};
  layer.kind = GauKind::paper_code;     // relu²(T/C + b)
  layer.scaling = ChunkScaling::lucid;  // of the linear term
  layer.rope.pairing = RopePairing::interleaved;
  layer.bias = GauBias::t5;
  layer.norm = NormKind::scale_l2;
  layer.token_shift = true;
  layer.dtype = f64;
  FlashModelOptions o{.layers = 2, .layer = layer, .vocabulary = 11, .outputs = 11};
  o.final_norm = NormKind::layer;
  return {o,
          {{"^embedding", "token_emb"},
           {"^positions", "abs_pos_emb"},
           {"^norm", "to_logits.0"},
           {"^head", "to_logits.1"},
           {"^body\\.", ""},
           {"(layers\\.\\d+\\.norm)\\.weight", "$1.g"},
           {"\\.out\\.", ".to_out."},
           {"t5_bias", "rel_pos_bias.relative_attention_bias.weight"},
           // U | V | Z here, V | U and Z there; rows of γ and β: q_quad, k_quad, q_lin, k_lin here, both queries first
           // there.
           {"\\.in\\.", "", {.pieces = {{".to_hidden.0.", e, 1}, {".to_hidden.0.", e, 0}, {".to_qk.0.", s}}}},
           {"gamma|beta",
            "",
            {.pieces = {{"qk_offset_scale.$&", 1, 0},
                        {"qk_offset_scale.$&", 1, 2},
                        {"qk_offset_scale.$&", 1, 1},
                        {"qk_offset_scale.$&", 1, 3}}}}}};
}

}  // namespace sluice::examples
