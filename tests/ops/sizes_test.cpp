// Sizes that overflow: every product, sum and difference of sizes is checked where it is made. tests/fuzz draws such
// arguments for every op; here stand those that once went wrong, with what must be said.
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/core/number/random.h>
#include <sluice/layers/gau/mixed_chunk.h>
#include <sluice/layers/attention/sinkhorn.h>
#include <sluice/layers/attention/sparse_masks.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/layers/nn/kv_cache.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/matmul/einsum.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/index/sampling.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/view.h>

#include <functional>
#include <limits>

using namespace sluice;

namespace {

constexpr int64_t kMax = INT64_MAX, kMin = INT64_MIN, k32 = int64_t{1} << 32, k62 = int64_t{1} << 62,
                  k31 = int64_t{1} << 31, k54 = int64_t{1} << 54;
const double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

/// As many zeros, in the memory of one.
Tensor vast(const Shape& shape) { return expand(zeros({}), shape); }

struct Refused {
  const char* op;
  std::function<void()> call;
};

}  // namespace

// clang-format off
TEST_CASE("sizes: what overflows is an error that names the op", "[ops][sizes]") {
#if defined(__SANITIZE_ADDRESS__)
  return;  // whose operator new ends the process where there is no memory
#endif
  const Tensor x = zeros({2, 3}), scalar = zeros({}), none = zeros({0}), i = arange(3), row = zeros({1, 1, 3, 2});
  AttentionOptions tiles;
  tiles.tile_cols = -1;
  const std::vector<Refused> calls = {
      {"reshape", [&] { reshape(scalar, {274177, 67280421310721}); }},
      {"reshape", [&] { reshape(none, {k32, k32}); }},
      {"reshape", [&] { reshape(none, {k62, k62, 0}); }},
      {"unflatten", [&] { unflatten(zeros({1}), 0, {274177, 67280421310721}); }},
      {"expand", [&] { expand(scalar, {k32, k32}); }},
      {"expand", [&] { expand(zeros({1}), {kMax}); }},
      {"split", [&] { split(x, {kMax, kMax, 4}, 0); }},
      {"chunk", [&] { chunk(expand(zeros({1}), {int64_t{1} << 50}), kMax); }},
      {"chunk", [&] { chunk(scalar, 2); }},
      {"pad", [&] { pad(x, 0, kMax, kMax); }},
      {"pad", [&] { pad(x, 0, kMax, 3); }},
      {"narrow", [&] { narrow(x, 0, kMax, kMax); }},
      {"narrow", [&] { narrow(x, 0, kMin, kMax); }},
      {"select", [&] { select(x, 0, kMin); }},
      {"unfold", [&] { unfold(x, 0, kMax, 1); }},
      {"unfold", [&] { unfold(unfold(expand(zeros({1}), {int64_t{1} << 50}), 0, int64_t{1} << 40, int64_t{1} << 36), 0, 1 << 13, 1); }},
      {"fold", [&] { fold(x, 0, kMin, 1); }},
      {"fold", [&] { fold(zeros({1, 0}), 0, kMax, kMax); }},
      {"fold", [&] { fold(zeros({3, 0}), 0, kMax, 1); }},
      {"matmul", [&] { matmul(expand(zeros({1, 1, 1}), {1, 1 << 30, 1 << 10}), expand(zeros({1, 1, 0}), {1 << 20, 1 << 10, 0})); }},
      {"attention", [&] { attention(vast({1, 1, k31, 2}), vast({1, 1, 4, 2}), vast({1, 1, 4, k31})); }},
      {"attention_map", [&] { attention_map(vast({1, 1 << 20, 1, 1 << 20}), vast({1, 1, 1 << 20, 1 << 20})); }},
      {"linear_scan_carry", [&] { linear_scan_carry(vast({2, 1, k31, 5}), vast({2, 1, 5, k31})); }},
      {"linear_scan_state", [&] { linear_scan_state(vast({2, 1, 3, k31}), vast({2, 1, 3, k31})); }},
      {"einsum", [&] { einsum("i,j->ij", {expand(zeros({1}), {int64_t{1} << 40}), expand(zeros({1}), {int64_t{1} << 40})}); }},
      {"repeat", [&] { repeat(x, kMax, 0); }},
      {"repeat", [&] { repeat(zeros({2, 0}), kMax, 0); }},
      {"repeat_interleave", [&] { repeat_interleave(x, k62, 1); }},
      {"roll", [&] { roll(scalar, kMin, 0); }},
      {"toeplitz", [&] { toeplitz(zeros({5}), 2, 2, kMax); }},
      {"relative_matrix", [&] { relative_matrix(x, kMax, kMax); }},
      {"relative_matrix", [&] { relative_matrix(vast({2, 2 * k31 - 1}), k31, k31); }},
      {"relative_t5", [&] { relative_t5(vast({4, k54}), 3, 3, {.buckets = 4}); }},
      {"relative_alibi", [&] { relative_alibi(vast({k54}), 3, 3); }},
      {"relative_rope", [&] { relative_rope(vast({k54}), vast({k54}), 3, 3); }},
      {"relative_alibi", [&] { relative_alibi(zeros({2}), kMax, kMax); }},
      {"alibi_slopes", [&] { alibi_slopes(kMax); }},
      {"rope_frequencies", [&] { rope_frequencies(kMax - 1); }},  // as retention_gammas: no list that fills the memory
      {"retention_gammas", [&] { retention_gammas(kMax); }},
      {"causal_mask", [&] { causal_mask(k32, k32); }},
      {"causal_mask", [&] { causal_mask(kMax, kMax); }},
      {"rope", [&] { rope(x, {.rot_dim = 2, .offset = kMax}); }},
      {"rope_at", [&] { rope_at(zeros({3, 2}), i, {.offset = kMax}); }},
      {"rope_at", [&] { rope_at(zeros({1, 2}), Tensor::from(std::vector<int64_t>{kMin})); }},
      {"rope", [&] { rope(zeros({3, 2}), {.base = 0}); }},
      {"rope", [&] { rope(zeros({3, 2}), {.base = -1}); }},
      {"rope", [&] { rope(zeros({3, 2}), {.base = kNan}); }},
      {"t5_buckets", [&] { t5_buckets(2, 3, {}, -2); }},
      {"t5_buckets", [&] { t5_buckets(kMax, kMax); }},
      {"t5_buckets", [&] { t5_buckets(2, 3, {}, kMax); }},
      {"t5_buckets", [&] { t5_buckets(-1, 3); }},
      {"t5_buckets", [&] { t5_buckets(1, 1, {.buckets = k62, .max_distance = kMax}); }},
      {"t5_bucket", [&] { t5_bucket(3, {.buckets = 0}); }},
      {"arange", [&] { arange(5., 4.5); }},
      {"arange", [&] { arange(0, kInf); }},
      {"arange", [&] { arange(0, kNan); }},
      {"arange", [&] { arange(0, 1, kNan); }},
      {"arange", [&] { arange(0, 1, kInf); }},
      {"arange", [&] { arange(kMax); }},
      {"arange", [&] { arange(0, 1, 1e-300); }},
      {"linspace", [&] { linspace(0, 1, kMax); }},
      {"eye", [&] { eye(kMax, 2); }},
      {"eye", [&] { eye(2, kMin); }},
      {"one_hot", [&] { one_hot(i, kMax); }},
      {"one_hot", [&] { one_hot(zeros({0}, {.dtype = i64}), -1); }},
      {"zeros", [&] { zeros({kMax}); }},
      {"zeros", [&] { zeros({k32, 0, k32}); }},
      {"ones", [&] { ones({-1}); }},
      {"full", [&] { full({kMin}, 1); }},
      {"empty", [&] { empty({int64_t{1} << 50}); }},
      {"permutation", [&] { Rng rng(1); permutation(kMax, rng); }},
      {"bernoulli", [&] { Rng rng(1); bernoulli({k32, k32}, 0.5, rng); }},
      {"from", [&] { Tensor::from(std::vector<float>{1}, {274177, 67280421310721}); }},
      {"add", [&] { add(expand(zeros({1, 1}), {k32, 1}), expand(zeros({1, 1}), {1, k32})); }},
      {"eq", [&] { eq(expand(zeros({1, 1}), {k32, 1}), expand(zeros({1, 1}), {1, k32})); }},
      {"visible_pairs", [&] { visible_pairs({}, k32, k32, 1, 1); }},
      {"attention", [&] { attention(zeros({1, 1, 0, 2}), zeros({1, 1, 0, 2}), zeros({1, 1, 0, 2}), tiles); }},
      {"mixed_chunk_attention", [&] { mixed_chunk_attention(row, row, row, row, row, {.chunk = kMax}); }},
      {"segment_mask", [&] { segment_mask(zeros({1, 3}, {i64}), kMax, true); }},
      {"sinkhorn_block_attention", [&] { sinkhorn_block_attention(row, row, row, {.block = kMax}); }},
      {"block_permutation", [&] { block_permutation(row, row, {.block = kMax}); }},
      {"linear_attention", [&] { const Tensor y = empty({1, 1, 3, k31}, {f32, meta}); linear_attention(y, y, y); }},
      {"bigbird_blocks", [&] { bigbird_blocks(kMax, {.block = 1}); }},
      {"bigbird_blocks", [&] { bigbird_blocks(int64_t{1} << 27, {.block = 1}); }},
      {"bigbird_blocks", [&] { bigbird_blocks(3, {.heads = kMax}); }},
      {"expand_blocks", [&] { expand_blocks(ones({1, 1}, {boolean}), kMax, k62, k62); }},
      {"expand_blocks", [&] { expand_blocks(ones({1, 1}, {boolean}), 4, -1, 3); }},
      {"neighbours_of", [&] { neighbours_of({}, k62, k62); }},
      {"neighbours_of", [&] { neighbours_of({}, k54, 1); }},
      {"neighbours_of", [&] { neighbours_of({}, 1, k54); }},
      {"random_neighbours", [&] { random_neighbours(kMax, kMax, {.k = kMax}); }},
      {"random_neighbours", [&] { random_neighbours(k54, 0, {.k = 0, .self = false}); }},
      {"random_neighbours", [&] { random_neighbours(2, k54, {.k = k54}); }},
      {"random_neighbours", [&] { random_neighbours(2, kMax, {.k = 1}); }},
      {"mask_of_neighbours", [&] { mask_of_neighbours(zeros({2, 2}, {i64}), k54); }},
      {"mask_of_neighbours", [&] { mask_of_neighbours(zeros({2, 0}, {i64}), -1); }},
      {"rearrange", [&] { rearrange("(h i) -> h i", none, {{"h", k32}, {"i", k32}}); }},
      {"rearrange", [&] { rearrange("a b -> (a h i) b", x, {{"h", k32}, {"i", k32}}); }},
      {"dim", [&] { scalar.dim(0); }},
      {"dim", [&] { scalar.dim(-1); }},
      {"dim", [&] { x.dim(kMin); }},
      {"tensor", [&] { Tensor().raw(); }},
      {"tensor", [&] { Tensor().bump_version(); }},
  };
  for (std::size_t k = 0; k < calls.size(); ++k) {
    INFO("call " << k << ", " << calls[k].op);
    std::string said = "nothing";
    try {
      calls[k].call();
    } catch (const Error& e) {
      said = e.what();
    }
    CHECK(said.substr(0, said.find(':')) == calls[k].op);
  }
}

