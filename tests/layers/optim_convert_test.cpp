// Optimisers of models that are converted, moved, loaded, frozen or replaced after the optimiser was made.
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/print.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/port/pytorch.h>
#include <sluice/layers/train/models.h>
#include <sluice/layers/train/optim.h>
#include <sluice/layers/train/training.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Net {
  Linear body, head;
  explicit Net(Rng& rng) : body({6, 5}, rng), head({5, 3}, rng) {}
  /// Each part computes in the dtype that it has.
  Tensor operator()(const Tensor& x) const {
    const Tensor h = tanh(body(to(x, body.weight.dtype())));
    return head(to(h, head.weight.dtype()));
  }
  SLUICE_PARTS(body, head);
};
Net net(uint64_t seed = 1) {
  Rng rng(seed);
  return Net(rng);
}
Tensor loss_of(const Net& m, int64_t step = 0) {
  Rand rand(static_cast<uint64_t>(step) + 3);
  return sum(square(to(m(random_tensor({4, 6}, f32, rand)), f64)));
}
void train(const Net& m, Optimizer& optimizer, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; ++i) optimizer.zero_grad(), backward(loss_of(m, i)), optimizer.step();
}
using Bits = std::vector<std::vector<double>>;
Bits values(const Net& m) {
  Bits all;
  for (const NamedTensor& p : state_dict(m)) all.push_back(p.tensor.to_vector<double>());
  return all;
}
Bits values(const Optimizer& optimizer) {
  Bits all;
  for (const auto& [name, x] : optimizer.state()) all.push_back(x.to_vector<double>());
  return all;
}

using Make = std::function<std::unique_ptr<Optimizer>(const Net&)>;
const std::vector<std::pair<const char*, Make>> kOptimizers = {
    {"sgd", [](const Net& m) { return std::make_unique<Sgd>(parameters(m), SgdOptions{.lr = 0.02}); }},
    {"momentum",
     [](const Net& m) { return std::make_unique<Sgd>(parameters(m), SgdOptions{.lr = 0.01, .momentum = 0.9}); }},
    {"adam",
     [](const Net& m) { return std::make_unique<Adam>(parameters(m), AdamOptions{.lr = 0.01, .weight_decay = 0.1}); }},
    {"lamb", [](const Net& m) { return std::make_unique<Lamb>(parameters(m), LambOptions{.lr = 0.01}); }},
    {"muon", [](const Net& m) { return std::make_unique<Muon>(parameters(m), MuonOptions{.lr = 0.01}); }},
    {"rmsprop",
     [](const Net& m) {
       return std::make_unique<RmsProp>(parameters(m), RmsPropOptions{.momentum = 0.5, .centered = true});
     }},
    {"lion", [](const Net& m) { return std::make_unique<Lion>(parameters(m), LionOptions{.lr = 0.01}); }}};

}  // namespace

TEST_CASE("optim: a model that is converted after its optimiser trains as if it had been before", "[optim]") {
  for (const auto& [name, make] : kOptimizers)
    for (const DType dtype : {f64, bf16})
      for (const bool all : {false, true}) {
        INFO(name << ' ' << dtype << (all ? " all" : " body"));
        const auto convert = [&](Net& m) { all ? to(m, dtype) : to(m.body, dtype); };
        Net early = net(), late = net();
        convert(early);
        const auto of_early = make(early), of_late = make(late);
        convert(late);
        const Bits before = values(late);
        train(early, *of_early, 0, 5), train(late, *of_late, 0, 5);
        CHECK(values(late) == values(early));
        CHECK(values(*of_late) == values(*of_early));
        for (std::size_t i = 0; i < before.size(); ++i) CHECK(values(late)[i] != before[i]);
      }
}

TEST_CASE("optim: moments follow a model that is converted between steps", "[optim]") {
  for (const auto& [name, make] : kOptimizers)
    for (const auto& [before, after] : {std::pair(f32, f64), {f32, bf16}, {bf16, f32}, {f64, bf16}}) {
      INFO(name << ' ' << before << " to " << after);
      Net a = net();
      to(a, before);
      const auto optimizer = make(a);
      train(a, *optimizer, 0, 3);
      // What an optimiser made now would continue with: the same moments, a master of what the weights are.
      std::map<std::string, Tensor> state;
      const DType wide = after == bf16 ? f32 : after;
      for (const auto& [key, x] : optimizer->state())
        if (!key.ends_with(".master")) state[key] = is_float(x.dtype()) ? to(x, wide) : x;
      to(a, after);
      Net b = clone(a);
      if (after == bf16)
        for (const NamedTensor& p : parameters(b)) state[p.name + ".master"] = to(p.tensor.detach(), f32);
      const auto fresh = make(b);
      fresh->load_state(state);
      CHECK(values(*optimizer) == values(*fresh));  // before any step, too
      train(a, *optimizer, 3, 6), train(b, *fresh, 3, 6);
      CHECK(values(a) == values(b));
      CHECK(values(*optimizer) == values(*fresh));
    }
}

