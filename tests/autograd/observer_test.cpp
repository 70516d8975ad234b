// Observers live together: profiler, anomaly mode, summary and a counter at once, each as if it were alone; and an
// observer of a thread is not told of another.
#include <sluice/autograd/profile.h>

#include "support/catch.h"

#include <sluice/autograd/anomaly.h>
#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/kernel.h>
#include <sluice/core/number/random.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/report/summary.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

#include <limits>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

using namespace sluice;

namespace {

struct Net {
  static constexpr const char* type = "Net";
  Linear first, second;
  explicit Net(Rng& rng) : first({4, 6}, rng), second({6, 2}, rng) {}
  Tensor operator()(const Tensor& x) const {
    ModuleScope scope(this, type);
    return second(silu(first(x)));
  }
  SLUICE_PARTS(first, second);
};

/// What happened: the names of ops, of nodes whose vjp ran, and the number of kernel calls.
struct Log final : detail::Observer {
  explicit Log(Of which = Of::this_thread) : Observer(which), everywhere(which == Of::all_threads) {
    if (everywhere) begin();
  }
  ~Log() {
    if (everywhere) end();
  }
  bool everywhere;
  void on_call(const detail::KernelCall& call) override { calls += !call.nested; }
  void on_op(const char* op, const Tensor& y, Node* node) override {
    ops.push_back(op), recorded += node != nullptr, last = y.shape();
  }
  void on_vjp(const Node& node, const Tensors& grads) override {
    if (!node.is_leaf()) vjps.push_back(str(node.name(), grads.size()));
  }
  int64_t calls = 0, recorded = 0;
  std::vector<std::string> ops, vjps;
  Shape last;
};

int64_t calls_of(const std::vector<ProfileRow>& rows, const std::string& name, bool backward) {
  for (const ProfileRow& r : rows)
    if (r.name == name && r.backward == backward) return r.calls;
  return 0;
}

}  // namespace

TEST_CASE("observers: profiler, anomaly mode, summary and a counter at once", "[profile][anomaly][cost]") {
  Rng rng(1);
  const Net net(rng);
  const Tensor x = normal({8, 4}, 0, 1, rng);
  const std::string alone = summary(net, x);
  int64_t forward = 0, backward_calls = 0;
  {
    Profile profile({.modules = name_modules(net)});
    backward(sum(net(x)));
    forward = calls_of(profile.by_op(), "matmul", false), backward_calls = calls_of(profile.by_op(), "matmul", true);
    REQUIRE(forward > 0);
    REQUIRE(backward_calls > 0);
  }
  // Anomaly mode begins before the profiler or after it; the one that has names lends them to the other.
  for (const bool first : {true, false})
    for (const bool named : {true, false}) {
      const ModuleNames names = name_modules(net);
      std::optional<AnomalyMode> anomaly;
      if (first) anomaly.emplace(AnomalyOptions{.modules = named ? names : ModuleNames()});
      Profile profile({.modules = named ? ModuleNames() : names});
      if (!first) anomaly.emplace(AnomalyOptions{.modules = named ? names : ModuleNames()});
      detail::WorkCounter counter;
      backward(sum(net(x)));
      CHECK(calls_of(profile.by_op(), "matmul", false) == forward);
      CHECK(calls_of(profile.by_op(), "matmul", true) == backward_calls);
      CHECK(calls_of(profile.by_module(), "first (Linear)", false) > 0);
      CHECK(calls_of(profile.by_module(), "first (Linear)", true) > 0);
      const int64_t before = counter.calls();
      CHECK(before > 0);
      CHECK(summary(net, x) == alone);  // by its own names, on meta
      CHECK(counter.calls() > before);
      Tensor bad = ones({8, 4});
      fill_(bad, std::numeric_limits<double>::infinity());
      CHECK_THROWS_WITH(net(bad), Contains("anomaly: forward of") && Contains("— in first (Linear)"));
      anomaly.reset();  // before the profiler, in one order, which goes on
      net(x);
      CHECK(calls_of(profile.by_op(), "matmul", false) > forward);
    }
  CHECK_FALSE(detail::observed());
}

