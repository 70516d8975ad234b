// config.json by itself: files as they were published, fields that are refused, and what ModelConfig reads.
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/families.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <filesystem>
#include <tuple>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The plan of a config.json all of whose fields are known.
ModelPlan plan(const std::string& text) {
  const ModelConfig config(text, "config.json");
  const ModelPlan made = plan_of(config, [](const char*) { return false; });
  config.check_read({});
  return made;
}

/// What plan() says; "" if nothing.
std::string refusal(const std::string& text) {
  try {
    plan(text);
  } catch (const IOError& e) { return e.what(); }
  return "";
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string golden(const std::string& family) {
  return read_file(source_folder() + "/tests/golden/models/" + family + "/config.json");
}

/// What every published file says, in tiny sizes.
const std::string kCommon = R"({"architectures": ["ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 24,
  "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
  "vocab_size": 40, )";

const std::string kQwen25 = kCommon + R"("model_type": "qwen2", "hidden_act": "silu", "max_window_layers": 24,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "use_mrope": false,
  "use_sliding_window": false})";
const std::string kSmol135M = kCommon + R"("model_type": "llama", "attention_bias": false, "hidden_act": "silu",
  "is_llama_config": true, "pretraining_tp": 1, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
  "tie_word_embeddings": true})";
const std::string kSmolInstruct = kCommon + R"("model_type": "llama", "attention_bias": false, "hidden_act": "silu",
  "mlp_bias": false, "pad_token_id": 2, "pretraining_tp": 1, "rope_scaling": null, "rope_theta": 130000,
  "tie_word_embeddings": true, "transformers.js_config": {"dtype": "q4",
  "kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}})";
const std::string kGemma2 = kCommon + R"("model_type": "gemma2", "attention_bias": false,
  "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 8,
  "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0, "query_pre_attn_scalar": 8,
  "rope_theta": 10000.0, "sliding_window": 32, "sliding_window_size": 32})";
const std::string kTrinity = kCommon + R"("model_type": "afmoe", "auto_map": {"AutoModel": "modeling_afmoe.AfmoeModel"},
  "global_attn_every_n_layers": 2, "head_dim": 8, "hidden_act": "silu",
  "layer_types": ["sliding_attention", "full_attention"], "load_balance_coeff": 0.0005, "moe_intermediate_size": 8,
  "mup_enabled": true, "n_group": 1, "num_dense_layers": 1, "num_expert_groups": 1, "num_experts": 4,
  "num_experts_per_tok": 2, "num_limited_groups": 1, "num_shared_experts": 1, "rope_scaling": null,
  "rope_theta": 10000, "route_norm": true, "route_scale": 2.826, "score_func": "sigmoid", "sliding_window": 32,
  "tie_word_embeddings": false, "topk_group": 1, "use_grouped_mm": true})";
const std::string kQwen3Next = kCommon + R"("model_type": "qwen3_next", "decoder_sparse_step": 1,
  "full_attention_interval": 2, "head_dim": 8, "hidden_act": "silu", "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 4,
  "mlp_only_layers": [], "moe_intermediate_size": 8, "norm_topk_prob": true, "num_experts": 4,
  "num_experts_per_tok": 2, "output_router_logits": false, "partial_rotary_factor": 0.25, "rope_scaling": null,
  "rope_theta": 10000000, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 8,
  "tie_word_embeddings": false, "use_sliding_window": false})";
const std::string kGemma3 = kCommon + R"("model_type": "gemma3_text", "attention_bias": false,
  "attn_logit_softcapping": null, "cache_implementation": "hybrid", "final_logit_softcapping": null, "head_dim": 8,
  "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0, "query_pre_attn_scalar": 8,
  "rope_local_base_freq": 10000, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_theta": 1000000,
  "sliding_window": 32, "sliding_window_pattern": 2})";
const std::string kOlmo3 = kCommon + R"("model_type": "olmo3", "attention_bias": false, "hidden_act": "silu",
  "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0,
  "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
  "original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta": 500000, "sliding_window": 32,
  "tie_word_embeddings": false})";
