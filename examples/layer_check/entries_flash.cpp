// FLASH: mixed-chunk attention, as a function and as a layer.
#include "flash_parameters.h"
#include "registry.h"

namespace layer_check {

using namespace sluice;

std::vector<ParameterInfo> flash_parameters(const std::string& path, const std::string& repeat) {
  const std::string p = path.empty() ? "" : path + ".";
  std::vector<ParameterInfo> tables{
      {.name = p + "gamma", .shape = "[4, s]", .meaning = "rows q_quad, k_quad, q_lin, k_lin", .repeat = repeat},
      {.name = p + "beta", .shape = "[4, s]", .meaning = "rows q_quad, k_quad, q_lin, k_lin", .repeat = repeat},
      {.name = p + "toeplitz_bias", .shape = "[2*chunk - 1]", .meaning = "b_ij = w[chunk - 1 + j - i]",
       .when = "bias == 'toeplitz'", .repeat = repeat},
      {.name = p + "rope_bias", .shape = "[2, s]", .when = "bias == 'rope'", .repeat = repeat},
      {.name = p + "t5_bias", .shape = "[buckets, 1]", .when = "bias == 't5'", .repeat = repeat}};
  return joined({norm_parameters(p + "norm", "norm", "dim", repeat),
                 linear_parameters(p + "in", "dim", "2*e + s", "linear_bias", "columns U | V | Z", "True", repeat),
                 linear_parameters(p + "out", "e", "dim", "linear_bias", "Wo", "True", repeat), tables});
}

std::vector<InputInfo> sequence_inputs(const std::string& x) {
  return {{.name = "x", .shape = x}, key_mask_input(),
          {.name = "segments", .shape = "[batch, n]", .meaning = "document numbers that do not decrease",
           .kind = Kind::integer, .optional = true, .when = "len(stream) == 0", .sample = Sample::ascending,
           .strict = true}};
}

namespace {

struct SegmentOptions {
  int64_t chunk = 256;
  bool causal = false;
  static void describe(auto& o, auto& f) {
    f("chunk", o.chunk, at_least(1), "tokens of a chunk");
    f("causal", o.causal, "earlier chunks only");
  }
};

}  // namespace

void add_flash(std::vector<Layer>& all) {
  all.push_back({
      .name = "flash",
      .family = "flash",
      .formula = "as gau, with q_quad, k_quad, q_lin, k_lin = gamma_i*Z + beta_i, RoPE on all; y = x + (U * (quad + "
                 "lin)) Wo; quad_g = kind(q_quad k_quad', b, mask, C) V inside chunk g; lin_g = 1/N_g q_lin sum_h "
                 "k_lin_h' V_h, all chunks h, or h < g if causal",
      .source = "Hua et al. 2022",
      .derived = {{"e", "expansion or 2*dim"}, {"s", "key_dim"}},
      .inputs = sequence_inputs("[batch, n, dim]"),
      .parameters = flash_parameters("", ""),
      .outputs = {{"", "[batch, n, dim]"}},
  });
  all.push_back({
      .name = "mixed_chunk_attention",
      .family = "flash",
      .formula = "quad + lin of flash, from given queries, keys and values",
      .source = "Hua et al. 2022",
      .inputs = {{.name = "q_quad", .shape = "[batch, heads, n, s]"},
                 {.name = "k_quad", .shape = "[batch, heads, n, s]"},
                 {.name = "q_lin", .shape = "[batch, heads, n, s]"},
                 {.name = "k_lin", .shape = "[batch, heads, n, s]"},
                 {.name = "v", .shape = "[batch, heads, n, e]"},
                 {.name = "relative_bias", .shape = "[1, width]",
                  .meaning = "b by distance in a chunk: width = 2*T - 1, T >= min(n, chunk), entry T - 1 + j - i",
                      .optional = true},
                 {.name = "key_mask", .shape = "[batch, n]", .kind = Kind::boolean, .optional = true},
                 {.name = "segments", .shape = "[batch, n]", .kind = Kind::integer, .optional = true,
                  .sample = Sample::ascending, .strict = true}},
      .outputs = {{"", "[batch, heads, n, e]"}},
      .examples = {{{"chunk", 4}, {"causal", true}}, {{"chunk", 3}, {"scaling", "lucid"}, {"kind", "softmax"}},
                   {{"chunk", 4}, {"scaling", "eq"}, {"across_chunks", false}}},
      .sizes = {{"s", 4}, {"e", 5}, {"width", 11}},
      .draft = function_layer<MixedChunkOptions>(
          [](const MixedChunkOptions& o, const Inputs& in) {
            return mixed_chunk_attention(in["q_quad"], in["k_quad"], in["q_lin"], in["k_lin"], in["v"], o,
                                         in["relative_bias"], in["key_mask"], in["segments"]);
          }),
  });
  all.push_back({
      .name = "segment_mask",
      .family = "flash",
      .formula = "chunks g and h may interact when their ranges of document numbers overlap, and h < g if causal",
      .source = "Hua et al. 2022, appendix",
      .derived = {},
      .inputs = {{.name = "segments", .shape = "[batch, n]", .kind = Kind::integer, .sample = Sample::ascending,
                  .strict = true},
                 {.name = "key_mask", .shape = "[batch, n]", .kind = Kind::boolean, .optional = true}},
      .outputs = {{"", "[batch, (n + chunk - 1) // chunk, (n + chunk - 1) // chunk]", "bool"}},
      .examples = {{{"chunk", 2}, {"causal", true}}},
      .draft = function_layer<SegmentOptions>(
          [](const SegmentOptions& o, const Inputs& in) {
            return segment_mask(in["segments"], o.chunk, o.causal, in["key_mask"]);
          }),
  });
}

}  // namespace layer_check