TEST_CASE("sizes: a result of more than eight dims is an error that names the op and what it got", "[ops][sizes]") {
  const Tensor x = ones(Shape::filled(kMaxRank, 1)), index = zeros(x.shape(), {i64});
  const std::vector<Refused> calls{{"unsqueeze", [&] { unsqueeze(x, 0); }},
                                {"stack", [&] { stack({x, x}, 3); }},
                                {"unfold", [&] { unfold(x, 2, 1, 1); }},
                                {"unflatten", [&] { unflatten(x, 0, {1, 1}); }},
                                {"repeat", [&] { repeat(x, 2, 0); }},
                                {"one_hot", [&] { one_hot(index, 3); }},
                                {"embedding", [&] { embedding(ones({1, 2}), index); }},
                                {"jacobian", [&] { jacobian([](const Tensor& v) { return v; }, x); }}};
  for (const Refused& c : calls) {
    INFO(c.op);
    CHECK_THROWS_WITH(c.call(), StartsWith(str(c.op, ": a result would have ")) && Contains("[1,1,1,1,1,1,1,1]"));
  }
  CHECK(unflatten(x, 0, {1}).rank() == kMaxRank);
}

TEST_CASE("sizes: extreme arguments with a meaning", "[ops][sizes]") {
  const Tensor x = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {6}).requires_grad_();
  CHECK(slice(x, 0, 2, std::nullopt, kMax).to_vector() == std::vector<float>{2});
  CHECK(slice(x, 0, kMin, kMax, 5).to_vector() == std::vector<float>{0, 5});
  CHECK(unfold(x, 0, 4, kMax).to_vector() == std::vector<float>{0, 1, 2, 3});
  CHECK(fold(unfold(x, 0, 4, kMax), 0, 6, kMax).to_vector() == std::vector<float>{0, 1, 2, 3, 0, 0});
  CHECK(chunk(x, kMax).size() == 6);
  CHECK(roll(x, kMax, 0).numel() == 6);
  CHECK(causal_mask(int64_t{1} << 40, 0).shape() == Shape{int64_t{1} << 40, 0});
  CHECK(t5_bucket(kMin) == t5_bucket(-kMax));
  CHECK(triu(zeros({2, 2}), kMax).numel() == 4);

  KvCache cache;
  CHECK(cache.append({zeros({1, 1, 3, 2})}, kMax)[0].dim(2) == 3);

  AttentionMask mask;
  mask.window = kMax, mask.dilation = kMax;
  const Tensor own = visible_pairs(mask, 1, 1, 3, 3);
  CHECK(own.to_vector<int64_t>() == std::vector<int64_t>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(visible_pairs(sliding_mask(kMax), 1, 1, 3, 3).to_vector<int64_t>() == std::vector<int64_t>(9, 1));
  CHECK(visible_pairs(dilated_mask(kMax, 2, true), 1, 1, 3, 3).to_vector<int64_t>() == std::vector<int64_t>{1, 0, 0, 0, 1, 0, 1, 0, 1});
  CHECK(expand_blocks(ones({1, 1}, {boolean}), kMax, 2, 3).shape() == Shape{2, 3});
  mask = {};
  mask.block = kMax, mask.blocks = ones({1, 1}, {.dtype = boolean});
  CHECK(visible_pairs(mask, 1, 1, 2, 2).to_vector<int64_t>() == std::vector<int64_t>{1, 1, 1, 1});
}

