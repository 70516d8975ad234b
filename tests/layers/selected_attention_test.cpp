// Attention over selected keys where it is something else: all keys chosen, one branch alone, one block; and at sizes
// beyond every tile against a mask of pairs.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/gathered_keys.h>
#include <sluice/layers/attention/mla.h>
#include <sluice/layers/attention/selected_attention.h>
#include <sluice/layers/report/cost.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <array>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Operands {
  Tensor q, k, v;  // 4 heads, 2 KV heads
};
Operands operands(int64_t n) {
  Rand rand(3);
  return {random_tensor({2, 4, n, 6}, f64, rand), random_tensor({2, 2, n, 6}, f64, rand),
          random_tensor({2, 2, n, 5}, f64, rand)};
}
Tensor gates_of(const Operands& x, int branch) {
  const Tensor one = arange(3) == static_cast<double>(branch);
  return expand(to(one, f64), {2, 4, x.q.dim(2), 3});
}
void same(const Tensor& got, const Tensor& want) { CHECK(max_abs_diff(got, want) <= 1e-13 * max_abs(want)); }

}  // namespace

TEST_CASE("selected: all keys chosen = causal attention; one block = its own", "[layers][selected]") {
  const int64_t n = 150;
  const Operands x = operands(n);
  const Tensor causal = attention(x.q, x.k, x.v, {.mask = {.causal = true}});
  same(moba_attention(x.q, x.k, x.v, {.block = 16, .topk = 10}), causal);
  same(nsa_attention(x.q, x.k, x.v, gates_of(x, 1), {.select = 16, .count = 10}), causal);
  same(nsa_attention(x.q, x.k, x.v, gates_of(x, 2), {.window = 7}),
       attention(x.q, x.k, x.v, {.mask = {.causal = true, .window = 7}}));
  const NsaSizes single{.block = 1, .stride = 1, .select = 1, .count = 3};
  same(nsa_attention(x.q, x.k, x.v, gates_of(x, 0), single), causal);
  // topk 1: documents of one block each.
  const Tensor blocks = reshape(to(floor(arange(0.0, 150.0, 1.0, {f64}) * (1.0 / 16)), i64), {1, n});
  const AttentionMask own{.causal = true, .query_segments = blocks, .key_segments = blocks};
  same(moba_attention(x.q, x.k, x.v, {.block = 16, .topk = 1}), attention(x.q, x.k, x.v, {.mask = own}));
  Rand rand(4);
  const Tensor msa_q = random_tensor({2, 2, n, 3}, f64, rand), msa_k = random_tensor({2, 1, n, 3}, f64, rand);
  same(msa_attention(x.q, x.k, x.v, msa_q, msa_k, {.block = 16, .count = 10}), causal);
  same(msa_attention(x.q, x.k, x.v, msa_q, msa_k, {.block = 16, .count = 1}), attention(x.q, x.k, x.v, {.mask = own}));
  CHECK(max_abs_diff(msa_attention(x.q, x.k, x.v, msa_q, msa_k, {.block = 16, .count = 5}), causal) > 1e-2);
  const KeyIndex index{random_tensor({2, 3, n, 4}, f64, rand), random_tensor({2, n, 4}, f64, rand),
                       random_tensor({2, n, 3}, f64, rand)};
  same(dsa_attention(x.q, x.k, x.v, index, n), causal);
  CHECK(max_abs_diff(dsa_attention(x.q, x.k, x.v, index, n / 2), causal) > 1e-2);
}

TEST_CASE("selected: the blocks are those of a mask of pairs, and have no gradient", "[layers][selected]") {
  const int64_t n = 1090;
  Operands x = operands(n);
  for (Tensor* t : {&x.q, &x.k, &x.v}) t->requires_grad_();
  const MobaSizes sizes{.block = 40, .topk = 3};
  const AttentionMask mask{.causal = true, .blocks = moba_blocks(x.q, x.k, sizes), .block = sizes.block};
  CHECK_FALSE(mask.blocks.requires_grad());
  const AttentionMask pairs{.dense = visible_pairs(mask, 2, 4, n, n)};
  const Tensor a = moba_attention(x.q, x.k, x.v, sizes), b = attention(x.q, x.k, x.v, {.mask = pairs});
  same(a, b);
  const std::vector<Tensor> leaves{x.q, x.k, x.v}, got = grad({sum(square(a))}, leaves),
                                                   want = grad({sum(square(b))}, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) same(got[i], want[i]);
}

