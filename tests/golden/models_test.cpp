// Whole models from their files: tiny random ones of every family, whose logits transformers computed in float64.
// tests/golden/models/make_models.py makes them.
#include "golden/model_logits.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/layers/models/model_config.h>
#include <sluice/layers/nn/generate.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

using namespace sluice;
using namespace sluice::testing;

namespace {

// clang-format off
const std::vector<std::string> kFamilies = {
    "llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo2", "olmo_hybrid", "gemma2",
    "gpt_oss", "afmoe", "kimi_linear", "deepseek_v2", "deepseek_v3", "deepseek_v32", "mamba2", "glm4_moe",
    "glm4_moe_lite", "glm_moe_dsa", "mistral", "ministral", "mixtral", "minimax_m2", "qwen2_moe", "granite",
    "granitemoe", "granitemoehybrid", "olmo3", "gemma3_text", "smollm3", "bailing_hybrid", "phi3", "ernie4_5", "bamba",
    "nemotron_h", "lfm2", "lfm2_moe", "falcon_h1", "seed_oss", "arcee", "starcoder2", "nemotron", "glm", "glm4",
    "ernie4_5_moe", "helium", "olmoe", "flex_olmo", "exaone4", "exaone_moe", "gemma", "vaultgemma", "dots1",
    "solar_open", "laguna", "lfm3", "lara_mini", "minimax", "gpt2", "gpt_neox", "phi", "stablelm", "cohere", "cohere2",
    "gpt_neo", "gptj", "falcon", "mamba", "falcon_mamba", "jamba", "glm5_next", "qwen4_exp", "iquestcoder", "jais2",
    "cwm", "youtu", "sarvam_mla", "axk1", "sarvam_moe", "hy_v3", "mellum", "granitemoeshared", "granite_swa",
    "granitemoe_swa", "mpt", "persimmon", "minicpm3", "gpt_bigcode",
    "ministral3", "mistral4", "deepseek_v4", "exaone", "mimo_v2_flash", "gpt_neox_japanese", "codegen", "cohere2_moe",
    "olmo", "opt", "biogpt", "bloom", "hunyuan_v1_dense", "hunyuan_v1_moe", "nanochat", "apertus",
    "hyperclovax", "flint", "internlm3", "openai_gpt", "opt_350m", "llama4",
    "recurrent_gemma", "minimax_m3", "diffllama", "xlstm_7b",
    "gemma4", "gemma3n", "gemma4_moe", "gemma4_small", "gemma4_unified", "glm4v", "glm4v_moe"};
// clang-format on

std::string folder_of(const std::string& family) { return source_folder() + "/tests/golden/models/" + family; }

/// The median over tokens of a token's mean |got − want|.
double median_error(const Tensor& got, const Tensor& want) {
  std::vector<double> each = mean(abs(to(got, f64) - want), {-1}).to_vector<double>();
  std::nth_element(each.begin(), each.begin() + std::ssize(each) / 2, each.end());
  return each[each.size() / 2];
}

}  // namespace

TEST_CASE("models: logits of every family are those of transformers", "[golden][models]") {
  for (const std::string& family : kFamilies) {
    INFO(family);
    check_logits(folder_of(family), {3, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1});
  }
}

// Hidden: the models are made by tests/golden/models/draw_models.py. They are written again to SLUICE_SAVED_MODELS, if
// it is set, for tests/golden/models/check_saved.py.
TEST_CASE("models: of drawn configurations", "[.drawn]") {
  const char* const drawn = std::getenv("SLUICE_DRAWN_MODELS");
  REQUIRE(drawn);
  int64_t models = 0;
  for (const auto& folder : std::filesystem::directory_iterator(drawn)) {
    INFO(folder.path());
    const bool long_texts = folder.path().filename().string().starts_with("phi3_long");
    CHECK_NOTHROW(check_logits(folder.path(), {1 + models % 5, 1, 2}, long_texts));
    if (const char* const saved = std::getenv("SLUICE_SAVED_MODELS"))
      CHECK_NOTHROW(save_model_files(load_model_files(folder.path(), {.dtype = f32}),
                                     str(saved, "/", folder.path().filename().string()), folder.path()));
    ++models;
  }
  std::printf("%lld models\n", static_cast<long long>(models));
  CHECK(models > 0);
}