const std::string kMiniMaxM2 = kCommon + R"("model_type": "minimax_m2", "attn_type_list": [1, 1], "head_dim": 8,
  "hidden_act": "silu", "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_beta": 1.0,
  "layernorm_mlp_beta": 1.0, "mtp_transformer_layers": 1, "num_experts_per_tok": 2, "num_local_experts": 4,
  "num_mtp_modules": 3, "qk_norm_type": "per_layer", "rope_theta": 5000000, "rotary_dim": 4,
  "router_jitter_noise": 0.0, "scoring_func": "sigmoid", "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid",
  "sliding_window": null, "tie_word_embeddings": false, "use_mtp": true, "use_qk_norm": true,
  "use_routing_bias": true})";
const std::string kGranite4 = kCommon + R"("model_type": "granitemoehybrid", "attention_bias": false,
  "attention_multiplier": 0.0078125, "embedding_multiplier": 12, "hidden_act": "silu", "init_method": "mup",
  "layer_types": ["mamba", "attention"], "logits_scaling": 6, "mamba_chunk_size": 256, "mamba_conv_bias": true,
  "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_expand": 2, "mamba_n_groups": 1,
  "mamba_n_heads": 4, "mamba_proj_bias": false, "normalization_function": "rmsnorm", "num_experts_per_tok": 2,
  "num_local_experts": 4, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rope_scaling": null,
  "rope_theta": 10000, "shared_intermediate_size": 12, "tie_word_embeddings": true})";
const std::string kBamba = kCommon + R"("model_type": "bamba", "attention_bias": false, "attn_layer_indices": [1],
  "attn_rotary_emb": 2, "hidden_act": "silu", "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4,
  "mamba_d_head": 8, "mamba_d_state": 6, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4,
  "mamba_proj_bias": false, "mlp_bias": false, "num_logits_to_keep": 1, "pad_token_id": 0, "rope_scaling": null,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "use_mamba_kernels": true})";
const std::string kNemotronH = kCommon + R"("model_type": "nemotron_h", "attention_bias": false,
  "attention_head_dim": 8, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 8, "hidden_dropout": 0.0,
  "hybrid_override_pattern": "M*", "layer_norm_epsilon": 1e-05, "mamba_head_dim": 6, "mamba_hidden_act": "silu",
  "mamba_num_heads": 4, "mamba_proj_bias": false, "mlp_bias": false, "mlp_hidden_act": "relu2", "n_groups": 2,
  "num_logits_to_keep": 1, "pad_token_id": 0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
  "sliding_window": null, "ssm_state_size": 6, "tie_word_embeddings": false, "time_step_floor": 0.0001,
  "time_step_limit": [0.0, Infinity], "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 256,
  "use_bias": false, "use_conv_bias": true, "use_mamba_kernels": true})";
const std::string kLfm2 = kCommon + R"("model_type": "lfm2", "block_auto_adjust_ff_dim": true, "block_dim": 16,
  "block_ff_dim": 33, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 8,
  "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": true, "block_use_xavier_init": true,
  "conv_L_cache": 3, "conv_bias": false, "conv_dim": 16, "conv_dim_out": 16, "conv_use_xavier_init": true,
  "full_attn_idxs": [1], "norm_eps": 1e-05, "num_heads": 4, "pad_token_id": 0, "rope_theta": 1000000.0,
  "theta": 1000000.0, "tie_embedding": true, "use_pos_enc": true})";
const std::string kFalconH1 = kCommon + R"("model_type": "falcon_h1", "attention_bias": false,
  "attention_in_multiplier": 1.0, "attention_out_multiplier": 0.9375, "attn_layer_indices": null,
  "embedding_multiplier": 5.656854249492381, "head_dim": 8, "hidden_act": "silu", "key_multiplier": 0.39062499999999994,
  "lm_head_multiplier": 0.0390625, "mamba_chunk_size": 128, "mamba_conv_bias": true, "mamba_d_conv": 4,
  "mamba_d_head": 6, "mamba_d_ssm": 24, "mamba_d_state": 6, "mamba_expand": 2, "mamba_n_groups": 1,
  "mamba_n_heads": 4, "mamba_norm_before_gate": false, "mamba_proj_bias": false, "mamba_rms_norm": false,
  "mamba_use_mlp": true, "mlp_bias": false, "mlp_multipliers": [0.8838834764831844, 0.5859375],
  "num_logits_to_keep": 1, "pad_token_id": 0, "projectors_bias": false, "rope_scaling": null,
  "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25,
  "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
  "ssm_out_multiplier": 0.23570226039551587, "tie_word_embeddings": false})";
