// A family's tiny model with changes to its configuration and weights.
#pragma once

#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/families.h>
#include <sluice/layers/models/load_model_files.h>

namespace sluice::testing {

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
    folder.put("config.json", to_text(config));
    save_safetensors(folder / "model.safetensors", file);
    return load_model_files(folder / "");
  }
  DecoderOptions options(bool long_texts = false) const {
    const ModelConfig read(to_text(config), "config.json");
    return plan_of(
               read, [](const char*) { return false; }, long_texts)
        .options;
  }
  DecoderMixerOptions mixer(std::size_t block) const { return options().blocks[block].mixer; }
  void without_rope() {
    std::erase_if(std::get<Json::Object>(config.value),
                  [](const auto& field) { return field.first.starts_with("rope_"); });
  }
  std::string refusal() {
    try {
      load();
    } catch (const IOError& e) { return e.what(); }
    return "";
  }
};

}  // namespace sluice::testing
