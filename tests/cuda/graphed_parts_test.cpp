// Recorded steps of programs whose other parts go on by themselves: leaves that are not the step's, modules that are
// converted, frozen or replaced, and an optimiser of one's own.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/train/graphed_step.h>
#include <sluice/layers/train/models.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

const Device gpu = Device::cuda();

}  // namespace

TEST_CASE("cuda: a replay leaves leaves alone that are not the step's", "[graph]") {
  // A GAN: the discriminator is trained by plain steps, the generator through it by recorded ones.
  std::vector<std::vector<float>> all;
  for (const Device device : {cpu, gpu}) {
    Rng rng(1);
    Linear generator({.in = 3, .out = 4}, rng), discriminator({.in = 4, .out = 1}, rng);
    to(generator, device), to(discriminator, device);
    Adam of_generator(parameters(generator), {.lr = 0.05}), of_discriminator(parameters(discriminator), {.lr = 0.05});
    GraphedStep step(of_generator, [&](const std::vector<Tensor>& in) {
      return mean(softplus(neg(discriminator(generator(in[0])))));
    });
    for (int i = 0; i < 12; ++i) {
      const Tensor z = to(normal({8, 3}, 0, 1, rng), device), real = to(normal({8, 4}, 1, 1, rng), device);
      of_discriminator.zero_grad();
      backward(mean(softplus(neg(discriminator(real)))) + mean(softplus(discriminator(generator(z).detach()))));
      of_discriminator.step();
      const Tensor before = clone(discriminator.weight.grad());
      step({z});
      CHECK(same_bits(discriminator.weight.grad(), before));
    }
    all.push_back(to(cat({flatten(generator.weight.detach()), flatten(discriminator.weight.detach())}, 0), cpu)
                      .to_vector<float>());
  }
  // On a GPU cuBLASLt adds up products in another order, and Adam divides what that changes by small numbers.
  for (std::size_t i = 0; i < all[0].size(); ++i) CHECK(all[0][i] == Approx(all[1][i]).margin(1e-4));
}

TEST_CASE("cuda: a replay writes at the indices of its own call, the last number of several", "[graph]") {
  std::vector<Tensor> results;
  for (const bool graphed : {false, true}) {
    Rng rng(2);
    Linear map({.in = 3, .out = 16}, rng);
    to(map, gpu);
    Adam adam(parameters(map), {.lr = 0.05});
    const auto loss_of = [&](const std::vector<Tensor>& in) {
      const Tensor y = map(in[0]);
      return sum(square(softmax(scatter(y, 1, in[1], narrow(y, 1, 0, 9) * 2.0), 0)));
    };
    GraphedStep step(adam, loss_of);
    for (int i = 0; i < 6; ++i) {
      const std::vector<Tensor> in{to(normal({8, 3}, 0, 1, rng), gpu), to(randint(0, 16, {8, 9}, rng), gpu)};
      if (graphed) step(in);
      else adam.zero_grad(), backward(loss_of(in)), adam.step();
    }
    if (graphed) CHECK(step.recorded() == 1);
    results.push_back(to(map.weight.detach(), cpu));
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("cuda: a step is recorded again when a module is converted, frozen or thawed", "[graph]") {
  Rng rng(1);
  Linear encoder({.in = 3, .out = 4}, rng), head({.in = 4, .out = 2}, rng);
  to(encoder, gpu), to(head, gpu);
  freeze(encoder);
  Adam adam(parameters(head), {.lr = 0.01});
  GraphedStep step(adam, [&](const std::vector<Tensor>& in) {
    return mean(square(head(to(encoder(to(in[0], encoder.weight.dtype())), f32))));
  });
  const Tensor x = to(normal({5, 3}, 0, 1, rng), gpu);
  const auto loss = [&] { return mean(square(head(to(encoder(to(x, encoder.weight.dtype())), f32)))).item(); };
  const auto check_step = [&] {
    const float expected = loss();
    CHECK(step({x}).item() == Approx(expected).epsilon(1e-5));
  };
  for (int i = 0; i < 3; ++i) check_step();
  to(encoder, bf16);
  std::vector<Tensor> others;  // take the memory that the encoder had
  for (int i = 0; i < 20; ++i) others.push_back(full({3, 4}, 1e20, {f32, gpu}));
  for (int i = 0; i < 3; ++i) check_step();

  head.bias.requires_grad_(false);
  const Tensor frozen = clone(head.bias.detach());
  for (int i = 0; i < 3; ++i) check_step();
  CHECK(same_bits(head.bias.detach(), frozen));
  head.bias.requires_grad_();
  for (int i = 0; i < 3; ++i) check_step();
  CHECK_FALSE(same_bits(head.bias.detach(), frozen));

  head = Linear({.in = 4, .out = 2}, rng);  // the optimiser's parameters belong to no model any more
  to(head, gpu);
  CHECK_THROWS_WITH(step({x}), Contains("belongs to no model"));
}

TEST_CASE("cuda: a step is recorded again in another precision of products", "[graph]") {
  Rng rng(1);
  Mlp model({.dim = 64, .hidden = 96}, rng);
  to(model, gpu);
  GraphedStep step(model, [&](const std::vector<Tensor>& in) { return mean(square(model(in[0]))); });
  const Tensor x = to(normal({80, 64}, 0, 1, rng), gpu);
  const auto loss = [&](Precision p) {
    const PrecisionScope products(p);
    return mean(square(model(x))).item();
  };
  const float exact = loss(Precision::f32), rounded = loss(Precision::bf16);
  REQUIRE(std::abs(exact - rounded) > 3e-6f * exact);
  for (Precision p : {Precision::f32, Precision::bf16, Precision::f32}) {
    const PrecisionScope products(p);
    for (int i = 0; i < 3; ++i) CHECK(step({x}).item() == Approx(loss(p)).epsilon(1e-6));
  }
}

TEST_CASE("cuda: an optimiser of one's own steps outside the recording", "[graph]") {
  struct Signs final : Optimizer {
    explicit Signs(std::vector<NamedTensor> p) : Optimizer("signs", std::move(p), {"m"}, 0.01, 0, {}, {}) {}
    void update(const std::vector<Due>& due) override {
      for (const Due& d : due) {
        Tensor m = d.slot->moments[0], w = d.w;
        scale_(m, 0.9), add_(m, d.g, 0.1);
        add_(w, sign(m), -lr());
      }
    }
  };
  std::vector<std::vector<float>> all;
  for (const Device device : {cpu, gpu}) {
    Rng rng(1);
    Linear layer({.in = 3, .out = 4}, rng);
    to(layer, device);
    Signs signs(parameters(layer));
    GraphedStep step(signs, [&](const std::vector<Tensor>& in) { return mean(square(layer(in[0]))); });
    const Tensor x = to(normal({5, 3}, 0, 1, rng), device);
    for (int i = 0; i < 6; ++i) step({x});
    CHECK(signs.steps() == 6);
    all.push_back(to(layer.weight.detach(), cpu).to_vector<float>());
  }
  for (std::size_t i = 0; i < all[0].size(); ++i) CHECK(all[0][i] == Approx(all[1][i]).margin(1e-6));
}