const std::string kGemma3With4B = R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
  "text_config": {"hidden_size": 16, "intermediate_size": 24, "model_type": "gemma3_text", "num_hidden_layers": 6,
  "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
  "vision_config": {"image_size": 896}})";

}  // namespace

TEST_CASE("models: config.json as published models have it", "[models]") {
  for (const std::string* text :
       {&kQwen25, &kSmol135M, &kSmolInstruct, &kGemma2, &kTrinity, &kQwen3Next, &kGemma3, &kOlmo3, &kMiniMaxM2,
        &kGranite4, &kBamba, &kNemotronH, &kLfm2, &kFalconH1, &kGemma3With4B}) {
    INFO(*text);
    CHECK(refusal(*text) == "");
  }
  for (const auto& [text, from, to, why] :
       {std::tuple(kQwen25, "\"use_mrope\": false", "\"use_mrope\": true", "\"use_mrope\" is true; only false"),
        std::tuple(kSmol135M, "\"is_llama_config\": true", "\"is_llama_config\": false",
                   "\"is_llama_config\" is false"),
        std::tuple(kSmol135M, "\"rope_interleaved\": false", "\"rope_interleaved\": true",
                   "\"rope_interleaved\" is true"),
        std::tuple(kSmolInstruct, "transformers.js", "transformers.py",
                   "\"transformers.py_config.kv_cache_dtype.fp16\""),
        std::tuple(kGemma2, "window_size\": 32", "window_size\": 16",
                   "\"sliding_window_size\" is 16; only 32 is known"),
        std::tuple(kTrinity, "\"num_expert_groups\": 1", "\"num_expert_groups\": 2", "\"num_expert_groups\" is 2"),
        std::tuple(kTrinity, "\"num_limited_groups\": 1", "\"num_limited_groups\": 2", "\"num_limited_groups\" is 2"),
        std::tuple(kQwen3Next, "\"use_sliding_window\": false", "\"use_sliding_window\": true",
                   "\"use_sliding_window\" is true")})
    CHECK_THAT(refusal(with(text, from, to)), Contains(why));

  for (const auto& [text, from, to, why] :
       {std::tuple(kGemma3, "\"attn_logit_softcapping\": null", "\"attn_logit_softcapping\": 50.0",
                   "\"attn_logit_soft"),
        std::tuple(kOlmo3, "\"rope_theta\": 500000", "\"rope_theta\": 10000", "\"rope_theta\" is 10000; only 500000"),
        std::tuple(kMiniMaxM2, "[1, 1]", "[1, 0]", "\"attn_type_list\" is [1,0]"),
        std::tuple(kMiniMaxM2, "\"layernorm_mlp_beta\": 1.0", "\"layernorm_mlp_beta\": 3.5", "\"layernorm_mlp_beta\""),
        std::tuple(kGranite4, "\"nope\"", "\"alibi\"", "\"position_embedding_type\" is \"alibi\""),
        std::tuple(kBamba, "\"attn_rotary_emb\": 2", "\"attn_rotary_emb\": 4", "\"attn_rotary_emb\" is 4; only 2"),
        std::tuple(kNemotronH, "\"M*\"", "\"M\"", "\"hybrid_override_pattern\" is \"M\"; need 2 blocks"),
        std::tuple(kNemotronH, "\"M*\"", "\"MX\"", "\"hybrid_override_pattern\" is \"MX\""),
        std::tuple(kNemotronH, "epsilon\": 1e-05", "epsilon\": 1e-06", "\"layer_norm_epsilon\" is 1e-06"),
        std::tuple(kLfm2, "\"theta\": 1000000.0", "\"theta\": 10000.0", "\"theta\" is 10000"),
        std::tuple(kFalconH1, "\"attention_bias\": false,\n  \"attention_in_multiplier\": 1.0",
                   "\"attention_bias\": true, \"attention_in_multiplier\": 2.0", "need attention_in_multiplier 1"),
        std::tuple(kFalconH1, "\"mamba_d_ssm\": 24, ", "", "\"mamba_d_ssm\" is missing"),
        std::tuple(kGranite4, "\"logits_scaling\": 6", "\"logits_scaling\": 0", "\"logits_scaling\" is 0")})
    CHECK_THAT(refusal(with(text, from, to)), Contains(why));

  // Layers that slide have a RoPE of their own, by the file's fields of before rope_parameters too.
  for (const auto& [text, base] : {std::pair(kGemma3, 10000.0), std::pair(kOlmo3, 500000.0)}) {
    const ModelPlan made = plan(text);
    const auto of = [&](std::size_t i) { return std::get<MultiHeadAttentionOptions>(made.options.blocks[i].mixer); };
    CHECK(of(0).window == 32);
    CHECK(of(0).heads.rope.base == base);
    CHECK(of(0).heads.rope.frequencies.empty());
    CHECK(of(1).window == 0);
    CHECK_FALSE(of(1).heads.rope.frequencies.empty());
  }
  const auto mixer = [](const std::string& text, std::size_t i) { return plan(text).options.blocks[i].mixer; };
  CHECK(std::get<MultiHeadAttentionOptions>(mixer(kMiniMaxM2, 0)).heads.rope.rot_dim == 4);
  CHECK(std::get<Mamba2Options>(mixer(kGranite4, 0)).head_dim == 8);
  CHECK_FALSE(std::get<MultiHeadAttentionOptions>(mixer(kGranite4, 1)).heads.use_rope);

  CHECK(std::get<MultiHeadAttentionOptions>(mixer(kBamba, 1)).heads.rope.rot_dim == 2);
  CHECK(std::get<Mamba2Options>(mixer(kNemotronH, 0)).dt_limit == std::vector<double>{0, INFINITY});
  CHECK_FALSE(std::get<MultiHeadAttentionOptions>(mixer(kNemotronH, 1)).heads.use_rope);
  CHECK(std::get<GatedShortConvolutionOptions>(mixer(kLfm2, 0)).width == 3);
  CHECK(std::get<GluOptions>(plan(kLfm2).options.blocks[0].feed).hidden == 24);  // 2/3 of 33, up to a multiple of 8
  CHECK(plan(kLfm2).options.tied);
  CHECK(plan(kGemma3With4B).options.vocabulary == 262208);
  const auto full = std::get<MultiHeadAttentionOptions>(mixer(kGemma3With4B, 5));
  CHECK(std::tuple(full.heads.heads, full.heads.kv_heads, full.heads.head_dim) == std::tuple(8, 4, 256));
  CHECK(full.heads.rope.frequencies.back() == Approx(std::pow(1e6, -254.0 / 256) / 8));

  // A field that the file leaves out has the default of transformers; null means no cap.
  const auto caps = [](const std::string& text) {
    const ModelPlan made = plan(text);
    return std::pair(made.options.logit_cap, std::get<MultiHeadAttentionOptions>(made.options.blocks[0].mixer).softcap);
  };
  CHECK(caps(with(with(kGemma2, "\"final_logit_softcapping\": 30.0, ", ""), "\"attn_logit_softcapping\": 50.0, ",
                  "")) == std::pair(30.0, 50.0));
  CHECK(caps(with(with(kGemma2, "softcapping\": 50.0", "softcapping\": null"), "softcapping\": 30.0",
                  "softcapping\": null")) == std::pair(0.0, 0.0));
  const auto turned = [](const std::string& text) {
    return std::get<MultiHeadAttentionOptions>(plan(text).options.blocks[1].mixer).heads.rope.rot_dim;
  };
  CHECK(turned(kQwen3Next) == 2);
  CHECK(turned(with(kQwen3Next, "\"partial_rotary_factor\": 0.25, ", "")) == 2);

  // Gemma 2 names two activations. transformers computes with the second, and with gelu_tanh if the file lacks it.
  const auto kind = [](const std::string& text) {
    return std::get<GluOptions>(plan(text).options.blocks[1].feed).kind;
  };
  CHECK(kind(kGemma2) == GluKind::geglu_tanh);
  CHECK(kind(with(kGemma2, "\"hidden_activation\": \"gelu_pytorch_tanh\", ", "")) == GluKind::geglu_tanh);
  CHECK(kind(with(kGemma2, "gelu_pytorch_tanh", "gelu")) == GluKind::geglu);
  CHECK_THAT(refusal(with(kGemma2, "gelu_pytorch_tanh", "relu")), Contains("\"hidden_activation\" is \"relu\""));
}

