// Configurations of families with recurrent mixers and with chosen keys: as published, and what is refused.
#include "golden/changed_model.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/models/families.h>
#include <sluice/layers/models/load_model_files.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("model configs: of Mamba and Jamba as published, and what is refused", "[models]") {
  const auto refused = [](const char* family, const char* field, const Json& value) {
    Changed m(family);
    (m.config.find("text_config") ? m.config["text_config"] : m.config)[field] = value;
    return m.refusal();
  };
  Changed published("mamba");  // fields that the files of 2024 have, and two that they lack
  for (const auto& [field, value] :
       {std::pair("d_inner", Json(32)), std::pair("d_model", Json(16)), std::pair("n_layer", Json(2)),
        std::pair("fused_add_norm", Json(true)), std::pair("rms_norm", Json(true)),
        std::pair("pad_vocab_size_multiple", Json(8)), std::pair("ssm_cfg", Json(Json::Object{}))})
    published.config[field] = value;
  std::erase_if(std::get<Json::Object>(published.config.value), [](const auto& field) {
    return field.first == "tie_word_embeddings" || field.first == "max_position_embeddings";
  });
  CHECK(published.load().options.tied);
  published.config["time_step_rank"] = "auto";
  CHECK(std::get<MambaOptions>(published.mixer(0)).dt_rank == 1);
  const Json layer(Json::Object{{"layer", Json("Mamba2")}});
  for (const auto& [family, field, value, why] :
       {std::tuple("mamba", "rms_norm", Json(false), "only true is known"),
        std::tuple("mamba", "ssm_cfg", layer, "\"ssm_cfg.layer\""),
        std::tuple("mamba", "intermediate_size", Json(48), "only 32 is known"),
        std::tuple("mamba", "expand", Json(0), "it must be positive"),
        std::tuple("mamba", "time_step_rank", Json(0), "it must be at least 1, or"),
        std::tuple("mamba", "hidden_act", Json("gelu"), "only silu is known"),
        std::tuple("falcon_mamba", "mixer_rms_eps", Json("none"), "\"mixer_rms_eps\""),
        std::tuple("jamba", "attn_layer_period", Json(0), "it must be positive"),
        std::tuple("jamba", "expert_layer_offset", Json(2), "below the period"),
        std::tuple("jamba", "mamba_expand", Json(0), "it must be positive"),
        std::tuple("jamba", "sliding_window", Json(4), "no model has one"),
        std::tuple("jamba", "mamba_inner_layernorms", Json(false), "only true is known"),
        std::tuple("recurrent_gemma", "block_types", Json(Json::List{Json("mamba")}), "known: recurrent, attention"),
        std::tuple("recurrent_gemma", "block_types", Json(Json::List{}), "it must not be empty"),
        std::tuple("recurrent_gemma", "hidden_activation", Json("silu"), "only gelu_pytorch_tanh is known"),
        std::tuple("recurrent_gemma", "head_dim", Json(8), "only 4 is known"),
        std::tuple("recurrent_gemma", "intermediate_size", Json(1), "it must be at least 2"),
        std::tuple("recurrent_gemma", "lru_width", Json(18), "heads 4 must divide the 18 channels"),
        std::tuple("recurrent_gemma", "conv1d_width", Json(0), "it must be positive"),
        std::tuple("xlstm_7b", "use_bias", Json(true), "only false is known"),
        std::tuple("xlstm_7b", "weight_mode", Json("fused"), "only single is known"),
        std::tuple("xlstm_7b", "qk_dim_factor", Json(0.4), "heads=4 must divide expand_k"),
        std::tuple("xlstm_7b", "ffn_proj_factor", Json(1e9), "it is too large"),
        std::tuple("xlstm_7b", "gate_soft_cap", Json(-1.0), "it must be positive"),
        std::tuple("diffllama", "num_key_value_heads", Json(1), "it must be even"),
        std::tuple("diffllama", "attention_bias", Json(true), "only false is known"),
        std::tuple("minimax_m3", "index_n_heads", Json(4), "it must be num_key_value_heads"),
        std::tuple("minimax_m3", "hidden_act", Json("gelu"), "known: swigluoai"),
        std::tuple("minimax_m3", "swiglu_alpha", Json(1.5), "only 1.702 is known"),
        std::tuple("minimax_m3", "swiglu_limit", Json(0.0), "it must be positive"),
        std::tuple("minimax_m3", "index_local_blocks", Json(3), "local"),
        std::tuple("minimax_m3", "use_qk_norm", Json(false), "only true is known"),
        std::tuple("qwen4_exp", "split_ngram_parts", Json(1 << 26), "it must be at most 65536"),
        std::tuple("deepseek_v4", "hc_sinkhorn_iters", Json(1'000'000), "iterations must be in [1, 100000]"),
        std::tuple("phi3", "max_position_embeddings", Json(), "\"max_position_embeddings\" is missing"),
        std::tuple("glm5_next", "swiglu_limit", Json(0.0), "it must be positive")}) {
    INFO(family << " " << field);
    CHECK_THAT(refused(family, field, value), Contains(why));
  }
}

TEST_CASE("model configs: of MiniMax-M3, with the names of its published file", "[models]") {
  Changed m("minimax_m3");
  const Decoder want = m.load();
  Json sparse(Json::Object{});
  for (const auto& [ours, theirs] :
       {std::pair("index_n_heads", "sparse_num_index_heads"), std::pair("index_head_dim", "sparse_index_dim"),
        std::pair("index_block_size", "sparse_block_size"), std::pair("index_topk_blocks", "sparse_topk_blocks"),
        std::pair("index_local_blocks", "sparse_local_block")})
    sparse[theirs] = m.config.at(ours);
  std::erase_if(std::get<Json::Object>(m.config.value),
                [](const auto& field) { return field.first.starts_with("index_") || field.first.ends_with("_types"); });
  const Json flags(Json::List{Json(0), Json(1), Json(1)});
  sparse["sparse_attention_freq"] = flags;
  m.config["sparse_attention_config"] = sparse, m.config["moe_layer_freq"] = flags;
  m.config["hidden_act"] = "swigluoai";
  const Decoder got = m.load();
  for (std::size_t i = 0; i < want.options.blocks.size(); ++i) {
    const DecoderBlockOptions &a = want.options.blocks[i], &b = got.options.blocks[i];
    CHECK(a.mixer.index() == b.mixer.index());
    CHECK(a.feed.index() == b.feed.index());
    if (const auto* msa = std::get_if<MsaAttentionOptions>(&a.mixer))
      CHECK(to_json(*msa) == to_json(std::get<MsaAttentionOptions>(b.mixer)));
  }
  m.config["moe_layer_freq"] = Json(Json::List{Json(1)});
  CHECK_THAT(m.refusal(), Contains("\"moe_layer_freq\"") && Contains("need 3 entries"));
}
