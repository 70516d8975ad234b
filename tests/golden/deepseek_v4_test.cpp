// DeepSeek-V4's tiny model as its own code would publish it, and what is refused.
#include "golden/model_logits.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>

#include <map>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Files {
  TempFolder folder;
  Json config;
  SafeTensors weights, expected;

  Files() {
    const std::string from = source_folder() + "/tests/golden/models/deepseek_v4/";
    config = parse_json(read_file(from + "config.json"));
    weights = load_safetensors(from + "model.safetensors"), expected = load_safetensors(from + "expected.safetensors");
  }
  void erase(const std::vector<std::string>& fields) {
    std::erase_if(std::get<Json::Object>(config.value), [&](const auto& field) {
      return std::find(fields.begin(), fields.end(), field.first) != fields.end();
    });
  }
  void write() {
    const std::string text = to_text(config);
    write_file_atomically(folder / "config.json", [&](FileWriter& w) { w.write(text); });
    save_safetensors(folder / "model.safetensors", weights),
        save_safetensors(folder / "expected.safetensors", expected);
  }
  std::string refusal() {
    try {
      write(), load_model_files(folder / "");
    } catch (const IOError& e) { return e.what(); }
    return "";
  }
};

}  // namespace

TEST_CASE("models: DeepSeek-V4 by its own names and fields", "[golden][models]") {
  Files f;
  SafeTensors theirs;
  for (const auto& [name, x] : f.weights.tensors) {
    std::string own = name.starts_with("model.") ? name.substr(6) : name;
    for (const auto& [from, to] : std::map<std::string, std::string>{
             {"embed_tokens.", "embed."}, {"hc_head.hc_", "hc_head_"}, {"attn.norm.", "attn.kv_norm."}})
      if (const std::size_t at = own.find(from); at != std::string::npos) own.replace(at, from.size(), to);
    theirs.tensors[own] = x;
  }
  theirs.tensors["mtp.0.enorm.weight"] = ones({16});
  f.weights = theirs;
  f.erase({"layer_types", "mlp_layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor"});
  f.config["num_hash_layers"] = 1, f.config["topk_method"] = "noaux_tc";
  f.config["compress_ratios"] = Json::List{0, 4, 128, 4, 0};  // the last one of a layer that predicts later tokens
  f.config["compress_rate_csa"] = 2, f.config["compress_rate_hca"] = 3;
  f.config["rope_scaling"] = Json::Object{
      {"type", "yarn"}, {"factor", 4}, {"beta_fast", 8}, {"beta_slow", 1}, {"original_max_position_embeddings", 16}};
  f.write();
  check_logits(f.folder / "", {3, 1, 7});
  TempFolder saved;
  save_model_files(load_model_files(f.folder / ""), saved / "", f.folder / "");
  const SafeTensors again = load_safetensors(saved / "model.safetensors");
  REQUIRE(again.tensors.size() == theirs.tensors.size());
  for (const auto& [name, x] : theirs.tensors) CHECK(max_abs_diff(to(again.tensors.at(name), f64), to(x, f64)) == 0);
  f.config["compress_ratios"] = Json::List{0, 4, 64, 4};
  CHECK_THAT(f.refusal(), Contains("compress_ratios") && Contains("known: 0, 4, 128"));
  f.config["compress_ratios"] = Json::List{0, 4};
  CHECK_THAT(f.refusal(), Contains("compress_ratios") && Contains("need 4 entries"));
}

TEST_CASE("models: what DeepSeek-V4 must not have is refused by name", "[models]") {
  const auto refused = [](const std::string& field, const Json& value) {
    Files f;
    f.config[field] = value;
    CHECK_THAT(f.refusal(), Contains("\"" + field));
  };
  refused("num_key_value_heads", 2), refused("norm_topk_prob", false), refused("n_shared_experts", 2);
  refused("scoring_func", "softmax"), refused("index_topk", 0), refused("topk_method", "greedy");
  refused("layer_types", Json::List{"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"});
  refused("mlp_layer_types", Json::List{"moe", "dense", "moe", "moe"});
  Files rates, rope, experts;
  rates.config["compress_rates"]["heavily_compressed_attention"] = 0;
  CHECK_THAT(rates.refusal(), Contains("\"compress_rates.heavily_compressed_attention\""));
  std::erase_if(std::get<Json::Object>(rope.config["rope_parameters"]["main"].value),
                [](const auto& field) { return field.first == "partial_rotary_factor"; });
  CHECK_THAT(rope.refusal(), Contains("\"rope_parameters.main.partial_rotary_factor\""));
  experts.weights.tensors.at("model.layers.0.ffn.gate.tid2eid") = full({40, 2}, 5, {i64});  // of 5 experts
  experts.write();
  NoGrad guard;
  CHECK_THROWS_AS(load_model_files(experts.folder / "")(experts.expected.tensors.at("stream")), Error);
}