TEST_CASE("observers: each is told of ops, vjps and calls, of its thread or of all", "[profile]") {
  const Tensor x = Tensor({1, 2, 3}).requires_grad_();
  Log here, everywhere(detail::Observer::Of::all_threads);
  const Tensor y = sum(exp(x));
  backward(y);
  CHECK(here.ops.size() >= 2);
  CHECK(here.ops[0] == "exp");
  CHECK(here.ops[1] == "sum");
  CHECK(here.recorded >= 2);
  CHECK(here.vjps == std::vector<std::string>{"sum1", "exp1"});
  CHECK(here.calls >= 2);
  CHECK(everywhere.ops == here.ops);
  CHECK(everywhere.vjps == here.vjps);
  CHECK(everywhere.calls == here.calls);
  const std::size_t before = here.ops.size();
  std::thread([&] { exp(x.detach()); }).join();
  CHECK(here.ops.size() == before);
  CHECK(everywhere.ops.size() == before + 1);
  CHECK(everywhere.calls == here.calls + 1);
}

TEST_CASE("observers: one that begins during a call is not told of it", "[profile]") {
  const Log here;  // observes no call of the other thread
  int64_t told = 0;
  std::thread([&] {
    std::optional<Log> late;
    {
      const detail::ObservedCall call("call", cpu);
      late.emplace(detail::Observer::Of::all_threads);
    }
    told = late->calls;  // of which nobody knows when it began
    exp(Tensor({1, 2, 3}));
    told = 10 * told + late->calls;
  }).join();
  CHECK(told == 1);
}

TEST_CASE("observers: they end in any order", "[profile]") {
  const Tensor x({1, 2, 3});
  auto a = std::make_unique<Log>(), b = std::make_unique<Log>(), c = std::make_unique<Log>();
  exp(x);
  b.reset();
  exp(x);
  c.reset();
  exp(x);
  CHECK(a->calls == 3);
  a.reset();
  CHECK_FALSE(detail::observed());
}

namespace {
/// Is told of all threads' ops, takes its time, and counts those that end when it has ended itself.
struct Slow final : detail::Observer {
  Slow(std::atomic<bool>& alive, std::atomic<int>& late, std::atomic<int>& told)
      : Observer(Of::all_threads), alive(alive), late(late), told(told) {
    alive = true;
    begin();
  }
  ~Slow() {
    end();
    alive = false;
  }
  void on_op(const char*, const Tensor&, Node*) override {
    std::atomic<bool>& still = alive;
    std::atomic<int>&ended = late, &all = told;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    ++all, ended += !still;
  }
  std::atomic<bool>& alive;
  std::atomic<int>&late, &told;
};
}  // namespace

TEST_CASE("observers: one of all threads ends when no thread is telling it", "[profile]") {
  std::atomic<bool> stop = false, alive = false;
  std::atomic<int> late = 0, told = 0;
  std::thread other([&] {
    const Tensor x = ones({4});
    while (!stop) x * 1.0;
  });
  for (int i = 0; i < 200 || told < 20; ++i) {
    const Slow observer(alive, late, told);
    std::this_thread::sleep_for(std::chrono::microseconds(150));
  }
  stop = true;
  other.join();
  CHECK(late == 0);
}

TEST_CASE("observer: what one throws is thrown by the op, and the next op works", "[observer]") {
  const Tensor x = ones({3});
  struct Full final : detail::Observer {
    Full() : Observer(Of::this_thread) {}
    void on_call(const detail::KernelCall&) override {
      if (full) throw std::bad_alloc();
    }
    bool full = true;
  } observer;
  CHECK_THROWS_AS(x + x, std::bad_alloc);
  observer.full = false;
  CHECK((x + x).to_vector() == std::vector<float>{2, 2, 2});
}
