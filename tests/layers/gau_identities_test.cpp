// The identities that concern the whole layer, cross-GAU, and initial values.
#include "layers/gau_reference.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

GauOptions small(GauKind kind = GauKind::su) {
  GauOptions o{.dim = 5, .expansion = 6, .key_dim = 4};
  o.kind = kind, o.max_length = 12;
  return o;
}
void set(Tensor& t, const std::function<double(int64_t)>& f) {
  double* p = t.mutable_data<double>();
  for (int64_t i = 0; i < t.numel(); ++i) p[i] = f(i);
}

}  // namespace

TEST_CASE("gau: A = I makes it a GLU", "[gau][identity]") {
  GauOptions o = small();
  o.bias = GauBias::toeplitz, o.length = GauLength::constant, o.constant_length = 1, o.norm = NormKind::none;
  Rand rand(1);
  Gau g = random_gau(o, rand);
  set(g.gamma, [](int64_t) { return 0; });
  set(g.beta, [](int64_t) { return 0; });
  set(g.toeplitz_bias, [](int64_t i) { return i == 11 ? 1 : -1; });  // relu²(0 + b) = I
  Rng rng(1);
  Glu glu({.dim = 5, .hidden = 6, .kind = GluKind::silu_glu, .bias = true, .dtype = f64}, rng);
  glu.value.weight = narrow(g.in.weight, 1, 0, 6), glu.value.bias = narrow(g.in.bias, 0, 0, 6);
  glu.gate.weight = narrow(g.in.weight, 1, 6, 6), glu.gate.bias = narrow(g.in.bias, 0, 6, 6);
  glu.out = g.out;
  const Tensor x = random_tensor({2, 7, 5}, f64, rand);
  check_identity("GAU: A = I gives GLU", g(x), x + glu(x), 1e-14);
}

TEST_CASE("gau: U = 1 and softmax make it single-head attention", "[gau][identity]") {
  for (bool causal : {false, true}) {
    GauOptions o = small(GauKind::softmax);
    o.causal = causal, o.norm = NormKind::none, o.use_rope = false;
    Rand rand(2);
    Gau g = random_gau(o, rand);
    const double one = 1.2784645427610738;  // silu(one) = 1
    set(g.in.weight, [&](int64_t i) { return i % 16 < 6 ? 0 : rand.uniform(-1, 1); });
    set(g.in.bias, [&](int64_t i) { return i < 6 ? one : rand.uniform(-1, 1); });
    const Tensor x = random_tensor({2, 7, 5}, f64, rand);
    const Tensor h = silu(linear(x, g.in.weight, g.in.bias)), v = narrow(h, 2, 6, 6), z = narrow(h, 2, 12, 4);
    const Tensor q = z * select(g.gamma, 0, 0) + select(g.beta, 0, 0),
                 k = z * select(g.gamma, 0, 1) + select(g.beta, 0, 1);
    Tensor scores = matmul(q, transpose(k, 1, 2)) / 2.0;
    if (causal) scores = masked_fill(scores, !causal_mask(7, 7), -INFINITY);
    check_identity("GAU: U = 1 and softmax is single-head attention", g(x),
                   x + linear(matmul(softmax(scores), v), g.out.weight, g.out.bias), 1e-13);
  }
}

TEST_CASE("gau: one head is the default, h heads are the sum of h layers of one", "[gau][identity]") {
  for (GauKind kind : kGauKinds) {
    GauOptions o = small(kind);
    o.heads = 2, o.causal = true, o.norm = NormKind::none, o.linear_bias = false;
    Rand rand(3);
    const Gau g = random_gau(o, rand);
    const Tensor x = random_tensor({2, 7, 5}, f64, rand);
    Tensor total = x;
    for (int64_t head : {0, 1}) {
      GauOptions half = o;
      half.heads = 1, half.expansion = 3, half.key_dim = 2;
      Gau part = random_gau(half, rand);
      part.in.weight = cat({narrow(g.in.weight, 1, 3 * head, 3), narrow(g.in.weight, 1, 6 + 3 * head, 3),
                            narrow(g.in.weight, 1, 12 + 2 * head, 2)},
                           1);
      part.out.weight = narrow(g.out.weight, 0, 3 * head, 3);
      part.gamma = narrow(g.gamma, 1, 2 * head, 2), part.beta = narrow(g.beta, 1, 2 * head, 2);
      total = total + part(x) - x;
    }
    CHECK(max_abs_diff(g(x), total) < 1e-12);
  }
  CHECK(GauOptions{.dim = 4}.heads == 1);
}

