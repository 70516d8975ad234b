// DeepSeek-V4, whose attention reads a window and rows of pools, and MiniMax-M3, whose queries choose blocks of keys.
#include <sluice/layers/models/families.h>

#include <utility>

namespace sluice::detail {

namespace {

constexpr const char *kSparse = "compressed_sparse_attention", *kHeavy = "heavily_compressed_attention";

/// RoPE of the layers with a window alone, or of those with pools. In published files rope_scaling belongs to the
/// second, and the first has the plain one.
void set_rope(const FamilyReader& r, CompressedAttentionOptions& o, bool pools) {
  const ModelConfig& c = r.config;
  if (c.has("rope_parameters.main.rope_theta")) {
    const std::string at = pools ? "rope_parameters.compress" : "rope_parameters.main";
    c.at<double>(at + ".partial_rotary_factor");  // transformers' default is 1, whatever stands outside
    o.rope = r.rope(o.head_dim, at);
    c.ignore("rope_theta compress_rope_theta partial_rotary_factor qk_rope_head_dim");
    o.rope_dim = std::exchange(o.rope.rot_dim, 0);
    if (o.rope_dim == 0) o.rope_dim = o.head_dim;
  } else {
    o.rope_dim = c.at<int64_t>("qk_rope_head_dim");
    o.rope.base = c.at<double>(pools ? "compress_rope_theta" : "rope_theta");
    if (pools && (c.has("rope_scaling.type") || c.has("rope_scaling.rope_type"))) {
      c.assume(str("{\"rope_scaling.rope_theta\": ", o.rope.base, ", \"rope_scaling.attention_factor\": 1}"));
      o.rope = r.rope(o.rope_dim, "rope_scaling");
      c.ignore("rope_scaling.attention_factor");  // of kinds other than yarn
    }
  }
  o.rope.pairing = RopePairing::interleaved;
}

/// The layers of each kind: with a window alone, with chosen rows of small pools, with all rows of large ones.
struct Kinds {
  std::vector<int64_t> window, sparse, heavy;
};
Kinds kinds_of(const FamilyReader& r) {
  const ModelConfig& c = r.config;
  if (c.has("layer_types")) {
    const std::vector<std::string> all{"sliding_attention", kSparse, kHeavy};
    c.ignore("compress_ratios");
    return {r.typed("layer_types", all[0], all), r.typed("layer_types", kSparse, all),
            r.typed("layer_types", kHeavy, all)};
  }
  const auto ratios = c.at<std::vector<int64_t>>("compress_ratios");  // those of the MTP layers may follow
  if (std::ssize(ratios) < r.layers) c.refuse("compress_ratios", str("need ", r.layers, " entries"));
  const auto with = [&](int64_t ratio) {
    return r.where([&](int64_t layer) { return ratios[static_cast<std::size_t>(layer)] == ratio; });
  };
  Kinds k{with(0), with(4), with(128)};
  if (std::ssize(k.window) + std::ssize(k.sparse) + std::ssize(k.heavy) != r.layers)
    c.refuse("compress_ratios", "known: 0, 4, 128");
  return k;
}

/// The names of DeepSeek's own files; transformers writes the same behind "model.".
void v4_names(FamilyReader& r) {
  r.usual_names();
  if (!r.has("model.layers.")) {
    r.outer_names("", "embed", "layers", "norm");
    r.rename("^streams\\.", "hc_head_");
    r.rename("^hc_head_map\\.weight", "hc_head_fn");
  } else {
    r.rename("^streams\\.map\\.weight", "model.hc_head.hc_fn");
    r.rename("^streams\\.", "model.hc_head.hc_");
  }
  r.rename("^lm_head\\.", "head.");
  r.members("self_attn", {{"q_down", "wq_a"},
                          {"q_up", "wq_b"},
                          {"kv", "wkv"},
                          {"kv_norm", r.has("attn.kv_norm.") ? "kv_norm" : "norm"},
                          {"sink", "attn_sink"},
                          {"index_q", "indexer.wq_b"},
                          {"index_weights", "indexer.weights_proj"},
                          {"index_compressor", "indexer.compressor"},
                          {"out_down", "wo_a"},
                          {"out_up", "wo_b"}});
  r.members("compressor", {{"value", "wkv"}, {"gate", "wgate"}, {"position", "ape", {.layout = PyTorchLayout::as_is}}});
  r.rename("input_layernorm\\.", "attn_norm.");
  r.rename("post_attention_layernorm\\.", "ffn_norm.");
  r.rename("(mixer|feed)_streams\\.map\\.weight", "$1_streams.fn");
  r.rename("mixer_streams\\.", "hc_attn_");
  r.rename("feed_streams\\.", "hc_ffn_");
}

/// Experts in every layer. In the first ones, `hash`, a token's number says which experts it goes to.
void v4_feeds(FamilyReader& r) {
  const ModelConfig& c = r.config;
  MoeOptions o = r.moe({"n_routed_experts", "num_local_experts"});
  const std::string score = c.at<std::string>("scoring_func");
  if (score == "sqrtsoftplus") o.router = MoeRouter::sqrt_softplus;
  else if (score == "sigmoid") o.router = MoeRouter::sigmoid;
  else c.refuse("scoring_func", known({"sqrtsoftplus", "sigmoid"}));
  c.must_be("norm_topk_prob", true), c.must_be("topk_method", std::string("noaux_tc"));
  c.must_be("n_shared_experts", int64_t{1}), c.must_be("mlp_bias", false);
  o.scale = c.at<double>("routed_scaling_factor");
  o.shared_hidden = o.hidden, o.shared_gate = false;
  o.activation = MoeActivation::swiglu_limited, o.swiglu_limit = c.at<double>("swiglu_limit");
  const auto hashed = c.has("mlp_layer_types") ? -1 : c.at<int64_t>("num_hash_layers");
  const std::vector<int64_t> hash = hashed < 0 ? r.typed("mlp_layer_types", "hash_moe", {"moe"})
                                               : r.where([&](int64_t layer) { return layer < hashed; });
  MoeOptions by_choice = o, by_number = o;
  by_choice.router_bias = true, by_number.token_table = r.plan.options.vocabulary;
  r.experts(r.all(), by_choice, "shared_experts");
  for (const int64_t layer : hash) r.block(layer).feed = by_number;
  r.rename("mlp\\.router_bias$", "mlp.gate.bias");
  r.rename("mlp\\.token_experts$", "mlp.gate.tid2eid", {.layout = PyTorchLayout::as_is});
  for (const auto& [ours, theirs] : {std::pair("gate_proj", "w1"), {"down_proj", "w2"}, {"up_proj", "w3"}})
    r.rename(str("(experts\\.(?:\\d+\\.)?)", ours), str("$1", theirs));
}

/// DeepSeek-V4: a window of keys beside rows of pools, one head of keys that are the values, RoPE turned back on what
/// is attended; residual streams, which a mixture of its own ends; experts, in the first layers by the tokens' numbers.
void read_deepseek_v4(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.rotary_share = 1;
  CompressedAttentionOptions o{.dim = r.plan.options.dim, .heads = c.at<int64_t>("num_attention_heads")};
  o.head_dim = c.at<int64_t>("head_dim"), o.q_rank = c.at<int64_t>("q_lora_rank");
  o.window = c.at<int64_t>("sliding_window");
  o.out_groups = c.at<int64_t>("o_groups"), o.out_rank = c.at<int64_t>("o_lora_rank");
  o.norm_eps = r.plan.options.norm_eps;
  o.index_heads = c.at<int64_t>("index_n_heads"), o.index_dim = c.at<int64_t>("index_head_dim");
  c.must_be("num_key_value_heads", int64_t{1}), c.must_be("attention_bias", false);
  c.ignore("router_jitter_noise");
  const Kinds kinds = kinds_of(r);
  CompressedAttentionOptions near = o, heavy = o;
  near.pool = near.topk = 0, set_rope(r, near, false);
  set_rope(r, o, true), heavy = o;
  const std::string rates = "compress_rates.";
  o.pool = r.positive(rates + kSparse, c.get<int64_t>("compress_rate_csa", 4));
  heavy.pool = r.positive(rates + kHeavy, c.get<int64_t>("compress_rate_hca", 128));
  o.topk = r.positive("index_topk"), heavy.topk = 0, heavy.overlap = false;
  r.mixers(kinds.window, near), r.mixers(kinds.sparse, o), r.mixers(kinds.heavy, heavy);
  HyperConnectionOptions streams{.dim = r.plan.options.dim, .norm_eps = r.plan.options.norm_eps};
  streams.streams = c.at<int64_t>("hc_mult"), streams.eps = c.at<double>("hc_eps");
  streams.iterations = c.at<int64_t>("hc_sinkhorn_iters");
  r.plan.options.streams = streams, r.plan.options.mixes_streams = true;
  v4_names(r);
  v4_feeds(r);
  r.rename("\\.self_attn\\.", ".attn.");
  r.rename("\\.mlp\\.", ".ffn.");
}

/// Feeds of MiniMax-M3: gpt-oss' activation everywhere, experts chosen by σ and a shared one. Files may have one map
/// for gate and value.
void m3_feeds(FamilyReader& r, const std::vector<int64_t>& dense) {
  const ModelConfig& c = r.config;
  const std::string act = c.get("hidden_act", std::string("silu"));  // transformers writes silu whatever it computes
  if (act != "silu" && act != "swigluoai") c.refuse("hidden_act", "known: swigluoai");
  MoeOptions moe = r.moe({"num_local_experts"});
  moe.router = MoeRouter::sigmoid, moe.router_bias = true, moe.norm_topk_eps = 0;
  moe.scale = c.get("routed_scaling_factor", 2.0);
  moe.activation = MoeActivation::swiglu_oai, moe.swiglu_limit = r.factor("swiglu_limit", 7.0, 7.0);
  c.must_be("swiglu_alpha", moe.swiglu_alpha);
  moe.shared_hidden = r.positive("shared_intermediate_size"), moe.shared_gate = false;
  c.must_be<int64_t>("n_shared_experts", 1);
  c.must_be("scoring_func", std::string("sigmoid"));
  c.must_be("use_routing_bias", true);
  const GluOptions wide{.dim = r.plan.options.dim,
                        .hidden = r.positive("dense_intermediate_size"),
                        .kind = GluKind::swiglu_oai,
                        .limit = moe.swiglu_limit};
  r.dense(dense, wide);
  r.rename("mlp\\.router_bias$", "mlp.gate.e_score_correction_bias");
  r.experts(r.others_than(dense), moe, "shared_experts");
  r.block_sparse_moe("\\.mlp\\.(?=gate\\.|experts\\.|shared_experts\\.)");
  r.rename("block_sparse_moe\\.gate\\.e_score", "block_sparse_moe.e_score");
  if (!r.has("mlp.gate_up_proj.") && !r.has("shared_experts.gate_up_proj.")) return;
  r.rename("(mlp|shared_experts)\\.gate_proj\\.", "$1.gate_up_proj.", {.part = 0});
  r.rename("(mlp|shared_experts)\\.up_proj\\.", "$1.gate_up_proj.", {.part = 1});
}

/// MiniMax-M3: attention with RoPE on a part of a head's channels and norms of w − 1, in most layers to the blocks of
/// keys that an index chooses for each key head.
void read_minimax_m3(FamilyReader& r) {
  const ModelConfig& c = r.config;
  r.rotary_share = c.get("rope_parameters.partial_rotary_factor", c.get("partial_rotary_factor", r.rotary_dim_share()));
  MultiHeadAttentionOptions full = r.attention();
  c.must_be("attention_bias", false);
  full.qk_norm = true;
  const std::string at = "sparse_attention_config.";
  const auto size = [&](const char* transformers, const char* published) {
    return c.any_of<int64_t>({transformers, at + published});
  };
  c.must_be("use_qk_norm", true);
  c.must_be("qk_norm_type", std::string("per_head"));
  c.must_be("use_gemma_norm", true);
  c.must_be(at + "use_sparse_attention", true);
  c.must_be(at + "sparse_score_type", std::string("max"));
  c.must_be<int64_t>(at + "sparse_init_block", 0);
  c.ignore("router_jitter_noise");
  MsaAttentionOptions sparse{.heads = full.heads, .norm_eps = r.plan.options.norm_eps};
  sparse.sizes.block = size("index_block_size", "sparse_block_size");
  sparse.sizes.count = size("index_topk_blocks", "sparse_topk_blocks");
  sparse.sizes.local = size("index_local_blocks", "sparse_local_block");
  sparse.index_dim = size("index_head_dim", "sparse_index_dim");
  if (size("index_n_heads", "sparse_num_index_heads") != full.heads.kv_heads)
    c.refuse("index_n_heads", "it must be num_key_value_heads");
  // The layers for which a list has this entry, by transformers' name or by the published one.
  const auto chosen = [&](const char* types, const std::string& value, const char* other, const std::string& flags) {
    if (c.has(types) || !c.has(flags)) return r.typed(types, value, {other});
    const auto flag = r.of_layers<int64_t>(flags);
    return r.where([&](int64_t i) { return flag[static_cast<std::size_t>(i)] != 0; });
  };
  r.mixers(full);
  r.mixers(chosen("layer_types", "minimax_m3_sparse", "full_attention", at + "sparse_attention_freq"), sparse);
  r.usual_names();
  const char* const of = r.has("indexer.") ? "indexer." : "index_";
  r.members("self_attn",
            {{"index_([qk])", of + std::string("$1_proj")}, {"index_([qk])_norm", of + std::string("$1_norm")}});
  m3_feeds(r, r.others_than(chosen("mlp_layer_types", "sparse", "dense", "moe_layer_freq")));
  r.rename("(layernorm|[qk]_norm|model\\.norm)\\.weight", "$&", {.add = 1});
}

}  // namespace

std::span<const ModelFamily> compressed_families() {
  static constexpr ModelFamily all[] = {
      {"deepseek_v4", read_deepseek_v4},
      {"minimax_m3_vl_text", read_minimax_m3, R"({"rope_theta": 5000000})"},
  };
  return all;
}

}  // namespace sluice::detail