TEST_CASE("attention: a dilation beyond every distance leaves each query its own key", "[ops][attention][sizes]") {
  Rng rng(3);
  const Tensor q = normal({1, 1, 4, 2}, 0, 1, rng), k = normal({1, 1, 4, 2}, 0, 1, rng), v = normal({1, 1, 4, 2}, 0, 1, rng);
  for (int64_t window : {int64_t{1}, int64_t{3}, kMax}) {
    AttentionOptions o;
    o.mask.window = window, o.mask.dilation = k62;
    CHECK(attention(q, k, v, o).to_vector() == v.to_vector());
  }
  AttentionOptions tiles;
  tiles.tile_rows = tiles.tile_cols = kMax;
  CHECK(attention(q, k, v, tiles).to_vector() == attention(q, k, v).to_vector());
}

TEST_CASE("item: exact, or an error", "[core][tensor]") {
  const int64_t odd = (int64_t{1} << 53) + 1;
  auto of = [](int64_t v) { return Tensor::from(std::vector<int64_t>{v}); };
  CHECK(of(odd).item<int64_t>() == odd);
  CHECK(of(kMax).item<int64_t>() == kMax);
  CHECK(of(odd - 1).item() == 0x1p53);
  CHECK(of(kMin).item() == -0x1p63);
  CHECK_THROWS_AS(of(odd).item(), ValueError);
  CHECK_THROWS_AS(of(kMax).item(), ValueError);
  CHECK(Tensor(3.0f).item<int64_t>() == 3);
  CHECK_THROWS_AS(Tensor(3.5f).item<int64_t>(), ValueError);
  CHECK_THROWS_AS(Tensor(1e30f).item<int64_t>(), ValueError);
  CHECK_THROWS_AS(full({}, kNan).item<int64_t>(), ValueError);
}

