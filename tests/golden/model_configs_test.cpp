// Configurations that differ from a family's tiny model in some fields: refused where they cannot be followed. What
// config.json may hold.
#include "golden/changed_model.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/families.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/ops/basic.h>

using namespace sluice;
using namespace sluice::testing;

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

TEST_CASE("model configs: the base of RoPE where the file has none is that of transformers", "[models]") {
  for (const auto& [family, type, base] : {
           std::tuple("llama", "llama", 1e4),
           std::tuple("mixtral", "mixtral", 1e6),
           std::tuple("minimax_m2", "minimax_m2", 5e6),
           std::tuple("flex_olmo", "flex_olmo", 5e5),
           std::tuple("qwen2", "qwen2_vl", 1e6),
           std::tuple("qwen2", "qwen2_vl_text", 1e6),
           std::tuple("qwen2", "qwen2_5_vl", 1e6),
           std::tuple("qwen2", "qwen2_5_vl_text", 1e6),
           std::tuple("qwen3", "qwen3_vl_text", 5e5),
           std::tuple("qwen3_moe", "qwen3_vl_moe_text", 5e5),
       }) {
    INFO(type);
    Changed m(family);
    m.config["model_type"] = type, m.without_rope();
    CHECK(std::get<MultiHeadAttentionOptions>(m.mixer(0)).heads.rope.base == base);
  }
  Changed ling("bailing_hybrid");
  ling.without_rope();
  CHECK(std::get<MlaOptions>(ling.mixer(1)).rope.base == 6e6);

  // Two bases are not one field that could be left out.
  for (const char* const family : {"laguna", "lfm3"}) {
    INFO(family);
    Changed m(family);
    m.without_rope();
    CHECK_THAT(m.refusal(), Contains("\"rope_parameters.full_attention.rope_theta\" is missing"));
  }
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

  Changed granite("granite");
  granite.config["attention_multiplier"] = Json();  // null is the usual scale, left out is 1
  CHECK_FALSE(std::get<MultiHeadAttentionOptions>(granite.mixer(0)).scale);

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

TEST_CASE("model configs: RoPE turns at least a pair of channels, and at most all", "[models]") {
  Changed m("glm");
  for (const double share : {0.0, 0.1, -0.5, 1.5, 1e300}) {
    INFO(share);
    m.config["rope_parameters"]["partial_rotary_factor"] = share;
    CHECK_THAT(m.refusal(), Contains("\"rope_parameters.partial_rotary_factor\""));
  }
  m.config["rope_parameters"]["partial_rotary_factor"] = 0.25;
  CHECK(m.refusal() == "");
}

TEST_CASE("model configs: GPT-NeoX's older names count, beside the newer ones", "[models]") {
  Changed m("gpt_neox");
  m.without_rope();
  m.config["rotary_pct"] = 0.5, m.config["partial_rotary_factor"] = 0.5;
  m.config["rotary_emb_base"] = 1000.0, m.config["rope_theta"] = 1000.0, m.config["rope_scaling"] = Json();
  m.config["attention_probs_dropout_prob"] = 0, m.config["hidden_dropout_prob"] = 0;
  CHECK(m.refusal() == "");
  const RopeOptions rope = std::get<MultiHeadAttentionOptions>(m.mixer(0)).heads.rope;
  CHECK((rope.base == 1000 && rope.rot_dim == 2));
  m.config["rope_theta"] = 10000.0;
  CHECK_THAT(m.refusal(), Contains("\"rope_theta\"") && Contains("only 1000 "));
  // Alone, transformers does not read the newer ones.
  for (const char* name : {"rope_theta", "partial_rotary_factor"}) {
    Changed alone("gpt_neox");
    alone.without_rope(), alone.config[name] = 1.0;
    CHECK_THAT(alone.refusal(), Contains("\"" + std::string(name) + "\""));
  }
}

TEST_CASE("model configs: GPT-J's RoPE is rotary_dim channels of base 10000", "[models]") {
  const auto set = [](const std::string& object, const char* name, Json value) {
    Changed m("gptj");
    (object.empty() ? m.config[name] : m.config[object][name]) = std::move(value);
    return m.refusal();
  };
  CHECK_THAT(set("", "rope_theta", 100.0), Contains("\"rope_theta\" is 100"));
  CHECK_THAT(set("", "partial_rotary_factor", 0.25), Contains("\"partial_rotary_factor\""));
  CHECK_THAT(set("rope_scaling", "rope_type", "linear"), Contains("\"rope_scaling.rope_type\""));
  CHECK_THAT(set("rope_parameters", "rope_theta", 7.0), Contains("\"rope_parameters.rope_theta\""));
  Changed m("gptj");
  m.config["n_embd"] = 88, m.config["n_head"] = 1, m.config["rotary_dim"] = 30;  // 30/88 · 88 < 30
  CHECK(std::get<MultiHeadAttentionOptions>(m.mixer(0)).heads.rope.rot_dim == 30);
}

TEST_CASE("model configs: Cohere2's layer_types may have their turn beside them", "[models]") {
  Changed m("cohere2");
  m.config["_sliding_window_pattern"] = 4;
  CHECK(m.refusal() == "");
}

TEST_CASE("model configs: LFM2's feeds have a width", "[models]") {
  Changed m("lfm2");
  for (const int64_t width : {int64_t{-5}, int64_t{0}}) {
    m.config["block_ff_dim"] = width;
    CHECK_THAT(m.refusal(), Contains("\"block_ff_dim\"") && Contains("positive"));
  }
}

TEST_CASE("model configs: MiniMax-01 by its own names and by those of transformers", "[models]") {
  Changed m("minimax");
  const Tensor tokens = reshape(Tensor::from(std::vector<int64_t>{3, 9, 4, 11, 7}), {1, 5});
  const Decoder want = m.load();
  const auto rename = [&](const char* from, const char* to) {
    auto& fields = std::get<Json::Object>(m.config.value);
    m.config[to] = m.config.at(from);
    std::erase_if(fields, [&](const auto& field) { return field.first == from; });
  };
  for (const char* of : {"alpha", "beta"}) {
    rename(str("full_attn_", of, "_factor").c_str(), str("layernorm_full_attention_", of).c_str());
    rename(str("linear_attn_", of, "_factor").c_str(), str("layernorm_linear_attention_", of).c_str());
    rename(str("mlp_", of, "_factor").c_str(), str("layernorm_mlp_", of).c_str());
  }
  rename("layer_types", "attn_type_list");
  m.config["attn_type_list"] = parse_json("[0, 1, 0]");
  m.config["postnorm"] = true, m.config["shared_intermediate_size"] = 0, m.config["rotary_dim"] = 8;
  for (const char* type : {"minimax_text_01", "minimax_m1"}) {
    m.config["model_type"] = type;
    const Decoder model = m.load();
    CHECK(max_abs_diff(model(tokens), want(tokens)) == 0);
    CHECK(std::get<LightningAttention>(model.blocks[2].mixer).options.gamma == lightning_gammas(4, 2, 3));
  }
  m.config["rotary_dim"] = 4;
  CHECK(std::get<MultiHeadAttentionOptions>(m.mixer(1)).heads.rope.rot_dim == 4);
  m.config["layernorm_mlp_alpha"] = 0;
  CHECK_THAT(m.refusal(), Contains("layernorm_mlp_alpha") && Contains("positive"));
  m.config["layernorm_mlp_alpha"] = 1, m.config["attn_type_list"] = parse_json("[0, 2, 0]");
  CHECK_THAT(m.refusal(), Contains("attn_type_list") && Contains("known: 0"));
  m.config["attn_type_list"] = parse_json("[0, 1]");
  CHECK_THAT(m.refusal(), Contains("attn_type_list") && Contains("3 entries"));
  m.config["attn_type_list"] = parse_json("[0, 1, 0]"), m.config["sliding_window"] = 4;
  CHECK_THAT(m.refusal(), Contains("sliding_window"));
}

TEST_CASE("model_config: names with dots, escaped quotes and numbers beyond a size", "[models]") {
  const ModelConfig dots(R"({"a.b": 1, "c.d": {"e": 2, "f": {"g": 3}}})", "config.json");
  CHECK_THROWS_WITH(dots.check_read({}), Contains("\"a.b\": 1") && Contains("\"c.d.f.g\": 3"));
  CHECK_THROWS_WITH(dots.check_read({"c.d"}), Contains("\"a.b\": 1") && !Contains("\"c.d"));
  CHECK_NOTHROW(dots.check_read({"a.b", "c.d"}));
  CHECK_NOTHROW(dots.check_read({"a.b", "c.d.e", "c.d.f"}));

  const ModelConfig quotes(R"({"text": "x\"Infinity\\", "limits": [0.5, Infinity], "low": -Infinity,
    "high": Infinity, "newer": {"__float__": "Infinity"}})",
                           "config.json");
  CHECK(quotes.at<std::string>("text") == "x\"Infinity\\");
  CHECK(quotes.at<std::vector<double>>("limits") == std::vector<double>{0.5, INFINITY});
  CHECK(quotes.get("high", 7.0) == INFINITY);
  CHECK(quotes.get("newer", 7.0) == INFINITY);
  CHECK_THROWS_WITH(quotes.check_read({}), Contains("\"low\"") && Contains("-Infinity") && !Contains("newer"));
  CHECK_THROWS_WITH(quotes.at<double>("low"), Contains("it has another type"));
  CHECK_THROWS_AS(ModelConfig("{\"a\": \"\\", "config.json"), IOError);

  const ModelConfig sizes(R"({"eight": 8.0, "vast": 1e14, "part": 8.5, "list": [1, 1e14]})", "config.json");
  CHECK(sizes.at<int64_t>("eight") == 8);
  CHECK_THROWS_WITH(sizes.at<int64_t>("vast"), Contains("it is no size of a model"));
  CHECK_THROWS_WITH(sizes.at<int64_t>("part"), Contains("it has another type"));
  CHECK_THROWS_WITH(sizes.at<std::vector<int64_t>>("list"), Contains("it is no size of a model"));
}

