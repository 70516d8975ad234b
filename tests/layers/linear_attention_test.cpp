// Linear attention (SPEC §9, §16): every form against loops over pairs, and their gradients.
#include "layers/linear_attention_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;
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
        CHECK(max_abs_diff(linear_attention_quadratic(s.q, s.k, s.v, f), want) < 1e-12);
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

TEST_CASE("linear_attention: gradients of both orders", "[linear]") {
  Rand rand(7);
  const int64_t n = 4;
  const LinearSample s(1, 2, n, 2, 2, rand);
  const std::vector<Tensor> g = log_decays(1, 2, n, 2, rand);
  for (D direction : kLinearDirections)
    for (const Tensor& decay : g)
      for (LinearNormalize normalize : {LinearNormalize::sum, LinearNormalize::none})
        for (bool rotated : {false, true}) {
          LinearAttentionForm f{.direction = direction, .normalize = normalize, .eps = 1e-3, .scale = 0.7, .chunk = 3};
          f.log_decay = decay;
          if (rotated) f.rope = RopeOptions{};
          if (!valid(f)) continue;
          std::vector<Tensor> in{s.q, s.k, s.v};
          if (decay.defined()) in.push_back(decay);
          for (Tensor& t : in) t = clone(t).requires_grad_();
          const TensorFunction call = [&](const std::vector<Tensor>& x) {
            LinearAttentionForm form = f;
            if (decay.defined()) form.log_decay = x[3];
            return linear_attention(x[0], x[1], x[2], form);
          };
          const GradcheckResult first = gradcheck(call, in), second = gradgradcheck(call, in);
          INFO("direction " << static_cast<int>(direction) << " " << first.message << "\n" << second.message);
          CHECK(first.ok);
          CHECK(second.ok);
        }
}

TEST_CASE("linear_attention: the gradient is the reverse scan of SPEC §16", "[linear]") {
  // dN = do/D, dD = −(do·o)/D; G_t = γG_{t+1} + φ(q_t)ᵀdN_t, g_t = γg_{t+1} + φ(q_t)dD_t;
  // dφ(k_t) = G_t v_tᵀ + g_t; dv_t = φ(k_t)G_t; dφ(q_t) = U_t dN_tᵀ + Z_t dD_t.
  Rand rand(8);
  const std::size_t n = 7, m = 3, dv = 2;
  const double gamma = 0.8, eps = 1e-6;
  LinearSample s(1, 1, 7, 3, 2, rand);
  const Tensor cot = random_tensor({1, 1, 7, 2}, f64, rand);
  for (Tensor* t : {&s.q, &s.k, &s.v}) t->requires_grad_();
  const LinearAttentionForm f{.direction = D::causal, .log_decay = full({1, 1, 1}, std::log(gamma), {f64}), .chunk = 3};
  const std::vector<Tensor> got = grad({linear_attention(s.q, s.k, s.v, f)}, {s.q, s.k, s.v}, {.grad_outputs = {cot}});
  auto rows = [](const Tensor& t) { return matrix_of(select(select(t.detach(), 0, 0), 0, 0)); };
  const Matrix q = rows(s.q), k = rows(s.k), v = rows(s.v), out = rows(cot);
  Matrix dq = q, dk = k, dvs = v, u = matrix(3, 2), dn = v;
  std::vector<double> z(m, 0.0), dd(n, 0.0);
  for (std::size_t t = 0; t < n; ++t) {
    std::vector<double> o(dv, 0.0);
    double d = eps;
    for (std::size_t c = 0; c < m; ++c) {
      z[c] = gamma * z[c] + k[t][c], d += q[t][c] * z[c];
      for (std::size_t e = 0; e < dv; ++e) u[c][e] = gamma * u[c][e] + k[t][c] * v[t][e], o[e] += q[t][c] * u[c][e];
    }
    for (std::size_t e = 0; e < dv; ++e) dn[t][e] = out[t][e] / d, dd[t] -= out[t][e] * o[e] / d / d;
    for (std::size_t c = 0; c < m; ++c) {
      dq[t][c] = z[c] * dd[t];
      for (std::size_t e = 0; e < dv; ++e) dq[t][c] += u[c][e] * dn[t][e];
    }
  }
  Matrix big = matrix(3, 2);
  std::vector<double> small(m, 0.0);
  for (std::size_t t = n; t-- > 0;) {
    for (std::size_t e = 0; e < dv; ++e) dvs[t][e] = 0;
    for (std::size_t c = 0; c < m; ++c) {
      small[c] = gamma * small[c] + q[t][c] * dd[t], dk[t][c] = small[c];
      for (std::size_t e = 0; e < dv; ++e) {
        big[c][e] = gamma * big[c][e] + q[t][c] * dn[t][e];
        dk[t][c] += big[c][e] * v[t][e], dvs[t][e] += k[t][c] * big[c][e];
      }
    }
  }
  const std::vector<Matrix> want{dq, dk, dvs};
  for (std::size_t i = 0; i < 3; ++i) {
    const Matrix g = rows(got[i]);
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t c = 0; c < g[t].size(); ++c)
        CHECK(g[t][c] == Approx(want[i][t][c]).epsilon(1e-10).margin(1e-12));
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
      const Tensor want = linear_attention_quadratic(to(l.q, f64), to(l.k, f64), to(l.v, f64), exact);
      CHECK(max_abs_diff(to(linear_attention(l.q, l.k, l.v, f), f64), want) < 1e-5 * max_abs(want));
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
  CHECK_THROWS_WITH(linear_attention(q, q, v, {.chunk = 0}), Contains("chunk"));
  CHECK_THROWS_AS(linear_attention(q, q, v, {.key_mask = o({2, 5})}), DTypeError);
  CHECK_THROWS_WITH(linear_attention(q, q, v, {.key_mask = o({2, 4}) > 0.0}), Contains("[2,4]") && Contains("[2,5]"));
  CHECK_THROWS_AS(linear_attention_recurrent(q, q, v, {}, {}), ValueError);
  const LinearAttentionForm causal{.direction = D::causal};
  const LinearState state = linear_attention_recurrent(q, q, v, causal, {}).second;
  CHECK_THROWS_WITH(linear_attention_recurrent(q, q, o({2, 3, 5, 2}), causal, state), Contains("[2,3,4,7]"));
  CHECK_THROWS_WITH(linear_attention_recurrent(o({1, 3, 5, 4}), o({1, 3, 5, 4}), o({1, 3, 5, 6}), causal, state),
                    Contains("[2,3,4,7]") && Contains("[1,3,4,7]"));
}

TEST_CASE("linear_attention_quadratic: a log decay of −∞ forgets all before", "[linear]") {
  Rand rand(3);
  const LinearSample s(1, 2, 6, 4, 3, rand);
  const double inf = std::numeric_limits<double>::infinity();
  for (D direction : {D::causal, D::bidirectional, D::two_direction_mean}) {
    LinearAttentionForm f{.direction = direction, .chunk = 4};
    f.log_decay = Tensor::from(std::vector<double>{-0.5, -inf, -0.25, -inf, -inf, -1}, {1, 1, 6});
    CHECK(max_abs_diff(linear_attention_quadratic(s.q, s.k, s.v, f), linear_attention(s.q, s.k, s.v, f)) < 1e-12);
  }
  LinearAttentionForm masked{.direction = D::causal};
  masked.key_mask = ones({1, 6}, {.dtype = i64});
  CHECK_THROWS_WITH(linear_attention(s.q, s.k, s.v, masked), Contains("linear_attention") && Contains("key_mask") && Contains("i64"));
}
