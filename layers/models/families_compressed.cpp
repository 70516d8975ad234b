// DeepSeek-V4, whose attention reads a window and rows of pools.
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

}  // namespace

std::span<const ModelFamily> compressed_families() {
  static constexpr ModelFamily all[] = {{"deepseek_v4", read_deepseek_v4}};
  return all;
}

}  // namespace sluice::detail
