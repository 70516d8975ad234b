// Linear attention: every form against loops over pairs.
#include "layers/linear_attention_reference.h"
#include "support/linear_stream.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/text/print.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;
using D = LinearDirection;

TEST_CASE("linear_attention: every form against loops over pairs", "[linear]") {
  for (int64_t n : {9, 1}) {
    for (bool padded : {false, true}) {
      Rand rand(1);
      const LinearSample s(2, 2, n, 4, 3, rand);
      const Tensor mask = padded ? prefix_mask(n, n, std::min<int64_t>(n, 5)) : Tensor();
      each_form(n, 4, mask, rand, [&](const LinearAttentionForm& f, const std::string& what) {
        INFO(what << " padded " << padded << " n " << n);
        const Tensor want = linear_attention_by_pairs(s.q, s.k, s.v, f);
        for (int64_t chunk : {1, 4, 5, 7, 12, 64}) {
          LinearAttentionForm chunked = f;
          chunked.chunk = chunk;
          CHECK(max_abs_diff(linear_attention(s.q, s.k, s.v, chunked), want) < 1e-12);
          if (f.direction == D::full) break;
        }
      });
    }
  }
}

TEST_CASE("linear_attention: cross attention, empty sums, long f32 sequences", "[linear]") {
  Rand rand(9);
  const LinearSample s(2, 2, 9, 4, 3, rand);
  const Tensor q = narrow(s.q, 2, 2, 5), all_queries = linear_attention(s.q, s.k, s.v);
  CHECK(max_abs_diff(linear_attention(q, s.k, s.v), narrow(all_queries, 2, 2, 5)) < 1e-13);
  for (double eps : {0.0, 1e-6}) {
    const LinearAttentionForm nobody{.eps = eps, .key_mask = prefix_mask(9, 0, 4)};
    const Tensor o = linear_attention(s.q, s.k, s.v, nobody);
    CHECK(max_abs_diff(select(o, 0, 0), zeros({2, 9, 3}, {f64})) == 0);
    CHECK(max_abs_diff(select(o, 0, 1), select(linear_attention_by_pairs(s.q, s.k, s.v, nobody), 0, 1)) < 1e-12);
  }
  for (D direction : kLinearDirections) {
    LinearAttentionForm f{.direction = direction};
    CHECK(linear_attention(narrow(s.q, 2, 0, 0), narrow(s.k, 2, 0, 0), narrow(s.v, 2, 0, 0), f).shape() ==
          Shape{2, 2, 0, 3});
    CHECK(linear_attention(narrow(s.q, 0, 0, 0), narrow(s.k, 0, 0, 0), narrow(s.v, 0, 0, 0), f).shape() ==
          Shape{0, 2, 9, 3});
  }
  const Tensor no_keys = linear_attention(s.q, narrow(s.k, 2, 0, 0), narrow(s.v, 2, 0, 0), {.eps = 0});
  CHECK(max_abs_diff(no_keys, zeros({2, 2, 9, 3}, {f64})) == 0);
  const LinearSample l(1, 1, 700, 4, 4, rand, f32);
  for (D direction : kLinearDirections)
    for (bool decayed : {false, true}) {
      LinearAttentionForm f{.direction = direction}, exact{.direction = direction};
      if (decayed) f.log_decay = full({1, 1, 1}, -0.02), exact.log_decay = to(f.log_decay, f64);
      if (!valid(f)) continue;
      const Tensor want = linear_attention_by_pairs(to(l.q, f64), to(l.k, f64), to(l.v, f64), exact);
      CHECK(max_abs_diff(to(linear_attention(l.q, l.k, l.v, f), f64), want) < 1e-5 * max_abs(want));
    }
}

TEST_CASE("linear_attention: a decay of fewer dims broadcasts in every form, gradients too", "[linear]") {
  Rand rand(11);
  LinearSample s(2, 3, 5, 4, 3, rand);
  for (Tensor* x : {&s.q, &s.k, &s.v}) x->requires_grad_();
  const Tensor mask = prefix_mask(5, 5, 3), weights = random_tensor({2, 3, 5, 3}, f64, rand);
  for (const Shape& shape : {Shape{3, 1}, {3, 5}, {1, 5}, {5}, {1}, {}, {1, 3, 1}}) {
    INFO(shape);
    Tensor decay = neg(random_tensor(shape, f64, rand, 0.1, 0.9));
    decay.requires_grad_();
    const auto with = [&](D direction, const Tensor& log_decay, bool padded) {
      return LinearAttentionForm{
          .direction = direction, .log_decay = log_decay, .chunk = 2, .key_mask = padded ? mask : Tensor()};
    };
    const auto gradients = [&](const Tensor& y) { return grad({sum(y * weights)}, {s.q, s.k, s.v, decay}); };
    for (bool padded : {false, true})
      for (D direction : {D::causal, D::bidirectional, D::two_direction_mean}) {
        const LinearAttentionForm full = with(direction, expand(decay, {2, 3, 5}), padded),
                                  f = with(direction, decay, padded);
        const Tensor want = linear_attention_by_pairs(s.q, s.k, s.v, full), y = linear_attention(s.q, s.k, s.v, f);
        CHECK(max_abs_diff(y.detach(), want) < 1e-12);
        if (direction == D::causal && !padded)
          for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{5}, {2, 3}, {}})
            CHECK(max_abs_diff(linear_attention_streamed(s.q, s.k, s.v, f, pieces), want) < 1e-12);
        const std::vector<Tensor> slopes = gradients(linear_attention(s.q, s.k, s.v, full)), own = gradients(y);
        for (std::size_t i = 0; i < own.size(); ++i) CHECK(max_abs_diff(own[i], slopes[i]) < 1e-11);
        if (shape == Shape{3, 5} || shape == Shape{3, 1})
          CHECK(gradcheck(
                    [&](const std::vector<Tensor>& x) {
                      return sum(linear_attention(s.q, s.k, x[0], with(direction, x[1], padded)) * weights);
                    },
                    {s.v, decay})
                    .ok);
      }
  }
}

