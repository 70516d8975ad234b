// Attention with latent keys and values, and differential attention.
#include "registry.h"

#include <sluice/layers/attention/mla.h>

namespace layer_check {

using namespace sluice;

namespace {

void sequence(Layer& l) {
  l.input("x [batch, n, dim]")
      .key_mask()
      .input(Kind::integer, "segments? [batch, n]", "document numbers", "len(stream) == 0");
}

}  // namespace

void add_mla(std::vector<Layer>& all) {
  add(all, "mla", "attention",
      "q = x Wq or RMSNorm(x Wdq) Wuq, per head [q_n | q_r]; [c | k_r] = x Wdkv, c = RMSNorm(c); RoPE on q_r, k_r; "
      "[k_n | v] = c Wukv; with topk to the keys of the best index scores, or to those of pools; y = (softmax((q_n "
      "k_n' + q_r k_r')/sqrt(dn "
      "+ dr)) v [* sigmoid(x Wg)]) Wo",
      "DeepSeek-AI 2024 (DeepSeek-V2), arXiv 2405.04434")
      .also(sequence)
      .input(Kind::boolean, "mask? broadcast [batch, heads, n, n]", "true: may be seen", "len(stream) == 0")
      .input("bias? broadcast [batch, heads, n, n]", "added to the scores", "len(stream) == 0")
      .dense("q", "dim", "heads*(nope_dim + rope_dim)", "False", "", "q_rank == 0")
      .dense("q_down", "dim", "q_rank", "False", "Wdq", "q_rank > 0")
      .parameter("q_norm.weight [q_rank]", "", "q_rank > 0")
      .dense("q_up", "q_rank", "heads*(nope_dim + rope_dim)", "False", "Wuq", "q_rank > 0")
      .dense("kv_down", "dim", "kv_rank + rope_dim", "False", "Wdkv")
      .parameter("kv_norm.weight [kv_rank]")
      .parameter("rope_norm.weight [rope_dim]", "", "rope_norm and rope_dim > 0")
      .dense("kv_up", "kv_rank", "heads*(nope_dim + value_dim)", "False", "Wukv")
      .dense("gate", "dim", "heads if gate == 'headwise' else heads*value_dim", "False", "Wg", "gate != 'none'")
      .dense("out", "heads*value_dim", "dim", "False", "Wo")
      .dense("indexer.q", "q_rank", "index_heads*index_dim", "False", "", "topk > 0")
      .dense("indexer.k", "dim", "index_dim", "False", "", "topk > 0")
      .parameter("indexer.k_norm.weight [index_dim]", "", "topk > 0")
      .parameter("indexer.k_norm.bias [index_dim]", "", "topk > 0")
      .dense("indexer.weights", "dim", "index_heads", "False", "", "topk > 0")
      .dense("indexer.pool_gate", "dim", "index_dim", "False", "", "index_pool > 0")
      .parameter("indexer.pool_position [index_pool, index_dim]", "", "index_pool > 0")
      .output("[batch, n, dim]")
      .output("latent [batch, n, kv_rank]", "c, as a stream keeps it", "len(stream) == 0")
      .output("k_rope [batch, n, rope_dim]", "the rotary key, as a stream keeps it", "len(stream) == 0")
      .samples({{{"q_rank", 5}, {"nope_dim", 3}, {"rope_dim", 4}, {"value_dim", 5}, {"kv_rank", 7}, {"heads", 2}},
                {{"gate", "headwise"}, {"heads", 3}, {"form", "absorbed"}, {"rope_norm", true}},
                {{"gate", "elementwise"}, {"heads", 2}, {"use_rope", false}, {"causal", false}},
                {{"heads", 2}, {"kv_rank", 3}, {"stream", Json::List{3, 1, 2}}}})
      .draft = module_layer<Mla, MlaOptions>(
      [](const Mla& l, const Inputs& in) {
        const Tensor y = l(in["x"], pass_of(in)), x = checked_input("mla", in["x"], l.options.dim, in["key_mask"]);
        const std::vector<Tensor> part = split(l.latents(x), {l.options.kv_rank, l.options.rope_dim}, -1);
        return Results{{"", y}, {"latent", part[0]}, {"k_rope", part[1]}};
      },
      true);
  add(all, "diff_attention", "attention",
      "version 1: y = ((1 - lambda_init) norm(Attn(q1, k1, v) - lambda Attn(q2, k2, v))) Wo, lambda = e^(lq1 lk1) - "
      "e^(lq2 lk2) + lambda_init; version 2: y = (a_2i - sigmoid(x Wlambda)_i a_(2i+1)) Wo, a = Attn(q, k, v)",
      "Ye et al. 2024, arXiv 2410.05258; Microsoft 2026")
      .derive({{"g", "kv_heads or heads"},
               {"first", "version == 1"},
               {"dk", "head_dim or (dim // (2*heads) if first else dim // heads)"}})
      .also(sequence)
      .dense("q", "dim", "2*heads*dk", "False")
      .dense("k", "dim", "2*g*dk if first else g*dk", "False")
      .dense("v", "dim", "2*g*dk if first else g*dk", "False")
      .dense("out", "2*heads*dk if first else heads*dk", "dim", "False")
      .parameter("lambda_q1 [dk]", "", "first")
      .parameter("lambda_k1 [dk]", "", "first")
      .parameter("lambda_q2 [dk]", "", "first")
      .parameter("lambda_k2 [dk]", "", "first")
      .norm("norm", "norm", "2*dk", "first")
      .dense("lambda", "dim", "heads", "False", "", "not first")
      .output("[batch, n, dim]");
}

}  // namespace layer_check
