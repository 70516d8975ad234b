#!/usr/bin/env python3
"""Tiny random models of every family that layers/models reads, made by transformers: their folders as it saves them, and
the logits it computes in float64.

    python3 tests/golden/models/make_models.py OUT [FAMILY ...]
    python3 tests/golden/models/make_models.py examples/data chat     the model of `chat --smoke`, with a tokenizer

Needs torch and transformers 5. OUT/FAMILY has config.json, model.safetensors (bf16) and expected.safetensors:
  tokens, mask [3, 11]: the first row without padding, the second with padding before, the third with padding after
  logits [3, 11, vocabulary];  stream [1, 20] and stream_logits [1, 20, vocabulary]: of one text
"""
import copy
import os
import sys

import torch

# What packages compute in float32 on purpose shall be float64 here.
torch.set_default_dtype(torch.float64)
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double

import safetensors.torch  # noqa: E402
import transformers  # noqa: E402

# BLOOM's code has √(2/π) with eight digits.
transformers.models.bloom.modeling_bloom.bloom_gelu_forward = (
    lambda x: torch.nn.functional.gelu(x, approximate="tanh"))

common = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
delta = dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
             linear_value_head_dim=4)
latent = dict(kv_lora_rank=6, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, num_key_value_heads=4)
types = ["linear_attention"] * 3 + ["full_attention"]
multipliers = dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.3, logits_scaling=2.0)
sliding = ["sliding_attention", "full_attention"]
rope = dict(rope_theta=1000.0, rope_type="default")
mamba = dict(mamba_n_heads=4, mamba_d_state=6, mamba_n_groups=2, mamba_chunk_size=8)
growing = dict(rope_theta=1000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=4,
               llama_4_scaling_beta=0.3)
two_ropes = dict(sliding_attention=dict(rope_theta=100.0, rope_type="default"),
                 full_attention=dict(rope_theta=1000.0, rope_type="linear", factor=8.0))

