// FLASH: mixed-chunk attention, as a function and as a layer.
#include "flash_parameters.h"
#include "registry.h"

namespace layer_check {

using namespace sluice;

void flash_options(Options& v, FlashOptions& o) {
  v.required("dim", o.dim, 8, "width d");
  v("expansion", o.expansion, "width e of U and V; 0: 2*dim");
  v("key_dim", o.key_dim, "width s of queries and keys");
  v("chunk", o.chunk, "tokens C of a chunk");
  v("causal", o.causal, "token i sees tokens j <= i");
  v("activation", o.activation, activations(), "act of U, V and Z");
  v("linear_bias", o.linear_bias, "biases of the dense maps");
  v("kind", o.kind, gau_kinds(), kGauKindMeaning);
  v("scaling", o.scaling, chunk_scalings(), kScalingMeaning);
  v("length", o.length, chunk_lengths(), "L of the quadratic term: C, or visible keys of the row");
  v("count_padding", o.count_padding, "scaling lucid, not causal: n counts padding");
  v("across_chunks", o.across_chunks, "false: the linear term stays inside its chunk");
  v("quadratic", o.quadratic, "false leaves the quadratic term out");
  v("linear", o.linear, "false leaves the linear term out");
  v("use_rope", o.use_rope, "rotate all four");
  rope_options(v, o.rope);
  v("bias", o.bias, gau_biases(), "b within a chunk: none, Toeplitz over C positions, by RoPE, T5 times sqrt(s)");
  t5_options(v, o.t5);
  v("norm", o.norm, norm_kinds(), "pre-norm, eps 1e-5");
  v("token_shift", o.token_shift, "the first half of the normed channels comes from the token before");
}

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
           .kind = Kind::integer, .optional = true, .when = "len(stream) == 0", .sample = Sample::ascending}};
}

namespace {

void mixed_options(Options& v, MixedChunkOptions& o) {
  v("chunk", o.chunk, "tokens C of a chunk");
  v("causal", o.causal, "token i sees tokens j <= i");
  v("kind", o.kind, gau_kinds(), kGauKindMeaning);
  v("scaling", o.scaling, chunk_scalings(), kScalingMeaning);
  v("length", o.length, chunk_lengths(), "L of the quadratic term");
  v("count_padding", o.count_padding, "scaling lucid, not causal: n counts padding");
  v("across_chunks", o.across_chunks, "false: the linear term stays inside its chunk");
  v("quadratic", o.quadratic, "false leaves the quadratic term out");
  v("linear", o.linear, "false leaves the linear term out");
}

struct SegmentOptions {
  int64_t chunk = 256;
  bool causal = false;
};

}  // namespace

void add_flash(std::vector<Layer>& all) {
  const Values tiny{{"key_dim", 6}, {"expansion", 10}, {"chunk", 4}, {"linear_bias", false}};
  auto with = [&](std::initializer_list<Values::value_type> more) {
    Values v = tiny;
    for (const auto& [name, value] : more) v[name] = value;
    return v;
  };
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
      .examples = {tiny,
                   with({{"bias", "toeplitz"}, {"norm", "layer"}, {"causal", true}}),
                   with({{"bias", "rope"}, {"norm", "none"}, {"scaling", "paper_code"}, {"token_shift", true}}),
                   with({{"bias", "t5"}, {"norm", "rms"}, {"scaling", "lucid"}, {"linear_bias", true}}),
                   with({{"causal", true}, {"stream", std::vector<double>{5, 1}}})},
      .prepare = module_layer<Flash, FlashOptions>(
          flash_options,
          [](const Flash& l, const Inputs& in) { return l(in["x"], in["key_mask"], nullptr, in["segments"]); }),
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
                  .sample = Sample::ascending}},
      .outputs = {{"", "[batch, heads, n, e]"}},
      .examples = {{{"chunk", 4}, {"causal", true}}, {{"chunk", 3}, {"scaling", "lucid"}, {"kind", "softmax"}},
                   {{"chunk", 4}, {"scaling", "eq"}, {"across_chunks", false}}},
      .sizes = {{"s", 4}, {"e", 5}, {"width", 11}},
      .prepare = function_layer<MixedChunkOptions>(
          mixed_options,
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
      .inputs = {{.name = "segments", .shape = "[batch, n]", .kind = Kind::integer, .sample = Sample::ascending},
                 {.name = "key_mask", .shape = "[batch, n]", .kind = Kind::boolean, .optional = true}},
      .outputs = {{"", "[batch, (n + chunk - 1) // chunk, (n + chunk - 1) // chunk]", "bool"}},
      .examples = {{{"chunk", 2}, {"causal", true}}},
      .prepare = function_layer<SegmentOptions>(
          [](Options& v, SegmentOptions& o) {
            v("chunk", o.chunk, "tokens of a chunk");
            v("causal", o.causal, "earlier chunks only");
          },
          [](const SegmentOptions& o, const Inputs& in) {
            return segment_mask(in["segments"], o.chunk, o.causal, in["key_mask"]);
          }),
  });
}

}  // namespace layer_check