TEST_CASE("models: in bf16 logits differ by bf16's rounding", "[golden][models]") {
  for (const std::string& family : kFamilies) {
    INFO(family);
    const SafeTensors want = load_safetensors(folder_of(family) + "/expected.safetensors");
    const auto& given = want.tensors;
    NoGrad guard;
    const Decoder model = load_model_files(folder_of(family));
    CHECK(model.embedding.weight.dtype() == bf16);
    const Tensor y = model(given.at("stream")), exact = given.at("stream_logits");
    REQUIRE(y.dtype() == bf16);
    // Of the median token: where a rounded score sends a token to another expert, all its logits change.
    const double error = median_error(y, exact), scale = max_abs(exact);
    CHECK(error <= 0.02 * scale);
    CHECK(error >= 1e-5 * scale);
    Stream stream;
    const Tensor first = step(model, narrow(given.at("stream"), 1, 0, 12), stream),
                 rest = step(model, narrow(given.at("stream"), 1, 12, 8), stream);
    CHECK(median_error(cat({first, rest}, 1), exact) <= 0.02 * scale);
  }
}

TEST_CASE("models: beside matrices of bf16, biases of the router and decays stay as the files have them", "[models]") {
  TempFolder folder;
  for (const std::string family : {"deepseek_v3", "afmoe", "kimi_linear", "mamba2", "qwen3_next", "bailing_hybrid",
                                   "granitemoehybrid", "nemotron_h", "falcon_h1"}) {
    INFO(family);
    SafeTensors file = load_safetensors(folder_of(family) + "/model.safetensors");
    std::map<std::string, Tensor> exact;  // by the last part of the name, of the first block that has it
    for (auto& [name, x] : file.tensors) {
      const std::string last = name.substr(name.rfind('.') + 1);
      if (last != "e_score_correction_bias" && last != "expert_bias" && last != "A_log" && last != "dt_bias") continue;
      x = to(x, f32) + 1.0 / 1024;  // no number of bf16
      exact.emplace(last, x);
    }
    REQUIRE(!exact.empty());
    save_safetensors(folder / "model.safetensors", file);
    std::filesystem::copy_file(folder_of(family) + "/config.json", folder / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    const Decoder model = load_model_files(folder / "");
    CHECK(model.embedding.weight.dtype() == bf16);
    std::map<std::string, std::string> ours{
        {"router_bias", family == "afmoe" || family == "bailing_hybrid" ? "expert_bias" : "e_score_correction_bias"},
        {"a_log", "A_log"},
        {"dt_bias", "dt_bias"}};
    std::size_t compared = 0;
    for (const NamedTensor& t : state_dict(model)) {
      const auto theirs = ours.find(t.name.substr(t.name.rfind('.') + 1));
      if (theirs == ours.end()) continue;
      INFO(t.name);
      const Tensor& want = exact.at(theirs->second);
      REQUIRE(t.tensor.dtype() == f32);
      CHECK(max_abs_diff(t.tensor.detach(), reshape(want, t.tensor.shape())) == 0);
      ours.erase(theirs), ++compared;
    }
    CHECK(compared == exact.size());
    NoGrad guard;
    const Tensor tokens = load_safetensors(folder_of(family) + "/expected.safetensors").tensors.at("stream"),
                 y = model(tokens);
    CHECK(y.dtype() == bf16);
    Stream stream;
    CHECK(step(model, tokens, stream).dtype() == bf16);
    save(model, folder / "saved");  // a file of several dtypes
    const Decoder back = load_model_files(folder / "", {.map = false});
    for (const NamedTensor& t : parameters(back)) {
      Tensor weight = t.tensor.detach();
      fill_(weight, 0);
    }
    load(back, folder / "saved");
    CHECK(same_bits(back(tokens), y));
  }
}

TEST_CASE("models: mapped weights are the copied ones, and train", "[models]") {
  const std::string path = folder_of("qwen3_next") + "/model.safetensors", before = read_file(path);
  const Decoder copied = load_model_files(folder_of("qwen3_next"), {.map = false});
  {
    const Decoder mapped = load_model_files(folder_of("qwen3_next"));
    const auto a = state_dict(mapped), b = state_dict(copied);
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      INFO(a[i].name);
      CHECK(a[i].name == b[i].name);
      CHECK(a[i].tensor.requires_grad() == b[i].tensor.requires_grad());
      CHECK(max_abs_diff(to(a[i].tensor.detach(), f64), to(b[i].tensor.detach(), f64)) == 0);
    }
    CHECK(a[0].tensor.raw() != b[0].tensor.raw());

    const Tensor text = load_safetensors(folder_of("qwen3_next") + "/expected.safetensors").tensors.at("stream");
    Adam adam(parameters(copied), {.lr = 0.01});
    std::vector<double> losses;
    for (int i = 0; i < 20; ++i) {
      adam.zero_grad();
      const Tensor loss = cross_entropy(flatten(copied(narrow(text, 1, 0, 19)), 0, 1), flatten(narrow(text, 1, 1, 19)));
      losses.push_back(loss.item());
      backward(loss);
      adam.step();
    }
    CHECK(losses.back() < 0.7 * losses.front());
    NoGrad guard;
    Tensor weight = a[0].tensor.detach();
    fill_(weight, 0);
    CHECK(max_abs(to(mapped.embedding.weight.detach(), f64)) == 0);
  }
  CHECK(read_file(path) == before);  // the files are as they were
}