TEST_CASE("models: more config.json as published models have it", "[models]") {
  const std::string act = R"("hidden_act": "silu", "rope_theta": 10000, "tie_word_embeddings": false, )";
  const std::string moe = R"("moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, )";
  struct Published {
    std::string fields, field, other;  // all of them; one of them, and what it must not be
  };
  for (const Published& p : std::vector<Published>{
           {R"("model_type": "qwen2_5_vl", "vision_start_token_id": 5, "vision_end_token_id": 6, "vision_token_id": 7,
               "image_token_id": 8, "video_token_id": 9, "max_window_layers": 1, "sliding_window": 32,
               "use_sliding_window": false, "vision_config": {"depth": 1, "model_type": "qwen2_5_vl"},
               "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 0]})",
            R"("type": "mrope")", R"("type": "x")"},
           {R"("model_type": "seed_oss", "attention_bias": true, "attention_out_bias": false, "head_dim": 8,
               "mlp_bias": false, "pad_token_id": 1, "residual_dropout": 0.1,
               "rope_scaling": {"rope_type": "default"})",
            R"("default")", R"("ntk")"},
           {R"("model_type": "starcoder2", "activation_function": "gelu", "attention_softmax_in_fp32": true,
               "embedding_dropout": 0.1, "layer_norm_epsilon": 1e-05, "mlp_type": "default", "norm_epsilon": 1e-05,
               "norm_type": "layer_norm", "residual_dropout": 0.1, "scale_attention_softmax_in_fp32": true,
               "scale_attn_weights": true, "sliding_window": 4096, "use_bias": true)",
            R"("norm_epsilon": 1e-05)", R"("norm_epsilon": 1e-06)"},
           {R"("model_type": "glm4", "attention_bias": true, "head_dim": 8, "pad_token_id": 3,
               "partial_rotary_factor": 0.5)",
            R"("partial_rotary_factor": 0.5)", R"("rotary_fraction": 0.5)"},
           {R"("model_type": "olmoe", "attention_bias": false, "clip_qkv": null, "norm_topk_prob": false,
               "num_experts": 4, "num_experts_per_tok": 2, "output_router_logits": false, "rope_scaling": null,
               "router_aux_loss_coef": 0.01)",
            R"("clip_qkv": null)", R"("clip_qkv": 8.0)"},
           {R"("model_type": "ernie4_5_moe", "moe_capacity": [4, 4, 4], "moe_gate": "topk", "moe_k": 2,
               "moe_intermediate_size": 8, "moe_layer_end_index": 1, "moe_layer_interval": 1,
               "moe_layer_start_index": 1,
               "moe_num_experts": 4, "moe_num_shared_experts": 2, "moe_use_aux_free": true,
               "num_nextn_predict_layers": 1, "use_bias": false)",
            R"("moe_use_aux_free": true)", R"("moe_use_aux_free": false)"},
           {moe + R"("model_type": "dots1", "attention_bias": false, "first_k_dense_replace": 1, "n_shared_experts": 1,
               "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc")",
            R"("noaux_tc")", R"("softmax")"},
           {moe + R"("model_type": "solar_open", "head_dim": 8, "first_k_dense_replace": 0, "n_group": 1,
               "n_shared_experts": 1, "norm_topk_prob": true, "partial_rotary_factor": 1.0,
               "routed_scaling_factor": 1.0, "topk_group": 1, "use_qk_norm": false)",
            R"("use_qk_norm": false)", R"("use_qk_norm": true)"},
       }) {
    const std::string text =
        kCommon + with(act, "silu", p.fields.find("starcoder2") < 20 ? "gelu" : "silu") + p.fields + "}";
    INFO(text);
    CHECK(refusal(text) == "");
    const std::string name = p.other.substr(1, p.other.find('"', 1) - 1);
    CHECK_THAT(refusal(with(text, p.field, p.other)), Contains(name));
  }
}

