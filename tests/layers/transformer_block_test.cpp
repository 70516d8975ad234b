#include <sluice/layers/attention/transformer_block.h>

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/autograd/profile.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/attention/sparse_layers.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <limits>

using namespace sluice;

namespace {

MultiHeadAttentionOptions causal_heads(DType dtype = f64) {
  return {.heads = {.dim = 6, .heads = 3, .kv_heads = 1, .causal = true, .use_rope = true, .dtype = dtype}};
}
struct Model {
  std::vector<TransformerBlock<MultiHeadAttention, Mlp>> blocks;
  Tensor operator()(const Tensor& x) const { return blocks[1](blocks[0](x)); }
  SLUICE_PARTS(blocks);
};
double distance(const Tensor& a, const Tensor& b) { return max(abs(a - b)).item(); }

}  // namespace

TEST_CASE("transformer_block: pre and post norm as written out", "[transformer_block]") {
  Rng rng(1);
  const Tensor x = normal({2, 5, 6}, 0, 1, rng, {f64});
  const MultiHeadAttention a(causal_heads(), rng);
  const Glu f({.dim = 6, .dtype = f64}, rng);
  const TransformerBlock pre(a, f, {.norm = NormKind::rms, .norm_eps = 0.1, .residual_scale = 3});
  const Norm norm({6, NormKind::rms, 0.1, f64});
  Tensor h = x + a(norm(x));
  CHECK(distance(pre(x), h + f(norm(h))) < 1e-14);

  const TransformerBlock post(a, f, {.placement = NormPlacement::post, .residual_scale = 3});
  const Norm layer({6, NormKind::layer, 1e-5, f64});
  h = layer(x * 3.0 + a(x));
  CHECK(distance(post(x), layer(h * 3.0 + f(h))) < 1e-14);

  CHECK(state_dict(pre).size() == 2 + state_dict(a).size() + state_dict(f).size());  // two norms, not one twice
  CHECK(state_dict(post).front().name == "attention_norm.weight");
}

TEST_CASE("transformer_block: a stream gives the rows of the full pass", "[transformer_block]") {
  Rng rng(2);
  const Tensor x = normal({2, 7, 8}, 0, 1, rng, {f64});
  const auto streams = [&](const auto& block) { return distance(testing::streamed(block, x, {3, 4}), block(x)); };
  const HeadsOptions heads{.dim = 8, .heads = 2, .causal = true, .use_rope = true, .dtype = f64};
  for (const NormPlacement placement : {NormPlacement::pre, NormPlacement::post}) {
    CHECK(streams(TransformerBlock(MultiHeadAttention({.heads = heads}, rng), Mlp({.dim = 8, .dtype = f64}, rng),
                                   {.placement = placement})) < 1e-12);
    CHECK(streams(TransformerBlock(Gau({.dim = 8, .key_dim = 6, .causal = true, .residual = false, .dtype = f64}, rng),
                                   Mlp({.dim = 8, .dtype = f64}, rng), {.placement = placement})) < 1e-12);
    CHECK(streams(TransformerBlock(Gla({.dim = 8, .heads = 2, .dtype = f64}, rng), Glu({.dim = 8, .dtype = f64}, rng),
                                   {.placement = placement})) < 1e-12);
  }
}

TEST_CASE("transformer_block: masks, a context, dropout, gradients", "[transformer_block]") {
  Rng rng(3);
  const Tensor x = normal({1, 4, 6}, 0, 1, rng, {f64}), context = normal({1, 3, 5}, 0, 1, rng, {f64});
  const HeadsOptions heads{.dim = 6, .heads = 2, .dtype = f64};
  // The last token is padding: the others do not see it.
  const Tensor real = arange(4) < 3.0, mask = reshape(real, {1, 4});
  const TransformerBlock both(MultiHeadAttention({.heads = heads}, rng), Mlp({.dim = 6, .dtype = f64}, rng));
  CHECK(distance(narrow(both(x, {.key_mask = mask}), 1, 0, 3), both(narrow(x, 1, 0, 3))) < 1e-13);
  CHECK(distance(both(x, {.key_mask = mask}), both(x)) > 1e-3);
  const TransformerBlock top(TopKAttention({.heads = heads, .k = 2}, rng), Mlp({.dim = 6, .dtype = f64}, rng));
  CHECK(distance(narrow(top(x, {.key_mask = mask}), 1, 0, 3), top(narrow(x, 1, 0, 3))) < 1e-13);

  HeadsOptions cross = heads;
  cross.context_dim = 5;
  const TransformerBlock reader(MultiHeadAttention({.heads = cross}, rng), Mlp({.dim = 6, .dtype = f64}, rng),
                                {.dropout = 0.5});
  const Tensor y = reader(x, {.context = context});
  CHECK(y.shape() == x.shape());
  Rng a(9), b(9), c(10);
  const auto read = [&](Rng* r) { return reader(x, {.context = context, .rng = r}); };
  CHECK(distance(read(&a), y) > 1e-3);
  CHECK(distance(read(&b), read(&c)) > 1e-3);

  const auto f = [&](const std::vector<Tensor>& in) { return reader(in[0], {.context = in[1]}); };
  Tensor xs = x.detach(), cs = context.detach();
  CHECK(gradcheck(f, {xs.requires_grad_(), cs.requires_grad_()}).ok);
  for (const NamedTensor& p : parameters(reader)) CHECK_FALSE(p.tensor.grad().defined());
  backward(sum(reader(x, {.context = context})));
  for (const NamedTensor& p : parameters(reader)) {
    INFO(p.name);
    CHECK(p.tensor.grad().defined());
  }
}