TEST_CASE("gau: without positions a permutation of tokens passes through", "[gau][identity]") {
  Rng rng(4);
  const Tensor order = permutation(8, rng);
  for (GauKind kind : kGauKinds)
    for (GauPlacement placement : {GauPlacement::pre, GauPlacement::post}) {
      GauOptions o = small(kind);
      o.use_rope = false, o.placement = placement, o.top_k = kind == GauKind::su ? 3 : 0;
      Rand rand(4);
      const Gau g = random_gau(o, rand);
      const Tensor x = random_tensor({2, 8, 5}, f64, rand);
      CHECK(max_abs_diff(g(index_select(x, 1, order)), index_select(g(x), 1, order)) < 1e-13);
      o.use_rope = true;
      Gau positioned = g;
      positioned.options.use_rope = true;
      CHECK(max_abs_diff(positioned(index_select(x, 1, order)), index_select(positioned(x), 1, order)) > 1e-7);
    }
}

TEST_CASE("gau: λ⁷ homogeneity with relu, and none with SiLU", "[gau][identity]") {
  for (Act act : {Act::relu, Act::identity, Act::silu})
    for (double lambda : {0.5, 0.9, 3.0}) {
      GauOptions o = small();
      o.activation = act, o.linear_bias = false, o.norm = NormKind::none;
      Rand rand(7);
      Gau g = random_gau(o, rand);
      set(g.beta, [](int64_t) { return 0; });
      const Tensor x = random_tensor({2, 7, 5}, f64, rand, -2, 2), before = g(x) - x;
      REQUIRE(max_abs(before) > 1e-5);
      Gau scaled = g;
      scaled.in.weight = g.in.weight * lambda, scaled.out.weight = g.out.weight * lambda;
      const double off =
          max_abs_diff(scaled(x) - x, before * std::pow(lambda, 7)) / (max_abs(before) * std::pow(lambda, 7));
      if (act == Act::silu) CHECK(off > 0.1);
      else check_identity("GAU: lambda^7 homogeneity with relu", off, 1e-9);  // y − x loses digits
    }
}

TEST_CASE("gau: with L = n causal outputs know how many tokens there are, else not", "[gau][identity]") {
  for (GauKind kind : kGauKinds)
    for (GauBias bias : kGauBiases)
      for (GauLength length : kGauLengths) {
        GauOptions o = small(kind);
        o.causal = true, o.length = length, o.bias = bias, o.heads = 2;
        o.constant_length = 6;
        Rand rand(9);
        const Gau g = random_gau(o, rand, 1.0);
        const Tensor x = random_tensor({2, 9, 5}, f64, rand), y = g(x);
        INFO(name_of(kind) << " length " << static_cast<int>(length) << " bias " << static_cast<int>(bias));
        const Tensor changed = g(masked_fill(x, reshape(arange(9), {9, 1}) >= 5.0, 3));
        CHECK(same_bits(narrow(changed, 1, 0, 5), narrow(y, 1, 0, 5)));
        const double prefix = max_abs_diff(g(narrow(x, 1, 0, 5)), narrow(y, 1, 0, 5));
        const bool uses_length = kind != GauKind::paper_eq && kind != GauKind::rownorm && kind != GauKind::softmax;
        if (length == GauLength::n && uses_length) CHECK(prefix > 1e-4);
        else CHECK(prefix < 1e-13);
      }
}