FAMILIES = {
    "llama": ("Llama", dict(intermediate_size=24, tie_word_embeddings=True,
                            rope_parameters=dict(rope_theta=500.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                 high_freq_factor=4.0, original_max_position_embeddings=16))),
    "qwen2": ("Qwen2", dict(intermediate_size=24, rope_parameters=rope)),
    "qwen3": ("Qwen3", dict(intermediate_size=24, head_dim=8, rope_parameters=rope, tie_word_embeddings=True)),
    "qwen3_moe": ("Qwen3Moe", dict(head_dim=8, intermediate_size=24, moe_intermediate_size=8, num_experts=5,
                                   num_experts_per_tok=2, norm_topk_prob=True, num_hidden_layers=3,
                                   mlp_only_layers=[1])),
    "qwen3_next": ("Qwen3Next", dict(delta, head_dim=8, intermediate_size=24, moe_intermediate_size=8,
                                     shared_expert_intermediate_size=12, num_experts=5, num_experts_per_tok=2)),
    "qwen3_5": ("Qwen3_5Text", dict(delta, head_dim=8, intermediate_size=24)),
    "qwen3_5_moe": ("Qwen3_5MoeText", dict(delta, head_dim=8, moe_intermediate_size=8,
                                           shared_expert_intermediate_size=12, num_experts=5, num_experts_per_tok=2)),
    "olmo2": ("Olmo2", dict(intermediate_size=24, rope_parameters=rope)),
    "olmo_hybrid": ("OlmoHybrid", dict(delta, intermediate_size=24, linear_num_key_heads=4, linear_value_head_dim=6,
                                       layer_types=types, rope_parameters=rope)),
    "gemma2": ("Gemma2", dict(intermediate_size=24, head_dim=8, sliding_window=4, query_pre_attn_scalar=9,
                              final_logit_softcapping=3.0, attn_logit_softcapping=2.0)),
    "gpt_oss": ("GptOss", dict(intermediate_size=8, head_dim=8, sliding_window=4, num_local_experts=5,
                               num_experts_per_tok=2, swiglu_limit=0.5,
                               rope_parameters=dict(rope_theta=150.0, rope_type="yarn", factor=4.0, beta_fast=8.0,
                                                    beta_slow=1.0, truncate=False,
                                                    original_max_position_embeddings=16))),
    "afmoe": ("Afmoe", dict(num_hidden_layers=4, intermediate_size=24, moe_intermediate_size=8, head_dim=8,
                            num_experts=5, num_experts_per_tok=2, num_shared_experts=2, num_dense_layers=1,
                            sliding_window=4, global_attn_every_n_layers=2, route_scale=1.5, mup_enabled=True,
                            rope_parameters=rope)),
    "kimi_linear": ("KimiLinear", dict(latent, num_hidden_layers=4, intermediate_size=24, moe_intermediate_size=8,
                                       num_local_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2,
                                       linear_num_heads=2, linear_head_dim=6, layer_types=types)),
    "deepseek_v2": ("DeepseekV2", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                                       num_experts_per_tok=2, n_shared_experts=2, q_lora_rank=None, n_group=3,
                                       topk_group=2, first_k_dense_replace=1, topk_method="group_limited_greedy",
                                       routed_scaling_factor=1.5, rope_parameters=rope)),
    "deepseek_v3": ("DeepseekV3", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                                       num_experts_per_tok=2, n_shared_experts=1, q_lora_rank=8, n_group=3,
                                       topk_group=2, first_k_dense_replace=1,
                                       rope_parameters=dict(rope_theta=100.0, rope_type="yarn", factor=4.0,
                                                            beta_fast=8.0, beta_slow=1.0, mscale=1.0,
                                                            mscale_all_dim=0.7, original_max_position_embeddings=16))),
    "youtu": ("Youtu", dict(latent, intermediate_size=24, q_lora_rank=8, rope_parameters=rope)),
    "sarvam_mla": ("SarvamMLA", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                                     num_experts_per_tok=2, q_lora_rank=None, rope_parameters=rope)),
    "axk1": ("AXK1", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                          num_experts_per_tok=2, q_lora_rank=8, n_group=3, topk_group=2,
                          mlp_layer_types=["dense", "sparse"], rope_parameters=rope)),
    "deepseek_v32": ("DeepseekV32", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                                         num_experts_per_tok=2, n_shared_experts=1, q_lora_rank=8, n_group=3,
                                         topk_group=2, first_k_dense_replace=1, index_topk=4, index_n_heads=16,
                                         index_head_dim=6, rope_parameters=rope)),
    "glm4_moe": ("Glm4Moe", dict(intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6, head_dim=8,
                                 num_experts_per_tok=2, n_shared_experts=1, n_group=3, topk_group=2, use_qk_norm=True,
                                 attention_bias=True, rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "glm4_moe_lite": ("Glm4MoeLite", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                                          num_experts_per_tok=2, q_lora_rank=8, rope_parameters=rope)),
    "glm_moe_dsa": ("GlmMoeDsa", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                                      num_experts_per_tok=2, q_lora_rank=8, first_k_dense_replace=1, index_topk=4,
                                      index_n_heads=16, index_head_dim=6, rope_parameters=rope)),
    "glm5_next": ("Glm5Next", dict(num_hidden_layers=3, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6,
                                   kv_lora_rank=6, qk_nope_head_dim=8, v_head_dim=6, num_key_value_heads=4, q_lora_rank=8,
                                   n_group=3, topk_group=2, num_experts_per_tok=2, linear_num_heads=4,
                                   linear_head_dim=6, index_topk=4, index_kpool=2, index_n_heads=16, index_head_dim=6,
                                   swiglu_limit=0.4, hc_mult=3, hc_sinkhorn_iters=4,
                                   mlp_layer_types=["dense", "sparse", "sparse"],
                                   layer_types=["linear_attention", "indexed_attention", "linear_attention"])),
    "deepseek_v4": ("DeepseekV4", dict(num_hidden_layers=4, moe_intermediate_size=6, n_routed_experts=5, head_dim=8,
                                       num_key_value_heads=1, num_experts_per_tok=2, q_lora_rank=8, o_groups=2,
                                       o_lora_rank=5, index_n_heads=8, index_head_dim=6, index_topk=2, sliding_window=3,
                                       num_hash_layers=1, hc_mult=3, hc_sinkhorn_iters=4, swiglu_limit=0.4,
                                       partial_rotary_factor=0.5, rope_theta=100.0, compress_rope_theta=1000.0,
                                       compress_rates=dict(compressed_sparse_attention=2,
                                                           heavily_compressed_attention=3),
                                       layer_types=["sliding_attention", "compressed_sparse_attention",
                                                    "heavily_compressed_attention", "compressed_sparse_attention"],
                                       rope_parameters=dict(rope_type="yarn", factor=4.0, beta_fast=8.0, beta_slow=1.0,
                                                            original_max_position_embeddings=16))),
    "qwen4_exp": ("Qwen4ExpText", dict(delta, head_dim=8, moe_intermediate_size=8, shared_expert_intermediate_size=12,
                                       num_experts=5, num_experts_per_tok=2, hc_count=3, hc_lowrank=5, indexer_n_heads=16,
                                       indexer_kv_heads=1, indexer_head_dim=6, indexer_budget=4,
                                       indexer_compress_ratio=2, ple_layer_ids=[1, 3], ple_embed_dim=16, ngram_size=3,
                                       heads_per_ngram=2, ngram_vocab_size_base=20, split_ngram_parts=2,
                                       make_ngram_vocab_size_divisible_by=8, output_gate_type="sigmoid",
                                       rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "mistral": ("Mistral", dict(intermediate_size=24, sliding_window=4, head_dim=8, rope_parameters=rope)),
    "ministral": ("Ministral", dict(intermediate_size=24, sliding_window=4, head_dim=8, layer_types=sliding,
                                    rope_parameters=rope)),
    "ministral3": ("Ministral3", dict(intermediate_size=24, sliding_window=4, head_dim=8, rope_parameters=growing)),
    "mistral4": ("Mistral4", dict(latent, intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6, n_group=3,
                                  topk_group=2, num_experts_per_tok=2, q_lora_rank=8, first_k_dense_replace=1,
                                  rope_parameters=dict(growing, mscale=1.0, mscale_all_dim=0.7))),
    "mixtral": ("Mixtral", dict(intermediate_size=8, num_local_experts=5, sliding_window=None, rope_parameters=rope)),
    "minimax_m3": ("MiniMaxM3VLText", dict(
        num_hidden_layers=3, intermediate_size=8, dense_intermediate_size=24, shared_intermediate_size=12, head_dim=8,
        rotary_dim=4, num_local_experts=5, num_experts_per_tok=2, swiglu_limit=0.8, index_n_heads=2, index_head_dim=4,
        index_block_size=2, index_topk_blocks=2, layer_types=["full_attention"] + ["minimax_m3_sparse"] * 2,
        mlp_layer_types=["dense", "sparse", "sparse"],
        rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "diffllama": ("DiffLlama", dict(intermediate_size=24, head_dim=8, rope_parameters=rope)),
    "minimax_m2": ("MiniMaxM2", dict(intermediate_size=8, num_local_experts=5, num_experts_per_tok=2, head_dim=8,
                                     rotary_dim=4, rope_parameters=rope)),
    "minimax": ("MiniMax", dict(intermediate_size=8, num_local_experts=5, num_experts_per_tok=2, head_dim=8,
                                num_hidden_layers=3, layer_types=types[2:] + types[:1],
                                block_size=4, linear_attn_alpha_factor=1.5, linear_attn_beta_factor=0.7,
                                full_attn_alpha_factor=0.8, full_attn_beta_factor=1.3, mlp_alpha_factor=1.2,
                                rope_parameters=rope)),
    "qwen2_moe": ("Qwen2Moe", dict(intermediate_size=24, moe_intermediate_size=8, num_experts=5, num_experts_per_tok=2,
                                   shared_expert_intermediate_size=12, num_hidden_layers=3, mlp_only_layers=[1],
                                   rope_parameters=rope)),
    "granite": ("Granite", dict(multipliers, intermediate_size=24, rope_parameters=rope)),
    "granitemoe": ("GraniteMoe", dict(multipliers, intermediate_size=8, num_local_experts=5, rope_parameters=rope)),
    "granitemoeshared": ("GraniteMoeShared", dict(multipliers, intermediate_size=8, num_local_experts=5,
                                                  shared_intermediate_size=12, rope_parameters=rope)),
    "granite_swa": ("GraniteSWA", dict(multipliers, intermediate_size=24, num_hidden_layers=3, sliding_window=4,
                                       layer_rope_theta=[0, 100.0, 1000.0], rope_parameters=rope)),
    "granitemoe_swa": ("GraniteMoeSWA", dict(multipliers, intermediate_size=8, num_local_experts=5, sliding_window=4,
                                             shared_intermediate_size=12, layer_types=sliding, rope_parameters=rope)),
    "granitemoehybrid": ("GraniteMoeHybrid", dict(multipliers, **mamba, num_hidden_layers=3, intermediate_size=8,
                                                  num_local_experts=5, shared_intermediate_size=12,
                                                  layer_types=types[:1] + types[3:] + types[:1])),
    "olmo3": ("Olmo3", dict(intermediate_size=24, sliding_window=4, layer_types=sliding, rope_parameters=two_ropes)),
    "gemma3_text": ("Gemma3Text", dict(intermediate_size=24, head_dim=8, sliding_window=4, query_pre_attn_scalar=9,
                                       layer_types=sliding, rope_parameters=two_ropes)),
    "llama4": ("Llama4Text", dict(num_hidden_layers=4, intermediate_size=8, intermediate_size_mlp=24, head_dim=8,
                                  num_local_experts=3, num_experts_per_tok=2, interleave_moe_layer_step=2,
                                  no_rope_layer_interval=2, attention_chunk_size=4, floor_scale=5, attn_scale=0.3,
                                  rope_parameters=rope)),
    "gemma4": ("Gemma4Text", dict(num_hidden_layers=3, intermediate_size=24, head_dim=4, global_head_dim=8,
                                  num_global_key_value_heads=1, hidden_size_per_layer_input=0, attention_k_eq_v=True,
                                  sliding_window=4, final_logit_softcapping=30.0, layer_types=sliding[:1] + sliding,
                                  rope_parameters=dict(two_ropes, full_attention=dict(
                                      rope_theta=1000.0, partial_rotary_factor=0.5, rope_type="proportional")))),
    "gemma3n": ("Gemma3nText", dict(num_hidden_layers=5, intermediate_size=12, head_dim=8, sliding_window=4,
                                    hidden_size_per_layer_input=6, vocab_size_per_layer_input=40, altup_num_inputs=3,
                                    laurel_rank=5, num_kv_shared_layers=3, layer_types=sliding + sliding[:1] + sliding,
                                    activation_sparsity_pattern=[0.8, 0.0, 0.5, 0.0, 0.0], rope_parameters=two_ropes)),
    "gemma4_moe": ("Gemma4Text", dict(intermediate_size=24, head_dim=4, global_head_dim=8, num_experts=5, top_k_experts=2,
                                      hidden_size_per_layer_input=0, enable_moe_block=True, moe_intermediate_size=6,
                                      sliding_window=4, layer_types=sliding, rope_parameters=two_ropes)),
    "gemma4_small": ("Gemma4Text", dict(num_hidden_layers=5, intermediate_size=12, head_dim=4, global_head_dim=8,
                                        hidden_size_per_layer_input=6, vocab_size_per_layer_input=40,
                                        num_kv_shared_layers=3, use_double_wide_mlp=True, sliding_window=4,
                                        layer_types=sliding + sliding[:1] + sliding, rope_parameters=two_ropes)),
    "gemma4_unified": ("Gemma4UnifiedText", dict(intermediate_size=24, head_dim=4, global_head_dim=8, sliding_window=4,
                                                 layer_types=sliding, rope_parameters=two_ropes)),
    "smollm3": ("SmolLM3", dict(intermediate_size=24, no_rope_layers=[1, 0], rope_parameters=rope)),
    "bailing_hybrid": ("BailingHybrid", dict(latent, num_hidden_layers=3, intermediate_size=24, moe_intermediate_size=8,
                                             num_local_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2,
                                             first_k_dense_replace=1, head_dim=4, layer_group_size=2,
                                             rope_theta=1000.0)),
    "mpt": ("Mpt", dict(attn_config=dict(softmax_scale=0.3))),
    "persimmon": ("Persimmon", dict(intermediate_size=24, rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "minicpm3": ("MiniCPM3", dict(latent, intermediate_size=24, q_lora_rank=8, scale_emb=3.0, dim_model_base=8,
                                  rope_parameters=dict(rope_theta=1000.0, rope_type="longrope", factor=4.0,
                                                       short_factor=[1.1, 2.5], long_factor=[1.1, 2.5],
                                                       original_max_position_embeddings=16))),
    "phi3": ("Phi3", dict(intermediate_size=24, sliding_window=4, original_max_position_embeddings=24,
                          rope_parameters=dict(rope_theta=1000.0, rope_type="longrope", short_factor=[1.3, 1.7],
                                               long_factor=[2.0, 9.0]))),
    # Every text here is longer than the one that its RoPE for short texts is for.
    "phi3_long": ("Phi3", dict(intermediate_size=24, original_max_position_embeddings=8,
                               rope_parameters=dict(rope_theta=1000.0, rope_type="longrope", short_factor=[1.3, 1.7],
                                                    long_factor=[2.0, 9.0]))),
    "ernie4_5": ("Ernie4_5", dict(intermediate_size=24, head_dim=8, use_bias=True, rope_parameters=rope)),
    "mamba": ("Mamba", dict(state_size=6, time_step_rank=3)),
    "falcon_mamba": ("FalconMamba", dict(state_size=6, time_step_rank=3, mixer_rms_eps=0.1)),
    "jamba": ("Jamba", dict(num_hidden_layers=3, intermediate_size=12, num_experts=5, attn_layer_period=3,
                            attn_layer_offset=1, mamba_d_state=6, mamba_dt_rank=3)),
    "mamba2": ("Mamba2", dict(num_heads=4, head_dim=8, state_size=6, n_groups=2, chunk_size=8, expand=2)),
    "bamba": ("Bamba", dict(mamba, num_hidden_layers=3, intermediate_size=24, attn_layer_indices=[1],
                            rope_parameters=rope)),
    "nemotron_h": ("NemotronH", dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
                                     num_hidden_layers=4, intermediate_size=24, head_dim=8, mamba_num_heads=4,
                                     mamba_head_dim=6, ssm_state_size=6, n_groups=2, chunk_size=8, n_routed_experts=6,
                                     moe_intermediate_size=8, moe_shared_expert_intermediate_size=12, n_group=3,
                                     topk_group=2, num_experts_per_tok=2, routed_scaling_factor=1.5,
                                     time_step_min=1e-30)),
    "lfm2": ("Lfm2", dict(num_hidden_layers=3, intermediate_size=33, block_multiple_of=8,
                          layer_types=["conv", "full_attention", "conv"], rope_parameters=rope)),
    "lfm2_moe": ("Lfm2Moe", dict(num_hidden_layers=3, intermediate_size=24, moe_intermediate_size=8, num_dense_layers=1,
                                 num_experts=6, num_experts_per_tok=2, routed_scaling_factor=1.5,
                                 layer_types=["conv", "full_attention", "conv"], rope_parameters=rope)),
    "seed_oss": ("SeedOss", dict(intermediate_size=24, head_dim=8, rope_parameters=rope)),
    "arcee": ("Arcee", dict(intermediate_size=24, rope_parameters=rope)),
    "internlm3": ("InternLM3", dict(intermediate_size=24, head_dim=8,
                                    rope_parameters=dict(rope_theta=1000.0, rope_type="dynamic", factor=6.0))),
    "iquestcoder": ("IQuestCoder", dict(intermediate_size=24, head_dim=8, rope_parameters=rope)),
    "bloom": ("Bloom", dict()),
    "opt": ("OPT", dict(ffn_dim=24)),
    "opt_350m": ("OPT", dict(ffn_dim=24, do_layer_norm_before=False, word_embed_proj_dim=12)),
    "biogpt": ("BioGpt", dict(intermediate_size=24)),
    "olmo": ("Olmo", dict(intermediate_size=24, clip_qkv=0.7, rope_parameters=rope)),
    "hunyuan_v1_dense": ("HunYuanDenseV1", dict(intermediate_size=24, head_dim=8,
                                                rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, alpha=50.0,
                                                                     factor=1.0))),
    "hunyuan_v1_moe": ("HunYuanMoEV1", dict(intermediate_size=8, head_dim=8, num_experts=5, moe_topk=[2, 2],
                                            rope_parameters=rope)),
    "nanochat": ("NanoChat", dict(intermediate_size=24, rope_parameters=rope)),
    "apertus": ("Apertus", dict(intermediate_size=24, rope_parameters=rope)),
    "hyperclovax": ("HyperCLOVAX", dict(multipliers, intermediate_size=24, rope_parameters=rope)),
    "flint": ("Flint", dict(num_hidden_layers=4, intermediate_size=24, moe_intermediate_size=8, head_dim=8, num_experts=5,
                            num_experts_per_tok=2, shared_expert_intermediate_size=12, sliding_window=4,
                            mlp_only_layers=[0], layer_types=sliding + sliding, rope_parameters=rope)),
    "exaone": ("Exaone", dict(intermediate_size=24, rope_parameters=rope)),
    "jais2": ("Jais2", dict(intermediate_size=24, rope_parameters=rope)),
    "cwm": ("Cwm", dict(intermediate_size=24, head_dim=8, sliding_window=4, layer_types=sliding,
                        rope_parameters=dict(rope_theta=500.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                             high_freq_factor=4.0, original_max_position_embeddings=16))),
    "gpt2": ("GPT2", dict()),
    "openai_gpt": ("OpenAIGPT", dict()),
    "gpt_bigcode": ("GPTBigCode", dict()),
    "gpt_neo": ("GPTNeo", dict(attention_types=[[["global", "local"], 1]], window_size=4)),
    "starcoder2": ("Starcoder2", dict(intermediate_size=24, sliding_window=4, tie_word_embeddings=True,
                                      rope_parameters=rope)),
    "nemotron": ("Nemotron", dict(intermediate_size=24, head_dim=8,
                                  rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "glm": ("Glm", dict(intermediate_size=24, head_dim=8, rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "glm4": ("Glm4", dict(intermediate_size=24, head_dim=8, rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "glm4v": ("Glm4v", dict(intermediate_size=24, hidden_size=32, rope_parameters=dict(
        rope, partial_rotary_factor=0.5, mrope_section=[1, 1, 0]))),
    "glm4v_moe": ("Glm4vMoe", dict(intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6, head_dim=8,
                                   num_experts_per_tok=2, n_shared_experts=1, n_group=3, topk_group=2,
                                   rope_parameters=dict(rope, partial_rotary_factor=0.5, mrope_section=[1, 1, 0]))),
    "ernie4_5_moe": ("Ernie4_5_Moe", dict(intermediate_size=24, moe_intermediate_size=8, moe_num_experts=5, moe_k=2,
                                          moe_num_shared_experts=1, rope_parameters=rope)),
    "helium": ("Helium", dict(intermediate_size=24, head_dim=4, rope_parameters=rope)),
    "olmoe": ("Olmoe", dict(intermediate_size=8, num_experts=5, num_experts_per_tok=2, rope_parameters=rope)),
    "flex_olmo": ("FlexOlmo", dict(intermediate_size=8, num_experts=5, num_experts_per_tok=2, rope_parameters=rope)),
    "exaone4": ("Exaone4", dict(intermediate_size=24, sliding_window=4, layer_types=sliding, rope_parameters=rope)),
    "exaone_moe": ("ExaoneMoe", dict(intermediate_size=24, moe_intermediate_size=8, num_experts=6,
                                     num_experts_per_tok=2, n_group=3, topk_group=2, sliding_window=4,
                                     layer_types=sliding, rope_parameters=rope)),
    "recurrent_gemma": ("RecurrentGemma", dict(num_hidden_layers=3, intermediate_size=24, lru_width=24,
                                               attention_window_size=4, logits_soft_cap=3.0, rope_parameters=rope)),
    # Not "xlstm": transformers would take the folder for the package of that name.
    "xlstm_7b": ("xLSTM", dict(num_heads=4, ffn_round_up_to_multiple_of=8, chunk_size=8)),
    "gemma": ("Gemma", dict(intermediate_size=24, head_dim=8, rope_parameters=rope)),
    "vaultgemma": ("VaultGemma", dict(intermediate_size=24, head_dim=8, sliding_window=4, query_pre_attn_scalar=9,
                                      final_logit_softcapping=3.0, attn_logit_softcapping=2.0)),
    "dots1": ("Dots1", dict(intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6, head_dim=8,
                            num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, sliding_window=4,
                            max_window_layers=1, rope_parameters=rope)),
    "mimo_v2_flash": ("MiMoV2Flash", dict(num_hidden_layers=3, intermediate_size=24, moe_intermediate_size=8, head_dim=8,
                                          v_head_dim=6, n_routed_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2,
                                          sliding_window=4, layer_types=["full_attention"] + sliding,
                                          rope_parameters={kind: dict(kind_rope, partial_rotary_factor=0.5)
                                                           for kind, kind_rope in two_ropes.items()})),
    "solar_open": ("SolarOpen", dict(moe_intermediate_size=8, n_routed_experts=5, head_dim=8, num_experts_per_tok=2,
                                     n_shared_experts=1, rope_parameters=rope)),
    "laguna": ("Laguna", dict(num_hidden_layers=3, intermediate_size=24, moe_intermediate_size=8, head_dim=8,
                              shared_expert_intermediate_size=12, num_experts=5, num_experts_per_tok=2,
                              sliding_window=4, num_attention_heads_per_layer=[4, 2, 4], gating="per-head",
                              moe_routed_scaling_factor=1.5, layer_types=sliding + sliding[:1],
                              rope_parameters=dict(two_ropes, full_attention=dict(rope, partial_rotary_factor=0.5)))),
    "sarvam_moe": ("SarvamMoE", dict(intermediate_size=24, moe_intermediate_size=8, n_routed_experts=6, head_dim=8,
                                     num_experts_per_tok=2, n_shared_experts=1, attention_bias=True, rope_parameters=rope)),
    "hy_v3": ("HYV3", dict(intermediate_size=24, moe_intermediate_size=8, num_experts=6, head_dim=8,
                           num_experts_per_tok=2, num_shared_experts=2, rope_parameters=rope)),
    "mellum": ("Mellum", dict(num_hidden_layers=3, intermediate_size=24, moe_intermediate_size=8, head_dim=8, num_experts=5,
                              num_experts_per_tok=2, sliding_window=4, layer_types=sliding + sliding[:1],
                              mlp_layer_types=["sparse", "sparse", "dense"], rope_parameters=two_ropes)),
    "lfm3": ("Lfm3", dict(num_hidden_layers=3, intermediate_size=24, head_dim=8, sliding_window=4,
                          layer_types=["conv"] + sliding,
                          rope_parameters=dict(two_ropes, full_attention=dict(rope_theta=1000.0, partial_rotary_factor=0.5,
                                                                              rope_type="proportional")))),
    "lara_mini": ("LaraMini", dict(delta, head_dim=8, moe_intermediate_size=8, shared_expert_intermediate_size=12,
                                   num_experts=5, num_experts_per_tok=2, sliding_window=4, rope_parameters=rope,
                                   layer_types=types[:2] + sliding)),
    "falcon_h1": ("FalconH1", dict(mamba, mamba_d_ssm=24, intermediate_size=24, head_dim=8, rope_parameters=rope,
                                   embedding_multiplier=3.0, lm_head_multiplier=0.5, key_multiplier=0.7,
                                   attention_in_multiplier=1.3, attention_out_multiplier=0.8, ssm_in_multiplier=1.2,
                                   ssm_out_multiplier=0.6, mlp_multipliers=[1.4, 0.9],
                                   ssm_multipliers=[0.5, 1.5, 0.7, 1.3, 0.9])),
    "gpt_neox": ("GPTNeoX", dict(intermediate_size=24, rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "gpt_neox_japanese": ("GPTNeoXJapanese", dict(rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "phi": ("Phi", dict(intermediate_size=24, rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "gptj": ("GPTJ", dict(rotary_dim=2)),
    "codegen": ("CodeGen", dict(rotary_dim=2)),
    "falcon": ("Falcon", dict(new_decoder_architecture=True, num_kv_heads=2, bias=True, rope_parameters=rope)),
    "stablelm": ("StableLm", dict(intermediate_size=24, use_qkv_bias=True, use_parallel_residual=True,
                                  rope_parameters=dict(rope, partial_rotary_factor=0.5))),
    "cohere": ("Cohere", dict(intermediate_size=24, rope_parameters=rope)),
    "cohere2": ("Cohere2", dict(intermediate_size=24, sliding_window=4, layer_types=sliding, rope_parameters=rope)),
    "cohere2_moe": ("Cohere2Moe", dict(num_hidden_layers=3, intermediate_size=8, head_dim=8, sliding_window=4,
                                       num_experts=5, num_shared_experts=2, prefix_dense_intermediate_size=24,
                                       mlp_layer_types=["dense", "sparse", "sparse"],
                                       layer_types=["full_attention"] + sliding, rope_parameters=rope)),
}


def chat(folder):
    """A Qwen3 of 300 tokens, with a byte-level tokenizer of as many."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    torch.manual_seed(1)
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    words.train_from_iterator(
        ["the gate opens and the water flows", "the gate closes and the water waits"] * 9,
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    assert words.get_vocab_size() <= 300
    config = transformers.Qwen3Config(**{**common, "vocab_size": 300, "intermediate_size": 24, "head_dim": 8,
                                         "bos_token_id": 0, "eos_token_id": 2, "tie_word_embeddings": True})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    words.save(os.path.join(folder, "tokenizer.json"))


def make(kind, fields, folder, seed):
    """Writes a random model of transformers' class `kind` and what it computes to `folder`; returns its largest logit."""
    torch.manual_seed(seed)
    config = getattr(transformers, kind + "Config")
    with_images = kind in ("Glm5Next", "Glm4v", "Glm4vMoe")  # there is no class for their text alone
    if with_images:
        vision = dict(depth=1, hidden_size=8, num_heads=2, intermediate_size=8, out_hidden_size=fields["hidden_size"],
                      patch_size=2, image_size=4)
        if kind == "Glm5Next":
            vision["projection_intermediate_size"] = 8
        config = config(text_config=copy.deepcopy(fields), vision_config=vision)
    else:
        config = config(**copy.deepcopy(fields))  # which changes rope_parameters
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    if with_images:
        model = transformers.AutoModelForImageTextToText.from_config(config)
    elif kind in ("Mistral4", "MiniMaxM3VLText"):  # which no automatic class knows
        model = getattr(transformers, kind.removesuffix("Text") + "ForCausalLM")(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.eval()
    with torch.no_grad():
        for key, x in list(model.named_parameters()) + list(model.named_buffers()):
            if key.endswith("tid2eid"):
                x.copy_(torch.rand(x.shape[0], config.n_routed_experts).argsort(-1)[:, :x.shape[1]])
            computed = ("inv_freq", "mup_vector", "slope_rate", "_decay", "embed_positions")  # from the configuration
            if key.endswith("embed_positions.weight"):  # learned ones
                computed = ()
            mask = key.endswith("attn.bias") and x.ndim == 4  # of GPT-1
            if x.ndim == 0 or mask or not x.is_floating_point() or any(name in key for name in computed):
                continue
            noise = torch.randn_like(x)
            if "A_log" in key or "dt_bias" in key:
                x.copy_(noise * 0.5)
            elif "recurrent_param" in key:  # most of a state is kept
                x.copy_(noise * 0.5 - 3)
            elif "rg_lru" in key:  # small: transformers' √(1 − a²) has no digits where a gate leaves a near 1
                x.copy_(noise * 0.3)
            elif x.ndim < 2 and key.endswith("weight"):
                zero = x.abs().max() == 0  # w − 1
                x.copy_(noise * 0.3 + (0 if zero else 1))
            else:
                wide = 0.5 if "embed" in key or x.ndim < 2 else 2 * x.shape[-1] ** -0.5
                x.copy_(noise * (0.1 if "dt_proj.weight" in key else wide))  # PyTorch's softplus is x beyond 20
            x.copy_(x.to(torch.bfloat16).to(x.dtype))
    n = 11
    tokens = torch.randint(3, 40, (3, n))
    mask = torch.ones(3, n, dtype=torch.bool)
    biased = "use_bias" if kind in ("Mamba", "FalconMamba") else "mamba_proj_bias" if kind == "Jamba" else "conv_bias"
    mask[1, :4] = getattr(config, biased, False)  # else LFM2, Mamba and Jamba convolve what the bias makes of padding
    mask[2, n - 3:] = False
    stream = torch.randint(3, 40, (1, 20))
    with torch.no_grad():
        logits = model(tokens, attention_mask=mask.long(), use_cache=False).logits.contiguous()
        stream_logits = model(stream, use_cache=False).logits.contiguous()
        if kind in ("DeepseekV4", "RecurrentGemma", "MiniMaxM3VLText", "xLSTM"):  # whose pools and states read padding: of the text alone
            logits[1, 4:] = model(tokens[1:2, 4:], use_cache=False).logits[0]
    assert logits.dtype == torch.float64, logits.dtype
    model.to(torch.bfloat16).save_pretrained(folder)
    extra = os.path.join(folder, "generation_config.json")
    if os.path.exists(extra):
        os.remove(extra)
    safetensors.torch.save_file(dict(tokens=tokens, mask=mask, logits=logits, stream=stream,
                                     stream_logits=stream_logits), os.path.join(folder, "expected.safetensors"))
    return float(logits[mask].abs().max())


def without_attention(fields):
    return {k: v for k, v in fields.items() if "attention" not in k and "key_value" not in k}


def gpt2_names(fields):
    theirs = dict(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head",
                  max_position_embeddings="n_positions", rms_norm_eps="layer_norm_epsilon")
    if "attention_types" in fields:
        theirs = dict(num_hidden_layers="num_layers", num_attention_heads="num_heads",
                      rms_norm_eps="layer_norm_epsilon")
    return {theirs.get(k, k): v for k, v in fields.items() if "key_value" not in k}


def mpt_names(fields):
    theirs = dict(hidden_size="d_model", num_hidden_layers="n_layers", num_attention_heads="n_heads",
                  max_position_embeddings="max_seq_len", rms_norm_eps="layer_norm_epsilon")
    return {theirs.get(k, k): v for k, v in fields.items() if "key_value" not in k}


def bloom_names(fields):
    theirs = dict(num_hidden_layers="n_layer", num_attention_heads="n_head", rms_norm_eps="layer_norm_epsilon")
    return {theirs.get(k, k): v for k, v in fields.items()}


def main(out, names):
    if names == ["chat"]:
        return chat(os.path.join(out, "chat"))
    for name in names or FAMILIES:
        kind, options = FAMILIES[name]
        fields = {**common, **options}
        if name in ("mamba", "falcon_mamba", "mamba2", "xlstm_7b"):
            fields = without_attention(fields)
        if name in ("gpt2", "openai_gpt", "gpt_bigcode", "gpt_neo", "gptj", "codegen"):
            fields = gpt2_names(fields)
        if name == "mpt":
            fields = mpt_names(fields)
        if name == "bloom":
            fields = bloom_names(fields)
        if name in ("gpt_neox", "gpt_neox_japanese", "falcon", "persimmon", "opt", "opt_350m", "biogpt", "bloom"):
            del fields["num_key_value_heads"]
        folder = os.path.join(out, name)
        largest = make(kind, fields, folder, len(name))
        print(name, sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)), "bytes, logits to", largest)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