TEST_CASE("linear_attention: what is refused, and by which words", "[linear]") {
  auto o = [](Shape shape, DType t = f32) { return ones(shape, {t}); };
  const Tensor q = o({2, 3, 5, 4}), v = o({2, 3, 5, 6});
  CHECK_THROWS_AS(linear_attention(q, o({2, 3, 5, 3}), v), ShapeError);
  CHECK_THROWS_WITH(linear_attention(q, o({2, 3, 5, 3}), v), Contains("[2,3,5,3]") && Contains("linear_attention"));
  CHECK_THROWS_WITH(linear_attention(o({5, 4}), o({5, 4}), v), Contains("[5,4]"));
  CHECK_THROWS_WITH(linear_attention(q, q, o({2, 3, 4, 6})), Contains("[2,3,4,6]"));
  CHECK_THROWS_AS(linear_attention(q, q, o({2, 3, 5, 6}, f64)), DTypeError);
  CHECK_THROWS_WITH(linear_attention(o({2, 3, 1, 4}), q, v, {.direction = D::causal}),
                    Contains("full") && Contains("[2,3,1,4]"));
  CHECK_THROWS_WITH(linear_attention(q, q, v, {.log_decay = o({1, 3, 1})}), Contains("bidirectional"));
  CHECK_THROWS_WITH(linear_attention(q, q, v, {.direction = D::causal, .log_decay = o({2, 3, 4})}),
                    Contains("[2,3,4]"));
  CHECK_THROWS_WITH(linear_attention(q, q, v, {.eps = -1}), Contains("eps"));
  CHECK_THROWS_WITH(linear_attention(o({2, 3, 1, 4}), q, v, {.direction = D::full, .rope = RopeOptions{}}),
                    Contains("rope needs queries at the positions of the keys — got phi_q=[2,3,1,4]"));
  CHECK_THROWS_WITH(linear_attention(q, q, v, {.chunk = 0}), Contains("chunk"));
  CHECK_THROWS_AS(linear_attention(q, q, v, {.key_mask = o({2, 5})}), DTypeError);
  CHECK_THROWS_WITH(linear_attention(q, q, v, {.key_mask = o({2, 4}) > 0.0}), Contains("[2,4]") && Contains("[2,5]"));
  CHECK_THROWS_WITH(linear_attention_streamed(q, q, v, {}), Contains("causal"));
  const LinearAttentionForm causal{.direction = D::causal};
  Stream stream;
  const auto next = [&](const Tensor& k, const Tensor& values) {
    return step(LinearRows(k, values, causal), LinearRows::rows_of(k, k, values, {}), stream);
  };
  next(q, v);
  CHECK_THROWS_WITH(next(q, o({2, 3, 5, 2})),
                    Contains("linear_attention") && Contains("[2,3,4,6]") && Contains("[2,3,5,2]"));
  CHECK_THROWS_WITH(next(o({1, 3, 5, 4}), o({1, 3, 5, 6})), Contains("batch 2") && Contains("[1,5,42]"));
}

TEST_CASE("linear_attention: a log decay of −∞ forgets all before", "[linear]") {
  Rand rand(3);
  const LinearSample s(1, 2, 6, 4, 3, rand);
  const double inf = std::numeric_limits<double>::infinity();
  for (D direction : {D::causal, D::bidirectional, D::two_direction_mean}) {
    LinearAttentionForm f{.direction = direction, .chunk = 4};
    f.log_decay = Tensor::from(std::vector<double>{-0.5, -inf, -0.25, -inf, -inf, -1}, {1, 1, 6});
    CHECK(max_abs_diff(linear_attention_by_pairs(s.q, s.k, s.v, f), linear_attention(s.q, s.k, s.v, f)) < 1e-12);
  }
  LinearAttentionForm masked{.direction = D::causal};
  masked.key_mask = ones({1, 6}, {.dtype = i64});
  CHECK_THROWS_WITH(linear_attention(s.q, s.k, s.v, masked),
                    Contains("linear_attention") && Contains("key_mask") && Contains("i64"));
}
