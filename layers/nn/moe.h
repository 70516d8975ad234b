// A feed-forward mixture of experts (Shazeer et al. 2017, "Outrageously Large Neural Networks"): a router sends each
// token to k of E gated MLPs.
//
//   s = softmax, σ or √softplus of x·Wr     T = the k largest of s + b     w_i = s_i, or s_i/Σ_T s
//   y = c·Σ_{i ∈ T} w_i·(silu(x·Wg_i) ⊙ (x·Wu_i))·Wd_i  +  σ(x·w_s)·shared(x)
//
// Gradients flow through s and w, not through the choice T. softmax: Mixtral, Qwen3. A shared expert with a gate for
// each token: Qwen2-MoE, Qwen3-Next. σ, with the bias b for the choice alone: DeepSeek-V3, Kimi Linear, Trinity. With
// groups of experts, T comes from the best groups alone (DeepSeek-V2, §2.2.2; DeepSeek-V3, §2.1.2). gpt-oss has biases
// in all maps, and clamps g = x·Wg_i and u = x·Wu_i: (u + 1) ⊙ g ⊙ σ(α·g) with g <= l, |u| <= l. DeepSeek-V4
// and GLM-5.3 clamp g and u alike, in the shared expert, too, and keep u ⊙ silu(g). Nemotron 3 has no gate. Its experts
// may read a latent z = x·W_down, and W_up maps their sum back: y = (c·Σ w_i·relu²(z·Wu_i)·Wd_i)·W_up. In the first
// layers of DeepSeek-V4 a table says T for each number of a token; s gives the weights alone. The experts of Llama 4
// read w_i·x, and their outputs are added as they are. Those of Gemma 4 gate with gelu and read RMS(x), while the
// router reads RMS'(x)/√dim, and w_i also has a factor that each expert learns.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>

namespace sluice {

enum class MoeRouter { softmax, sigmoid, sqrt_softplus };
constexpr const char* choices(MoeRouter) { return "softmax sigmoid sqrt_softplus"; }

enum class MoeActivation {
  swiglu,          // u ⊙ silu(g)
  swiglu_oai,      // (u + 1) ⊙ g ⊙ σ(α·g) with g <= l and |u| <= l (gpt-oss)
  relu2,           // relu(u)², without Wg (Nemotron 3)
  swiglu_limited,  // u ⊙ silu(g) with g <= l and |u| <= l (DeepSeek-V4, GLM-5.3)
  geglu_tanh,      // u ⊙ gelu_tanh(g) (Gemma 4)
};
constexpr const char* choices(MoeActivation) { return "swiglu swiglu_oai relu2 swiglu_limited geglu_tanh"; }

struct MoeOptions {
  using Layer = struct Moe;
  int64_t dim;
  int64_t hidden = 0;  // m of an expert; 0 means dim
  int64_t latent = 0;  // width of what the experts read and write; 0: dim, without W_down and W_up
  int64_t experts = 8, top_k = 2;
  MoeRouter router = MoeRouter::softmax;
  bool norm_topk = true;         // the weights of the chosen experts sum to c
  double norm_topk_eps = 1e-20;  // added to Σ_T s; DeepSeek: 1e-20, LFM2: 1e-6
  double scale = 1;              // c
  bool router_bias = false;      // b [experts], not trained by gradients
  bool logit_bias = false;       // a bias of x·Wr, trained
  bool expert_factor = false;    // w_i times a learned number of expert i
  bool norms = false;            // experts read RMSNorm(x), the router RMSNorm'(x)/√dim; each has its own weights
  double norm_eps = 1e-6;        // of these norms
  int64_t token_table = 0;       // > 0: T follows from a token's number, which is less; see by_tokens()
  int64_t groups = 1;            // groups of experts/groups neighbouring experts
  int64_t top_groups = 1;        // groups from which a token's experts come
  int64_t group_best = 1;        // number of largest s + b that add up to a group's score; DeepSeek-V2: 1, V3: 2
  bool weigh_input = false;      // an expert reads w_i·x, and its output has no weight (Llama 4)
  bool expert_bias = false;      // biases of Wg_i, Wu_i and Wd_i
  MoeActivation activation = MoeActivation::swiglu;
  double swiglu_limit = 7, swiglu_alpha = 1.702;  // l; α of swiglu_oai
  int64_t shared_hidden = 0;                      // width of an expert that all tokens go to; 0: none
  bool shared_gate = true;                        // the factor σ(x·w_s) of the shared expert
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("hidden", o.hidden, at_least(0), "width of an expert; 0: dim");
    f("latent", o.latent, at_least(0), "width of what the experts, but not the shared one, read and write; 0: dim");
    f("experts", o.experts, at_least(1), "number of experts");
    f("top_k", o.top_k, at_least(1), "experts of a token");
    f("router", o.router, "scores of the experts");
    f("norm_topk", o.norm_topk, "divide the weights of the chosen experts by their sum");
    f("norm_topk_eps", o.norm_topk_eps, at_least(0), "added to that sum");
    f("scale", o.scale, any_number(), "factor of the chosen experts' sum");
    f("router_bias", o.router_bias, "a bias that only the choice sees, not trained by gradients");
    f("logit_bias", o.logit_bias, "a trained bias of the router's logits");
    f("expert_factor", o.expert_factor, "an expert's weight also times a number that it learns");
    f("norms", o.norms, "experts read RMSNorm(x), the router RMSNorm(x)/sqrt(dim) with other weights");
    f("norm_eps", o.norm_eps, at_least(0), "of these norms");
    f("token_table", o.token_table, at_least(0), "> 0: a table says a token's experts by its number, which is less");
    f("groups", o.groups, at_least(1), "number of groups of experts");
    f("top_groups", o.top_groups, at_least(1), "the best groups, from which a token's experts come");
    f("group_best", o.group_best, at_least(1), "a group's score is the sum of so many of its largest s + b");
    f("weigh_input", o.weigh_input, "an expert's weight multiplies what it reads, not what it writes");
    f("expert_bias", o.expert_bias, "biases of the experts' maps");
    f("activation", o.activation,
      "u silu(g); with g <= l, |u| <= l the same or (u + 1) g sigmoid(alpha g); relu(u)^2, no g; or u gelu_tanh(g)");
    f("swiglu_limit", o.swiglu_limit, at_least(0), "l of swiglu_oai and swiglu_limited");
    f("swiglu_alpha", o.swiglu_alpha, any_number(), "alpha of swiglu_oai");
    f("shared_hidden", o.shared_hidden, at_least(0), "width of an expert for all tokens; 0: none");
    f("shared_gate", o.shared_gate, "times sigmoid(x w_s)");
    describe_parameters(o, f);
  }
};

