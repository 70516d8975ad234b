// Whole training steps recorded once and done again: weights, moments, losses and gradients are those of steps that are
// run, bit for bit, with all that changes from step to step.
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"
#include "small_model.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/train/graphed_step.h>
#include <sluice/layers/train/optim.h>
#include <sluice/layers/train/training.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <memory>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

const Device gpu = Device::cuda();

struct Plan {
  DType dtype = f32;
  const char* optimizer = "adam";
  bool drops = true, clips = true, scheduled = true;
  int64_t parts = 1;
};

/// Training, step by step, run or replayed.
struct Training {
  Plan plan;
  Model model;
  Rng rng{7};
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<GraphedStep> graphed;
  std::vector<Tensor> results;
  int runs = 0;  // of the function

  Training(const Plan& p, bool replays) : plan(p), model(p.dtype) {
    to(model, gpu);
    const std::string name = plan.optimizer;
    const ParameterGroups groups{{[](const NamedTensor& t) { return t.name.starts_with("head."); }, 3, 0.02}};
    const auto all = parameters(model);
    if (name == "adam")
      optimizer = std::make_unique<Adam>(all, AdamOptions{.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
    if (name == "l2")
      optimizer = std::make_unique<Adam>(all, AdamOptions{.lr = 1e-2, .weight_decay = 0.1, .decoupled = false});
    if (name == "lamb")
      optimizer = std::make_unique<Lamb>(all, LambOptions{.lr = 1e-2, .weight_decay = 0.1, .groups = groups});
    if (name == "rmsprop")
      optimizer = std::make_unique<RmsProp>(
          all, RmsPropOptions{.momentum = 0.9, .centered = true, .weight_decay = 0.1, .groups = groups});
    if (name == "lion")
      optimizer = std::make_unique<Lion>(all, LionOptions{.lr = 1e-3, .weight_decay = 0.1, .groups = groups});
    if (name == "sgd") optimizer = std::make_unique<Sgd>(all, SgdOptions{.lr = 0.1});
    if (name == "nesterov")
      optimizer =
          std::make_unique<Sgd>(all, SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .groups = groups});
    if (!replays) return;
    GraphedStepOptions o{.parts = plan.parts};
    if (plan.clips) o.max_norm = 0.5, o.max_value = 0.05;
    if (plan.scheduled) o.schedule = rate;
    graphed = std::make_unique<GraphedStep>(
        *optimizer, [this](const std::vector<Tensor>& in) { return loss_of(in); }, o);
  }

  /// From 0, at which all groups have the same rate.
  static double rate(int64_t step) { return step < 3 ? 0 : 0.02 / static_cast<double>(step); }

  Tensor loss_of(const std::vector<Tensor>& in) {
    ++runs;
    return cross_entropy(to(model(in[0], {.rng = plan.drops ? &rng : nullptr}), f32), in[1]);
  }
  void step(int i) {
    const Shape shape{4, i % 3 == 1 ? 7 : 12};
    const std::vector<Tensor> in{tokens(i, shape), tokens(100 + i, shape)};
    if (graphed) {
      results.push_back(to((*graphed)(in), cpu));
      if (plan.clips) results.push_back(to(graphed->norm(), cpu));
    } else {
      if (plan.scheduled) optimizer->set_lr(rate(optimizer->steps()));
      optimizer->zero_grad();
      Tensor total;
      for (int64_t part = 0; part < plan.parts; ++part) {
        const int64_t n = 4 / plan.parts;
        Tensor loss = loss_of({narrow(in[0], 0, part * n, n), narrow(in[1], 0, part * n, n)});
        if (plan.parts > 1) loss = loss * (1.0 / static_cast<double>(plan.parts));
        backward(loss);
        total = total.defined() ? total + loss.detach() : loss.detach();
      }
      results.push_back(to(total, cpu));
      if (plan.clips) {
        results.push_back(Tensor::from<double>({clip_grad_norm(optimizer->parameters(), 0.5)}, {}));
        clip_grad_value(optimizer->parameters(), 0.05);
      }
      optimizer->step();
    }
    for (const NamedTensor& p : optimizer->parameters()) results.push_back(to(p.tensor.grad(), cpu));
    random_words(1, rng);  // somebody else draws from it between two steps
  }
  static void random_words(int n, Rng& rng) { rng.reserve(static_cast<uint64_t>(n)); }

  /// All that training leaves behind.
  std::vector<Tensor> left() {
    std::vector<Tensor> all = results;
    for (const NamedTensor& p : parameters(model)) all.push_back(to(p.tensor.detach(), cpu));
    for (const auto& [name, x] : optimizer->state()) all.push_back(to(x, cpu));
    all.push_back(Tensor::from<int64_t>({static_cast<int64_t>(rng.seed()), static_cast<int64_t>(rng.offset())}));
    return all;
  }
};

void check_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  REQUIRE(got.size() == want.size());
  int64_t differ = 0;
  for (std::size_t i = 0; i < want.size(); ++i) differ += !same_bits(got[i], want[i]);
  CHECK(differ == 0);
}

}  // namespace

