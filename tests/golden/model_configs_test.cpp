// Configurations that differ from a family's tiny model in one field: refused where they cannot be followed.
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/ops/basic.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// A family's tiny model with `change` made to its configuration and weights.
struct Changed {
  TempFolder folder;
  Json config;
  SafeTensors file;

  explicit Changed(const std::string& family) {
    const std::string from = source_folder() + "/tests/golden/models/" + family;
    config = parse_json(read_file(from + "/config.json")), file = load_safetensors(from + "/model.safetensors");
  }
  Decoder load() {
    const std::string text = to_text(config);
    write_file_atomically(folder / "config.json", [&](FileWriter& w) { w.write(text); });
    save_safetensors(folder / "model.safetensors", file);
    return load_model_files(folder / "");
  }
  std::string refusal() {
    try {
      load();
    } catch (const IOError& e) { return e.what(); }
    return "";
  }
};

}  // namespace

TEST_CASE("model configs: layer_types says which layers slide, whatever max_window_layers is", "[models]") {
  Changed m("qwen3");
  const auto layers = m.config.at("num_hidden_layers").get<int64_t>();
  Json::List types(static_cast<std::size_t>(layers), Json("full_attention"));
  types[1] = "sliding_attention";
  m.config["use_sliding_window"] = true, m.config["sliding_window"] = 3, m.config["max_window_layers"] = 0;
  m.config["layer_types"] = types;
  const Decoder model = m.load();
  for (int64_t i = 0; i < layers; ++i) {
    const auto& mixer = std::get<MultiHeadAttentionOptions>(model.options.blocks[static_cast<std::size_t>(i)].mixer);
    CHECK(mixer.window == (i == 1 ? 3 : 0));
  }
  types[1] = "sliding_atention";
  m.config["layer_types"] = types;
  CHECK_THAT(m.refusal(), Contains("layer_types") && Contains("known: sliding_attention, full_attention"));
}

TEST_CASE("model configs: fields that this library cannot follow are refused by name", "[models]") {
  Changed gemma("gemma2");
  gemma.config["final_logit_softcapping"] = -3.0;
  CHECK_THAT(gemma.refusal(), Contains("final_logit_softcapping"));

  Changed oss("gpt_oss");
  for (const char* name : {"rope_parameters", "rope_scaling"})
    if (oss.config.find(name)) oss.config[name] = Json();
  oss.config["rope_theta"] = 150000.0;
  CHECK_THAT(oss.refusal(), Contains("rope_type"));

  Changed twice("qwen3");
  twice.config["rope_parameters.rope_theta"] = 7.0;
  if (!twice.config.find("rope_parameters")) twice.config["rope_parameters"]["rope_theta"] = 1e4;
  CHECK_THAT(twice.refusal(), Contains("rope_parameters.rope_theta") && Contains("twice"));
}

TEST_CASE("model configs: the dtype is that of the words' embedding", "[models]") {
  Changed m("qwen3_5");
  m.file.tensors["model.visual.pos_embed.weight"] = zeros({2, 2});  // the last name with "embed" in it, in f32
  CHECK(m.load().embedding.weight.dtype() == bf16);
}