TEST_CASE("nsa: equal keys of the branches are shared ones, and an even linear compression is the mean",
          "[layers][selected]") {
  Rand rand(6);
  const Tensor x = random_tensor({2, 90, 12}, f64, rand);
  const auto made = [](bool separate, Compression compression) {
    Rng rng(2);
    return NsaAttention({{.dim = 12, .heads = 4, .kv_heads = 2, .head_dim = 6, .use_rope = true, .dtype = f64},
                         {.block = 8, .stride = 4, .select = 16, .count = 4, .window = 20},
                         separate,
                         compression},
                        rng);
  };
  const NsaAttention shared = made(false, Compression::mean);
  NsaAttention separate = made(true, Compression::mean), linear = made(false, Compression::linear);
  separate.heads = linear.heads = shared.heads, separate.gate = linear.gate = shared.gate;
  CHECK(max_abs_diff(separate(x), shared(x)) > 1e-2);
  separate.compressed_k = separate.window_k = shared.heads.k;
  separate.compressed_v = separate.window_v = shared.heads.v;
  same(separate(x), shared(x));
  CHECK(max_abs_diff(linear(x), shared(x)) > 1e-2);
  for (BlockCompression* c : {&linear.k_compression, &linear.v_compression}) {
    c->position = zeros_like(c->position);
    c->in = repeat(unsqueeze(eye(6, 6, {f64}) * (1.0 / 8), 0), 8, 1);
    c->in = cat({c->in, c->in}, 0);
  }
  same(linear(x), shared(x));
  CHECK_THROWS_WITH(linear.k_compression(zeros({1, 3, 8, 6}, {f64})), Contains("block_compression") && Contains("2"));
  Rng rng(1);
  CHECK_THROWS_WITH(BlockCompression({.heads = 1, .width = 6, .block = 8, .stride = 3}, rng),
                    Contains("block_compression: stride must divide block — got block=8, stride=3"));
}

TEST_CASE("selected: streams in any pieces", "[layers][selected][stream]") {
  Rand rand(5);
  Rng rng(2);
  const Tensor x = random_tensor({2, 200, 12}, f64, rand);
  const HeadsOptions heads{.dim = 12, .heads = 4, .kv_heads = 2, .head_dim = 6, .use_rope = true, .dtype = f64};
  const NsaAttention nsa({heads, {.block = 8, .stride = 4, .select = 16, .count = 4, .window = 20}}, rng);
  const MobaAttention moba({heads, {.block = 16, .topk = 3}}, rng);
  const MsaAttention msa({heads, {.block = 16, .count = 3, .local = 2}, 8}, rng);
  const Mla dsa({.dim = 12,
                 .heads = 3,
                 .nope_dim = 6,
                 .rope_dim = 4,
                 .value_dim = 5,
                 .kv_rank = 7,
                 .q_rank = 8,
                 .topk = 20,
                 .index_heads = 4,
                 .index_dim = 6,
                 .dtype = f64},
                rng);
  MlaOptions few = dsa.options;  // whose keys are gathered
  few.topk = 2, few.form = MlaForm::absorbed;
  const Mla gathering(few, rng);
  CHECK(detail::gathered_pairs(3, 1, 2) < 100);
  same(gathering(x), gathering(x, {.mask = ones({1}, {boolean})}));  // a mask of pairs keeps it from that
  Mla cheapest = gathering;
  cheapest.options.form = MlaForm::cheapest;
  CHECK(max_abs_diff(cheapest(x), gathering(x)) == 0);
  const auto check = [&](const auto& layer) {
    const Tensor y = layer(x);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{1}, {150, 1, 1, 3}, {64, 5, 80}})
      CHECK(max_abs_diff(streamed(layer, x, pieces), y) <= 1e-12 * max_abs(y));
  };
  check(nsa), check(moba), check(msa), check(dsa), check(gathering);
  Stream stream;
  step(dsa, x, stream);
  CHECK(stream.numel() == 2 * 200 * (7 + 4 + 6));  // latent, rotary key, key of the index
  Stream of_msa;
  step(msa, x, of_msa);
  CHECK(of_msa.numel() == 2 * 200 * (2 * (6 + 6) + 8));
  const auto choice_has_no_gradient = [&](const auto& layer, const char* index) {
    for (const NamedTensor& p : parameters(layer))
      if (p.name.starts_with(index))
        CHECK_FALSE(grad({sum(layer(x))}, {p.tensor}, {.allow_unused = true})[0].defined());
  };
  choice_has_no_gradient(dsa, "indexer."), choice_has_no_gradient(msa, "index_");
  const auto [index_q, index_k] = msa.index(x);  // what a loss reads
  CHECK(grad({sum(square(matmul(index_q, transpose(index_k, 2, 3))))}, {msa.index_k.weight})[0].defined());
}