TEST_CASE("graphed training: the bits of training that is run", "[graph]") {
  std::vector<Plan> plans;
  for (const DType dtype : {f32, f64, bf16})
    for (const bool drops : {false, true}) plans.push_back({.dtype = dtype, .drops = drops});
  plans.push_back({.clips = false, .scheduled = false});
  plans.push_back({.dtype = f64, .optimizer = "l2"});
  plans.push_back({.dtype = bf16, .optimizer = "lamb"});
  plans.push_back({.dtype = f32, .optimizer = "lamb", .clips = false});
  plans.push_back({.dtype = bf16, .optimizer = "rmsprop"});
  plans.push_back({.dtype = f32, .optimizer = "lion"});
  plans.push_back({.dtype = bf16, .optimizer = "sgd"});
  plans.push_back({.dtype = f32, .optimizer = "nesterov"});
  plans.push_back({.dtype = bf16, .parts = 2});
  for (const Plan& plan : plans) {
    INFO(name_of(plan.dtype) << ' ' << plan.optimizer << (plan.drops ? " dropout" : "")
                             << (plan.clips ? " clipped" : "") << ' ' << plan.parts);
    Training run(plan, false), replayed(plan, true);
    for (int i = 0; i < 8; ++i) run.step(i), replayed.step(i);
    check_same(replayed.left(), run.left());
    CHECK(replayed.graphed->recorded() == 2);
    CHECK(replayed.runs < run.runs);
    // Dropout and noise are not the same each time.
    if (!plan.scheduled) CHECK(!same_bits(run.results[0], run.results.back()));
  }
}

TEST_CASE("graphed training: rates, weights, moments, masters and generators that change in between", "[graph]") {
  TempFolder folder;
  for (const DType dtype : {f32, bf16}) {
    INFO(name_of(dtype));
    const std::string path = folder / "c.safetensors";
    const auto train = [&](bool replays) {
      Training t({.dtype = dtype, .scheduled = false}, replays);
      for (int i = 0; i < 4; ++i) t.step(5);
      save_checkpoint(t.model, path, *t.optimizer, t.rng, {});
      t.optimizer->set_lr(3e-3);
      for (int i = 0; i < 2; ++i) t.step(5);
      load_checkpoint(t.model, path, *t.optimizer, t.rng);  // what has been recorded goes on from there
      for (int i = 0; i < 2; ++i) t.step(5);
      {
        NoGrad guard;
        copy_(t.model.head.weight, t.model.head.weight * 0.75);  // behind the optimiser's back
      }
      t.step(5);
      t.rng.set_state(99, 3);
      t.step(5);
      t.rng = Rng(101);
      t.step(5);
      auto state = t.optimizer->state();  // one parameter that was updated less often than others
      state["head.bias.updates"] = Tensor::from<int64_t>({1}, {});
      t.optimizer->load_state(state);
      for (int i = 0; i < 2; ++i) t.step(5);
      if (replays) CHECK(t.runs == 4);  // as it is; recorded; with another generator; with other counts
      return t.left();
    };
    check_same(train(true), train(false));
  }
}

