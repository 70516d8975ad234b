// Steps recorded once and done again: the same bits as steps that are run, what recording refuses, and memory.
#include "support/approx.h"
#include "support/catch.h"
#include "small_model.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/layers/train/graphed_step.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/shape/view.h>

#include <chrono>
#include <future>
#include <optional>

using namespace sluice;
using namespace sluice::testing;

namespace {

const Device gpu = Device::cuda();

int runs = 0;  // of the function below

Tensor loss_of(const Model& model, const std::vector<Tensor>& in) {
  ++runs;
  return cross_entropy(to(model(in[0]), f32), in[1]);
}

/// Ten steps, with sequences of two lengths.
std::vector<Tensor> train(DType dtype, bool graphed) {
  Model model(dtype);
  to(model, gpu);
  Adam adam(parameters(model), {.lr = 1e-2, .weight_decay = 0.1});
  GraphedStep step(model, [&](const std::vector<Tensor>& in) { return loss_of(model, in); });
  std::vector<Tensor> results;
  for (int i = 0; i < 10; ++i) {
    const Shape shape{2, i % 5 == 3 ? 7 : 20};
    const std::vector<Tensor> in{tokens(i, shape), tokens(100 + i, shape)};
    Tensor loss;
    if (graphed) {
      loss = step(in);
    } else {
      adam.zero_grad();
      loss = loss_of(model, in);
      backward(loss);
    }
    adam.step();
    results.push_back(to(loss.detach(), cpu));
    if (graphed && i % 2) adam.zero_grad();  // the next call brings them back
  }
  for (const NamedTensor& p : parameters(model)) results.push_back(to(p.tensor.detach(), cpu));
  if (graphed) CHECK(step.recorded() == 2);
  return results;
}

int64_t live() {
  release_cached_memory();
  return memory_stats(gpu).live;
}

}  // namespace

TEST_CASE("graphs: recorded steps have the bits of steps that are run", "[graph]") {
  for (const DType dtype : {f32, f64, bf16}) {
    INFO(name_of(dtype));
    const auto want = train(dtype, false);
    runs = 0;
    const auto got = train(dtype, true);
    CHECK(runs == 4);  // two shapes, each once as it is and once recorded
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(got[i], want[i]));
    CHECK(want[9].item() < want[0].item());
  }
}

TEST_CASE("graphs: on the CPU every step is run", "[graph]") {
  Model model;
  GraphedStep step(model, [&](const std::vector<Tensor>& in) { return loss_of(model, in); });
  runs = 0;
  const Tensor x = to(tokens(1, {2, 9}), cpu);
  for (int i = 0; i < 3; ++i) {
    const Tensor loss = step({x, x});
    CHECK(!loss.requires_grad());
    CHECK(model.head.weight.grad().defined());
  }
  CHECK((runs == 3 && step.recorded() == 0));
}

TEST_CASE("graphs: an index out of range is found by a replay, and changes nothing", "[graph]") {
  Model model;
  to(model, gpu);
  GraphedStep step(model, [&](const std::vector<Tensor>& in) { return loss_of(model, in); });
  const Tensor x = tokens(1, {2, 600});
  for (int i = 0; i < 2; ++i) step({x, x});
  const double want = step({x, x}).item();
  for (const int64_t wrong : {int64_t{13}, int64_t{-1}, int64_t{1} << 40}) {
    std::vector<int64_t> values = to(x, cpu).to_vector<int64_t>();
    values[1117] = wrong, values[1199] = 77;
    const Tensor bad = to(Tensor::from(values, {2, 600}), gpu);
    CHECK_THROWS_WITH(step({bad, x}), Contains(str("graphed step: index ", wrong,
                                                   " is outside [0, 13) — got it at element 1117 of 1200")));
    if (wrong == -1) continue;  // a target that does not count
    CHECK_THROWS_AS(step({x, bad}), ValueError);
  }
  CHECK(step({x, x}).item() == want);
}

TEST_CASE("graphs: what a replay would repeat wrongly is refused, and nothing is left behind", "[graph]") {
  Model model;
  to(model, gpu);
  const Tensor x = tokens(1, {1, 5});
  Rng rng(1);
  const auto refused = [&](const char* why, const std::function<Tensor(const Tensor&)>& f) {
    INFO(why);
    GraphedStep step(model, [&](const std::vector<Tensor>& in) { return f(loss_of(model, in)); });
    step({x, x});
    const int64_t before = live();
    for (int i = 0; i < 2; ++i)
      CHECK_THROWS_WITH(step({x, x}), Contains(why) && Contains("cannot be recorded in a graph"));
    for (NamedTensor& p : parameters(model)) p.tensor.zero_grad();
    CHECK(live() <= before);
    CHECK(step.recorded() == 0);
    backward(loss_of(model, {x, x}));  // the device works as before
  };
  refused("reading values on the host", [](const Tensor& loss) { return loss * loss.item(); });
  refused("random numbers", [&](const Tensor& loss) { return loss + sum(to(normal({3}, 0, 1, rng), gpu)); });
  refused("synchronize", [](const Tensor& loss) { return synchronize(gpu), loss; });
  GraphedStep step(model, [&](const std::vector<Tensor>& in) { return loss_of(model, in); });
  CHECK_THROWS_AS(step({Tensor(to(ones({2}), gpu)).requires_grad_()}), AutogradError);
  CHECK_THROWS_AS(GraphedStep(model, nullptr), ValueError);
}