TEST_CASE("model configs: of DeepSeek-V3 and Mistral 4 head_dim is what their RoPE turns, or refused", "[models]") {
  Changed m("deepseek_v3");
  CHECK(m.refusal() == "");
  m.config["head_dim"] = 16;
  CHECK_THAT(m.refusal(), Contains("\"head_dim\" is 16; only 4 is known"));
  m.config["model_type"] = "deepseek_v2";  // where transformers ignores it
  CHECK_THAT(m.refusal(), !Contains("head_dim"));
  Changed four("mistral4");
  four.config["head_dim"] = 11;
  CHECK_THAT(four.refusal(), Contains("\"head_dim\" is 11; only 12 is known"));
}

TEST_CASE("model configs: layers' embeddings of Gemma have the activation of the feeds", "[models]") {
  for (const auto& [name, act] :
       {std::pair("gelu", Act::gelu), {"gelu_pytorch_tanh", Act::gelu_tanh}, {"silu", Act::silu}}) {
    Changed m("gemma3n");
    m.config["hidden_activation"] = name;
    CHECK(m.options().per_layer.value().activation == act);
  }
}

TEST_CASE("model configs: CWM's windows and RoPE, and what IQuest-Coder must not have", "[models]") {
  Changed cwm("cwm");
  std::erase_if(std::get<Json::Object>(cwm.config.value), [](const auto& f) { return f.first == "layer_types"; });
  cwm.config["num_hidden_layers"] = 6;
  for (std::size_t i = 0; i < 6; ++i) {
    INFO(i);
    CHECK(std::get<MultiHeadAttentionOptions>(cwm.mixer(i)).window == (i % 4 == 0 ? 0 : 4));
  }
  cwm.without_rope();
  CHECK_THAT(cwm.refusal(), Contains("\"rope_parameters.rope_type\" is missing"));
  Changed coder("iquestcoder");
  coder.config["clip_qkv"] = 8.0;
  CHECK_THAT(coder.refusal(), Contains("\"clip_qkv\" is 8.0; only null is known"));
  coder.config["clip_qkv"] = Json(), coder.config["use_sliding_window"] = true;
  CHECK_THAT(coder.refusal(), Contains("\"use_sliding_window\" is true; only false is known"));
}