TEST_CASE("transformer_block: NaN in padding reaches nobody, forward or backward", "[transformer_block]") {
  Rng rng(6);
  const Tensor mask = Tensor::from(std::vector<bool>{0, 1, 1, 0, 1}, {1, 5}), hidden = unsqueeze(logical_not(mask), -1);
  const Tensor x = normal({1, 5, 6}, 0, 1, rng, {f64});
  const Mlp feed({.dim = 6, .dtype = f64}, rng);
  for (const NormPlacement placement : {NormPlacement::pre, NormPlacement::post}) {
    const TransformerBlock block(MultiHeadAttention({.dim = 6, .heads = 2, .dtype = f64}, rng), feed,
                                 {.placement = placement});
    std::vector<std::vector<Tensor>> results;
    for (const double padding : {0.0, std::numeric_limits<double>::quiet_NaN()}) {
      std::vector<Tensor> leaves{masked_fill(x, hidden, padding).detach().requires_grad_()};
      for (const NamedTensor& p : parameters(block)) leaves.push_back(p.tensor);
      const Tensor y = masked_fill(block(leaves[0], {.key_mask = mask}), hidden, 0);
      results.push_back(grad({sum(square(y))}, leaves));
      results.back().push_back(y);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i) CHECK(distance(results[0][i], results[1][i]) == 0);
  }
  // A mask that no layer of the block heeds is an error as before.
  CHECK_THROWS_WITH(TransformerBlock(feed, feed)(x, {.key_mask = mask}), Contains("nothing in the model has read"));
  CHECK_THROWS_WITH(TransformerBlock(feed, feed)(narrow(x, 2, 0, 5)), Contains("transformer_block: got x=[1,5,5]"));
}

TEST_CASE("transformer_block: a branch of another width is refused, not broadcast", "[transformer_block]") {
  Rng rng(7);
  const HeadsOptions one_channel{.dim = 6, .head_dim = 1, .project_out = false, .dtype = f64};
  const TransformerBlock block(MultiHeadAttention(one_channel, rng), Mlp({.dim = 6, .dtype = f64}, rng));
  CHECK_THROWS_WITH(block(zeros({1, 3, 6}, {f64})),
                    Contains("transformer_block: a branch made [1,3,1] of x=[1,3,6]; need the same shape"));
}

TEST_CASE("transformer_block: profiles know the block", "[transformer_block]") {
  Rng rng(5);
  Model model;
  for (int i = 0; i < 2; ++i)
    model.blocks.emplace_back(MultiHeadAttention(causal_heads(), rng), Mlp({.dim = 6, .dtype = f64}, rng));
  Profile profile({.modules = name_modules(model)});
  model(zeros({2, 5, 6}, {f64}));
  int seen = 0;
  for (const ProfileRow& row : profile.by_module())
    seen += row.name.starts_with("blocks.0 (Tr") || row.name.starts_with("blocks.1 (Tr");
  CHECK(seen == 2);
}

TEST_CASE("transformer_block: parts that do not fit are refused", "[transformer_block]") {
  Rng rng(4);
  const Mlp feed({.dim = 6, .dtype = f64}, rng);
  MultiHeadAttentionOptions o = causal_heads();
  o.heads.residual = true;
  CHECK_THROWS_WITH(TransformerBlock(MultiHeadAttention(o, rng), feed), Contains("adds its input by itself"));
  CHECK_THROWS_WITH(TransformerBlock(Gau({.dim = 6, .dtype = f64}, rng), feed), Contains("adds its input by itself"));
  CHECK_THROWS_WITH(TransformerBlock(Flash({.dim = 6, .dtype = f64}, rng), feed), Contains("adds its input by itself"));
  CHECK_THROWS_WITH(TransformerBlock(McTfm({.dim = 6, .heads = 1, .dtype = f64}, rng), feed),
                    Contains("adds its input by itself"));
  CHECK_THROWS_WITH(TransformerBlock(MultiHeadAttention(causal_heads(), rng), Mlp({.dim = 8, .dtype = f64}, rng)),
                    Contains("dim=6 and dim=8"));
  CHECK_THROWS_WITH(TransformerBlock(MultiHeadAttention(causal_heads(f32), rng), feed), Contains("one dtype"));
  CHECK_THROWS_AS(TransformerBlock(MultiHeadAttention(causal_heads(), rng), feed, {.dropout = 1}), ValueError);
  CHECK_THROWS_AS(TransformerBlock(MultiHeadAttention(causal_heads(), rng), feed, {.norm_eps = -1}), ValueError);
}