TEST_CASE("models: fields about whose default families disagree must be there", "[models]") {
  CHECK_THAT(refusal(with(golden("olmo2"), "\"rms_norm_eps\": 1e-05,", "")), Contains("\"rms_norm_eps\" is missing"));
  CHECK_THAT(refusal(with(golden("gpt_oss"), "\"rope_theta\": 150.0,", "")), Contains("\"rope_theta\" is missing"));
  CHECK(refusal(with(golden("llama"), "\"rope_theta\": 500.0,", "")) == "");
  CHECK(refusal(with(golden("llama"), "\"original_max_position_embeddings\": 16,", "")) == "");
  CHECK(refusal(golden("mamba2")) == "");  // whose eps has another name
  CHECK(refusal(with(golden("deepseek_v3"), "\"deepseek_v3\"", "\"kimi_k2\"")) == "");

  // OLMo-Hybrid has no RoPE where its base is null; left out, it is 10000.
  const std::string rope = "\"rope_parameters\": {\n    \"rope_theta\": 1000.0,\n    \"rope_type\": \"default\"\n  },";
  const auto rope_is = [&](const std::string& text) { return with(golden("olmo_hybrid"), rope, text); };
  const auto rotates = [](const std::string& text) {
    return std::get<MultiHeadAttentionOptions>(plan(text).options.blocks[3].mixer).heads.use_rope;
  };
  CHECK(rotates(golden("olmo_hybrid")));
  CHECK_FALSE(rotates(rope_is(R"("rope_parameters": {"rope_theta": null, "rope_type": "default"},)")));
  CHECK_FALSE(rotates(rope_is(R"("rope_theta": null,)")));
  for (const char* absent : {"", R"("rope_parameters": null,)"}) CHECK(rotates(rope_is(absent)));
}

