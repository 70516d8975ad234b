// Golden cases of MLA and of differential attention: golden/next/*.safetensors, computed in f64 by an independent
// program. A file has the layer's name and options in its metadata, and inputs, parameters, cotangents, outputs and the
// gradients of Σ ⟨cotangent, output⟩ as tensors.
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/table.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The named outputs of a layer for x; "" is the main one.
std::map<std::string, Tensor> outputs(const LayerRow& row, const AnyLayer& layer, const Tensor& x) {
  std::map<std::string, Tensor> y{{"", layer(x)}};
  if (row.name == "mla") {
    const Mla& mla = *static_cast<const Mla*>(layer.object());
    const std::vector<Tensor> part = split(mla.latents(x), {mla.options.kv_rank, mla.options.rope_dim}, -1);
    y["latent"] = part[0], y["k_rope"] = part[1];
  }
  return y;
}

/// Runs a case with further options in the given dtype, and compares all outputs and all gradients.
void check_case(const std::string& name, const Json::Object& further, DType dtype, double tolerance) {
  const SafeTensors file = load_safetensors(source_folder() + "/tests/golden/next/" + name + ".safetensors");
  const LayerRow& row = layer_row(file.metadata.at("layer"));
  Json options = parse_json(file.metadata.at("config"));
  for (const auto& [option, value] : further) options[option] = value;
  INFO(name << " with " << to_text(options) << str(" in ", dtype));
  const auto close = [&](const std::string& what, const Tensor& got) {
    const Tensor& want = file.tensors.at(what);
    INFO(what);
    REQUIRE(got.shape() == want.shape());
    CHECK(max_abs_diff(to(got, f64), want) <= tolerance * max_abs(want));
  };
  Rng rng(1);
  const auto layer = row.make(options, rng, dtype);
  std::map<std::string, Tensor> state;
  for (const auto& [tensor, value] : file.tensors)
    if (tensor.starts_with("param.")) state[tensor.substr(6)] = to(value, dtype);
  layer->load(state);
  const Tensor x = clone(to(file.tensors.at("input.x"), dtype)).requires_grad_();
  Tensor loss;
  std::size_t compared = 0;
  for (const auto& [output, y] : outputs(row, *layer, x)) {
    const std::string end = output.empty() ? "" : "." + output;
    close("output" + end, y);
    const Tensor part = sum(y * to(file.tensors.at("cotangent" + end), dtype));
    loss = loss.defined() ? loss + part : part, ++compared;
  }
  CHECK(parse_json(file.metadata.at("outputs")).get<Json::List>().size() == compared);
  backward(loss);
  close("grad.input.x", x.grad());
  for (const NamedTensor& own : layer->state()) close("grad.param." + own.name, own.tensor.grad());
  CHECK(layer->state().size() == state.size());
}

}  // namespace

TEST_CASE("golden: MLA, expanded and absorbed", "[golden][layers]") {
  for (const char* name : {"mla", "mla_nope_gated"})
    for (const char* form : {"cheapest", "expanded", "absorbed"}) {
      check_case(name, {{"form", form}}, f64, 1e-9);
      check_case(name, {{"form", form}}, f32, 1e-5);
    }
}

TEST_CASE("golden: differential attention, versions 1 and 2", "[golden][layers]") {
  for (const char* name : {"diff_attention", "diff_attention_v2"}) {
    check_case(name, {}, f64, 1e-9);
    check_case(name, {}, f32, 1e-5);
  }
}
