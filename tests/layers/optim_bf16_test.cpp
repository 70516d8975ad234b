// bf16 parameters in the optimisers and in clipping.
#include <sluice/layers/train/optim.h>

#include <sluice/autograd/engine.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/shape/view.h>

#include "support/approx.h"
#include "support/catch.h"

#include <cmath>
#include <memory>

using namespace sluice;
using namespace sluice::testing;

namespace {
Tensor noise(const Shape& shape, Rand& rand) { return to(random_tensor(shape, bf16, rand), cpu); }
}  // namespace

TEST_CASE("optim: a bf16 parameter follows a master copy in f32", "[optim][bf16]") {
  const auto each = [](const auto& make) {
    Rand rand(3);
    const Tensor start = noise({4, 5}, rand);
    Tensor w = clone(start).requires_grad_(), wide = to(start, f32).requires_grad_();
    auto half = make(w), single = make(wide);
    std::map<std::string, Tensor> kept;
    Tensor kept_w;
    for (int i = 0; i < 40; ++i) {
      const Tensor g = noise({4, 5}, rand);
      w.set_grad(g), wide.set_grad(to(g, f32));
      half->step(), single->step();
      REQUIRE(w.dtype() == bf16);
      CHECK(same_bits(w, to(wide.detach(), bf16)));
      CHECK(same_bits(half->state().at("0.master"), wide.detach()));
      if (i == 19) kept = half->state(), kept_w = clone(w.detach());
    }
    CHECK_FALSE(same_bits(w, start));
    // From the state at step 20 it goes on bit for bit, in either order of loading.
    for (const bool model_first : {true, false}) {
      Tensor again = clone(start).requires_grad_();
      auto resumed = make(again);
      const auto load_model = [&] {
        NoGrad guard;
        copy_(again, kept_w);
      };
      if (model_first) load_model();
      resumed->load_state(kept);
      if (!model_first) load_model();
      Rand replay(3);
      noise({4, 5}, replay);
      for (int i = 0; i < 40; ++i) {
        const Tensor g = noise({4, 5}, replay);
        if (i < 20) continue;
        again.set_grad(g);
        resumed->step();
      }
      CHECK(same_bits(again, w));
    }
    // What is written into the parameter counts; the rest keeps its master.
    const Tensor before = half->state().at("0.master");
    {
      NoGrad guard;
      Tensor first = narrow(w, 0, 0, 1);
      fill_(first, 3);
    }
    w.set_grad(zeros_like(w));
    half->set_lr(0);
    half->step();
    const Tensor after = half->state().at("0.master");
    CHECK(same_bits(clone(narrow(after, 0, 0, 1)), full({1, 5}, 3)));
    CHECK(same_bits(clone(narrow(after, 0, 1, 3)), clone(narrow(before, 0, 1, 3))));
    // A state without the master is refused.
    auto lacking = half->state();
    lacking.erase("0.master");
    CHECK_THROWS_WITH(half->load_state(lacking), Contains("0.master"));
  };
  using T = std::vector<Tensor>;
  each([](Tensor w) { return std::make_unique<Sgd>(T{w}, SgdOptions{.lr = 1e-3}); });
  each([](Tensor w) { return std::make_unique<Sgd>(T{w}, SgdOptions{.lr = 1e-3, .momentum = 0.9, .nesterov = true}); });
  each([](Tensor w) { return std::make_unique<Adam>(T{w}, AdamOptions{.lr = 1e-3, .weight_decay = 0.1}); });
  each([](Tensor w) { return std::make_unique<Lamb>(T{w}, LambOptions{.lr = 1e-3}); });
  each([](Tensor w) { return std::make_unique<Muon>(T{w}, MuonOptions{.lr = 1e-3}); });
  each([](Tensor w) { return std::make_unique<RmsProp>(T{w}, RmsPropOptions{.momentum = 0.9, .centered = true}); });
  each([](Tensor w) { return std::make_unique<Lion>(T{w}, LionOptions{.lr = 1e-3, .weight_decay = 0.1}); });
}