/// A matrix for each expert.
struct ExpertMaps {
  static constexpr const char* type = "ExpertMaps";
  Tensor weight;  // [experts, in, out]
  Tensor bias;    // [experts, out]
  /// Applies the matrix of expert e: x [tokens, in] → [tokens, out].
  Tensor operator()(const Tensor& x, int64_t e) const;
  SLUICE_PARTS(weight, bias);
};

struct Moe {
  static constexpr const char* type = "Moe";
  static constexpr bool keeps_f32(std::string_view part) { return part == "router_bias"; }
  MoeOptions options{};
  Norm norm, router_norm;  // of what the experts and the router read, with options.norms
  Linear router;           // Wr
  Tensor expert_factor;    // [experts], initially 1
  Tensor router_bias;      // of dtype exact(dtype)
  Tensor token_experts;    // i64 [token_table, top_k], not trained; initially experts in turn
  Linear latent_down, latent_up;
  ExpertMaps gate, up, down;
  Linear shared_gate_proj, shared_up, shared_down, shared_gate;

  Moe() = default;
  Moe(MoeOptions o, Rng& rng);
  /// x [..., dim] → the same shape. One product takes all tokens of an expert; its rounding depends on their number.
  Tensor operator()(const Tensor& x) const;
  Tensor operator()(const Tensor& x, const Pass&) const { return (*this)(x); }
  /// The same with options.token_table > 0, where `tokens` i64 [...] holds the number of each row's token.
  Tensor by_tokens(const Tensor& x, const Tensor& tokens) const;

  /// The routing of x [tokens, dim].
  struct Routing {
    Tensor scores;   // s [tokens, experts]; f32 for bf16
    Tensor chosen;   // i64 [tokens, top_k], the best first
    Tensor weights;  // c·w [tokens, top_k]
  };
  /// Scores and choices for x [tokens, dim], with options.token_table > 0 of the tokens with these `numbers`, i64
  /// [tokens]. ShapeError for another shape.
  Routing route(const Tensor& x, const Tensor& numbers = {}) const;

  SLUICE_PARTS(norm, router_norm, router, expert_factor, router_bias, token_experts, latent_down, gate, up, down,
               latent_up, shared_gate_proj, shared_up, shared_down, shared_gate);
};

/// The formula of moe_balance_loss().
enum class MoeBalance {
  switch_transformer,  // E·Σ_i (k·f_i)·P_i (Fedus et al. 2021; transformers): k where tokens are spread evenly
  deepseek,            // E·Σ_i f_i·P_i of scores that sum to 1 (DeepSeek-V3): 1 where they are
};
/// The auxiliary loss of routing: f_i is the share of all choices that fall on expert i, without gradient, and P_i the
/// mean score of expert i. A scalar; 0 for no tokens.
Tensor moe_balance_loss(const Moe::Routing& routing, MoeBalance kind = MoeBalance::switch_transformer);

}  // namespace sluice
