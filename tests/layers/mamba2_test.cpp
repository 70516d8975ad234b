// Mamba-2: what begins and ends a state, sizes, defaults, errors. mamba2_reference.cpp says what the layer computes.
#include "support/approx.h"
#include "support/catch.h"
#include "support/mamba_cases.h"

#include <sluice/layers/linear_attention/mamba2.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

Mamba2 small_layer(int64_t chunk = 64, DType dtype = f64) {
  return drawn_layer(
      Mamba2Options{.dim = 6, .heads = 4, .head_dim = 3, .state = 5, .groups = 2, .chunk = chunk, .dtype = dtype});
}

}  // namespace

TEST_CASE("Mamba-2: padding leaves the state, and gives 0", "[mamba2]") { check_padding(small_layer()); }

TEST_CASE("Mamba-2: documents in one row are documents in rows of their own", "[mamba2]") {
  // The scan adds −10⁴ to the sum of log decays where a document begins: four times ε·10⁴ are 9e-12.
  check_documents(small_layer(), 2e-11);
}

TEST_CASE("Mamba-2: the state of a stream is that of the text, whatever the chunk", "[mamba2]") {
  const Tensor x = numbers({2, 150, 6}, 6);
  const Mamba2 m = small_layer();
  const Tensor y = m(x), state = last_state(m, x);
  for (int64_t chunk : {1, 7, 20, 256}) {
    const Tensor other = small_layer(chunk)(x);
    CHECK(max_abs_diff(other, y) < 1e-13);
    CHECK(same_bits(other, y) == (chunk > 32));  // it rounds in other places; longer chunks go by 32 steps
  }
  check_stream(m, x, 2 * (4 * 3 * 5 + 3 * (4 * 3 + 2 * 2 * 5)));
  CHECK(state.shape() == Shape{2, 4, 5, 3});
  const Mamba2 single = small_layer(64, f32);
  CHECK(max_abs_diff(to(single(to(x, f32)), f64), y) < 1e-5 * max_abs(y));
}

TEST_CASE("Mamba-2: initial steps, decays and gains", "[mamba2]") {
  Rng rng(1);
  const Mamba2 m({.dim = 256, .head_dim = 2, .state = 4}, rng);
  CHECK(m.options.heads == 256);
  const Tensor a = exp(m.a_log.detach());
  check_initial_steps(m);
  Rng one(7), same(7);
  const Tensor drawn = exp(uniform({9}, std::log(0.001), std::log(0.1), same, {f64}));
  CHECK(max_abs_diff(softplus(init_dt_bias(9, one, f64)), drawn) < 1e-15);
  CHECK((min(a).item() > 0.999 && max(a).item() < 16.001));
  CHECK(std::abs(mean(a).item() - 8.5) < 1);  // standard error 0.27
  CHECK((min(m.d).item() == 1 && max(m.d).item() == 1));
  const Mamba2 wide({.dim = 8, .head_dim = 4, .d_per_channel = true, .dtype = bf16}, rng);
  CHECK(wide.d.shape() == Shape{16});
  check_dtypes(wide);
}

TEST_CASE("Mamba-2: in bf16 steps and decays are not rounded", "[mamba2]") {
  Rng rng(3);
  const Mamba2 m({.dim = 6, .heads = 4, .head_dim = 3, .state = 5, .dtype = bf16}, rng);
  NoGrad guard;
  Tensor steps = narrow(m.in.weight.detach(), 1, m.in.weight.dim(1) - 4, 4);
  fill_(steps, 0);  // Δ = softplus(dt_bias) at every token
  const Tensor x = to(numbers({1, 7, 6}, 5), bf16);
  const Pass pass;
  const Mamba2::Operands o = m.operands(Call(m, "mamba2", x, 6, pass));
  const Tensor want = neg(exp(to(m.a_log.detach(), f64)) * softplus(to(m.dt_bias.detach(), f64)));
  CHECK(o.log_decay.dtype() == f32);
  CHECK(o.v.dtype() == bf16);
  const Tensor off = to(o.log_decay, f64) - reshape(want, {1, 4, 1});
  CHECK(max_abs(off / reshape(want, {1, 4, 1})) < 1e-6);  // bf16 would be 4e-3 off
}

TEST_CASE("Mamba-2: costs", "[mamba2][cost]") {
  const int64_t n = 40, d = 12, h = 6, p = 4, s = 8, g = 2, inner = h * p, mixed = inner + 2 * g * s;
  Mamba2Options o{.dim = d, .heads = h, .head_dim = p, .state = s, .groups = g};
  const Cost c = cost(o, n);
  CHECK(c.parameters == d * (inner + mixed + h) + 5 * mixed + 3 * h + inner + inner * d);
  CHECK(c.flops == 2 * n * d * (inner + mixed + h) + 2 * n * inner * d + 4 * n * h * p * s);
  CHECK(c.attention_elements == 0);
  CHECK(c.state == h * p * s + 3 * mixed);
  o.short_conv = 0, o.norm = false;
  CHECK(cost(o, n).parameters == c.parameters - 5 * mixed - inner);
  CHECK(cost(o, n).state == h * p * s);
  // Mamba2-2.7B, a layer: the shapes of its published file.
  const Cost large = cost(Mamba2Options{.dim = 2560}, 1);
  CHECK(large.parameters == 2560 * 10576 + 5 * 5376 + 3 * 80 + 5120 + 5120 * 2560);
}

TEST_CASE("Mamba-2: errors", "[mamba2]") {
  Rng rng(1);
  CHECK_THROWS_WITH(Mamba2({.dim = 8}, rng), Contains("head_dim=64") && Contains("2*dim=16"));
  CHECK_THROWS_WITH(Mamba2({.dim = 8, .heads = 4, .in_factors = {1, 2}}, rng), Contains("in_factors needs five"));
  CHECK_THROWS_WITH(Mamba2({.dim = 8, .heads = 4, .groups = 3}, rng), Contains("groups=3") && Contains("heads=4"));
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& limit : {std::vector<double>{}, {0.1}, {0.1, 0.2, 0.3}, {0.2, 0.1}, {inf, inf}})
    CHECK_THROWS_WITH(Mamba2({.dim = 8, .heads = 4, .dt_limit = limit}, rng), Contains("dt_limit"));
  const Mamba2 m = small_layer();
  CHECK_THROWS_WITH(m(ones({2, 5, 7}, {f64})), Contains("mamba2") && Contains("[2,5,7]"));
}