TEST_CASE("models: values that transformers follows and this library does not are refused", "[models]") {
  for (const auto& [family, from, to, why] :
       {std::tuple("qwen3_5", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "only silu is known"),
        std::tuple("olmo_hybrid", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "only silu is known"),
        std::tuple("llama", "\"rope_theta\":", "\"partial_rotary_factor\": 0.5, \"rope_theta\":", "only 1 is known"),
        std::tuple("qwen3_5_moe",
                   "\"num_experts\":", "\"norm_topk_prob\": false, \"num_experts\":", "only true is known"),
        std::tuple("gemma2", "logit_softcapping\": 3.0", "logit_softcapping\": 0", "final_logit_softcapping"),
        std::tuple("gemma2", "attn_logit_softcapping\": 2.0", "attn_logit_softcapping\": -2.0", "it must be positive"),
        std::tuple("gemma2", "attn_logit_softcapping\": 2.0", "attn_logit_softcapping\": 1e300", "attn_logit_softc"),
        std::tuple("granite", "attention_multiplier\": ", "attention_multiplier\": 1e300, \"of\": ", "within f32"),
        std::tuple("laguna", "\"per-head\"", "false", "known: true, per-head, per-element"),
        std::tuple("laguna", "softcapping\": 0.0", "softcapping\": 30.0", "only 0 is known"),
        std::tuple("lara_mini", "\"sliding_a", "\"slide_a",
                   "known: linear_attention, full_attention, sliding_attention"),
        std::tuple("gpt_oss", "\"sliding_window\": ", "\"sliding_window\": -", "it must be positive"),
        std::tuple("qwen2_moe", "full_attention", "sliding_attention", "no layer may slide where"),
        std::tuple("gemma3_text", "\"rope_parameters\":",
                   "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 3.0}, \"rope_parameters\":",
                   "rope_parameters stand there, too"),
        std::tuple("gemma3_text", "\"rope_parameters\": {", "\"rope_parameters\": {\"rope_theta\": 9.0,",
                   "need one for each of full_attention and sliding_attention"),
        std::tuple("olmo3", "\"rope_parameters\": {", "\"rope_parameters\": {\"rope_theta\": 9.0}, \"others\": {",
                   "need one for each of full_attention and sliding_attention"),
        std::tuple("qwen3", "\"head_dim\": ", "\"head_dim\": 0, \"of\": ", "at least one channel"),
        std::tuple("olmo3", "\"rope_parameters\":",
                   "\"rope_theta\": 500000.0, \"rope_scaling\": {\"type\": "
                   "\"linear\", \"factor\": 3.0}, \"others\":",
                   "only default is known")}) {
    INFO(family << " " << to);
    CHECK_THAT(refusal(with(golden(family), from, to)), Contains(why));
  }
  // DeepSeek's scale of the scores belongs to kinds of RoPE that stretch the context.
  CHECK_THAT(refusal(with(golden("deepseek_v3"), "\"rope_type\": \"yarn\"", "\"rope_type\": \"default\"")),
             Contains("\"rope_parameters.factor\""));
}

