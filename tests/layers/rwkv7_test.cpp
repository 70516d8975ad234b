// RWKV-7: the recurrence as two rows of the delta scan, v of the first layer of a stack, initial values, streams,
// costs. rwkv7_reference.cpp says what the layer computes.
#include "support/array.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/identities.h"
#include "support/naive_attention.h"

#include <sluice/layers/linear_attention/delta_mixer.h>
#include <sluice/layers/linear_attention/rwkv7.h>
#include <sluice/layers/report/cost.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("RWKV-7: a token is two rows of the delta scan", "[rwkv7][identity]") {
  const int64_t n = 70, c = 4;
  Rand rand(1);
  const auto drawn = [&](double low, double high) { return random_tensor({1, 1, n, c}, f64, rand, low, high); };
  const Tensor r = drawn(-1, 1), w = drawn(-0.6, 0), a = drawn(0, 1), k = drawn(-1, 1), v = drawn(-1, 1);
  Tensor kappa = drawn(-1, 1);
  kappa = kappa / sqrt(sum(kappa * kappa, {-1}, keep));
  const auto row = [](const Tensor& t, int64_t at) {
    return transpose(detail::among_updates(transpose(t, 1, 2), 2, at), 1, 2);
  };
  const auto scanned = [&](const Tensor& rate, int64_t chunk) {
    const DeltaScanResult y = delta_scan(row(r, 1), row(rate * kappa, 0) + row(k, 1), row(kappa * exp(neg(w)), 0),
                                         row(v, 1), row(w, 0), {}, {.chunk = chunk});
    return std::pair(select(unflatten(y.out, 2, {n, 2}), 3, 1), y.state);
  };
  Array state({c, c}), o({1, 1, n, c});  // S ← diag(e^w) S − (a ⊙ κ)ᵀ(κ S) + kᵀ v
  const Array rr = array_of(r), ww = array_of(w), aa = array_of(a), kk = array_of(k), vv = array_of(v),
              ka = array_of(kappa);
  for (int64_t t = 0; t < n; ++t)
    for (int64_t j = 0; j < c; ++j) {
      double held = 0;
      for (int64_t i = 0; i < c; ++i) held += ka({0, 0, t, i}) * state({i, j});
      for (int64_t i = 0; i < c; ++i) {
        state({i, j}) = std::exp(ww({0, 0, t, i})) * state({i, j}) - aa({0, 0, t, i}) * ka({0, 0, t, i}) * held +
                        kk({0, 0, t, i}) * vv({0, 0, t, j});
        o({0, 0, t, j}) += rr({0, 0, t, i}) * state({i, j});
      }
    }
  for (int64_t chunk : {1, 5, 64, 256}) {
    const auto [out, last] = scanned(a, chunk);
    check_identity("RWKV-7: two rows of the delta scan = the recurrence", out, tensor_of(o.v, {1, 1, n, c}, f64),
                   1e-12);
    check_identity("RWKV-7: two rows of the delta scan = the recurrence", last, tensor_of(state.v, {1, 1, c, c}, f64),
                   1e-12);
  }
  check_identity("RWKV-7: a = 0 is GLA", scanned(zeros(a.shape(), {f64}), 64).first, linear_scan(r, k, v, w), 1e-12);
}

