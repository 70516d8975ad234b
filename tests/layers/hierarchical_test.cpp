// Stacks of local and global attention: who reaches whom, streaming, state sizes.
#include "layers/gau_reference.h"
#include "layers/streamed.h"

#include <sluice/layers/attention/hierarchical.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

MultiHeadAttentionOptions base(bool causal) {
  MultiHeadAttentionOptions o{.heads = {.dim = 4, .heads = 2}};
  o.heads.causal = causal, o.norm = NormKind::rms, o.heads.residual = true, o.heads.dtype = f64;
  return o;
}
AttentionStack make(const AttentionStackOptions& o, Rand& rand) {
  Rng rng(1);
  return randomised(AttentionStack(o, rng), rand);
}

/// The rows of y that change when row t of x does.
std::vector<bool> reached(const AttentionStack& stack, const Tensor& x, int64_t t) {
  const int64_t n = x.dim(1);
  const Tensor row = narrow(x, 1, t, 1) + 0.5;
  const Tensor other = cat({narrow(x, 1, 0, t), row, narrow(x, 1, t + 1, n - t - 1)}, 1);
  const Tensor a = stack(x), b = stack(other);
  std::vector<bool> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(!same_bits(narrow(a, 1, i, 1), narrow(b, 1, i, 1)));
  return rows;
}

/// What a layer of a stack is meant to see, said without the options under test.
struct Neighbourhood {
  int64_t window, dilation = 1;
  std::vector<int64_t> global = {};
};

/// Which rows a change of row t may reach, by walking through the layers' neighbourhoods.
std::vector<bool> expected_reach(const std::vector<Neighbourhood>& layers, bool causal, int64_t n, int64_t t) {
  std::vector<bool> now(static_cast<std::size_t>(n), false);
  now[static_cast<std::size_t>(t)] = true;
  for (const Neighbourhood& l : layers) {
    std::vector<bool> next = now;
    auto global = [&](int64_t p) { return std::find(l.global.begin(), l.global.end(), p) != l.global.end(); };
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const int64_t d = i - j;
        bool sees = (l.window == 0 || std::abs(d) <= (l.window - 1) * l.dilation) && d % l.dilation == 0;
        sees = (sees || global(i) || global(j)) && (!causal || d >= 0);
        if (sees && now[static_cast<std::size_t>(j)]) next[static_cast<std::size_t>(i)] = true;
      }
    now = next;
  }
  return now;
}

struct Stack {
  AttentionStackOptions options;
  std::vector<Neighbourhood> layers;
};
std::vector<Stack> stacks(bool causal) {
  return {{hierarchical_options(base(causal), {2, 2}), {{2}, {2}}},
          {hierarchical_options(base(causal), {2, 3, 0}), {{2}, {3}, {0}}},
          {hierarchical_options(base(causal), {0}), {{0}}},
          {local_global_options(base(causal), {.window = 2}), {{2}, {0}}},
          {local_global_options(base(causal), {.window = 2, .dilation = 3}), {{2}, {0, 3}}},
          {local_global_options(base(causal), {.window = 2, .global = {0, 4}}), {{2}, {2, 1, {0, 4}}}},
          {local_global_options(base(causal), {.window = 2, .dilation = 2, .global = {7}}), {{2}, {2, 2, {7}}}}};
}

}  // namespace

TEST_CASE("hierarchical: a token reaches exactly those its windows let it reach", "[gates]") {
  for (bool causal : {false, true})
    for (const auto& [o, layers] : stacks(causal)) {
      Rand rand(1);
      const AttentionStack s = make(o, rand);
      const Tensor x = random_tensor({1, 11, 4}, f64, rand);
      for (int64_t t : {0, 5, 10}) CHECK(reached(s, x, t) == expected_reach(layers, causal, 11, t));
    }
}

TEST_CASE("hierarchical: the stack is its layers one after the other", "[gates]") {
  for (bool causal : {false, true})
    for (const auto& [o, layers] : stacks(causal)) {
      Rand rand(2);
      const AttentionStack s = make(o, rand);
      REQUIRE(s.layers.size() == o.layers.size());
      const Tensor x = random_tensor({2, 7, 4}, f64, rand), mask = prefix_mask(7, 4, 7);
      Tensor y = x, z = x;
      for (const MultiHeadAttention& l : s.layers) y = l(y), z = l(z, {.key_mask = mask});
      CHECK(same_bits(s(x), y));
      CHECK(same_bits(real_rows(s(x, {.key_mask = mask}), mask), real_rows(z, mask)));
    }
  // Windows as wide as the sequence are full attention.
  Rand rand(3);
  const AttentionStack wide = make(hierarchical_options(base(true), {7, 9}), rand);
  AttentionStack full = wide;
  for (MultiHeadAttention& l : full.layers) l.options.window = 0;
  const Tensor x = random_tensor({2, 7, 4}, f64, rand);
  CHECK(max_abs_diff(wide(x), full(x)) < 1e-12);
}

TEST_CASE("hierarchical: streaming equals the full pass, in states as large as the windows", "[gates][streaming]") {
  for (const auto& [o, layers] : stacks(true)) {
    Rand rand(4);
    const AttentionStack s = make(o, rand);
    const Tensor x = random_tensor({2, 13, 4}, f64, rand), full = s(x);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {6, 1, 1, 5}, {13}})
      CHECK(max_abs_diff(streamed(s, x, sizes), full) < 1e-10);
  }
  Rand rand(5);
  const AttentionStack s = make(hierarchical_options(base(true), {2, 3, 0}), rand);
  Stream stream = stream_of(s, random_tensor({1, 9, 4}, f64, rand));
  CHECK(stream.numel() == 2 * 4 * (2 + 3 + 9));  // 2·dim·window of each layer
  CHECK_THROWS_WITH(step(make(hierarchical_options(base(true), {2}), rand), ones({1, 1, 4}, {f64}), stream),
                    Contains("another model"));
}

TEST_CASE("hierarchical: what is refused, and by which words", "[gates]") {
  Rng rng(1);
  CHECK_THROWS_WITH(AttentionStack({}, rng), Contains("at least one"));
  MultiHeadAttentionOptions other = base(true);
  other.heads.dim = 6;
  CHECK_THROWS_WITH(AttentionStack({{base(true), other}}, rng), Contains("dim=4") && Contains("dim=6"));
  MultiHeadAttentionOptions cross{.heads = {.dim = 4}};
  cross.heads.context_dim = 4;
  CHECK_THROWS_AS(AttentionStack({{cross}}, rng), ValueError);
  CHECK_THROWS_WITH(local_global_options(base(true), {.window = 0}), Contains("window"));
}