TEST_CASE("graphed training: a model that is converted in between is recorded anew", "[graph]") {
  const auto train = [](bool replays) {
    Training t({.scheduled = false}, replays);
    for (const DType dtype : {f32, bf16, f32}) {
      to(t.model, dtype);
      for (int i = 0; i < 4; ++i) t.step(5);
    }
    if (replays) CHECK(t.runs == 6);  // for each dtype as it is, then recorded
    return t.left();
  };
  check_same(train(true), train(false));
}

TEST_CASE("graphed training: a model that is moved after its optimiser was made trains there", "[graph]") {
  const auto train = [](bool late) {
    Rng init(1), own(5);
    Linear model({.in = 9, .out = 13}, init);
    if (!late) to(model, gpu);
    Adam adam(parameters(model), {.lr = 1e-2});
    if (late) to(model, gpu);
    const Tensor x = to(normal({4, 9}, 0, 1, own), gpu), t = to(randint(0, 13, {4}, own), gpu);
    for (int i = 0; i < 4; ++i) adam.zero_grad(), backward(cross_entropy(model(x), t)), adam.step();
    std::vector<Tensor> left{to(model.weight.detach(), cpu), to(model.bias.detach(), cpu)};
    for (const auto& [name, y] : adam.state()) left.push_back(to(y, cpu));
    return left;
  };
  check_same(train(true), train(false));
}

TEST_CASE("graphed training: an index out of range changes neither weights, moments, counts nor generators",
          "[graph]") {
  for (const char* name : {"adam", "lamb", "sgd"}) {
    INFO(name);
    Training t({.dtype = bf16, .optimizer = name}, true);
    for (int i = 0; i < 3; ++i) t.step(5);
    const std::vector<Tensor> before = t.left();
    std::vector<int64_t> values = to(tokens(5, {4, 12}), cpu).to_vector<int64_t>();
    values[17] = 13;
    const Tensor bad = to(Tensor::from(values, {4, 12}), gpu);
    CHECK_THROWS_WITH((*t.graphed)({bad, tokens(5, {4, 12})}),
                      Contains("index 13 is outside [0, 13) — got it at element 17 of 48"));
    check_same(t.left(), before);
    Training other({.dtype = bf16, .optimizer = name}, true);  // and goes on as if nothing had been
    for (int i = 0; i < 3; ++i) other.step(5);
    t.step(5), other.step(5);
    check_same(t.left(), other.left());
  }
}

TEST_CASE("graphed training: generators", "[graph]") {
  // What a function draws from goes on, moves and dies as it would; a copy is another stream.
  const Tensor x = to(ones({4, 33}), gpu);
  Tensor w = Tensor(to(ones({33}), gpu)).requires_grad_();
  const auto losses = [&](bool replays) {
    Rng a(1), b(a);
    b.reserve(5);
    Sgd sgd(std::vector<Tensor>{w}, {.lr = 0});
    const GraphedStep::Loss f = [&](const std::vector<Tensor>& in) {
      return mean(dropout(in[0] * w, 0.5, a) * dropout(in[0], 0.5, b) + dropout(in[0], 0.25, a));
    };
    GraphedStep step(sgd, f);
    std::vector<double> all;
    for (int i = 0; i < 6; ++i) {
      all.push_back(replays ? step({x}).item() : f({x}).item());
      if (i == 3) a = Rng(a);
      if (i == 4) Rng(std::move(b)).reserve(1), b = Rng(3);
    }
    all.push_back(static_cast<double>(a.offset())), all.push_back(static_cast<double>(b.offset()));
    return all;
  };
  const auto want = losses(false);
  CHECK(losses(true) == want);
  CHECK(std::set<double>(want.begin(), want.end()).size() == want.size());
}

