// The Transformer block (Vaswani et al. 2017; pre-norm: Xiong et al. 2020) with any attention and any feed-forward
// layer.
//
//   pre:   h = x + A(norm(x)),      y = h + F(norm(h))
//   post:  h = norm(α·x + A(x)),    y = norm(α·h + F(h))       α ≠ 1 is DeepNorm (Wang et al. 2022)
//
//   const HeadsOptions heads{.dim = 64, .heads = 4, .causal = true, .use_rope = true};
//   TransformerBlock block(MultiHeadAttention(heads, rng), Glu({.dim = 64}, rng), {.norm = NormKind::rms});
//   std::vector<TransformerBlock<Gla, Mlp>> blocks;
#pragma once

#include <sluice/core/node.h>
#include <sluice/core/scope.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/elementwise/elementwise.h>

#include <utility>

namespace sluice {

struct TransformerBlockOptions {
  NormKind norm = NormKind::layer;
  double norm_eps = 1e-5;
  NormPlacement placement = NormPlacement::pre;
  double residual_scale = 1;  // α, with placement post
  double dropout = 0;         // on A(…) and F(…)

  static void describe(auto& o, auto& f) {
    f("norm", o.norm, "before or after both branches");
    f("norm_eps", o.norm_eps, at_least(0), "of the norms");
    f("placement", o.placement, "pre: x + F(norm(x)); post: norm(residual_scale*x + F(x))");
    f("residual_scale", o.residual_scale, any_number(), "DeepNorm's alpha, with placement post");
    f.training("dropout", o.dropout, probability(), "on both branches");
  }
};

namespace detail {
/// Width and dtype of a layer, and whether the layer itself adds its input to its output.
struct BranchFacts {
  int64_t dim;
  DType dtype;
  bool adds_input = false;
};
template <class A> BranchFacts facts_of(const A& a) {
  BranchFacts facts{};
  if constexpr (requires { a.options.heads.dim; }) facts = {a.options.heads.dim, a.options.heads.dtype};
  else {
    static_assert(
        requires { a.options.dim, a.options.dtype; },
        "a block asks each of its layers for options.dim and options.dtype");
    if constexpr (requires { a.options.dim, a.options.dtype; }) facts = {a.options.dim, a.options.dtype};
  }
  if constexpr (requires { bool(a.options.heads.residual); }) facts.adds_input = a.options.heads.residual;
  else if constexpr (requires { bool(a.options.residual); }) facts.adds_input = a.options.residual;
  else if constexpr (requires { A::adds_input; }) facts.adds_input = A::adds_input;
  facts.dtype = compute_dtype(members(a), facts.dtype);  // options.dtype does not follow to() and load_model()
  return facts;
}
void check_block(const TransformerBlockOptions& o, const BranchFacts& attention, const BranchFacts& feed);
/// scale·x + dropout(f); without rng scale·x + f.
Tensor residual_sum(const Tensor& x, const Tensor& f, double scale, double p, Rng* rng);
}  // namespace detail

/// `Attention` is any layer [batch, n, dim] → the same shape that does not add its input itself. `Feed` is Mlp, Glu, or
/// a layer with the same call. Norms and dropout inside the layers apply in addition to those of the block.
template <class Attention, class Feed = Mlp> struct TransformerBlock {
  static constexpr const char* type = "TransformerBlock";
  TransformerBlockOptions options{};
  Norm attention_norm, feed_norm;
  Attention attention;
  Feed feed;

  TransformerBlock() = default;
  /// Throws ValueError for layers of different widths or dtypes, and for layers that add their input themselves.
  TransformerBlock(Attention a, Feed f, TransformerBlockOptions o = {})
      : options(o), attention(std::move(a)), feed(std::move(f)) {
    const detail::BranchFacts facts = detail::facts_of(attention);
    detail::check_block(o, facts, detail::facts_of(feed));
    const NormOptions norm{facts.dim, o.norm, o.norm_eps, facts.dtype};
    attention_norm = Norm(norm), feed_norm = Norm(norm);
  }

  /// x [batch, n, dim] → the same shape. Both layers receive the pass. The block can be streamed if both layers can.
  Tensor operator()(const Tensor& given, const Pass& pass = {}) const {
    ModuleScope scope(this, type);
    // Norms and sums need finite padding. The mask stays unread: the layers say whether one of them heeds it.
    const Tensor x = checked_input("transformer_block", given, attention_norm.options.dim, pass.key_mask.peek());
    const bool pre = options.placement == NormPlacement::pre;
    const double scale = pre ? 1 : options.residual_scale;
    const auto sum = [&](const Tensor& a, const Tensor& b) {
      return detail::residual_sum(a, b, scale, options.dropout, pass.rng);
    };
    Tensor h = sum(x, attention(pre ? attention_norm(x) : x, pass));
    if (!pre) h = attention_norm(h);
    const Tensor y = sum(h, feed(pre ? feed_norm(h) : h, pass));
    return pre ? y : feed_norm(y);
  }

  SLUICE_PARTS(attention_norm, attention, feed_norm, feed);
};

}  // namespace sluice