TEST_CASE("model configs: A.X K1 as published, and Sarvam's name of YaRN", "[models]") {
  Changed axk1("axk1");
  std::erase_if(axk1.file.tensors, [](const auto& t) { return t.first.ends_with("e_score_correction_bias"); });
  axk1.file.tensors["model.layers.0.post_mlp_layernorm.weight"] = ones({16});  // of a dense layer, which has no norm
  const Decoder model = axk1.load();
  const Moe& moe = std::get<Moe>(model.blocks[1].feed);
  CHECK((moe.options.router == MoeRouter::sigmoid && !moe.router_bias.defined()));
  CHECK_FALSE(model.blocks[0].feed_post_norm.weight.defined());
  CHECK(model.blocks[1].feed_post_norm.weight.defined());
  axk1.config["q_lora_rank"] = Json();
  CHECK_THAT(axk1.refusal(), Contains("\"q_lora_rank\" is missing"));

  Changed sarvam("sarvam_mla");
  sarvam.without_rope();
  const Json::Object yarn{
      {"type", "yarn"}, {"factor", 4.0}, {"mscale_all_dim", 1.0}, {"original_max_position_embeddings", 16}};
  sarvam.config["rope_scaling"] = yarn;
  const auto want = std::get<MlaOptions>(sarvam.mixer(0));
  REQUIRE(!want.rope.frequencies.empty());
  sarvam.config["rope_scaling"]["type"] = "deepseek_yarn", sarvam.config["head_dim"] = 10;  // of the latent and RoPE
  const auto got = std::get<MlaOptions>(sarvam.mixer(0));
  CHECK(got.rope.frequencies == want.rope.frequencies);
  CHECK(got.scale == want.scale);
  sarvam.config["model_type"] = "deepseek_v3";
  CHECK_THAT(sarvam.refusal(), Contains("deepseek_yarn"));
}

