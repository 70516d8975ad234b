// Models written back to the files that transformers reads.
#include "golden/model_logits.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/families.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>

#include <filesystem>
#include <fstream>
#include <functional>

using namespace sluice;
using namespace sluice::testing;

namespace {

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// The model of `like` as two shards, with one more tensor.
void cut_into_shards(const std::string& like, const std::string& to, const std::string& more, const Tensor& tensor) {
  SafeTensors all = load_safetensors(like + "/model.safetensors");
  all.tensors[more] = tensor;
  SafeTensors part[2];
  std::string map;
  for (const auto& [name, x] : all.tensors) {
    const int shard = part[0].tensors.size() * 2 > all.tensors.size();
    part[shard].tensors[name] = x;
    map += str(map.empty() ? "" : ", ", "\"", name, "\": \"", shard, ".safetensors\"");
  }
  for (int i = 0; i < 2; ++i) save_safetensors(str(to, i, ".safetensors"), part[i]);
  write(to + "model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
  std::filesystem::copy_file(like + "/config.json", to + "config.json");
}

}  // namespace

TEST_CASE("models: saved, the tensors of every family are those of its files", "[golden][models]") {
  for (const std::string& like : model_folders()) {
    INFO(like);
    TempFolder folder;
    const bool long_texts = like.ends_with("phi3_long");
    const Decoder model = load_model_files(like, {.dtype = f32, .long_texts = long_texts});
    save_model_files(model, folder / "", like);
    const SafeTensors want = load_safetensors(like + "/model.safetensors"),
                      got = load_safetensors(folder / "model.safetensors");
    CHECK(got.metadata.at("format") == "pt");
    REQUIRE(got.tensors.size() == want.tensors.size());
    for (const auto& [name, x] : want.tensors) {
      INFO(name);
      REQUIRE(got.tensors.contains(name));
      const Tensor& y = got.tensors.at(name);
      REQUIRE(y.shape() == x.shape());
      CHECK(same_bits(y, to(x, y.dtype())));  // 1 + w − 1 of a w of bf16 is exact in f32
    }
    const Decoder again =
        load_model_files(folder / "", {.long_texts = long_texts});  // of the dtype that the new config.json names
    CHECK(again.embedding.weight.dtype() == f32);
    NoGrad guard;
    const Tensor tokens = load_safetensors(like + "/expected.safetensors").tensors.at("stream");
    CHECK(same_bits(again(tokens), model(tokens)));
  }
}

TEST_CASE("models: trained, saved and loaded, with what is no part of the decoder", "[models]") {
  TempFolder like, to;
  const std::string from = source_folder() + "/tests/golden/models/qwen3_next";
  Rng rng(1);
  const Tensor other = normal({5}, 0, 1, rng);
  cut_into_shards(from, like / "", "mtp.norm.weight", other);
  write(like / "tokenizer.json", "{}");
  write(like / "pytorch_model.bin", "weights");
  std::filesystem::create_directory(like / "notes.txt");
  Decoder model = load_model_files(like / "", {.map = false});
  Adam adam(parameters(model), {.lr = 1e-2});
  const Tensor tokens = load_safetensors(from + "/expected.safetensors").tensors.at("stream");
  backward(mean(square(model(tokens))));
  adam.step();
  save_model_files(model, to / "tuned", like / "");
  const Decoder tuned = load_model_files(to / "tuned");
  CHECK(tuned.embedding.weight.dtype() == bf16);
  CHECK(same_bits(tuned.embedding.weight, model.embedding.weight.detach()));
  const SafeTensors file = load_safetensors(to / "tuned/model.safetensors");
  CHECK(same_bits(file.tensors.at("mtp.norm.weight"), other));
  CHECK(read_file(to / "tuned/tokenizer.json") == "{}");
  CHECK(!std::filesystem::exists(to / "tuned/pytorch_model.bin"));
  CHECK(!std::filesystem::exists(to / "tuned/notes.txt"));
  CHECK(!std::filesystem::exists(to / "tuned/model.safetensors.index.json"));
}

TEST_CASE("models: saved, config.json names the new dtype of the model, and all else stays", "[models]") {
  TempFolder like, to;
  const std::string from = source_folder() + "/tests/golden/models/";
  const auto saved = [&](const std::string& family, const std::function<void(Json::Object&)>& change) {
    std::filesystem::copy_file(from + family + "/model.safetensors", like / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    Json config = parse_python_json(read_file(from + family + "/config.json"));
    change(std::get<Json::Object>(config.value));
    write(like / "config.json", to_python_text(config));
    save_model_files(load_model_files(like / "", {.dtype = f64}), to / "", like / "");
    return read_file(to / "config.json");
  };
  const auto without_dtype = [](Json::Object& fields) {
    std::erase_if(fields, [](const auto& f) { return f.first == "dtype" || f.first == "torch_dtype"; });
  };
  const Json js = Json::Object{{"dtype", "q4"}};
  const Json both = parse_json(saved("qwen3", [&](Json::Object& fields) {
    without_dtype(fields);
    fields.insert(fields.begin(), {{"transformers.js_config", js}, {"torch_dtype", std::string(1 << 20, 'x')}});
  }));
  CHECK(both.at("torch_dtype") == Json("float64"));
  CHECK(both.at("transformers.js_config") == js);
  CHECK_FALSE(both.find("dtype"));
  const Json neither = parse_json(saved("qwen3", [&](Json::Object& fields) {
    without_dtype(fields);
    fields.emplace_back("transformers.js_config", js);
  }));
  CHECK(neither.at("dtype") == Json("float64"));
  CHECK(neither.at("transformers.js_config") == js);
  const Json nested = parse_json(saved("qwen3", [&](Json::Object& fields) {
    const Json text = fields;
    fields = {{"dtype", "bfloat16"}, {"text_config", text}, {"vision_config", js}};
  }));
  CHECK(nested.at("dtype") == Json("float64"));
  CHECK(nested.at("text_config").at("dtype") == Json("float64"));
  CHECK(nested.at("vision_config") == js);
  const std::string limit = "\"time_step_limit\": [\n    0.0,\n    Infinity\n  ]";
  CHECK_THAT(saved("mamba2",
                   [](Json::Object& fields) {
                     std::erase_if(fields, [](const auto& f) { return f.first == "time_step_limit"; });
                     const Json most = Json::Object{{"__float__", "Infinity"}};
                     fields.emplace_back("time_step_limit", Json::List{0.0, most});
                   }),
             Contains(limit));
}

TEST_CASE("models: what cannot be saved", "[models]") {
  TempFolder to;
  const std::string folder = source_folder() + "/tests/golden/models/";
  const Decoder model = load_model_files(folder + "qwen3");
  CHECK_THROWS_WITH(save_model_files(model, folder + "qwen3/../qwen3", folder + "qwen3"),
                    Contains("save_model_files: need another folder than"));
  CHECK_THROWS_WITH(save_model_files(model, to / "", folder + "qwen2"), Contains("save_model_files: the model has \""));
  CHECK(!std::filesystem::exists(to / "config.json"));
  CHECK_THROWS_AS(save_model_files(model, to / "", to / "nowhere"), IOError);
  write(to / "file", "");
  CHECK_THROWS_AS(save_model_files(model, to / "file/folder", folder + "qwen3"), IOError);
}