TEST_CASE("full: saturates as to() does", "[ops][create]") {
  for (double v : {1e300, -1e300, kInf, -kInf, kNan, 0.5, -0.5, -3.0, 3e9, 0.0})
    for (DType t : {f32, f64, bf16, i64, i32, boolean}) {
      INFO(v << " as " << str(t));
      const Tensor made = full({}, v, {.dtype = t}), converted = to(full({}, v, {.dtype = f64}), t);
      CHECK(str(made.to_vector<double>()[0]) == str(converted.to_vector<double>()[0]));
      Tensor filled = zeros({}, {.dtype = t});
      fill_(filled, v);
      CHECK(str(filled.to_vector<double>()[0]) == str(converted.to_vector<double>()[0]));
    }
}

TEST_CASE("sizes: no query heads, whatever the key heads and the mask", "[ops][sizes]") {
  AttentionOptions o;
  o.mask.causal = true, o.mask.keys = ones({1, 0, 5}) > 0.0;
  const Tensor q = zeros({1, 0, 5, 4}), k = zeros({1, 2, 5, 4});
  CHECK(attention(q, k, k, o).shape() == Shape{1, 0, 5, 4});
  CHECK(attention_reference(q, k, k, o).shape() == Shape{1, 0, 5, 4});
  CHECK(attention_map(q, k, o).shape() == Shape{1, 0, 5, 5});
  CHECK(attention_in_order(q, k, k, TileOrder::flash1, 2, 3, {}).shape() == Shape{1, 0, 5, 4});
}