TEST_CASE("model configs: each layer of Granite Swash has a base of RoPE", "[models]") {
  Changed m("granite_swa");
  std::erase_if(std::get<Json::Object>(m.config.value), [](const auto& f) { return f.first == "layer_types"; });
  m.config["num_hidden_layers"] = 5, m.config["layer_rope_theta"] = Json::List{0, 100.0, 1000, 0, 5};
  for (std::size_t i = 0; i < 5; ++i) {
    INFO(i);
    const auto o = std::get<MultiHeadAttentionOptions>(m.mixer(i));
    CHECK(o.window == (i % 4 == 0 ? 0 : 4));
    CHECK(o.heads.use_rope == (i % 3 != 0));
    if (o.heads.use_rope) CHECK(o.heads.rope.base == std::vector<double>{0, 100, 1000, 0, 5}[i]);
  }
  m.config["rope_parameters"] = Json::Object{{"rope_type", "linear"}, {"rope_theta", 1000.0}, {"factor", 2.0}};
  CHECK_THAT(m.refusal(), Contains("\"layer_rope_theta\" is") && Contains("for the default RoPE only"));
  m.config["layer_rope_theta"] = Json::List{0.0};
  CHECK_THAT(m.refusal(), Contains("need 5 entries"));
}

TEST_CASE("model configs: longrope is for short texts or for long ones, unless it is the same for both", "[models]") {
  Changed m("minicpm3");
  std::erase_if(std::get<Json::Object>(m.config.value), [](const auto& f) { return f.first == "v_head_dim"; });
  const auto o = std::get<MlaOptions>(m.mixer(0));
  CHECK(o.value_dim == 4);  // 16 channels over 4 heads
  REQUIRE(o.rope.frequencies.size() == 2);
  CHECK(o.rope.frequencies[1] == Approx(std::pow(1000.0, -0.5) / 2.5));
  CHECK(o.rope.factor == Approx(std::sqrt(1.5)));  // 1 + log 4/log 16
  CHECK(m.options().longest == 0);
  m.config["rope_parameters"]["long_factor"] = Json::List{1.1, 2.6};
  CHECK(m.options().longest == 16);
  const DecoderOptions long_ones = m.options(true);
  CHECK(long_ones.longest == 0);
  CHECK(std::get<MlaOptions>(long_ones.blocks[0].mixer).rope.frequencies[1] == Approx(std::pow(1000.0, -0.5) / 2.6));
  m.config["rope_parameters"]["long_factor"] = m.config["rope_parameters"]["short_factor"] = Json::List{1.1};
  CHECK_THAT(m.refusal(), Contains("short_factor\" is") && Contains("need 2 positive numbers"));
}