TEST_CASE("graphs: what another thread does meanwhile is done, and not recorded", "[graph]") {
  const Tensor x = to(ones({3}), gpu), w = Tensor(to(ones({3}), gpu)).requires_grad_();
  std::future<Tensor> other;
  int calls = 0;
  GraphedStep step(std::vector<NamedTensor>{{"w", w}}, [&](const std::vector<Tensor>& in) {
    if (++calls == 2) {
      other = std::async(std::launch::async, [] { return to(to(full({3}, 2.0), gpu) * 3.0, cpu); });
      other.wait_for(std::chrono::milliseconds(200));  // on a GPU it waits for the end of the recording
    }
    return sum(in[0] * w);
  });
  for (int i = 0; i < 3; ++i) CHECK(step({x}).item() == 3);
  CHECK((calls == 2 && step.recorded() == 1));
  CHECK(same_bits(other.get(), full({3}, 6.0)));
}

// What it needs of the device — waiting, giving memory back — may not be asked of a stream that is recorded.
TEST_CASE("graphs: an older graph goes while a new one is recorded", "[graph]") {
  Model model;
  to(model, gpu);
  const Tensor x = tokens(1, {2, 9});
  const auto loss = [&](const std::vector<Tensor>& in) { return loss_of(model, in); };
  auto old = std::make_unique<GraphedStep>(model, loss);
  Tensor want;
  for (int i = 0; i < 3; ++i) want = (*old)({x, x});
  int calls = 0;
  GraphedStep step(model, [&](const std::vector<Tensor>& in) {
    if (++calls == 2) old.reset();
    return loss(in);
  });
  for (int i = 0; i < 4; ++i) CHECK(same_bits(to(step({x, x}), cpu), to(want, cpu)));
  CHECK((calls == 2 && !old && step.recorded() == 1));
}

TEST_CASE("graphs: constants that the host sends are kept, and what a step gave back outlives it", "[graph]") {
  Model model;
  to(model, gpu);
  const Tensor x = tokens(1, {1, 5});
  const int64_t before = live();
  Tensor gradient, kept;
  {
    GraphedStep step(model, [&](const std::vector<Tensor>& in) {
      const Tensor weights = to(Tensor({0.5f, 2, 1, 0, 3}), gpu);  // another memory each time
      return sum(cross_entropy(model(in[0]), in[1], {.reduction = Reduction::none}) * weights);
    });
    Tensor first = step({x, x});
    for (int i = 0; i < 3; ++i) CHECK(same_bits(to(step({x, x}), cpu), to(first, cpu)));
    gradient = model.head.weight.grad();
    kept = to(gradient, cpu);
  }
  CHECK(same_bits(to(gradient, cpu), kept));
  // What it let go while it was recorded is still read by replays; losses that it gave stay as they are.
  {
    Tensor table;
    GraphedStep step(model, [&](const std::vector<Tensor>& in) {
      if (!table.defined()) table = full({5}, 2.0, {f32, gpu});
      const Tensor loss = sum(cross_entropy(model(in[0]), in[1], {.reduction = Reduction::none}) * table);
      table = Tensor();
      return loss;
    });
    const Tensor first = step({x, x}), other = tokens(5, {1, 5});
    table = full({5}, 2.0, {f32, gpu});
    std::vector<Tensor> losses, noise;
    for (int i = 0; i < 4; ++i) {
      losses.push_back(step({i % 2 ? other : x, x}));
      for (int k = 0; k < 20; ++k) noise.push_back(full({5}, 1e9, {f32, gpu}));
    }
    for (const int i : {0, 2}) CHECK(same_bits(to(losses[static_cast<std::size_t>(i)], cpu), to(first, cpu)));
    CHECK(same_bits(to(losses[1], cpu), to(losses[3], cpu)));
    CHECK(!same_bits(to(losses[1], cpu), to(first, cpu)));
  }
  gradient = Tensor();
  for (NamedTensor& p : parameters(model)) p.tensor.zero_grad();
  CHECK(live() == before);
}

