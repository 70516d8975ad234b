#!/usr/bin/env python3
"""Tiny random models of drawn configurations, as make_models.py makes those of the tests: other numbers of heads, layers,
experts and groups, other kinds of RoPE, windows, norms and biases.

    python3 tests/golden/models/draw_models.py OUT 0 40 [FAMILY ...]              seeds 0 to 39 of each family
    SLUICE_DRAWN_MODELS=OUT sluice_tests "models: of drawn configurations"        compares all of them
    SLUICE_DRAWN_MODELS=OUT SLUICE_SAVED_MODELS=AGAIN sluice_tests "models: of drawn configurations"
    python3 tests/golden/models/check_saved.py OUT AGAIN                          compares what was written again

Needs torch and transformers 5. A configuration that transformers itself refuses is left out and counted.
"""
import os
import random
import shutil
import sys

import make_models

ROPE = {
    "default": {},
    "linear": dict(factor=3.5),
    "llama3": dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=3.0, original_max_position_embeddings=16),
    "yarn": dict(factor=4.0, original_max_position_embeddings=16),
}


def drawn(name, r):
    """The class and the fields of one configuration."""
    kind, options = make_models.FAMILIES[name]
    pick = r.choice
    heads, layers, head_dim = pick([1, 2, 3, 4, 6]), r.randint(1, 5), pick([4, 8, 10])
    any_layers = lambda kinds: [pick(kinds) for _ in range(layers)]
    f = {**make_models.common, **options, "vocab_size": pick([40, 41, 53]), "hidden_size": pick([12, 16, 20, 24]),
         "num_hidden_layers": layers, "num_attention_heads": heads, "rms_norm_eps": pick([1e-6, 1e-5, 1e-3]),
         "num_key_value_heads": pick([d for d in range(1, heads + 1) if heads % d == 0]),
         "tie_word_embeddings": pick([True, False])}
    for field, values in (("intermediate_size", [8, 24, 31]), ("moe_intermediate_size", [5, 8]),
                          ("shared_expert_intermediate_size", [5, 12]), ("sliding_window", [2, 4, 7]),
                          ("num_experts", [4, 6, 8]), ("n_routed_experts", [4, 6, 8]), ("num_local_experts", [4, 6, 8]),
                          ("num_experts_per_tok", [1, 2, 3]), ("num_shared_experts", [1, 2]),
                          ("n_shared_experts", [1, 2]), ("linear_num_key_heads", [1, 2, 3]),
                          ("linear_key_head_dim", [3, 4, 6]), ("linear_value_head_dim", [3, 4, 6])):
        if field in f:
            f[field] = pick(values)
    if "head_dim" in f or name in ("llama", "mixtral", "lfm2", "lfm2_moe"):
        f["head_dim"] = head_dim
    if name in ("qwen2", "qwen2_moe", "olmo2", "olmo3", "olmo_hybrid", "smollm3", "arcee", "starcoder2",
                "ernie4_5_moe", "helium", "olmoe", "flex_olmo", "exaone", "exaone4", "exaone_moe", "vaultgemma", "jais2",
                "iquestcoder", "cwm", "olmo", "nanochat", "apertus", "hyperclovax"):
        f["hidden_size"] = heads * pick([4, 6])
    if name in ("llama", "qwen2", "qwen3", "qwen3_moe", "olmo2", "afmoe", "glm4_moe", "mistral",
                "ministral", "mixtral", "minimax", "minimax_m2", "qwen2_moe", "granite", "granitemoe", "smollm3", "ernie4_5",
                "bamba", "lfm2", "lfm2_moe", "falcon_h1", "seed_oss", "arcee", "starcoder2", "ernie4_5_moe", "helium",
                "olmoe", "flex_olmo", "exaone", "exaone4", "exaone_moe", "gemma", "dots1", "solar_open", "iquestcoder",
                "jais2", "cwm", "olmo", "nanochat", "apertus", "hunyuan_v1_dense", "hunyuan_v1_moe", "hyperclovax", "flint",
                "sarvam_moe", "hy_v3", "granitemoeshared", "granite_swa", "granitemoe_swa", "internlm3", "llama4"):
        rope = pick(list(ROPE))
        f["rope_parameters"] = dict(ROPE[rope], rope_type=rope, rope_theta=pick([100.0, 10000.0, 500000.0]))
        if rope == "yarn":
            f["rope_parameters"].update(pick([{}, dict(beta_fast=8.0, beta_slow=2.0), dict(attention_factor=1.3),
                                              dict(truncate=False)]), factor=pick([2.5, 4.0, 8.0]))
    if name in ("llama", "qwen3", "qwen3_moe", "olmo2", "olmo3", "gemma2", "gemma3_text", "gpt_oss", "smollm3",
                "bamba", "seed_oss", "arcee", "nemotron", "glm", "glm4", "flex_olmo", "gemma", "dots1", "solar_open",
                "iquestcoder", "jais2", "sarvam_moe", "hy_v3", "mellum", "exaone", "mimo_v2_flash",
                "olmo", "nanochat", "apertus", "hunyuan_v1_dense", "hunyuan_v1_moe", "hyperclovax", "flint"):
        f["attention_bias"] = pick([True, False])
    if name in ("llama", "smollm3", "bamba", "falcon_h1", "seed_oss", "arcee", "nemotron", "iquestcoder", "jais2", "cwm",
                "exaone", "hyperclovax", "internlm3"):
        f["mlp_bias"] = pick([True, False])
    if name in ("qwen2", "qwen2_moe", "qwen3") and pick([True, False]):
        f.update(use_sliding_window=True, sliding_window=pick([3, 5]), max_window_layers=pick([0, 1, 2]))
        if name == "qwen2_moe":
            f["qkv_bias"] = pick([True, False])
        if pick([True, False]):  # says otherwise than max_window_layers
            f["layer_types"] = [pick(["sliding_attention", "full_attention"]) for _ in range(layers)]
    if name in ("qwen2_moe", "qwen3_moe", "qwen3_next"):
        f.update(norm_topk_prob=pick([True, False]), decoder_sparse_step=pick([1, 2]),
                 mlp_only_layers=[i for i in range(layers) if pick([True, False, False])])
    if "linear_num_key_heads" in f:
        types = [pick(["linear_attention", "full_attention"]) for _ in range(layers)]
        f.update(linear_num_value_heads=f["linear_num_key_heads"] * pick([1, 2, 3]), layer_types=types,
                 linear_conv_kernel_dim=pick([2, 3, 4]))
        if name == "olmo_hybrid":  # transformers needs both kinds, and saves right convolutions of equal widths only
            f.update(num_hidden_layers=layers + 2, layer_types=types + ["linear_attention", "full_attention"],
                     linear_num_value_heads=f["linear_num_key_heads"], linear_value_head_dim=f["linear_key_head_dim"],
                     linear_allow_neg_eigval=pick([True, False]), rope_parameters=pick([None, f["rope_parameters"]]))
        else:
            f["rope_parameters"] = dict(rope_theta=pick([100.0, 10000.0]), rope_type="default",
                                        partial_rotary_factor={4: 0.5, 8: pick([0.25, 0.5, 1.0]), 10: 1.0}[head_dim])
    if name in ("gemma2", "gemma3_text", "vaultgemma"):
        f.update(query_pre_attn_scalar=pick([4, 9, 16]), final_logit_softcapping=pick([3.0, None]),
                 attn_logit_softcapping=pick([2.0, None]), hidden_activation=pick(["gelu_pytorch_tanh", "gelu"]))
    if name == "gpt_oss":
        f["swiglu_limit"] = pick([0.5, 7.0])
    if name == "afmoe":
        f.update(num_dense_layers=r.randint(0, layers), global_attn_every_n_layers=pick([1, 2, 3]),
                 route_scale=pick([1.0, 1.5]), mup_enabled=pick([True, False]))
    if "kv_lora_rank" in f:
        groups = pick([1, 2])
        f.update(num_key_value_heads=heads, kv_lora_rank=pick([6, 8]), qk_nope_head_dim=pick([4, 8]),
                 qk_rope_head_dim=pick([2, 4, 6]), v_head_dim=pick([6, 8]), first_k_dense_replace=r.randint(0, layers),
                 n_group=groups, topk_group=r.randint(1, groups), num_experts_per_tok=pick([1, 2]),
                 routed_scaling_factor=pick([1.0, 2.5]), q_lora_rank=pick([None, 8]))
        if name == "axk1":
            del f["first_k_dense_replace"]
            f.update(mlp_layer_types=any_layers(["dense", "sparse"]), q_lora_rank=pick([5, 8]))
        if name != "deepseek_v2":  # which norms in DeepSeek's own code alone
            f["norm_topk_prob"] = pick([True, False])
    if name == "deepseek_v2":
        f["topk_method"] = pick(["greedy", "group_limited_greedy"])
    if name == "minicpm3":
        f.update(hidden_size=heads * pick([4, 6]), scale_emb=pick([1, 12]), scale_depth=pick([None, 1.4]),
                 dim_model_base=pick([None, 8]))
        factors = [pick([1.0, 1.3, 4.0]) for _ in range(f["qk_rope_head_dim"] // 2)]
        rope = dict(rope_type="longrope", rope_theta=100.0, short_factor=factors, long_factor=factors)
    if name in ("minicpm3", "youtu"):
        for field in ("first_k_dense_replace", "n_group", "topk_group", "num_experts_per_tok", "routed_scaling_factor",
                      "norm_topk_prob"):
            del f[field]
    if name == "minicpm3":
        f["rope_parameters"] = pick([make_models.rope, rope, dict(rope, original_max_position_embeddings=16),
                                     dict(rope, factor=3.0, original_max_position_embeddings=16),
                                     dict(rope, attention_factor=1.2, original_max_position_embeddings=64),
                                     dict(rope, long_factor=[9.0] * len(factors), original_max_position_embeddings=32)])
    if name == "mpt":
        f.update(hidden_size=heads * pick([4, 8]), attn_config=dict(softmax_scale=pick([None, 0.2]),
                                                                    clip_qkv=pick([None, 0.5])))
        f = make_models.mpt_names(f)
    if name in ("olmo", "opt", "opt_350m", "biogpt"):  # whose eps is always 1e-5
        del f["rms_norm_eps"]
    if name in ("opt", "opt_350m", "biogpt", "bloom"):
        del f["num_key_value_heads"]
        f["hidden_size"] = heads * pick([4, 6])
    if name == "hyperclovax":
        f.update(embedding_multiplier=pick([1.0, 12.0]), residual_multiplier=pick([1.0, 0.22]),
                 attention_multiplier=pick([None, 0.1, 1.0]), logits_scaling=pick([1.0, 8.0]),
                 use_post_norm=pick([True, False]))
    if name == "flint":
        f.update(layer_types=pick([None, any_layers(["sliding_attention", "full_attention"])]),
                 mlp_only_layers=pick([None, [i for i in range(layers) if pick([True, False, False])]]),
                 decoder_sparse_step=pick([1, 2]), norm_topk_prob=pick([True, False]))
    if name == "olmo":
        f["clip_qkv"] = pick([None, 0.5, 8.0])
    if name == "opt_350m":
        f.update(word_embed_proj_dim=pick([8, 12, 20]), _remove_final_layer_norm=pick([True, False]))
    if name in ("opt", "opt_350m"):
        f.update(ffn_dim=pick([8, 24, 31]), enable_bias=pick([True, False]), activation_function=pick(["relu", "gelu"]),
                 layer_norm_elementwise_affine=pick([True, False]))
    if name == "biogpt":
        f.update(scale_embedding=pick([True, False]), hidden_act=pick(["gelu", "gelu_new", "relu"]))
    if name == "bloom":
        f["apply_residual_connection_post_layernorm"] = pick([True, False])
        f = make_models.bloom_names(f)
    if name == "nanochat":
        f.update(final_logit_softcapping=pick([None, 3.0, 15.0]), hidden_act=pick(["relu2", "gelu"]))
    if name == "apertus":
        f["hidden_act"] = pick(["xielu", "xielu", "relu2", "gelu"])
    if name.startswith("hunyuan") and pick([True, False, False]):
        f["rope_parameters"] = dict(rope_type="dynamic", rope_theta=100.0, alpha=pick([2.0, 50.0]), factor=1.0)
    if name == "hunyuan_v1_moe":
        top = pick([1, 2, 3])
        f["moe_topk"] = pick([top, [top] * layers])
    if name == "persimmon":
        del f["num_key_value_heads"]
        wide, rope = pick([4, 8]), pick(list(ROPE))
        f.update(hidden_size=heads * wide, layer_norm_eps=f.pop("rms_norm_eps"), qk_layernorm=pick([True, False]),
                 hidden_act=pick(["relu2", "gelu"]),
                 rope_parameters=dict(ROPE[rope], rope_type=rope, rope_theta=pick([100.0, 10000.0]),
                                      partial_rotary_factor=pick([0.5, 1.0])))
    if name in ("youtu", "sarvam_mla", "axk1"):
        f["rope_parameters"] = pick([f["rope_parameters"], dict(ROPE["yarn"], rope_type="yarn", rope_theta=100.0),
                                     dict(ROPE["yarn"], rope_type="yarn", rope_theta=100.0, mscale=1.0, mscale_all_dim=0.7)])
        f["rope_interleave"] = pick([True, False])
    if name == "deepseek_v3":
        f["rope_interleave"] = pick([True, False])
        f["rope_parameters"] = pick([f["rope_parameters"], dict(f["rope_parameters"], mscale=0.707, mscale_all_dim=0.0),
                                     dict(rope_theta=100.0, rope_type="default")])
    if name in ("ministral3", "mistral4"):
        f["rope_parameters"] = dict(ROPE["yarn"], rope_type="yarn", rope_theta=pick([100.0, 10000.0]), factor=pick([2.5, 8.0]),
                                    original_max_position_embeddings=pick([3, 5, 16]), llama_4_scaling_beta=pick([0.1, 0.7]),
                                    **pick([{}, dict(mscale=1.0, mscale_all_dim=0.7), dict(beta_fast=8.0)]))
        if name == "ministral3":
            f["sliding_window"] = pick([None, 4, 7])
        else:
            f.update(n_group=pick([1, 3]), n_routed_experts=pick([6, 12]), topk_group=1, rope_interleave=pick([True, False]))
    if name in ("deepseek_v32", "glm_moe_dsa"):
        f.update(q_lora_rank=8, index_topk=pick([2, 4, 30]), index_head_dim=pick([6, 8, 10]))
    if name in ("olmo3", "gemma3_text"):
        rope = lambda kind: dict(ROPE[kind], rope_type=kind, rope_theta=pick([100.0, 10000.0, 500000.0]))
        f.update(rope_parameters=dict(full_attention=rope(pick(list(ROPE))), sliding_attention=rope("default")),
                 layer_types=[pick(["sliding_attention", "full_attention"]) for _ in range(layers)])
    if name == "gemma3_text":  # which transformers wants to be a multiple
        f.update(hidden_size=heads * pick([3, 4, 5]), attn_logit_softcapping=None)
    if name == "smollm3":
        rotates = [pick([0, 1]) for _ in range(layers)]
        f.update(no_rope_layers=pick([None, rotates]), no_rope_layer_interval=pick([1, 2, 4]),
                 use_sliding_window=pick([True, False]), sliding_window=pick([3, 5]))
    if name == "llama4":
        f.update(interleave_moe_layer_step=pick([1, 2, 3]), attention_chunk_size=pick([None, 2, 3, 5, 64]),
                 no_rope_layer_interval=pick([1, 2, 4]), intermediate_size_mlp=pick([8, 24]), floor_scale=pick([2, 5]),
                 no_rope_layers=pick([None, [], any_layers([0, 1])]), use_qk_norm=pick([True, False]),
                 moe_layers=pick([None, [i for i in range(layers) if pick([True, False])]]), attn_scale=pick([0.1, 0.4]),
                 attn_temperature_tuning=pick([True, False]), attention_bias=pick([True, False]))
        if f["attention_chunk_size"]:
            f["layer_types"] = pick([None, any_layers(["chunked_attention", "full_attention"])])
    if name.startswith("gemma4"):
        share, tied = pick([0.25, 0.5, 1.0]), pick([True, False])
        full = pick([dict(rope_type="proportional", rope_theta=100.0, partial_rotary_factor=share),
                     dict(rope_type="default", rope_theta=100.0), dict(ROPE["yarn"], rope_type="yarn", rope_theta=100.0)])
        f.update(global_head_dim=pick([4, 8, 12]), attention_k_eq_v=tied, final_logit_softcapping=pick([None, 3.0]),
                 num_global_key_value_heads=pick([None, f["num_key_value_heads"], heads]),
                 hidden_activation=pick(["gelu_pytorch_tanh", "gelu", "silu"]), attention_bias=pick([True, False]),
                 layer_types=any_layers(["sliding_attention", "full_attention"])[1:] + ["full_attention"],
                 use_bidirectional_attention=pick([None, "vision"]),
                 rope_parameters=dict(full_attention=full, sliding_attention=dict(rope_type="default", rope_theta=1000.0)))
    if name == "gemma4_moe":
        f.update(top_k_experts=pick([1, 2, 3]), moe_intermediate_size=pick([5, 8]), hidden_activation="gelu_pytorch_tanh")
    if name in ("gemma4_small", "gemma3n"):  # of each kind of layer one has keys of its own
        kinds = ["sliding_attention", "full_attention"]
        own, others = pick([kinds, kinds[::-1], kinds + kinds[:1]]), any_layers(kinds)[:2] + ["full_attention"]
        f.update(layer_types=own + others, num_hidden_layers=len(own + others), num_kv_shared_layers=len(others),
                 hidden_size_per_layer_input=pick([3, 6]), vocab_size_per_layer_input=pick([53, 60]))
    if name == "gemma4_small":
        f["use_double_wide_mlp"] = pick([True, False])
    if name == "gemma3n":
        rope = lambda kind: dict(ROPE[kind], rope_type=kind, rope_theta=pick([100.0, 10000.0, 500000.0]))
        f.update(hidden_size=heads * pick([4, 6]), final_logit_softcapping=pick([3.0, 30.0]), laurel_rank=pick([3, 5]),
                 altup_num_inputs=pick([1, 2, 4]), altup_correct_scale=pick([True, False]),
                 activation_sparsity_pattern=[pick([0.0, 0.3, 0.95]) for _ in f["layer_types"]],
                 hidden_activation=pick(["gelu_pytorch_tanh", "gelu", "silu"]), attention_bias=pick([True, False]),
                 rope_parameters=dict(full_attention=rope(pick(list(ROPE))), sliding_attention=rope("default")))
    if name in ("mistral", "mixtral"):
        f["sliding_window"] = pick([None, 3, 5])
    if name == "jais2":
        f["layer_norm_eps"] = f.pop("rms_norm_eps")
    if name in ("ministral", "cwm"):
        f["layer_types"] = pick([None, [pick(["sliding_attention", "full_attention"]) for _ in range(layers)]])
    if name.startswith("granite"):
        f.update(hidden_size=heads * pick([4, 6]), attention_bias=pick([True, False]),
                 embedding_multiplier=pick([1.0, 12.0]), residual_multiplier=pick([1.0, 0.22]),
                 attention_multiplier=pick([0.1, 1.0]), logits_scaling=pick([1.0, 8.0]))
    if name.endswith("_swa"):
        f["layer_types"] = pick([None, any_layers(["sliding_attention", "full_attention"])])
        f["layer_rope_theta"] = None
        if f["rope_parameters"]["rope_type"] == "default":
            f["layer_rope_theta"] = pick([None, any_layers([0, 50.0, 10000.0])])
    if name in ("granitemoeshared", "granitemoe_swa"):
        f["shared_intermediate_size"] = pick([0, 8, 12])
    if name in ("granite", "granite_swa"):
        f["mlp_bias"] = pick([True, False])
    if name == "granitemoehybrid":
        f.update(num_local_experts=pick([0, 4, 6]), position_embedding_type=pick(["rope", "nope", None]),
                 layer_types=[pick(["linear_attention", "full_attention"]) for _ in range(layers)],
                 shared_intermediate_size=pick([8, 12]))
    if name == "bamba":  # whose RoPE turns half of a head's channels, in pairs
        f.update(head_dim=pick([4, 8]), attn_layer_indices=[i for i in range(layers) if pick([True, False])])
    if name == "falcon_h1":
        factor = lambda: pick([1.0, 0.4, 1.7])
        f.update({field: factor() for field in f if field.endswith("_multiplier")},
                 mlp_multipliers=[factor() for _ in range(2)], ssm_multipliers=[factor() for _ in range(5)],
                 mamba_d_ssm=pick([None, 12, 24]), mamba_rms_norm=pick([True, False]),
                 mamba_norm_before_gate=pick([True, False]))
        f["attention_bias"] = f["attention_in_multiplier"] == 1 and pick([True, False])
    if "mamba_n_heads" in f:
        inner = f.get("mamba_d_ssm") or 2 * f["hidden_size"]
        f.update(mamba_d_state=pick([5, 6]), mamba_d_conv=pick([3, 4]),
                 mamba_conv_bias=pick([True, False]), mamba_chunk_size=pick([4, 8]),
                 mamba_n_heads=pick([h for h in (2, 4, 6) if inner % h == 0]),
                 time_step_limit=pick([(0.0, float("inf")), (0.01, 0.5)]))
        f["mamba_n_groups"] = pick([g for g in (1, 2, 3) if f["mamba_n_heads"] % g == 0])
    if name == "nemotron_h":
        groups = pick([1, 2])
        kinds = [pick(["linear_attention", "full_attention", "mlp", "moe"]) for _ in range(layers)]
        kinds[r.randrange(layers)] = pick(["linear_attention", "full_attention"])  # which see the padding
        f.update(layer_norm_epsilon=f.pop("rms_norm_eps"), layers_block_type=kinds, mamba_num_heads=pick([2, 4, 6]),
                 mamba_head_dim=pick([4, 6]), ssm_state_size=pick([5, 6]), conv_kernel=pick([3, 4]),
                 use_conv_bias=pick([True, False]), chunk_size=pick([4, 8]),
                 mlp_bias="moe" not in kinds and pick([True, False]), moe_latent_size=pick([None, 7]),
                 n_group=groups, topk_group=r.randint(1, groups), num_experts_per_tok=pick([1, 2]),
                 routed_scaling_factor=pick([1.0, 2.5]), norm_topk_prob=pick([True, False]),
                 moe_shared_expert_intermediate_size=pick([6, 12]))
        f["n_groups"] = pick([g for g in (1, 2, 3) if f["mamba_num_heads"] % g == 0])
    if name in ("lfm2", "lfm2_moe"):
        f.update(norm_eps=f.pop("rms_norm_eps"), conv_L_cache=pick([2, 3, 4]), conv_bias=pick([True, False]),
                 layer_types=[pick(["conv", "full_attention"]) for _ in range(layers)])
    if name == "lfm2":
        f.update(block_auto_adjust_ff_dim=pick([True, False]), block_multiple_of=pick([1, 8]),
                 block_ffn_dim_multiplier=pick([1.0, 1.3]))
    if name == "lfm2_moe":
        f.update(num_dense_layers=r.randint(0, layers), use_expert_bias=pick([True, False]),
                 routed_scaling_factor=pick([1.0, 2.5]), norm_topk_prob=pick([True, False]))
    if name == "minimax":
        f.update({field: pick([1, 0.7, 1.3]) for field in f if field.endswith("_factor")}, block_size=pick([2, 4, 256]),
                 layer_types=pick([None, any_layers(["linear_attention", "full_attention"])]))
    if name == "diffllama":
        f.update(num_attention_heads=heads * 2, num_key_value_heads=2 * f["num_key_value_heads"])
    if name == "minimax_m3":
        f.update(index_n_heads=f["num_key_value_heads"], index_block_size=pick([1, 2, 4]), index_topk_blocks=pick([2, 3]),
                 index_local_blocks=pick([1, 2]), swiglu_limit=pick([0.5, 7.0]), dense_intermediate_size=pick([8, 31]),
                 shared_intermediate_size=pick([5, 12]), routed_scaling_factor=pick([1.0, 2.0]),
                 index_head_dim=head_dim // 4 * 2 + pick([0, 2]), rotary_dim=head_dim // 4 * 2,
                 rope_parameters=dict(make_models.rope, partial_rotary_factor=head_dim // 4 * 2 / head_dim),
                 layer_types=any_layers(["full_attention", "minimax_m3_sparse"]),
                 mlp_layer_types=any_layers(["dense", "sparse"]))
    if name == "minimax_m2":
        f["rotary_dim"] = pick([head_dim // 4 * 2, head_dim])
    if name == "hy_v3":
        f.update(router_scaling_factor=pick([1.0, 2.8]), mlp_layer_types=pick([None, any_layers(["dense", "sparse"])]))
    if name == "mellum":
        rope = lambda kind: dict(ROPE[kind], rope_type=kind, rope_theta=pick([100.0, 10000.0, 500000.0]))
        f.update(rope_parameters=dict(full_attention=rope(pick(list(ROPE))), sliding_attention=rope(pick(list(ROPE)))),
                 layer_types=pick([None, any_layers(["sliding_attention", "full_attention"])]),
                 mlp_layer_types=pick([None, any_layers(["dense", "sparse"])]), norm_topk_prob=pick([True, False]))
    if name == "glm4v":
        wide, share = pick([4, 8]), pick([0.5, 1.0])
        f.update(hidden_size=heads * wide, rope_parameters=dict(
            rope_theta=pick([100.0, 10000.0]), rope_type="default", partial_rotary_factor=share,
            mrope_section=[int(wide * share) // 2, 0, 0]))
    if name in ("glm4_moe", "sarvam_moe", "glm4v_moe"):
        groups = pick([1, 2])
        f.update(n_group=groups, topk_group=r.randint(1, groups), first_k_dense_replace=r.randint(0, layers),
                 num_experts_per_tok=pick([1, 2]), routed_scaling_factor=pick([1.0, 2.5]),
                 use_qk_norm=pick([True, False]),
                 attention_bias=pick([True, False]), norm_topk_prob=pick([True, False]))
        share = {4: pick([0.5, 1.0]), 8: pick([0.25, 0.5, 1.0]), 10: 1.0}[head_dim]
        f["rope_parameters"]["partial_rotary_factor"] = share
        if name == "glm4v_moe":
            del f["use_qk_norm"]
            f["rope_parameters"]["mrope_section"] = [int(head_dim * share) // 2, 0, 0]
    if name == "bailing_hybrid":  # what it has written transformers reads again if head_dim is qk_rope_head_dim
        f.update(num_local_experts=f["num_local_experts"] // 2 * 2, q_lora_rank=pick([None, 8]),
                 head_dim=pick([f["qk_rope_head_dim"], 5]), layer_group_size=pick([1, 2, 3]),
                 layer_types=pick([None, [pick(["linear_attention", "full_attention"]) for _ in range(layers)]]),
                 short_conv_kernel_size=pick([3, 4]), kda_safe_gate=pick([True, False]),
                 kda_lower_bound=pick([-5.0, -1.0]), tie_word_embeddings=False)
    if name in ("phi3", "phi3_long"):
        wide, share = pick([4, 8]), pick([0.5, 1.0])
        f.update(hidden_size=heads * wide, head_dim=wide, sliding_window=pick([None, 3, 5]))
        f["rope_parameters"] = dict(rope_theta=pick([100.0, 10000.0]), rope_type="default", partial_rotary_factor=share)
        if name == "phi3_long" or pick([True, False]):
            factors = lambda: [pick([1.0, 1.3, 4.0]) for _ in range(int(wide * share) // 2)]
            f["rope_parameters"].update(rope_type="longrope", short_factor=factors(), long_factor=factors(),
                                        **pick([{}, dict(attention_factor=1.2), dict(factor=3.0)]))
            f["original_max_position_embeddings"] = pick([5, 8] if name == "phi3_long" else [24, 64])
    if name == "internlm3":
        f["attention_bias"] = f["mlp_bias"]
        f["hidden_size"] = heads * pick([4, 6])
        if pick([True, False]):
            f["rope_parameters"] = dict(rope_theta=100.0, rope_type="dynamic", factor=6.0)
            f["max_position_embeddings"] = pick([20, 64])
    if name == "seed_oss":
        f["attention_out_bias"] = pick([True, False])
    if name in ("starcoder2", "nemotron"):
        f["norm_epsilon" if name == "starcoder2" else "norm_eps"] = f.pop("rms_norm_eps")
    if name == "starcoder2":
        f.update(use_bias=pick([True, False]), sliding_window=pick([None, 3, 5]),
                 hidden_act=pick(["gelu_pytorch_tanh", "gelu"]))
    if name in ("nemotron", "glm", "glm4"):
        f["rope_parameters"] = dict(rope_theta=pick([100.0, 10000.0]), rope_type="default",
                                    partial_rotary_factor={4: pick([0.5, 1.0]), 8: pick([0.25, 0.5, 1.0]),
                                                           10: 1.0}[head_dim])
    if name == "ernie4_5_moe":
        f.update(moe_num_experts=pick([4, 6, 8]), moe_k=pick([1, 2, 3]), moe_num_shared_experts=pick([0, 1, 2]),
                 moe_layer_start_index=pick([0, 1, 2]), moe_layer_end_index=pick([-1, layers - 1, 1]),
                 moe_layer_interval=pick([1, 2]))
    if name == "helium":
        f["head_dim"] = f["hidden_size"] // heads
    if name in ("olmoe", "flex_olmo"):
        f["norm_topk_prob"] = pick([True, False])
    if name in ("exaone4", "exaone_moe"):
        f["layer_types"] = [pick(["sliding_attention", "full_attention"]) for _ in range(layers)]
        if name == "exaone4" and pick([True, False, False]):
            f.update(sliding_window=None, layer_types=["full_attention"] * layers)
    if name == "gemma":
        f["hidden_act"] = pick(["gelu_pytorch_tanh", "gelu", "silu"])
    if name in ("exaone_moe", "dots1", "solar_open"):
        groups = pick([1, 2])
        f.update(n_group=groups, topk_group=r.randint(1, groups), num_experts_per_tok=pick([1, 2]),
                 routed_scaling_factor=pick([1.0, 2.5]), norm_topk_prob=pick([True, False]))
        if name != "solar_open":
            f["first_k_dense_replace"] = r.randint(0, layers)
    if name == "dots1":
        f.update(max_window_layers=r.randint(0, layers), sliding_window=pick([None, 3, 5]))
    if name == "ernie4_5":
        f["use_bias"] = pick([True, False])
    if name == "glm4_moe_lite":  # which has no first_k_dense_replace
        del f["first_k_dense_replace"]
        f.update(rope_interleave=pick([True, False]),
                 mlp_layer_types=[pick(["dense", "sparse"]) for _ in range(layers)],
                 rope_parameters=pick([f["rope_parameters"], dict(ROPE["yarn"], rope_theta=100.0, rope_type="yarn",
                                                                  mscale=1.0, mscale_all_dim=0.7)]))
    if name == "kimi_linear":
        del f["first_k_dense_replace"]
        f.update(linear_num_heads=pick([1, 2, 3]), linear_head_dim=pick([4, 6]), tie_word_embeddings=False,
                 layer_types=[pick(["linear_attention", "full_attention"]) for _ in range(layers)],
                 mlp_layer_types=[pick(["dense", "sparse"]) for _ in range(layers)])
    softmax = ["sliding_attention", "full_attention"]
    if name in ("laguna", "lfm3"):
        shares = {4: [0.5, 1.0], 8: [0.25, 0.5, 1.0], 10: [1.0]}[head_dim]
        full, local = ({**ROPE[kind], "rope_type": kind, "rope_theta": pick([100.0, 10000.0])}
                       for kind in (pick(["default", "linear", "yarn"]), "default"))
        if name == "lfm3":
            full = pick([full, dict(rope_type="proportional", rope_theta=100.0, factor=pick([1.0, 2.0]),
                                    partial_rotary_factor=pick([0.25, 0.3, 0.5, 1.0]))])
        else:
            full["partial_rotary_factor"], local["partial_rotary_factor"] = pick(shares), pick(shares)
        f["rope_parameters"] = dict(full_attention=full, sliding_attention=local)
    if name == "laguna":
        f.update(gating=pick([True, "per-head", "per-element"]), layer_types=pick([None, any_layers(softmax)]),
                 mlp_layer_types=pick([None, any_layers(["dense", "sparse"])]), attention_bias=pick([True, False]),
                 num_attention_heads_per_layer=any_layers([f["num_key_value_heads"] * k for k in (1, 2, 3)]),
                 moe_routed_scaling_factor=pick([1.0, 2.5]))
    if name == "lfm3":
        f.update(norm_eps=f.pop("rms_norm_eps"), conv_L_cache=pick([2, 3, 7]), conv_bias=False,
                 use_sandwich_norm=pick([True, False]), use_attention_gate=pick([True, False]),
                 layer_types=any_layers(softmax + ["conv"]))
    if name == "lara_mini":
        f.update(layer_types=any_layers(softmax + ["linear_attention"]), norm_topk_prob=pick([True, False]),
                 attention_bias=pick([True, False]), rope_parameters=make_models.rope)
    if name == "mimo_v2_flash":
        groups, heads = pick([1, 2]), pick([2, 4, 6])
        share = {4: [0.5, 1.0], 8: [0.25, 0.5, 1.0], 10: [0.4, 1.0]}[head_dim]
        f.update(num_attention_heads=heads, num_key_value_heads=pick([d for d in (1, 2, 3) if heads % (2 * d) == 0]),
                 v_head_dim=pick([5, 8]), layer_types=pick([None, any_layers(softmax)]),
                 mlp_layer_types=pick([None, any_layers(["dense", "sparse"])]), n_group=groups,
                 topk_group=r.randint(1, groups), num_experts_per_tok=pick([1, 2]), norm_topk_prob=pick([True, False]),
                 routed_scaling_factor=pick([None, 2.5]), attention_value_scale=pick([None, 0.707, 1.3]),
                 rope_parameters={kind: dict(ROPE[scaled], rope_type=scaled, rope_theta=pick([100.0, 10000.0]),
                                             partial_rotary_factor=pick(share))
                                  for kind in softmax for scaled in ("default", )})
    if name in ("gpt_neox", "phi", "stablelm", "cohere", "cohere2", "cohere2_moe", "gpt_neox_japanese"):
        wide = pick([4, 8])
        rope = pick(list(ROPE))
        f.update(layer_norm_eps=f.pop("rms_norm_eps"), hidden_size=heads * wide,
                 rope_parameters=dict(ROPE[rope], rope_type=rope, rope_theta=pick([100.0, 10000.0])))
        if "cohere" in name:
            f.update(logit_scale=pick([0.0625, 1.0, 2.5]), attention_bias=pick([True, False]))
        elif rope == "default" or "neox" in name:
            f["rope_parameters"]["partial_rotary_factor"] = pick([0.5, 1.0] if wide == 4 else [0.25, 0.5, 1.0])
        else:
            f["rope_parameters"]["partial_rotary_factor"] = 0.5
    if name == "gpt_neox":
        del f["num_key_value_heads"]
        f.update(use_parallel_residual=pick([True, False]), attention_bias=pick([True, False]),
                 hidden_act=pick(["gelu", "gelu_new", "gelu_fast"]))
    if name == "gpt_neox_japanese":
        del f["num_key_value_heads"]
        f.update(intermediate_multiple_size=pick([1, 2, 4]), hidden_act=pick(["gelu", "gelu_new"]))
    if name == "phi":
        f.update(tie_word_embeddings=False, hidden_act=pick(["gelu", "gelu_new"]))
    if name == "stablelm":
        f.update(use_parallel_residual=pick([True, False]), use_qkv_bias=pick([True, False]))
    if name in ("cohere2", "cohere2_moe"):
        f["layer_types"] = pick([None, any_layers(["sliding_attention", "full_attention"])])
    if name == "cohere2_moe":
        f.update(head_dim=pick([4, 8]), rms_norm_eps=pick([None, 1e-6, 1e-3]), num_shared_experts=pick([0, 1, 2]),
                 expert_selection_fn=pick(["softmax", "sigmoid"]), norm_topk_prob=pick([True, False]),
                 shared_expert_combination_strategy=pick(["average", "sum"]),
                 prefix_dense_intermediate_size=pick([None, 20]), prefix_dense_sliding_window_pattern=pick([1, 2]),
                 sliding_window_pattern=pick([1, 2, 4]))
        dense = r.randint(0, layers)
        f.update(pick([dict(mlp_layer_types=any_layers(["dense", "sparse"])),
                       dict(mlp_layer_types=None, first_k_dense_replace=dense)]))
    if name == "falcon":
        del f["num_key_value_heads"]
        grouped = pick([True, False])
        f.update(layer_norm_epsilon=f.pop("rms_norm_eps"), hidden_size=heads * pick([4, 8]), bias=pick([True, False]),
                 new_decoder_architecture=grouped, multi_query=pick([True, False]),
                 parallel_attn=grouped or pick([True, False]), ffn_hidden_size=pick([None, 20]),
                 num_kv_heads=pick([d for d in range(1, heads + 1) if heads % d == 0]) if grouped else None,
                 num_ln_in_parallel_attn=pick([None, 1, 2]) if grouped else None)
    if name in ("glm5_next", "qwen4_exp"):
        pool = pick([1, 2, 3, 4])
        f.update(hidden_size=pick([12, 16, 20]),
                 layer_types=any_layers(["linear_attention", "linear_attention", "indexed_attention"]))
    if name == "glm5_next":
        del f["first_k_dense_replace"]
        f.update(num_key_value_heads=heads, kv_lora_rank=pick([4, 6, 9]), qk_rope_head_dim=0, qk_nope_head_dim=pick([3, 8]),
                 v_head_dim=pick([3, 6]), q_lora_rank=pick([5, 8]), linear_num_heads=pick([1, 2, 4]),
                 linear_head_dim=pick([3, 6]), linear_conv_kernel_dim=pick([2, 4]), index_kpool=pool,
                 linear_lower_bound=pick([None, -5.0, -2.0]), index_topk=pool * pick([1, 2, 3]), index_head_dim=pick([4, 6]),
                 swiglu_limit=pick([0.2, 0.7, 10.0]), hc_mult=pick([1, 2, 4]), hc_sinkhorn_iters=pick([1, 2, 5, 20]),
                 hc_eps=pick([1e-6, 1e-3]), mlp_layer_types=any_layers(["dense", "sparse"]), n_routed_experts=pick([6, 12]),
                 n_group=3, topk_group=pick([1, 2, 3]), num_experts_per_tok=pick([1, 2]), norm_topk_prob=pick([True, False]),
                 routed_scaling_factor=pick([1.0, 2.5]))
    if name == "qwen4_exp":
        linear = [i + 1 for i, kind in enumerate(f["layer_types"]) if kind == "linear_attention"]
        orders, hashes = pick([2, 3, 4]), pick([1, 2, 3])
        share = pick([0.5, 1.0])
        f["head_dim"] = pick([4, 8])
        f.update(linear_num_value_heads=f["linear_num_key_heads"] * pick([1, 2]), linear_conv_kernel_dim=pick([2, 4]),
                 hc_count=pick([2, 3, 4]), hc_lowrank=pick([3, 7]), indexer_head_dim=pick([10, 12]), num_experts_per_tok=2,
                 indexer_compress_ratio=pool, indexer_budget=pool * pick([1, 2, 3]), output_gate_type=pick([None, "silu", "sigmoid"]),
                 ple_layer_ids=[i for i in linear if pick([True, False])], ngram_size=orders, heads_per_ngram=hashes,
                 ple_embed_dim=(orders - 1) * hashes * pick([2, 3]), ple_conv_kernel_size=pick([1, 2, 4]),
                 ngram_vocab_size_base=pick([7, 50]), make_ngram_vocab_size_divisible_by=pick([1, 8, 128]),
                 split_ngram_parts=pick([1, 2, 5]), seed=pick([0, 1234, 99]), norm_topk_prob=pick([True, False]),
                 eos_token_id=pick([2, [5, 2]]), rope_parameters=dict(f["rope_parameters"], partial_rotary_factor=share))
    if name == "deepseek_v4":
        share = {4: pick([0.5, 1.0]), 8: pick([0.25, 0.5, 1.0]), 10: pick([0.4, 1.0])}[head_dim]
        rope = pick(list(ROPE))
        f.update(num_key_value_heads=1, q_lora_rank=pick([5, 8]), o_lora_rank=pick([3, 5]), partial_rotary_factor=share,
                 o_groups=pick([d for d in range(1, heads + 1) if heads % d == 0]), index_n_heads=pick([16, 24]),
                 index_head_dim=int(head_dim * share) + pick([0, 2, 3]), index_topk=pick([1, 2, 3, 30]),
                 compress_rates=dict(compressed_sparse_attention=pick([1, 2, 3, 4]),
                                     heavily_compressed_attention=pick([1, 2, 5, 8])),
                 layer_types=any_layers(["sliding_attention", "compressed_sparse_attention",
                                         "heavily_compressed_attention"]),
                 mlp_layer_types=any_layers(["hash_moe", "moe"]), scoring_func=pick(["sqrtsoftplus", "sigmoid"]),
                 rope_theta=pick([100.0, 10000.0]), compress_rope_theta=pick([1000.0, 160000.0]),
                 rope_parameters=pick([None, dict(ROPE[rope], rope_type=rope)]), swiglu_limit=pick([0.2, 0.7, 10.0]),
                 hc_mult=pick([1, 2, 4]), hc_sinkhorn_iters=pick([1, 2, 5, 20]), hc_eps=pick([1e-6, 1e-3]),
                 routed_scaling_factor=pick([1.0, 2.5]))
        del f["num_hash_layers"]
    if name == "gpt_bigcode":
        f["multi_query"] = pick([True, False])
    if name == "openai_gpt":
        f = make_models.gpt2_names({**f, "hidden_size": heads * pick([4, 6]), "afn": pick(["gelu", "relu"])})
    if name in ("gpt2", "gpt_bigcode", "gpt_neo", "gptj", "codegen"):
        f.update({"hidden_size": heads * pick([4, 8] if name == "codegen" else [4, 6]),
                  "activation_function": pick(["gelu_new", "gelu"]),
                  "intermediate_size" if name == "gpt_neo" else "n_inner": pick([None, 20])})
        if name in ("gptj", "codegen"):
            f.update(tie_word_embeddings=False, rotary_dim=pick([2, 4]))
        if name == "gpt_neo":
            kinds = any_layers(["global", "local"])
            f.update(attention_types=[[[kind], 1] for kind in kinds], window_size=pick([2, 4, 7]))
        f = make_models.gpt2_names(f)
    if name in ("mamba", "falcon_mamba"):
        f = make_models.without_attention(f)
        f.update(state_size=pick([1, 5, 6]), conv_kernel=pick([2, 3, 4]), expand=pick([1, 2, 3]),
                 use_conv_bias=pick([True, False]), use_bias=pick([True, False]),
                 time_step_rank=pick(["auto", 1, 3, 5]), layer_norm_epsilon=f.pop("rms_norm_eps"))
        if name == "falcon_mamba":
            f["mixer_rms_eps"] = pick([1e-6, 1e-3, 0.1])
    if name == "xlstm_7b":
        f = make_models.without_attention(f)
        f.update(num_heads=heads, hidden_size=heads * pick([4, 8]), qk_dim_factor=pick([0.25, 0.5, 1.0]),
                 v_dim_factor=pick([0.5, 1.0, 1.25]), ffn_proj_factor=pick([0.7, 2.667]), tie_word_embeddings=False,
                 ffn_round_up_to_multiple_of=pick([1, 5, 64]), chunk_size=pick([4, 8]), norm_eps=f.pop("rms_norm_eps"),
                 gate_soft_cap=pick([1.5, 15.0]), eps=pick([1e-6, 0.1]), output_logit_soft_cap=pick([3.0, 30.0]))
    if name == "recurrent_gemma":
        f.update(hidden_size=heads * pick([4, 8]), lru_width=pick([None, heads * pick([3, 6])]), conv1d_width=pick([2, 4]),
                 attention_window_size=pick([2, 4, 7]), logits_soft_cap=pick([3.0, 30.0]),
                 block_types=pick([["recurrent"], ["attention", "recurrent"], ["recurrent", "recurrent", "attention"]]),
                 attention_bias=pick([True, False]), tie_word_embeddings=True,
                 rope_parameters=dict(make_models.rope, partial_rotary_factor=pick([0.5, 1.0])))
    if name == "jamba":
        f.update(hidden_size=heads * pick([4, 6]), num_experts=pick([1, 4, 6]), attn_layer_period=pick([1, 2, 3]),
                 expert_layer_period=pick([1, 2, 3]), mamba_d_state=pick([1, 5, 6]), mamba_d_conv=pick([2, 3, 4]),
                 mamba_expand=pick([1, 2, 3]), mamba_dt_rank=pick(["auto", 1, 3, 5]),
                 mamba_conv_bias=pick([True, False]), mamba_proj_bias=pick([True, False]))
        f.update(attn_layer_offset=r.randrange(f["attn_layer_period"]),
                 expert_layer_offset=r.randrange(f["expert_layer_period"]),
                 num_experts_per_tok=pick([1, 2, 3]))
    if name == "mamba2":
        f = make_models.without_attention(f)
        f.update(hidden_size=pick([16, 24]), head_dim=pick([4, 8]), state_size=pick([5, 6]), conv_kernel=pick([3, 4]),
                 use_conv_bias=pick([True, False]), chunk_size=pick([4, 8]), layer_norm_epsilon=f.pop("rms_norm_eps"),
                 time_step_limit=pick([(0.0, float("inf")), (0.01, 0.5)]))
        f["num_heads"] = f["hidden_size"] * f["expand"] // f["head_dim"]
        f["n_groups"] = pick([g for g in (1, 2, 3) if f["num_heads"] % g == 0 and 2 * f["hidden_size"] % g == 0])
    return kind, f


def main(out, first, last, names):
    make_models.transformers.logging.set_verbosity_error()
    made, refused = 0, {}
    for name in names or make_models.FAMILIES:
        for seed in range(first, last):
            folder = os.path.join(out, f"{name}_{seed}")
            shutil.rmtree(folder, ignore_errors=True)
            try:
                make_models.make(*drawn(name, random.Random(f"{name} {seed}")), folder, seed)
                made += 1
            except Exception as e:  # whatever transformers says of a configuration
                shutil.rmtree(folder, ignore_errors=True)
                refused.setdefault(name, []).append(f"{seed}: {type(e).__name__} {str(e).splitlines()[0]}")
    print(made, "models")
    for name, why in refused.items():
        print(f"{name}: {len(why)} refused by transformers, the first: {why[0]}")


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