TEST_CASE("model configs: what MPT must not have is refused by name", "[models]") {
  for (const auto& [field, value] :
       {std::pair<const char*, Json>("qk_ln", true), std::pair<const char*, Json>("alibi", false),
        std::pair<const char*, Json>("alibi_bias_max", 16)}) {
    INFO(field);
    Changed m("mpt");
    m.config["attn_config"][field] = value;
    CHECK_THAT(m.refusal(), Contains(std::string("\"attn_config.") + field + "\" is"));
  }
  Changed wide("mpt");
  wide.config["expansion_ratio"] = 2;
  CHECK_THAT(wide.refusal(), Contains("\"expansion_ratio\" is 2; only 4"));
}

TEST_CASE("model configs: what Gemma 4 and Llama 4 must not have is refused by name", "[models]") {
  for (const auto& [family, field] : {std::pair("gemma4", "hidden_size_per_layer_input"),
                                      {"gemma4", "num_kv_shared_layers"},
                                      {"gemma4", "enable_moe_block"},
                                      {"gemma4", "use_bidirectional_attention"},
                                      {"llama4", "attention_chunk_size"},
                                      {"llama4", "floor_scale"}}) {
    Changed m(family);
    m.config[field] = -1;
    CHECK_THAT(m.refusal(), Contains(str("\"", field, "\" is -1")));
  }
  Changed zeros("gemma4");  // as transformers writes it where some number has two digits
  const Json own = zeros.config["per_layer_config"]["2"];
  zeros.config["per_layer_config"] = Json::Object{{"02", own}};
  CHECK(std::get<MultiHeadAttentionOptions>(zeros.mixer(2)).heads.head_dim == 8);
  CHECK(zeros.refusal().empty());
  Changed m("gemma4");  // as published
  std::erase_if(std::get<Json::Object>(m.config.value), [](const auto& f) { return f.first == "per_layer_config"; });
  m.config["global_head_dim"] = 8, m.config["num_global_key_value_heads"] = 1;
  CHECK(m.refusal().empty());
}

TEST_CASE("model configs: RoPE of GLM-4.1V as published, and what it must not have", "[models]") {
  Changed m("glm4v");
  Json& text = m.config["text_config"];
  std::erase_if(std::get<Json::Object>(text.value), [](const auto& f) { return f.first == "rope_parameters"; });
  text["rope_scaling"] = Json::Object{{"type", "default"}, {"mrope_section", Json::List{1, 1, 0}}};
  text["rope_theta"] = 1000.0, text["partial_rotary_factor"] = 0.5;
  const auto o = std::get<MultiHeadAttentionOptions>(m.mixer(0)).heads;
  CHECK(o.rope.base == 1000);
  CHECK(o.rope.rot_dim == 4);  // of 8
  CHECK(o.qkv_bias);
  CHECK(m.refusal().empty());
  text["head_dim"] = 4;
  CHECK_THAT(m.refusal(), Contains("\"head_dim\" is 4; only hidden_size/num_attention_heads"));
}
