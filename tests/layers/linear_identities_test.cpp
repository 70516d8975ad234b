// The identities of linear attention: its forms against each other.
#include "layers/linear_attention_reference.h"
#include "support/identities.h"
#include "support/linear_stream.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using D = LinearDirection;

namespace {

/// The five maps of the identities; Fourier is smoothed, so that denominators stay away from 0.
std::vector<FeatureMap> five_maps(int64_t dim) {
  using K = FeatureMapKind;
  Rng rng(1);
  std::vector<FeatureMap> maps;
  for (K kind : {K::exp, K::elu1, K::poly_kernel, K::favor, K::fourier})
    maps.emplace_back(FeatureMapOptions{.kind = kind, .dim = dim, .features = 6, .smoothing = 2, .dtype = f64}, rng);
  return maps;
}

std::vector<Tensor> tensors_of(const Stream& stream) {
  std::vector<Tensor> all;
  stream.each_tensor([&](const Tensor& x) { all.push_back(x); });
  return all;
}

}  // namespace

TEST_CASE("linear_attention: padding anywhere is as if it were not there", "[linear][identity]") {
  // Real tokens 0, 2, 3, 6: padding in the middle must not forget either. Positions count, so without rope.
  const std::vector<bool> real{true, false, true, true, false, false, true, false};
  const std::vector<int64_t> kept{0, 2, 3, 6};
  Rand rand(2);
  const LinearSample s(2, 2, 8, 4, 3, rand);
  const Tensor mask = Tensor::from(
      [&] {
        std::vector<bool> two(real);
        two.insert(two.end(), real.begin(), real.end());
        return two;
      }(),
      {2, 8});
  const Tensor hidden = unsqueeze(unsqueeze(!mask, 1), -1);
  auto only_real = [&](const Tensor& t, int64_t dim) {
    std::vector<Tensor> rows;
    for (int64_t i : kept) rows.push_back(narrow(t, dim, i, 1));
    return cat(rows, dim);
  };
  each_form(8, 4, mask, rand, [&](const LinearAttentionForm& f, const std::string& what) {
    if (f.rope) return;
    LinearAttentionForm cut = f;
    cut.key_mask = Tensor();
    if (f.log_decay.defined() && f.log_decay.dim(2) == 8) cut.log_decay = only_real(f.log_decay, 2);
    const Tensor want = linear_attention(only_real(s.q, 2), only_real(s.k, 2), only_real(s.v, 2), cut);
    INFO(what);
    for (double junk : {5.0, std::nan(""), HUGE_VAL}) {
      Tensor k = masked_fill(s.k, hidden, junk).requires_grad_();
      const Tensor v = masked_fill(s.v, hidden, junk);
      check_identity("linear: padded = truncated", only_real(linear_attention(s.q, k, v, f), 2), want, 1e-12);
      // and no NaN comes back
      CHECK(all(isfinite(grad(sum(only_real(linear_attention(s.q, k, v, f), 2)), k))).item() == 1);
    }
  });
}

TEST_CASE("linear_attention: the forms agree", "[linear][identity]") {
  const int64_t n = 11;
  for (const FeatureMap& map : five_maps(4)) {
    Rand rand(3);
    const Tensor v = random_tensor({2, 2, n, 3}, f64, rand);
    const Tensor q = map(random_tensor({2, 2, n, 4}, f64, rand)), k = map(random_tensor({2, 2, n, 4}, f64, rand));
    INFO(name_of(map.options.kind));
    const LinearAttentionForm whole{};
    check_identity("linear: associative = quadratic", linear_attention(q, k, v, whole),
                   linear_attention_by_pairs(q, k, v, whole), 1e-12);
    LinearAttentionForm both{.direction = D::bidirectional};
    check_identity("linear: bidirectional = forward + backward - diagonal", linear_attention(q, k, v, both),
                   linear_attention(q, k, v, whole), 1e-12);
    CHECK(max_abs_diff(linear_attention(q, k, v, {.direction = D::two_direction_mean}),
                       linear_attention(q, k, v, whole)) > 1e-3);  // a different layer
    for (double gamma : {1.0, 0.9}) {
      LinearAttentionForm f{.direction = D::causal, .log_decay = sluice::full({1, 1, 1}, std::log(gamma), {f64})};
      const Tensor want = linear_attention_by_pairs(q, k, v, f);
      check_identity("linear: recurrent = quadratic, 5 maps x 2 gammas", linear_attention_by_steps(q, k, v, f), want,
                     1e-11);
      check_identity("linear: recurrent = quadratic, 5 maps x 2 gammas", linear_attention_streamed(q, k, v, f), want,
                     1e-11);
      for (int64_t chunk : {1, 4, 5, 12}) {
        f.chunk = chunk;
        check_identity("linear: chunked = quadratic, 5 maps x 2 gammas x 4 C", linear_attention(q, k, v, f), want,
                       1e-11);
      }
    }
  }
}

