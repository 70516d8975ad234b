// mLSTM: what a stream keeps, gates beyond all numbers, defaults, costs, errors. mlstm_reference.cpp says what the
// layer computes.
#include "support/approx.h"
#include "support/catch.h"
#include "support/mamba_cases.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/linear_attention/mlstm.h>
#include <sluice/layers/report/cost.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <utility>

using namespace sluice;
using namespace sluice::testing;

namespace {

Mlstm small_layer(MlstmOptions o = {.dim = 6, .heads = 3, .expand_k = 1, .chunk = 5, .dtype = f64}) {
  return drawn_layer(o);
}
/// Adds `by` to the logits of the gate.
void move_logits(const Linear& gate, double by) {
  NoGrad guard;
  Tensor bias = gate.bias;
  add_(bias, full(bias.shape(), by, bias.options()));
}

}  // namespace

TEST_CASE("mLSTM: a stream keeps a matrix, a sum and two numbers for each head", "[mlstm]") {
  check_stream(small_layer(), numbers({2, 150, 6}, 6), 2 * 3 * (2 * (2 + 1) + 2));
}

TEST_CASE("mLSTM: logits of gates that no exponential holds", "[mlstm]") {
  // A common factor of all e^ĩ cancels where |d| is far above 1.
  MlstmOptions o{.dim = 6, .heads = 3, .expand_k = 1, .gate_cap = 0, .eps = 0, .dtype = f64};
  const Tensor x = numbers({2, 40, 6}, 6);
  Mlstm large = small_layer(o), huge = small_layer(o);
  move_logits(large.input_gate, 50), move_logits(huge.input_gate, 5000);
  CHECK(max_abs_diff(large(x), huge(x)) < 1e-10);
  Mlstm none = small_layer(o);  // where all e^ĩ are far below 1, h is 0
  move_logits(none.input_gate, -5000);
  CHECK(max_abs(none(x)) == 0);
  for (const auto& [opened, kept] : {std::pair(-5e3, -5e3), {-5e3, 5e3}, {5e3, -5e3}, {5e3, 5e3}}) {
    Mlstm m = small_layer({.dim = 6, .heads = 3, .expand_k = 1, .gate_cap = 0, .dtype = f64});
    move_logits(m.input_gate, opened), move_logits(m.forget_gate, kept);
    Tensor grad_of = x.detach().requires_grad_();
    backward(sum(square(m(grad_of))));
    CHECK(all(isfinite(grad_of.grad())).item() == 1);
    for (const NamedTensor& p : parameters(m)) {
      INFO(p.name << " with " << opened << ", " << kept);
      CHECK(all(isfinite(p.tensor.grad())).item() == 1);
    }
  }
}

TEST_CASE("mLSTM: an input gate that grows with the text", "[mlstm]") {
  // ĩ_t = t·1000: each token outweighs all before it, in one pass and in a stream.
  Mlstm m = small_layer({.dim = 6, .heads = 2, .expand_k = 1, .gate_cap = 0, .eps = 0, .dtype = f64});
  {
    NoGrad guard;
    fill_(m.input_gate.weight, 0);
    Tensor last_channel = m.input_gate.weight[5];
    fill_(last_channel, 1000);
  }
  Tensor x = numbers({1, 300, 6}, 6);
  x = cat({narrow(x, 2, 0, 5), reshape(to(arange(300), f64), {1, 300, 1})}, 2);
  const Tensor y = m(x);
  CHECK(all(isfinite(y)).item() == 1);
  Stream stream;
  Tensor last;
  for (int64_t t = 0; t < 300; t += 7) last = step(m, narrow(x, 1, t, std::min<int64_t>(7, 300 - t)), stream);
  CHECK(max_abs_diff(last, narrow(y, 1, 294, 6)) < 1e-12);
  Stream fresh;  // what was before is forgotten, but for the size of d
  CHECK(max_abs_diff(step(m, narrow(x, 1, 299, 1), fresh), narrow(y, 1, 299, 1)) < 1e-12);
}

TEST_CASE("mLSTM: initial gates", "[mlstm]") {
  Rng rng(1);
  const Mlstm m({.dim = 16, .heads = 4, .dtype = bf16}, rng);
  CHECK(max_abs_diff(to(m.input_gate.bias, f64), full({4}, -10, {f64})) == 0);
  CHECK(max_abs_diff(to(m.forget_gate.bias, f64), linspace(3, 6, 4, {f64})) == 0);
  CHECK(max(abs(m.forget_gate.weight)).item() == 0);
  CHECK_FALSE(m.input_gate.weight.shares_storage(m.forget_gate.weight));
}

TEST_CASE("mLSTM: costs", "[mlstm][cost]") {
  const Cost c = cost(MlstmOptions{.dim = 12, .heads = 3, .expand_k = 2, .expand_v = 1}, 40);
  CHECK(c.parameters == 2 * 12 * 24 + 3 * 12 * 12 + 2 * (12 * 3 + 3) + 12);
  CHECK(c.state == 3 * (8 * (4 + 1) + 2));
  // A layer of xLSTM 7B.
  CHECK(cost(MlstmOptions{.dim = 4096}, 1).parameters == 4096 * (2 * 2048 + 3 * 4096 + 2 * 8 + 1) + 2 * 8);
}

TEST_CASE("mLSTM: errors", "[mlstm]") {
  Rng rng(1);
  CHECK_THROWS_WITH(Mlstm({.dim = 8, .heads = 3}, rng), Contains("mlstm: heads=3"));
  CHECK_THROWS_WITH(Mlstm({.dim = 8, .heads = 0}, rng), Contains("mlstm") && Contains("heads"));
  CHECK_THROWS_WITH(Mlstm({.dim = 8, .gate_cap = -1}, rng), Contains("mlstm") && Contains("gate_cap"));
  CHECK_THROWS_WITH(Mlstm({.dim = int64_t{1} << 62}, rng), Contains("mlstm"));
  CHECK_THROWS_WITH(small_layer()(ones({2, 5, 7}, {f64})), Contains("mlstm") && Contains("[2,5,7]"));
}