TEST_CASE("models: what the rules do not know is refused by name", "[models]") {
  TempFolder folder;
  const auto with = [&](const std::string& family, const std::string& from, const std::string& to) {
    std::string text = read_file(folder_of(family) + "/config.json");
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    folder.put("config.json", text);
    std::filesystem::copy_file(folder_of(family) + "/model.safetensors", folder / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
  };
  const auto error = [&](const ModelFilesOptions& o = {}) -> std::string {
    try {
      load_model_files(folder / "", o);
    } catch (const IOError& e) { return e.what(); }
    return {};
  };
  with("llama", "\"vocab_size\"", "\"new_gate\": true,\n  \"vocab_size\"");
  CHECK_THAT(error(), Contains("\"new_gate\": true"));
  CHECK(error({.ignore = {"new_gate"}}).empty());
  with("llama", "\"llama\"", "\"llama9\"");
  CHECK_THAT(error(), Contains("llama9") && Contains("known families: llama, "));
  with("llama", "\"silu\"", "\"relu2\"");
  CHECK_THAT(error(), Contains("\"hidden_act\" is \"relu2\""));
  with("llama", "\"llama3\"", "\"ntk\"");
  CHECK_THAT(error(), Contains("rope_type\" is \"ntk\"; known: default, linear, dynamic, llama3, yarn"));
  with("llama", "\"hidden_size\": 16", "\"hidden_size\": 20");
  CHECK_THAT(error(), Contains("does not fit"));
  with("llama", "\"hidden_size\": 16", "\"hidden_size\": \"x\"");
  CHECK_THAT(error(), Contains("\"hidden_size\" is \"x\"; it has another type"));
  with("llama", "\"hidden_size\": 16,", "");
  CHECK_THAT(error(), Contains("\"hidden_size\" is missing"));
  with("llama", "\"num_attention_heads\": 4", "\"num_attention_heads\": 0");
  CHECK_THAT(error(), Contains("num_attention_heads"));
  with("llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 9000000000000000000");
  CHECK_THAT(error(), Contains("num_hidden_layers"));
  with("llama", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  CHECK_THAT(error(), Contains("does not fit") || Contains("layers"));
  // Packages disagree about what these mean.
  with("afmoe", "{", "{\"route_norm\": false,");
  CHECK_THAT(error(), Contains("\"route_norm\" is false; only true is known"));
  with("deepseek_v2", "\"norm_topk_prob\": false", "\"norm_topk_prob\": true");
  CHECK_THAT(error(), Contains("\"norm_topk_prob\" is true; only false is known"));
  with("kimi_linear", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
  CHECK_THAT(error(), Contains("\"tie_word_embeddings\" is true; only false is known"));
  with("glm_moe_dsa", "\"full\"", "\"shared\"");  // a layer that has no indexer of its own
  CHECK_THAT(error(), Contains("\"indexer_types\" is [\"shared\""));
  with("glm4_moe", "\"first_k_dense_replace\": 1",
       "\"mlp_layer_types\": [\"sparse\", \"dense\"],\"first_k_dense_replace\": 1");
  CHECK_THAT(error(), Contains("\"mlp_layer_types\" is"));
  with("phi3", "\"rope_type\": \"longrope\"", "\"rope_type\": \"yarn\"");
  CHECK_THAT(error(), Contains("rope_type\" is \"yarn\"; known: default, longrope, su"));
  with("gpt_oss", "\"sliding_attention\"", "\"full_attention\"");  // the window of no layer
  CHECK(error().empty());
  with("llama", "{", "");
  CHECK_THAT(error(), Contains("config.json"));
  std::filesystem::remove(folder / "model.safetensors");
  with("llama", "{", "{");
  std::filesystem::resize_file(folder / "model.safetensors", 5000);
  CHECK_THAT(error(), Contains("model.safetensors"));
  std::filesystem::remove(folder / "model.safetensors");
  CHECK_THAT(error(), Contains("neither model.safetensors nor"));
}

TEST_CASE("models: linear scaling of RoPE divides its frequencies", "[models]") {
  TempFolder folder;
  Json::Object config = parse_json(read_file(folder_of("llama") + "/config.json")).get<Json::Object>();
  for (auto& [name, value] : config)
    if (name == "rope_parameters")
      value = Json::Object{{"rope_type", "linear"}, {"rope_theta", 500.0}, {"factor", 8.0}};
  folder.put("config.json", to_text(config));
  std::filesystem::copy_file(folder_of("llama") + "/model.safetensors", folder / "model.safetensors");
  const Decoder model = load_model_files(folder / "");
  const std::vector<double> f = std::get<MultiHeadAttention>(model.blocks[1].mixer).options.heads.rope.frequencies;
  REQUIRE(f.size() == 2);
  CHECK(f[0] == Approx(1 / 8.0));
  CHECK(f[1] == Approx(std::pow(500.0, -0.5) / 8));
}

TEST_CASE("models: GPT-2's published files, without a prefix and with masks; its positions end", "[models]") {
  TempFolder folder;
  SafeTensors file = load_safetensors(folder_of("gpt2") + "/model.safetensors"), bare = file;
  bare.tensors = {{"h.0.attn.bias", ones({1, 1, 64, 64})}, {"h.1.attn.masked_bias", zeros({})}};
  for (const auto& [name, x] : file.tensors) bare.tensors[name.substr(std::string("transformer.").size())] = x;
  save_safetensors(folder / "model.safetensors", bare);
  std::filesystem::copy_file(folder_of("gpt2") + "/config.json", folder / "config.json");
  const Decoder model = load_model_files(folder / ""), same = load_model_files(folder_of("gpt2"));
  const Tensor tokens = ones({2, 64}, {i64});
  CHECK(max_abs_diff(to(model(tokens), f64), to(same(tokens), f64)) == 0);
  CHECK_THROWS_WITH(model(ones({2, 65}, {i64})), Contains("[2,65]") && Contains("the 64 positions"));
  Stream stream;
  step(model, narrow(tokens, 1, 0, 60), stream);
  CHECK_THROWS_WITH(step(model, narrow(tokens, 1, 0, 5), stream), Contains("from position 60 on"));
  CHECK(stream.length() == 60);
  step(model, narrow(tokens, 1, 0, 4), stream);
  const Decoder opt = load_model_files(folder_of("opt"));  // whose positions count the real tokens
  opt(tokens);
  CHECK_THROWS_WITH(opt(ones({2, 65}, {i64})), Contains("66"));
  opt(ones({2, 65}, {i64}), {.key_mask = cat({zeros({2, 1}, {boolean}), ones({2, 64}, {boolean})}, 1)});
}

TEST_CASE("models: RoPE for long texts is that of transformers, whatever the length of the pieces",
          "[golden][models]") {
  check_logits(folder_of("phi3_long"), {3, 1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 1}, true);
}

TEST_CASE("models: texts that are longer than RoPE of short ones serves are refused", "[models]") {
  for (const auto& [family, longest] : {std::pair("phi3", 24), std::pair("internlm3", 64)}) {
    const Decoder model = load_model_files(folder_of(family));
    CHECK(model(ones({1, longest}, {i64})).dim(1) == longest);
    CHECK_THROWS_WITH(model(ones({1, longest + 1}, {i64})), Contains(str("the ", longest, " positions")));
    Stream stream;
    step(model, ones({1, longest}, {i64}), stream);
    CHECK_THROWS_WITH(step(model, ones({1, 1}, {i64}), stream), Contains(str("from position ", longest)));
  }
}

TEST_CASE("models: a block that does not fit its model is named", "[models]") {
  Rng rng(1);
  const MultiHeadAttentionOptions twelve{.heads = {.dim = 12, .heads = 2}};
  const DecoderOptions o{.vocabulary = 5, .dim = 8, .blocks = {{.mixer = twelve}}};
  CHECK_THROWS_WITH(Decoder(o, rng),
                    Contains("decoder: a block's MultiHeadAttention has dim=12") && Contains("need dim=8"));
  const DecoderOptions alone{
      .vocabulary = 5, .dim = 8, .blocks = {{.mixer = std::monostate{}, .beside = MultiHeadAttentionOptions{twelve}}}};
  CHECK_THROWS_WITH(Decoder(alone, rng), "decoder: a block has `beside` without a mixer");
  DecoderOptions post{.vocabulary = 5, .dim = 12, .blocks = {{.mixer = twelve}}, .post_norm = true};
  CHECK(!Decoder(post, rng).norm.weight.defined());
  post.blocks[0].parallel = true;
  CHECK_THROWS_WITH(Decoder(post, rng), Contains("post_norm takes no streams, `carried` or `parallel`"));
  const DecoderOptions late{.vocabulary = 5, .dim = 8, .blocks = {}, .positions = 4, .position_offset = 4};
  CHECK_THROWS_WITH(Decoder(late, rng), Contains("position_offset=4 must be at least 0 and less than positions=4"));
  const DecoderOptions counts{.vocabulary = 5, .dim = 8, .blocks = {}, .positions = 4, .counts_real = true};
  CHECK_THROWS_WITH(Decoder(counts, rng), Contains("position_offset=0 must be at least 1"));
}

TEST_CASE("models: whatever stands in a field, the model loads or an IOError names the file", "[models]") {
  TempFolder folder;
  const std::vector<Json> values = {Json(), 0, -1, int64_t{1} << 31, INT64_MAX, 1e30, "x", Json::Object{}};
  std::map<std::string, std::size_t>
      families;  // that have had a field; after eight of them, two values in turn suffice
  int64_t loaded = 0, refused = 0;
  for (const std::string& family : kFamilies) {
    std::filesystem::copy_file(folder_of(family) + "/model.safetensors", folder / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    const Json config = parse_json(read_file(folder_of(family) + "/config.json"));
    for (std::size_t i = 0; i < config.get<Json::Object>().size(); ++i) {
      const std::size_t before = families[config.get<Json::Object>()[i].first]++;
      for (std::size_t v = 0; v < values.size(); ++v) {
        if (before >= 8 && v % 4 != before % 4) continue;
        const Json& value = values[v];
        Json::Object changed = config.get<Json::Object>();
        changed[i].second = value;
        INFO(family << ": " << changed[i].first << " = " << to_text(value));
        folder.put("config.json", to_text(changed));
        try {
          load_model_files(folder / "");
          ++loaded;
        } catch (const IOError& e) {
          ++refused;
          CHECK_THAT(std::string(e.what()), Contains("config.json") || Contains("model.safetensors"));
        }
      }
    }
  }
  CHECK(loaded > 500);
  CHECK(refused > 500);
}

TEST_CASE("models: shards, longer names and published names", "[models]") {
  TempFolder folder;
  const auto given = load_safetensors(folder_of("kimi_linear") + "/expected.safetensors").tensors;
  // As published: layers counted from 1, the sizes of the recurrent mixer in an object of their own, two shards.
  Json config = parse_json(read_file(folder_of("kimi_linear") + "/config.json"));
  Json::Object published;
  for (const auto& [name, value] : config.get<Json::Object>())
    if (!name.starts_with("linear_") && name != "layer_types" && name != "mlp_layer_types")
      published.emplace_back(name, value);
  published.emplace_back("linear_attn_config", Json::Object{{"num_heads", 2},
                                                            {"head_dim", 6},
                                                            {"short_conv_kernel_size", 4},
                                                            {"kda_layers", Json::List{1, 2, 3}},
                                                            {"full_attn_layers", Json::List{4}}});
  published.emplace_back("first_k_dense_replace", 1);
  folder.put("config.json", to_text(published));
  SafeTensors whole = load_safetensors(folder_of("kimi_linear") + "/model.safetensors"), shards[2];
  Json::Object map;
  for (const auto& [name, x] : whole.tensors) {
    std::string now = name;
    if (const std::string dense = "layers.0.block_sparse_moe."; now.find(dense) != std::string::npos)
      now.replace(now.find(dense), dense.size(), "layers.0.mlp.");
    const int shard = name < "model.layers.2";
    shards[shard].tensors[now] = x;
    map.emplace_back(now, shard ? "a.safetensors" : "b.safetensors");
  }
  save_safetensors(folder / "a.safetensors", shards[1]);
  save_safetensors(folder / "b.safetensors", shards[0]);
  folder.put("model.safetensors.index.json", R"({"weight_map": {"lm_head.weight": "a.safetensors"}})");
  CHECK_THROWS_WITH(load_model_files(folder / ""), Contains("index.json' names no tensor with an embedding"));
  folder.put("model.safetensors.index.json", to_text(Json::Object{{"weight_map", map}}));
  NoGrad guard;
  const Decoder model = load_model_files(folder / "", {.dtype = f64});
  CHECK(max_abs_diff(model(given.at("stream")), given.at("stream_logits")) <= 1e-9);
}
