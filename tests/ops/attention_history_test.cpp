// Gradients of attention with a history (create_graph) are those without one, also where values are hidden, small or
// absent; and one query, whose heads the engine may take for rows.
#include "support/attention_samples.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/operand.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <array>
#include <climits>
#include <cmath>
#include <functional>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The gradients of sum(y·g) with a history, and without one.
std::array<std::vector<Tensor>, 2> both_ways(const std::function<Tensor()>& f, const std::vector<Tensor>& xs,
                                             const Tensor& g) {
  return {grad({f()}, xs, {.create_graph = true, .grad_outputs = {g}}), grad({f()}, xs, {.grad_outputs = {g}})};
}

}  // namespace

TEST_CASE("attention: with a history, too, NaN of a hidden value does not leak", "[attention][mask]") {
  for (Weighting weighting : kWeightings)
    for (bool documents : {false, true}) {
      Rand rand(3);
      AttentionSample s = plain_attention(rand, {1, 4, 9, 5}, 2, 9, 3);
      AttentionOptions& o = s.options;
      o.weighting = weighting, o.mask.causal = !documents;
      if (documents) o.mask.query_segments = o.mask.key_segments = tensor_of({0, 0, 0, 0, 0, 0, 0, 0, 1}, {1, 9}, i64);
      if (weighting == Weighting::softmax) o.sink = tensor_of({0.5, -1, 0, 2}, {4}, f64);
      Tensor last = narrow(s.v, 2, 8, 1), g = random_tensor({1, 4, 9, 3}, f64, rand), none = narrow(g, 2, 8, 1);
      fill_(last, NAN), fill_(none, 0);
      for (Tensor* x : {&s.q, &s.k, &s.v}) x->requires_grad_();
      const auto [got, want] = both_ways([&] { return attention(s.q, s.k, s.v, o); }, {s.q, s.k, s.v}, g);
      for (std::size_t i = 0; i < 3; ++i) {
        if (i == 1 && !documents && weighting == Weighting::softmax) continue;  // the last row's dS is NaN
        const Tensor rows = narrow(got[i], 2, 0, 8);
        INFO("weighting " << int(weighting) << " documents " << documents << " gradient " << i);
        CHECK(all(isfinite(rows)).item<bool>());
        CHECK(max_abs_diff(rows, narrow(want[i], 2, 0, 8)) < 1e-13);
      }
    }
}

TEST_CASE("attention: with a history, too, a small sink's gradient has its digits", "[attention]") {
  Rand rand(4);
  AttentionSample s = plain_attention(rand, {1, 2, 4, 8}, 2, 16, 8).in(f32);
  for (double score : {-12.0, -20.0, -40.0}) {
    s.options.sink = full({2}, score, {f32});
    s.options.sink.requires_grad_();
    const Tensor g = random_tensor({1, 2, 4, 8}, f32, rand);
    const auto [got, want] = both_ways([&] { return attention(s.q, s.k, s.v, s.options); }, {s.options.sink}, g);
    INFO(score);
    CHECK(max_abs_diff(got[0], want[0]) < 1e-5 * max_abs(want[0]));
    CHECK(max_abs(want[0]) > 0);
  }
}

TEST_CASE("merge_attention: rows that see no key in either part have gradient 0", "[attention]") {
  Rand rand(5);
  AttentionSample s = plain_attention(rand, {1, 1, 3, 4}, 1, 2, 4);
  s.options.mask.keys = zeros({1, 2}, {boolean});
  s.q.requires_grad_();
  for (bool history : {false, true}) {
    const AttentionAndLse part = attention_with_lse(s.q, s.k, s.v, s.options), y = merge_attention(part, part);
    CHECK(all(y.lse == -kInfinity).item<bool>());
    const Tensor loss = sum(y.out) + sum(masked_fill(y.lse, y.lse.detach() == -kInfinity, 0));
    CHECK(max_abs(grad({loss}, {s.q}, {.create_graph = history})[0]) == 0);
  }
}

TEST_CASE("attention: one query whose heads share key heads", "[attention][identity]") {
  for (int64_t group : {2, 4, 5, 16})
    for (int64_t n : {1, 7, 1100})
      for (int variant = 0; variant < 4; ++variant) {
        Rand rand(static_cast<uint64_t>(group + n + variant));
        AttentionSample s = plain_attention(rand, {2, 3 * group, 1, 19}, 3, n, 11);
        AttentionOptions& o = s.options;
        o.mask.causal = variant >= 1;
        if (variant == 2) o.mask.keys = random_tensor({2, n}, f64, rand) > -0.5;
        if (variant == 3) o.weighting = Weighting::relu2, o.mask.keys = random_tensor({2, 3 * group, n}, f64, rand) > 0;
        INFO("group " << group << " n " << n << " variant " << variant);
        const Tensor want = attention_reference(s.q, s.k, s.v, o);
        CHECK(max_abs_diff(attention(s.q, s.k, s.v, o), want) < 1e-13 * (1 + max_abs(want)));
        const AttentionSample in_f32 = s.in(f32);
        CHECK(max_abs_diff(to(attention(in_f32.q, in_f32.k, in_f32.v, in_f32.options), f64), want) <
              2e-5 * (1 + max_abs(want)));
        for (Tensor* x : {&s.q, &s.k, &s.v}) x->requires_grad_();
        const Tensor g = random_tensor(want.shape(), f64, rand);
        const auto [got, plain] = both_ways([&] { return attention(s.q, s.k, s.v, o); }, {s.q, s.k, s.v}, g);
        const auto expected = grad({attention_reference(s.q, s.k, s.v, o)}, {s.q, s.k, s.v}, {.grad_outputs = {g}});
        for (std::size_t i = 0; i < 3; ++i) {
          CHECK(max_abs_diff(got[i], expected[i]) < 1e-12 * (1 + max_abs(expected[i])));
          CHECK(max_abs_diff(plain[i], expected[i]) < 1e-12 * (1 + max_abs(expected[i])));
        }
        if (o.weighting != Weighting::softmax) continue;
        const Tensor lse = attention_with_lse(s.q, s.k, s.v, o).lse;
        const Tensor k = detail::spread_heads(s.k, 3 * group), v = detail::spread_heads(s.v, 3 * group);
        const Tensor apart = attention_with_lse(s.q, k, v, o).lse;  // a key head for each query head
        CHECK(lse.shape() == Shape{2, 3 * group, 1});
        CHECK(max_abs_diff(exp(lse), exp(apart)) < 1e-12 * (1 + max_abs(exp(apart))));
      }
}

TEST_CASE("gemm: rows further apart than an int are copied first", "[gemm]") {
  for (int64_t width : {int64_t{1} << 30, (int64_t{1} << 31) + 16}) {
    const Tensor rows = narrow(empty({3, width}, {f32, meta}), 1, 0, 2);
    CHECK(detail::operand(rows).has_value() == (width <= INT_MAX));
    CHECK(detail::operand(transpose(rows, 0, 1)).has_value() == (width <= INT_MAX));
    CHECK(detail::operand(narrow(rows, 0, 2, 1)).has_value());
  }
}