TEST_CASE("sizes: a vast number of queries of values without channels takes no time", "[ops][sizes]") {
  AttentionOptions o;
  o.weighting = Weighting::sigmoid;
  const Tensor q = expand(ones({1, 1, 1, 4}), {1, 1, int64_t{1} << 40, 4}), v = zeros({1, 1, 5, 0});
  const Tensor k = ones({1, 1, 5, 4}).requires_grad_();
  const Tensor y = attention(q, k, v, o);
  CHECK(y.shape() == Shape{1, 1, int64_t{1} << 40, 0});
  CHECK(max(abs(grad(std::vector{sum(y)}, std::vector{k})[0])).item() == 0);
}

TEST_CASE("matmul: a dim beyond 2^31 is refused before operands are copied", "[ops][sizes]") {
  const int64_t n = k31 + 1, before = memory_stats().live;
  reset_peak_memory();
  CHECK_THROWS_WITH(matmul(vast({1, n}), vast({n, 1})), StartsWith("matmul: a dimension exceeds 2^31 — got a=[1,"));
  CHECK_THROWS_WITH(matmul(vast({2, 1, n}), vast({n, 1})), StartsWith("matmul: a dimension exceeds 2^31 — got [2,1,"));
  CHECK_THROWS_WITH(linear(vast({2, n}), vast({n, 3})), StartsWith("linear: a dimension exceeds 2^31 — got [2,"));
  CHECK_THROWS_WITH(einsum("abk,km->abm", {vast({1, 2, n}), vast({n, 3})}),
                    StartsWith("einsum: a product of matrices [2,"));
  CHECK(memory_stats().peak - before < 1 << 16);
}