TEST_CASE("optim: to() between backward() and step() converts the gradients, and there and back changes no master",
          "[optim]") {
  Net a = net(), b = net();
  Sgd of_a(parameters(a), {.lr = 0.5}), of_b(parameters(b), {.lr = 0.5});
  backward(loss_of(a)), backward(loss_of(b));
  to(a, f64);
  CHECK(a.head.weight.grad().dtype() == f64);
  of_a.step(), of_b.step();
  CHECK(values(a)[0] != values(net())[0]);
  to(b, f64);
  for (std::size_t i = 0; i < values(a).size(); ++i)
    for (std::size_t j = 0; j < values(a)[i].size(); ++j)
      CHECK(values(a)[i][j] == Approx(values(b)[i][j]).epsilon(1e-6).margin(1e-6));

  Net half = net();
  to(half, bf16);
  Adam adam(parameters(half));
  train(half, adam, 0, 3);
  const Bits masters = values(adam);
  to(half, f64), to(half, bf16);
  CHECK(values(adam) == masters);
}

TEST_CASE("optim: to() keeps parameters, hooks and what is tied; graphs of before are refused", "[optim]") {
  Net m = net();
  const Tensor handle = m.body.weight;
  int called = 0;
  m.body.weight.register_hook([&](const Tensor&) { return ++called, Tensor(); });
  const Tensor loss = loss_of(m), shifted = sum(m.body.bias + 1.0);
  to(m, f64);
  CHECK(handle.ref() == m.body.weight.ref());
  CHECK(handle.dtype() == f64);
  CHECK_THROWS_WITH(backward(loss), Contains("edited in place or converted"));
  CHECK_THROWS_WITH(backward(shifted), Contains("returned a gradient of dtype f32 for an input of dtype f64"));
  CHECK_FALSE(handle.grad().defined());
  backward(loss_of(m));
  CHECK(called == 1);
  // There and back: the dtype is the old one, the values are not.
  const Tensor again = loss_of(m);
  to(m, bf16), to(m, f64);
  CHECK_THROWS_WITH(backward(again), Contains("edited in place or converted"));

  Net computed = net();
  computed.head.bias = computed.head.bias * 2.0;
  CHECK_THROWS_WITH(to(computed, f64), "to: \"head.bias\" [3] is the result of scale; only leaves are converted");
  CHECK(computed.body.weight.dtype() == f32);  // nothing changed
}

TEST_CASE("optim: frozen parameters stay, loaded ones go on from what was loaded", "[optim]") {
  for (const auto& [name, make] : kOptimizers) {
    INFO(name);
    Net m = net();
    const auto optimizer = make(m);
    train(m, *optimizer, 0, 2);
    const auto frozen = freeze(m.body);
    const Bits before = values(m);
    train(m, *optimizer, 2, 4);
    CHECK(values(m)[0] == before[0]);
    CHECK(values(m)[2] != before[2]);
    for (NamedTensor p : frozen) p.tensor.requires_grad_();
    train(m, *optimizer, 4, 5);
    CHECK(values(m)[0] != before[0]);
    freeze(m);
    CHECK_THROWS_WITH(optimizer->step(), Contains(": all 4 parameters are frozen — thaw some with requires_grad_()"));
  }
  for (const DType dtype : {f32, bf16}) {
    const TempFolder folder;
    Net other = net(2);
    to(other, dtype);
    save(other, folder / "sluice"), save_pytorch(other, folder / "pytorch");
    for (const bool ours : {true, false}) {
      Net m = net(1);
      to(m, dtype);
      Sgd sgd(parameters(m), {.lr = 0.01});
      train(m, sgd, 0, 2);
      if (ours) load(m, folder / "sluice");
      else load_pytorch(m, folder / "pytorch");
      Net same = clone(other);
      Sgd fresh(parameters(same), {.lr = 0.01});
      train(m, sgd, 2, 4), train(same, fresh, 2, 4);
      CHECK(values(m) == values(same));
    }
  }
}

TEST_CASE("optim: a model that was replaced leaves its optimiser an error that names the parameter", "[optim]") {
  const auto refused = [](const char* first, auto replace) {
    Net m = net();
    Adam adam(parameters(m));
    train(m, adam, 0, 1);
    const Bits state = values(adam);
    replace(m);
    adam.zero_grad(), backward(loss_of(m));
    CHECK_THROWS_WITH(adam.step(), Contains("adam: parameter '" + std::string(first) + "'") &&
                                       Contains("belongs to no model any more") &&
                                       Contains("make the optimiser after that"));
    CHECK(values(adam) == state);
  };
  refused("body.weight", [](Net& m) { m = clone(m); });
  refused("body.weight", [](Net& m) { m = net(2); });
  refused("head.weight", [](Net& m) { m.head = net(2).head; });
  refused("head.bias", [](Net& m) { m.head.bias = clone(m.head.bias.detach()).requires_grad_(); });

  Net m = net();
  Adam adam(parameters(m));
  to(m, meta);
  backward(sum(m(zeros({2, 6}, {f32, meta}))));
  CHECK_THROWS_WITH(adam.step(), Contains("adam: parameter 'body.weight'") && Contains("moved to meta"));
  Adam on_meta(parameters(m));  // computes nothing, and counts
  on_meta.step();
  CHECK(on_meta.steps() == 1);

  Net n = net();
  Adam waiting(parameters(n));
  CHECK_THROWS_WITH(waiting.step(), "adam: none of 4 parameters has a gradient — call backward(loss) first");
}
