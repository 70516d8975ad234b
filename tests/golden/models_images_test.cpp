// Models for text and images, of which the text's part is read: config.json nests its fields, and its weights have
// longer names.
#include "golden/changed_model.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Case {
  const char* made;                 // the family of the golden model
  const char* type;                 // model_type at the top,
  const char* text_type = nullptr;  // and of the text, whose fields are nested then
  std::string body = "model.", head = "lm_head.";
  bool together = false, as_is = false;  // experts in one tensor; it is [experts, in, out]
};

/// The experts of each layer as one tensor for all.
void join_experts(SafeTensors& file, const std::string& body, bool as_is) {
  for (int layer = 0; layer < 4; ++layer) {
    const std::string at = str(body, "layers.", layer, ".mlp.experts.");
    std::vector<Tensor> both, down;
    for (int e = 0; file.tensors.contains(str(at, e, ".gate_proj.weight")); ++e) {
      const auto taken = [&](const char* what) {
        return file.tensors.extract(str(at, e, ".", what, "_proj.weight")).mapped();
      };
      both.push_back(cat({taken("gate"), taken("up")}, 0)), down.push_back(taken("down"));
    }
    if (both.empty()) continue;
    const auto put = [&](const char* name, const Tensor& x) {
      file.tensors[at + name] = as_is ? contiguous(transpose(x, 1, 2)) : x;
    };
    put("gate_up_proj", stack(both, 0)), put("down_proj", stack(down, 0));
  }
}

}  // namespace

TEST_CASE("models: the text of models for text and images", "[golden][models]") {
  const std::string inner = "model.language_model.", outer = "language_model.model.";
  const std::vector<Case> cases = {
      {.made = "qwen3_5_moe", .type = "qwen3_5_moe", .text_type = "qwen3_5_moe_text", .body = inner, .together = true},
      {.made = "qwen3", .type = "qwen3_vl", .text_type = "qwen3_vl_text", .body = inner},
      {.made = "qwen3_moe",
       .type = "qwen3_vl_moe",
       .text_type = "qwen3_vl_moe_text",
       .body = inner,
       .together = true,
       .as_is = true},
      {.made = "qwen2", .type = "qwen2_5_vl", .text_type = "qwen2_5_vl_text", .body = inner},
      {.made = "qwen2", .type = "qwen2_vl"},
      {.made = "qwen2", .type = "qwen2_5_vl"},
      {.made = "mistral", .type = "mistral3", .text_type = "mistral", .body = outer, .head = "language_model.lm_head."},
      {.made = "deepseek_v3",
       .type = "kimi_k25",
       .text_type = "kimi_k2",
       .body = outer,
       .head = "language_model.lm_head."}};
  for (const Case& c : cases) {
    INFO(c.type);
    TempFolder folder;
    const std::string made = source_folder() + "/tests/golden/models/" + c.made;
    std::string config = read_file(made + "/config.json");
    const std::string images = R"("image_token_id": 7, "vision_config": {"depth": 1, "hidden_size": 8}, )";
    const std::string field = "\"model_type\": \"", was = field + c.made + "\"";
    const std::size_t at = config.find(was);
    if (c.text_type && at != std::string::npos) config.replace(at, was.size(), field + c.text_type + "\"");
    else if (!c.text_type) config.replace(at, was.size(), images + field + c.type + "\"");
    if (c.text_type) config = str("{", images, field, c.type, "\", \"text_config\": ", config, "}");
    folder.put("config.json", config);
    SafeTensors file;
    for (const auto& [name, x] : load_safetensors(made + "/model.safetensors").tensors) {
      if (name.starts_with("model.")) file.tensors[c.body + name.substr(6)] = x;
      else file.tensors[c.head + name.substr(name.find('.') + 1)] = x;
    }
    if (c.together) join_experts(file, c.body, c.as_is);
    for (const char* other : {"model.visual.patch.weight", "visual.patch.weight", "vision_tower.patch.weight",
                              "multi_modal_projector.norm.weight", "mm_projector.proj.0.weight", "mtp.fc.weight"})
      file.tensors[other] = zeros({2, 2});
    save_safetensors(folder / "model.safetensors", file);
    const auto want = load_safetensors(made + "/expected.safetensors").tensors;
    const Decoder model = load_model_files(folder / "", {.dtype = f64});
    CHECK(max_abs_diff(model(want.at("stream")), want.at("stream_logits")) <= 1e-9);
  }
}

TEST_CASE("models: without a share, RoPE turns half of a head's channels in GLM-4.5V, and all in GLM-4.1V",
          "[models]") {
  for (const auto& [family, turned] : {std::pair("glm4v_moe", 4), std::pair("glm4v", 0)}) {
    INFO(family);
    Changed m(family);
    auto& rope = std::get<Json::Object>(m.config["text_config"]["rope_parameters"].value);
    CHECK(std::erase_if(rope, [](const auto& field) { return field.first == "partial_rotary_factor"; }) == 1);
    const auto heads = std::get<MultiHeadAttentionOptions>(m.mixer(0)).heads;
    CHECK(heads.head_dim == 8);
    CHECK(heads.rope.rot_dim == turned);  // 0: all
  }
}