TEST_CASE("RWKV-7: in a stack, v is mixed with that of the first layer", "[rwkv7]") {
  Rng rng(2);
  Rand rand(2);
  const Rwkv7Options plain{.dim = 8, .head_dim = 4, .dtype = f64};
  Rwkv7Options mixing = plain;
  mixing.value_residual = true;
  const Rwkv7 second(mixing, rng);
  NoGrad guard;
  Tensor up = second.value_up.weight.detach(), bias = second.value_up.bias.detach();
  const Tensor x = random_tensor({2, 9, 8}, f64, rand);
  const auto like_second = [&](const Tensor& v_weight) {  // a first layer with these v
    Rwkv7 layer(plain, rng);
    std::map<std::string, Tensor> state;
    for (const NamedTensor& t : state_dict(second))
      if (!t.name.starts_with("value_")) state[t.name] = t.tensor.detach();
    state["v.weight"] = v_weight;
    load_state(layer, state);
    return layer;
  };
  const Tensor own = second.v.weight.detach(), other = random_tensor({8, 8}, f64, rand);
  Tensor values;
  like_second(other)(x, values);
  CHECK(values.shape() == x.shape());
  const Tensor kept = values, y = second(x, values);
  CHECK(same_bits(values, kept));
  CHECK(max_abs_diff(y, like_second(own)(x)) > 1e-3);
  CHECK(max_abs_diff(second(x), like_second(own)(x)) < 1e-12);  // alone, it is the first
  fill_(up, 0), fill_(bias, std::log(1.0 / 3));                 // σ = 1/4
  CHECK(max_abs_diff(second(x, values), like_second(own * 0.75 + other * 0.25)(x)) < 1e-12);
  Tensor wrong = narrow(values, 1, 0, 3);
  CHECK_THROWS_WITH(second(x, wrong), Contains("rwkv7: first_values=[2,3,8]") && Contains("[2,9,8]"));

  Stream stream;  // of both layers
  std::vector<Tensor> rows;
  const auto stack = [&](const Tensor& tokens, const Pass& pass) {
    Tensor first;
    return second(like_second(other)(tokens, first, pass), first, pass);
  };
  const Pass whole;
  const Tensor want = stack(x, whole);
  for (const Tensor& piece : split(x, {1, 5, 1, 2}, 1)) rows.push_back(step(stack, piece, stream));
  CHECK(max_abs_diff(cat(rows, 1), want) < 1e-12);
  CHECK(stream.numel() == 2 * 2 * (8 * 4 + 8));
}

TEST_CASE("RWKV-7: initial values, sizes, errors", "[rwkv7][cost]") {
  Rng rng(3);
  const Rwkv7 m({.dim = 1024, .value_residual = true}, rng);
  const Rwkv7Options& o = m.options;
  CHECK((o.decay_rank == 64 && o.rate_rank == 64 && o.value_rank == 32 && o.gate_rank == 160));
  // The published layer of 1024 channels: 4 maps, the low-rank ones, 6 shares, 8 vectors.
  CHECK(count(m) == 4 * 1024 * 1024 + 2 * 1024 * (64 + 64 + 32 + 160) + 14 * 1024);
  const Tensor w = m.log_decay(zeros({1, 1, 1024}));
  CHECK((max(w).item() < 0 && min(w).item() > -std::exp(-0.5)));
  CHECK(w[0][0][0].item() == Approx(-std::exp(-0.5) / (1 + std::exp(5.5))).epsilon(1e-6));
  CHECK((m.mix[0][0].item() == 1 && max(m.mix).item() == 1 && min(m.mix).item() > 0));
  CHECK(m.mix[2][512].item() == Approx(1 - std::pow(0.5, 0.7)));
  CHECK(cost(o, 1).state == 1024 * 64 + 1024);
  CHECK_THROWS_WITH(Rwkv7({.dim = 10, .head_dim = 4}, rng), Contains("rwkv7: head_dim=4 must divide dim=10"));
  const Rwkv7 half({.dim = 8, .head_dim = 4, .dtype = bf16}, rng);
  CHECK(half.decay_bias.dtype() == f32);
  const Tensor decay = half.log_decay(zeros({1, 1, 8}, {bf16}));
  CHECK(decay.dtype() == f32);  // and not rounded: bf16 would be 2e-3 off
  CHECK(max_abs_diff(flatten(decay) / (sigmoid(half.decay_bias) * -std::exp(-0.5)), ones({8})) < 1e-6);
  NoGrad guard;
  CHECK(half(zeros({1, 3, 8}, {bf16})).dtype() == bf16);
}