TEST_CASE("optim: every bf16 weight resumes with its own master copy", "[optim][bf16]") {
  Rand rand(5);
  const auto weights = [](const Tensor& a, const Tensor& b) {
    return std::vector<Tensor>{clone(a).requires_grad_(), clone(b).requires_grad_()};
  };
  const Tensor a = noise({3, 4}, rand), b = noise({3, 4}, rand);  // of one shape: nothing but the name tells them apart
  const std::vector<Tensor> first = weights(a, b);
  Adam adam(first);
  for (int i = 0; i < 5; ++i) {
    for (Tensor w : first) w.set_grad(noise({3, 4}, rand));
    adam.step();
  }
  const auto saved = adam.state();
  CHECK_FALSE(same_bits(saved.at("0.master"), saved.at("1.master")));
  const std::vector<Tensor> again = weights(first[0].detach(), first[1].detach());
  Adam resumed(again);
  resumed.load_state(saved);
  const auto loaded = resumed.state();
  for (const auto& [key, value] : saved) {
    INFO(key);
    CHECK(same_bits(loaded.at(key), value));
  }
  const std::vector<Tensor> grads{noise({3, 4}, rand), noise({3, 4}, rand)};
  for (std::size_t i = 0; i < 2; ++i) Tensor(first[i]).set_grad(grads[i]), Tensor(again[i]).set_grad(grads[i]);
  adam.step(), resumed.step();
  for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(first[i], again[i]));
}

TEST_CASE("clip: the norm of bf16 gradients is that of their values", "[clip][bf16]") {
  Rand rand(4);
  Tensor w = zeros({300, 7}, {bf16}).requires_grad_(), wide = zeros({300, 7}).requires_grad_();
  const Tensor g = noise({300, 7}, rand);
  w.set_grad(clone(g)), wide.set_grad(to(g, f32));
  CHECK(clip_grad_norm({w}, 1) == clip_grad_norm({wide}, 1));
  CHECK(same_bits(w.grad(), to(wide.grad(), bf16)));
  clip_grad_value({w}, 0.01), clip_grad_value({wide}, 0.01);
  CHECK(max_abs_diff(w.grad(), wide.grad()) <= 0x1p-8 * 0.02);
}

namespace {

/// A small language model of two GAUs.
struct Model {
  Embedding embedding;
  Gau first, second;
  Norm norm;
  Linear head;

  static GauOptions gau(DType dtype) { return {.dim = 32, .key_dim = 32, .causal = true, .dtype = dtype}; }
  Model(Rng& rng, DType dtype)
      : embedding({.count = 12, .dim = 32, .dtype = dtype}, rng), first(gau(dtype), rng), second(gau(dtype), rng),
        norm({.dim = 32, .dtype = dtype}), head({.in = 32, .out = 12, .dtype = dtype}, rng) {}
  Tensor operator()(const Tensor& tokens) const { return head(norm(second(first(embedding(tokens))))); }
  SLUICE_PARTS(embedding, first, second, norm, head);
};

/// The losses of steps that learn y = 5x + r mod 12, r one of 0, 1, 2.
std::vector<double> losses(DType dtype, int steps) {
  Rng rng(1);
  Rand data(2);
  Model model(rng, dtype);
  Adam adam(parameters(model), {.lr = 3e-3});
  std::vector<double> curve;
  for (int i = 0; i < steps; ++i) {
    std::vector<int64_t> x(8 * 24), y(8 * 24);
    for (std::size_t k = 0; k < x.size(); ++k) x[k] = data.below(12), y[k] = (5 * x[k] + data.below(3)) % 12;
    const Tensor loss = cross_entropy(model(Tensor::from(x, {8, 24})), Tensor::from(y, {8, 24}));
    adam.zero_grad();
    backward(loss);
    clip_grad_norm(adam.parameters(), 1);
    adam.step();
    curve.push_back(loss.item());
  }
  return curve;
}

}  // namespace

TEST_CASE("optim: a language model of bf16 weights learns as one of f32", "[optim][bf16]") {
  const auto half = losses(bf16, 120), full = losses(f32, 120);
  const auto mean = [](const std::vector<double>& x, std::size_t from) {
    double total = 0;
    for (std::size_t i = from; i < from + 20; ++i) total += x[i] / 20;
    return total;
  };
  for (std::size_t from = 0; from < 120; from += 20) {
    INFO("steps from " << from << ": bf16 " << mean(half, from) << ", f32 " << mean(full, from));
    CHECK(std::abs(mean(half, from) - mean(full, from)) < 0.01 * mean(full, from));
  }
  CHECK((full[0] > 2.3 && mean(full, 100) < 1.2));  // from log 12 to log 3
}