// Replays read it, whoever let it go last, and wherever its memory came from.
TEST_CASE("graphs: what is let go while a step is recorded is kept for it", "[graph]") {
  const Tensor x = to(ones({5000}), gpu);
  const int64_t before = live();
  const std::vector<NamedTensor> w{{"w", Tensor(to(ones({5000}), gpu)).requires_grad_()}};
  for (const bool of_a_graph : {false, true})
    for (const bool by_a_thread : {false, true}) {
      INFO(of_a_graph << by_a_thread);
      Tensor table;
      std::optional<GraphedStep> old(std::in_place, w, [&](const std::vector<Tensor>& in) {
        table = in[0] * 2.0;
        return mean(w[0].tensor * in[0]);
      });
      for (int i = 0; i < 3; ++i) (*old)({x});
      if (!of_a_graph) table = full({5000}, 2.0, {f32, gpu});
      int calls = 0;
      GraphedStep step(w, [&](const std::vector<Tensor>& in) {
        const Tensor loss = mean(in[0] * table) + 0.0 * mean(w[0].tensor);  // no history holds the table
        if (++calls == 1) return loss;
        if (by_a_thread) std::async(std::launch::async, [mine = std::move(table)]() mutable { mine = Tensor(); }).get();
        table = Tensor();
        return loss;
      });
      std::vector<Tensor> noise;
      for (int i = 0; i < 6; ++i) {
        CHECK(step({x}).item() == 2);
        if (i == 3) old.reset();
        for (int k = 0; k < 20; ++k) noise.push_back(full({5000}, 1e6, {f32, gpu}));
      }
      Tensor(w[0].tensor).zero_grad();
    }
  CHECK(live() == before + 5000 * 4);
}

TEST_CASE("graphs: tables of rotations live as long as the step that reads them", "[graph]") {
  Rng rng(1);
  const Tensor x = to(normal({2, 31, 8}, 0, 1, rng), gpu), w = Tensor(to(ones({8}), gpu)).requires_grad_();
  const auto loss = [&](const std::vector<Tensor>& in) { return mean(rope(in[0] * w, {.base = 77}) * in[0]); };
  const Tensor want = to(loss({x}).detach(), cpu);
  GraphedStep step(std::vector<NamedTensor>{{"w", w}}, loss);
  for (int i = 0; i < 2; ++i) CHECK(same_bits(to(step({x}), cpu), want));
  for (int i = 0; i < 17; ++i) rope(x, {.base = 100.0 + i});  // more tables than are kept
  std::vector<Tensor> noise;
  for (int i = 0; i < 64; ++i) noise.push_back(full({31, 4}, 1e9, {f32, gpu}));  // in the memory of those that went
  CHECK(same_bits(to(step({x}), cpu), want));
}

TEST_CASE("graphs: a recording that fails leaves no table behind", "[graph]") {
  const Tensor x = to(ones({1, 29, 8}), gpu), w = Tensor(to(ones({8}), gpu)).requires_grad_();
  int calls = 0;
  GraphedStep step(std::vector<NamedTensor>{{"w", w}}, [&](const std::vector<Tensor>& in) {
    const Tensor y = sum(rope(in[0] * w, {.base = ++calls == 1 ? 51.0 : 52.0}));  // recorded with a table of its own
    return calls == 1 ? y : y * y.item();
  });
  step({x});
  CHECK_THROWS_WITH(step({x}), Contains("reading values on the host"));
  CHECK(max_abs_diff(to(rope(x, {.base = 52}), cpu), rope(ones({1, 29, 8}), {.base = 52})) < 1e-5);
}

TEST_CASE("graphs: a position out of range is found by a replay", "[graph]") {
  const Tensor x = to(ones({1, 5, 8}), gpu), w = Tensor(to(ones({8}), gpu)).requires_grad_();
  GraphedStep step(std::vector<NamedTensor>{{"w", w}},
                   [&](const std::vector<Tensor>& in) { return sum(rope_at(in[0] * w, in[1])); });
  const Tensor at = arange(5, {i64, gpu});
  for (int i = 0; i < 2; ++i) step({x, at});
  const Tensor want = to(step({x, at}), cpu);
  const int64_t far = (int64_t{1} << 53) + 1;
  const Tensor beyond = to(Tensor::from<int64_t>({0, 1, far, 3, -far}, {5}), gpu);
  CHECK_THROWS_WITH(step({x, beyond}), Contains(str("graphed step: index ", far, " is outside [", 1 - far, ", ", far,
                                                    ") — got it at element 2 of 5")));
  CHECK(same_bits(to(step({x, at}), cpu), want));
}
