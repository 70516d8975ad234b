// Mamba: what begins and ends a state, sizes, defaults, errors. mamba_reference.cpp says what the layer computes.
#include "support/approx.h"
#include "support/catch.h"
#include "support/mamba_cases.h"

#include <sluice/layers/linear_attention/mamba.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

Mamba small_layer(int64_t chunk = 64, DType dtype = f64, NormKind norm = NormKind::none) {
  return drawn_layer(MambaOptions{.dim = 6, .inner = 8, .state = 5, .norm = norm, .chunk = chunk, .dtype = dtype});
}

}  // namespace

TEST_CASE("Mamba: padding leaves the state, and gives 0", "[mamba]") {
  for (const NormKind norm : {NormKind::none, NormKind::rms}) check_padding(small_layer(64, f64, norm));
}

TEST_CASE("Mamba: documents in one row are documents in rows of their own", "[mamba]") {
  check_documents(small_layer(), 1e-13);
}

TEST_CASE("Mamba: the state of a stream is that of the text, whatever the chunk", "[mamba]") {
  const Tensor x = numbers({2, 150, 6}, 6);
  const Mamba m = small_layer();
  const Tensor y = m(x), state = last_state(m, x);
  for (int64_t chunk : {1, 7, 256}) CHECK(max_abs_diff(small_layer(chunk)(x), y) < 1e-13);
  check_stream(m, x, 2 * (8 * 5 + 3 * 8));
  CHECK(state.shape() == Shape{2, 8, 5, 1});
  const Mamba single = small_layer(64, f32);
  CHECK(max_abs_diff(to(single(to(x, f32)), f64), y) < 1e-5 * max_abs(y));
}

TEST_CASE("Mamba: initial steps, decays and gains", "[mamba]") {
  Rng rng(1);
  const Mamba m({.dim = 100, .inner = 256, .state = 4}, rng);
  CHECK(m.options.dt_rank == 7);
  const Tensor a = exp(m.a_log.detach());
  check_initial_steps(m);
  CHECK(max_abs_diff(a, expand(arange(1.0, 5.0), {256, 4})) < 1e-6);
  CHECK(max_abs_diff(m.d.detach(), ones({256})) == 0);
  const double bound = max_abs(m.dt.weight.detach());
  CHECK((bound <= 1 / std::sqrt(7.0) && bound > 0.99 / std::sqrt(7.0)));
  const Mamba wide({.dim = 8, .norm = NormKind::rms, .dtype = bf16}, rng);
  CHECK(wide.a_log.shape() == Shape{16, 16});
  check_dtypes(wide);
}

TEST_CASE("Mamba: in bf16 steps and decays are not rounded", "[mamba]") {
  Rng rng(3);
  const Mamba m({.dim = 6, .state = 5, .dtype = bf16}, rng);
  NoGrad guard;
  Tensor weight = m.dt.weight.detach();
  fill_(weight, 0);  // Δ = softplus(dt_bias) at every token
  const Tensor x = to(numbers({1, 7, 6}, 5), bf16);
  const Pass pass;
  const Mamba::Operands o = m.operands(Call(m, "mamba", x, 6, pass));
  const Tensor steps = unsqueeze(softplus(to(m.dt_bias.detach(), f64)), -1);
  const Tensor want = reshape(neg(exp(to(m.a_log.detach(), f64)) * steps), {1, 12, 1, 5});
  CHECK(o.log_decay.dtype() == f32);
  CHECK(o.v.dtype() == bf16);
  CHECK(max_abs((to(o.log_decay, f64) - want) / want) < 1e-6);  // bf16 would be 4e-3 off
}

TEST_CASE("Mamba: costs", "[mamba][cost]") {
  const int64_t n = 40, d = 12, i = 20, s = 8, r = 3;
  MambaOptions o{.dim = d, .inner = i, .state = s, .dt_rank = r};
  const Cost c = cost(o, n);
  CHECK(c.parameters == 2 * d * i + 5 * i + i * (r + 2 * s) + r * i + i + i * s + i + i * d);
  CHECK(c.flops == 2 * n * (2 * d * i + i * (r + 2 * s) + r * i + i * d) + 4 * n * i * s);
  CHECK(c.attention_elements == 0);
  CHECK(c.state == i * s + 3 * i);
  o.short_conv = 0;
  CHECK(cost(o, n).parameters == c.parameters - 5 * i);
  CHECK(cost(o, n).state == i * s);
  // Mamba-2.8B, a layer: the shapes of its published file.
  const Cost large = cost(MambaOptions{.dim = 2560}, 1);
  CHECK(large.parameters == 2560 * 10240 + 5 * 5120 + 5120 * 192 + 160 * 5120 + 5120 * 18 + 5120 * 2560);
}

TEST_CASE("Mamba: errors", "[mamba]") {
  Rng rng(1);
  CHECK_THROWS_WITH(Mamba({.dim = 8, .norm = NormKind::layer}, rng), Contains("mamba") && Contains("layer"));
  CHECK_THROWS_WITH(Mamba({.dim = 8, .state = 0}, rng), Contains("mamba") && Contains("state"));
  CHECK_THROWS_WITH(Mamba({.dim = int64_t{1} << 62}, rng), Contains("mamba"));
  const Mamba m = small_layer();
  CHECK_THROWS_WITH(m(ones({2, 5, 7}, {f64})), Contains("mamba") && Contains("[2,5,7]"));
}