TEST_CASE("load_model_files: Gemma 3 for text and images has its text's weights under a longer name", "[models]") {
  const std::string text = source_folder() + "/tests/golden/models/gemma3_text/";
  TempFolder folder;
  folder.put("config.json", R"({"model_type": "gemma3", "text_config": )" + golden("gemma3_text") + "}");
  SafeTensors file, given = load_safetensors(text + "expected.safetensors");
  for (const auto& [name, x] : load_safetensors(text + "model.safetensors").tensors)
    file.tensors["language_model." + name] = x;
  file.tensors["vision_tower.w"] = file.tensors["multi_modal_projector.w"] = ones({1});
  save_safetensors(folder / "model.safetensors", file);
  NoGrad guard;
  const Decoder model = load_model_files(folder / "", {.dtype = f64});
  CHECK(max(abs(model(given.tensors.at("stream")) - given.tensors.at("stream_logits"))).item() <= 1e-9);
  save_model_files(model, folder / "again", folder / "");
  const SafeTensors again = load_safetensors(folder / "again/model.safetensors");
  REQUIRE(again.tensors.size() == file.tensors.size());
  for (const auto& [name, x] : file.tensors) CHECK(max(abs(to(again.tensors.at(name), x.dtype()) - x)).item() == 0);
}

TEST_CASE("load_model_files: a head in the file is used where it is not the embedding", "[models]") {
  const std::string llama = source_folder() + "/tests/golden/models/llama/";
  TempFolder folder;
  std::filesystem::copy(llama + "config.json", folder / "config.json");
  SafeTensors file = load_safetensors(llama + "model.safetensors");
  const Tensor embedding = file.tensors.at("model.embed_tokens.weight");
  for (const auto& [head, tied] : {std::pair(embedding, true), std::pair(embedding * 2, false)}) {
    file.tensors["lm_head.weight"] = head;
    save_safetensors(folder / "model.safetensors", file);
    const Decoder model = load_model_files(folder / "");
    CHECK(model.options.tied == tied);
    if (!tied) CHECK(max(abs(transpose(model.head.weight, 0, 1) - head)).item() == 0);
  }
}

TEST_CASE("load_model_files: an index that names a file which is not there, or in another folder", "[models]") {
  TempFolder folder;
  folder.put("config.json", golden("llama"));
  const auto error = [&](const std::string& index) -> std::string {
    folder.put("model.safetensors.index.json", index);
    try {
      load_model_files(folder / "");
    } catch (const IOError& e) { return e.what(); }
    return "";
  };
  CHECK_THAT(error(R"({"weight_map": {"model.embed_tokens.weight": "gone.safetensors"}})"),
             Contains("gone.safetensors") && !Contains("names no tensor"));
  CHECK_THAT(error(R"({"weight_map": {"model.embed_tokens.weight": "../config.json"}})"),
             Contains("load_model_files: ") && Contains("index.json': the index names \"../config.json\"; need"));
  CHECK_THAT(error("{}"), Contains("load_model_files: ") && Contains("is no index of a sharded checkpoint"));
}