TEST_CASE("graphed training: what cannot be recorded is refused by name, and nothing has changed", "[graph]") {
  Model model;
  to(model, gpu);
  Rng rng(1);
  Adam adam(parameters(model), {.lr = 1e-2});
  const Tensor x = tokens(1, {2, 5});
  const auto refused = [&](const char* why, const std::function<Tensor(const Tensor&)>& f) {
    INFO(why);
    const auto loss_of = [&](const std::vector<Tensor>& in) {
      return cross_entropy(model(in[0], {.rng = &rng}), in[1]);
    };
    GraphedStep step(adam, [&](const std::vector<Tensor>& in) { return f(loss_of(in)); }, {.max_norm = 1});
    step({x, x});
    const auto steps = adam.steps();
    const auto offset = rng.offset();
    const Tensor weight = to(model.head.weight.detach(), cpu);
    for (int i = 0; i < 2; ++i)
      CHECK_THROWS_WITH(step({x, x}), Contains(why) && Contains("cannot be recorded in a graph"));
    CHECK((adam.steps() == steps && rng.offset() == offset && step.recorded() == 0));
    CHECK(same_bits(to(model.head.weight.detach(), cpu), weight));
  };
  refused("reading values on the host", [](const Tensor& loss) { return loss * loss.item(); });
  refused("random numbers made on cpu",
          [&](const Tensor& loss) { return loss + sum(to(normal({3}, 0, 1, rng), gpu)); });
  refused("a random permutation", [&](const Tensor& loss) { return loss + sum(to(permutation(3, rng, gpu), f32)); });
  refused("a random generator was made and lost", [](const Tensor& loss) {
    Rng own(3);
    return dropout(loss, 0.5, own);
  });
  refused("a random generator was made and lost", [&](const Tensor& loss) {
    Rng copy = rng;
    return dropout(loss, 0.5, copy);
  });
  refused("a random generator was set", [&](const Tensor& loss) {
    rng.set_state(1, 0);
    return dropout(loss, 0.5, rng);
  });
  for (const GraphedStepOptions& o : {GraphedStepOptions{.max_norm = 0}, GraphedStepOptions{.max_norm = -1},
                                      GraphedStepOptions{.max_value = std::nan("")}, GraphedStepOptions{.parts = 0}})
    CHECK_THROWS_AS(GraphedStep(
                        adam, [](const std::vector<Tensor>& in) { return in[0]; }, o),
                    ValueError);
  CHECK_THROWS_AS(GraphedStep(adam, nullptr), ValueError);
  const auto loss_of = [&](const std::vector<Tensor>& in) { return cross_entropy(model(in[0]), in[1]); };
  GraphedStep halves(adam, loss_of, {.parts = 3});
  CHECK_THROWS_WITH(halves({x, x}), Contains("cannot be cut into 3 parts"));
}

TEST_CASE("graphed training: on the CPU a step is run", "[graph]") {
  Rng rng(3);
  const auto train = [&](bool replays) {
    Rng init(1), own(5);
    Linear model({.in = 9, .out = 13}, init);
    Adam adam(parameters(model), {.lr = 1e-2});
    const Tensor x = normal({4, 9}, 0, 1, own);
    const Tensor t = randint(0, 13, {4}, own);
    const GraphedStep::Loss f = [&](const std::vector<Tensor>& in) {
      return cross_entropy(model(dropout(in[0], 0.5, own)), in[1]);
    };
    GraphedStep step(adam, f, {.max_norm = 0.1});
    std::vector<Tensor> results;
    for (int i = 0; i < 4; ++i) {
      if (replays) {
        results.push_back(step({x, t}));
        results.push_back(step.norm());
      } else {
        adam.zero_grad();
        Tensor loss = f({x, t});
        backward(loss);
        results.push_back(loss.detach());
        results.push_back(full({}, clip_grad_norm(adam.parameters(), 0.1), {f64, cpu}));
        adam.step();
      }
    }
    results.push_back(model.weight.detach());
    return results;
  };
  check_same(train(true), train(false));
}