TEST_CASE("selected: gathered keys = a mask of pairs, gradients of two orders included", "[layers][selected]") {
  Rand rand(8);
  for (const auto& [n, m, kv_heads] : {std::array<int64_t, 3>{190, 190, 1}, {150, 40, 2}, {9, 9, 2}}) {
    INFO(n << " keys, " << m << " queries");
    const Tensor q = random_tensor({2, 8, m, 6}, f64, rand), k = random_tensor({2, kv_heads, n, 6}, f64, rand),
                 v = random_tensor({2, kv_heads, n, 5}, f64, rand), c = random_tensor({2, 8, m, 5}, f64, rand);
    Tensor sink = random_tensor({8}, f64, rand);
    const KeyIndex index{random_tensor({2, 3, m, 4}, f64, rand), random_tensor({2, n, 4}, f64, rand),
                         random_tensor({2, m, 3}, f64, rand)};
    const Tensor real = random_tensor({2, n}, f64, rand) > -0.7;
    const AttentionMask candidates{.causal = true, .keys = real};
    const int64_t top = 11;
    AttentionOptions o{.scale = 0.7, .softcap = 3, .sink = sink};
    AttentionOptions dense = o;
    dense.mask = {.dense = index_mask(index, top, candidates)};
    const std::vector<Tensor> leaves{q, k, v, sink};
    for (Tensor t : leaves) t.requires_grad_();
    const auto results = [&](const Tensor& y) {
      std::vector<Tensor> all{y}, first = grad({sum(y * c)}, leaves, {.create_graph = true});
      Tensor total = sum(square(first[0]));
      for (std::size_t i = 1; i < first.size(); ++i) total = total + sum(square(first[i]));
      for (const Tensor& g : first) all.push_back(g);
      for (const Tensor& g : grad({total}, leaves)) all.push_back(g);
      return all;
    };
    const std::vector<Tensor> got = results(attention_to_keys(q, k, v, index_keys(index, top, candidates), o)),
                              want = results(attention(q, k, v, dense));
    for (std::size_t i = 0; i < want.size(); ++i)
      CHECK(max_abs_diff(got[i], want[i]) <= 1e-12 * (1 + max_abs(want[i])));
  }
  {  // in several parts
    const int64_t n = 500, top = 220;
    const Tensor q = random_tensor({1, 4, n, 64}, f64, rand), k = random_tensor({1, 1, n, 64}, f64, rand),
                 v = random_tensor({1, 1, n, 48}, f64, rand), c = random_tensor({1, 4, n, 48}, f64, rand);
    const KeyIndex index{random_tensor({1, 2, n, 4}, f64, rand), random_tensor({1, n, 4}, f64, rand),
                         random_tensor({1, n, 2}, f64, rand)};
    const std::vector<Tensor> leaves{q, k, v};
    for (Tensor t : leaves) t.requires_grad_();
    const Tensor got = attention_to_keys(q, k, v, index_keys(index, top, {.causal = true})),
                 want = attention(q, k, v, {.mask = {.dense = index_mask(index, top, {.causal = true})}});
    same(got, want);
    const std::vector<Tensor> a = grad({sum(got * c)}, leaves), b = grad({sum(want * c)}, leaves);
    for (std::size_t i = 0; i < leaves.size(); ++i) same(a[i], b[i]);
  }
  const AttentionOptions plain{.mask = {.causal = true}};
  CHECK(detail::may_gather_keys(plain, cpu, false));
  CHECK_FALSE(detail::may_gather_keys(plain, cpu, true));
  CHECK_FALSE(detail::may_gather_keys(plain, meta, false));
  AttentionOptions biased = plain, masked = plain;
  biased.bias = zeros({1}), masked.mask.dense = ones({1}, {boolean});
  CHECK_FALSE(detail::may_gather_keys(biased, cpu, false));
  CHECK_FALSE(detail::may_gather_keys(masked, cpu, false));
  CHECK(detail::gathered_pairs(16, 1, 256) < 2048);  // many heads of one KV head, and few keys of 4,096
  CHECK(detail::gathered_pairs(16, 16, 256) > 2048);
  const Tensor q = zeros({1, 16, 9, 4}), k = zeros({1, 1, 9, 4});
  CHECK_THROWS_WITH(attention_to_keys(q, k, k, zeros({1, 1, 3, 2}, {i64})), Contains("keys=[1,1,3,2]"));
  CHECK_THROWS_AS(attention_to_keys(q, zeros({1, 3, 5, 4}), k, zeros({1, 1, 9, 2}, {i64})), ShapeError);
  CHECK_THROWS_WITH(attention_to_keys(q, k, k, full({1, 1, 9, 2}, 9, {i64})), Contains("key 9 is none of the 9 keys"));
  const Tensor nobody = full({1, 1, 9, 2}, -1, {i64}), sink = full({16}, -INFINITY);
  CHECK(max_abs(attention_to_keys(q, k, k, nobody, {.sink = sink})) == 0);
}