TEST_CASE("linear_attention: what forgetting does at its ends", "[linear][identity]") {
  Rand rand(4);
  const LinearSample s(2, 3, 10, 4, 5, rand);
  auto causal = [&](double log_gamma, double eps = 1e-6) {
    return linear_attention(
        s.q, s.k, s.v,
        {.direction = D::causal, .eps = eps, .log_decay = full({1, 1, 1}, log_gamma, {f64}), .chunk = 4});
  };
  const Tensor plain = linear_attention(s.q, s.k, s.v, {.direction = D::causal, .chunk = 4});
  check_identity("linear: gamma = 1 is no forgetting", causal(0), plain, 1e-12);
  CHECK(max_abs_diff(causal(std::log(0.9)), plain) > 1e-3);
  check_identity("linear: gamma -> 0 is v_t", causal(-60, 0), s.v, 1e-12);
  CHECK(max_abs_diff(causal(-3, 0), s.v) > 1e-3);  // not at e^{−3}
  // Numbers that would overflow as γ^{−j}.
  const Tensor strong = causal(-50);
  CHECK(all(isfinite(strong)).item() == 1);
}

TEST_CASE("linear_attention: a cyclic pattern is representable with m >= n", "[linear][identity]") {
  // Weights 1 exactly at j = i + 1 mod n: not symmetric, not positive semidefinite, and made of φ >= 0.
  const int64_t n = 6;
  Rand rand(5);
  Rng rng(1);
  const FeatureMap relu({.kind = FeatureMapKind::relu, .dim = n, .dtype = f64}, rng);
  const Tensor unit = eye(n, -1, {f64}), q = relu(unit), k = relu(roll(unit, 1, 0)),
               v = random_tensor({n, 3}, f64, rand);
  auto lifted = [](const Tensor& t) { return unsqueeze(unsqueeze(t, 0), 0); };
  const Tensor o = linear_attention(lifted(q), lifted(k), lifted(v), {.eps = 0});
  check_identity("kernel: a cyclic pattern is representable with m >= n", select(select(o, 0, 0), 0, 0), roll(v, -1, 0),
                 1e-15);
}

TEST_CASE("linear_attention: a state can be handed over", "[linear][identity]") {
  Rand rand(6);
  const LinearSample s(2, 2, 13, 4, 3, rand);
  for (const Tensor& g : log_decays(2, 2, 13, 4, rand))
    for (LinearNormalize normalize : {LinearNormalize::sum, LinearNormalize::none})
      for (bool rotated : {false, true})
        for (int64_t cut : {0, 1, 6, 12, 13}) {
          LinearAttentionForm f{
              .direction = D::causal, .normalize = normalize, .scale = 0.7, .log_decay = g, .chunk = 4};
          if (rotated) f.rope = RopeOptions{};
          const Tensor want = linear_attention(s.q, s.k, s.v, f);
          Stream halves, all;
          check_identity("linear: state hand-over",
                         linear_attention_streamed(s.q, s.k, s.v, f, {cut, 13 - cut}, halves), want, 1e-12);
          check_identity("linear: state hand-over", linear_attention_streamed(s.q, s.k, s.v, f, {13}, all), want,
                         1e-12);
          CHECK(halves.length() == 13);
          CHECK(halves.numel() == 2 * 2 * 4 * (normalize == LinearNormalize::sum ? 3 + 1 : 3));
          const std::vector<Tensor> got = tensors_of(halves), kept = tensors_of(all);
          for (std::size_t i = 0; i < kept.size(); ++i) CHECK(max_abs_diff(got.at(i), kept[i]) < 1e-12);
        }
}

TEST_CASE("continued_scan: gradients flow through the state", "[linear][identity]") {
  Rand rand(7);
  const LinearSample s(2, 2, 13, 4, 3, rand);
  for (const Tensor& g : log_decays(2, 2, 13, 4, rand))
    for (int64_t cut : {0, 1, 6, 12, 13}) {
      const auto in_two = [&](const Tensor& k, const Tensor& v) {
        Tensor state;
        std::vector<Tensor> rows;
        for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, cut}, {cut, 13 - cut}}) {
          const auto part = [&, first = first, n = n](const Tensor& x) {
            return x.defined() && x.dim(2) > 1 ? narrow(x, 2, first, n) : x;
          };
          rows.push_back(detail::continued_scan(part(s.q), part(k), part(v), part(g), {.chunk = 4}, state));
        }
        return cat(rows, 2);
      };
      Tensor k = clone(s.k).requires_grad_(), v = clone(s.v).requires_grad_();
      const Tensor cot = random_tensor(s.v.shape(), f64, rand), y = in_two(k, v), want = linear_scan(s.q, k, v, g);
      CHECK(max_abs_diff(y.detach(), want.detach()) < 1e-12);
      const std::vector<Tensor> got = grad({y}, {k, v}, {.grad_outputs = {cot}}),
                                slopes = grad({want}, {k, v}, {.grad_outputs = {cot}});
      for (std::size_t i = 0; i < 2; ++i) CHECK(max_abs_diff(got[i], slopes[i]) < 1e-11);
    }
}
