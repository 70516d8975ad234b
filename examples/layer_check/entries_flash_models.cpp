// Stacks of FLASH layers, and the block of MC-TFM++.
#include "flash_parameters.h"
#include "registry.h"

#include <sluice/layers/gau/flash_model.h>

namespace layer_check {

using namespace sluice;

void add_flash_models(std::vector<Layer>& all) {
  all.push_back({
      .name = "flash_block",
      .family = "flash",
      .formula = "a stack of flash layers",
      .source = "Hua et al. 2022",
      .derived = {{"e", "expansion or 2*dim"}, {"s", "key_dim"}},
      .inputs = sequence_inputs("[batch, n, dim]"),
      .parameters = flash_parameters("layers.{i}", "layers"),
      .outputs = {{"", "[batch, n, dim]"}},
  });
  std::vector<InputInfo> inputs = sequence_inputs("[batch, n, dim]");
  inputs[0].when = "vocabulary == 0";
  inputs.insert(inputs.begin(), {.name = "x", .shape = "[batch, n]", .meaning = "tokens", .kind = Kind::integer,
                                 .when = "vocabulary > 0", .sample = Sample::index, .below = "vocabulary"});
  all.push_back({
      .name = "flash_model",
      .family = "flash",
      .formula = "(embedding) -> + scaled sinusoidal positions -> flash layers -> norm -> (logits)",
      .source = "Hua et al. 2022",
      .derived = {{"e", "expansion or 2*dim"}, {"s", "key_dim"}},
      .inputs = inputs,
      .parameters = joined(
          {{{.name = "embedding.weight", .shape = "[vocabulary, dim]", .when = "vocabulary > 0"},
            {.name = "positions.scale", .shape = "[1]", .when = "positions"}},
           flash_parameters("body.layers.{i}", "layers"), norm_parameters("norm", "(final_norm or norm)", "dim"),
           linear_parameters("head", "dim", "outputs", "linear_bias", "logits", "outputs > 0")}),
      .outputs = {{"", "[batch, n, outputs or dim]"}},
  });
  all.push_back({
      .name = "mc_tfm",
      .family = "flash",
      .formula = "q, k, v = heads of norm(x) W; q_lin = gamma_0 q + beta_0, k_lin = gamma_1 k + beta_1, RoPE on all; "
                 "x <- x + (quad + lin) Wo; x <- x + glu(norm(x))",
      .source = "Hua et al. 2022 (MC-TFM++)",
      .derived = {{"hidden_width", "hidden or (dim*8//3 + 7)//8*8"}},
      .inputs = sequence_inputs("[batch, n, dim]"),
      .parameters = joined({norm_parameters("attention_norm", "norm", "dim"),
                            linear_parameters("qkv", "dim", "3*dim", "linear_bias", "columns q | k | v"),
                            {{.name = "gamma", .shape = "[2, dim]", .meaning = "rows q_lin, k_lin"},
                             {.name = "beta", .shape = "[2, dim]", .meaning = "rows q_lin, k_lin"}},
                            linear_parameters("out", "dim", "dim", "linear_bias"),
                            norm_parameters("glu_norm", "norm", "dim"),
                            linear_parameters("glu.value", "dim", "hidden_width", "linear_bias"),
                            linear_parameters("glu.gate", "dim", "hidden_width", "linear_bias"),
                            linear_parameters("glu.out", "hidden_width", "dim", "linear_bias")}),
      .outputs = {{"", "[batch, n, dim]"}},
      .sizes = {},
  });
}

}  // namespace layer_check