TEST_CASE("selected: a layer that cannot keep documents apart refuses them, also beside one that can",
          "[layers][selected]") {
  Rng rng(1);
  const HeadsOptions heads{.dim = 8, .heads = 2, .causal = true};
  const MultiHeadAttention first(heads, rng);
  const MobaAttention second({heads, {.block = 2, .topk = 2}}, rng);
  const Tensor x = normal({1, 6, 8}, 0, 1, rng), segments = zeros({1, 6}, {i64});
  const auto both = [&](const Pass& pass) { return second(first(x, pass), pass); };
  CHECK_THROWS_WITH(both({.segments = segments}), Contains("moba_attention: cannot keep documents apart"));
  CHECK_NOTHROW(both({}));
}

TEST_CASE("selected: what does not fit", "[layers][selected]") {
  Rng rng(1);
  const HeadsOptions heads{.dim = 8, .heads = 2};
  CHECK_THROWS_WITH(NsaAttention({heads, {.block = 32, .stride = 12}}, rng),
                    Contains("nsa_attention") && Contains("stride=12") && Contains("block=32"));
  CHECK_THROWS_WITH(NsaAttention({heads, {.count = 2}}, rng), Contains("count=2") && Contains("local=2"));
  CHECK_THROWS_WITH(MsaAttention({heads, {.count = 2, .local = 3}}, rng),
                    Contains("msa_attention") && Contains("count=2") && Contains("local=3"));
  CHECK_THROWS_WITH(MsaAttention({{.dim = 8, .heads = 2, .use_rope = true}, {}, 2}, rng),
                    Contains("msa_attention") && Contains("index_dim=2"));
  CHECK_THROWS_WITH(Mla({.dim = 8, .topk = 3}, rng), Contains("mla") && Contains("topk=3") && Contains("q_rank"));
  const Operands x = operands(5);
  CHECK_THROWS_AS(nsa_attention(x.q, x.k, x.v, zeros({2, 4, 5, 2}, {f64}), {}), ShapeError);
  CHECK_THROWS_WITH(msa_attention(x.q, x.k, x.v, x.q, x.k, {}), Contains("index_q") && Contains("kv_heads"));
  CHECK_THROWS_AS(moba_attention(narrow(x.q, 0, 0, 1), x.k, x.v, {}), ShapeError);
  CHECK_THROWS_WITH(moba_attention(select(x.q, 0, 0), x.k, x.v, {}), Contains("moba_attention: got q=[4,5,"));
  CHECK_THROWS_WITH(moba_attention(x.q, x.k, x.v, {}, {.keys = ones({1, 1, 5}, {boolean})}),
                    Contains("moba_attention: keys=[1,1,5]"));
  const MobaAttention moba({heads, {}}, rng);
  CHECK_THROWS_WITH(moba(zeros({1, 4, 8}), {.segments = zeros({1, 4}, {i64})}), Contains("segments"));
}
