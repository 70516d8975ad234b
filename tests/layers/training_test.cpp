// Training goes on bit for bit: through a checkpoint, and on any number of threads.
#include <sluice/layers/train/training.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/train/clip.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Net {
  static constexpr const char* type = "Net";
  Gau attention;
  Mlp mlp;
  Norm norm;
  explicit Net(uint64_t seed) {
    Rng rng(seed);
    attention = Gau({.dim = 8, .key_dim = 4, .causal = true, .attention_dropout = 0.2, .dropout = 0.1}, rng);
    mlp = Mlp({.dim = 8, .hidden = 16, .dropout = 0.3}, rng);
    norm = Norm({.dim = 8});
  }
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const { return norm(mlp(attention(x, pass), pass)); }
  SLUICE_PARTS(attention, mlp, norm);
};

/// A run: everything that a program would hold.
struct Run {
  Net net;
  Adam adam;
  Rng rng;
  int64_t step = 0;
  explicit Run(uint64_t seed) : net(seed), adam(parameters(net), {.lr = 0.01, .weight_decay = 0.1}), rng(seed + 100) {}

  double one_step(int64_t rows = 12) {
    Tensor x = normal({2, rows, 8}, 0, 1, rng), y = normal({2, rows, 8}, 0, 1, rng);
    adam.zero_grad();
    Tensor loss = mse_loss(net(x, {.rng = &rng}), y);
    backward(loss);
    clip_grad_norm(adam.parameters(), 0.5);
    adam.set_lr(0.01 / static_cast<double>(1 + step++));
    adam.step();
    return loss.item();
  }
  void save(const std::string& path) const { save_checkpoint(net, path, adam, rng, {step, {{"note", "a = \"b\""}}}); }
  void load(const std::string& path) { step = load_checkpoint(net, path, adam, rng).step; }
};

void same(const Run& a, const Run& b) {
  CHECK(a.step == b.step);
  CHECK(a.rng.offset() == b.rng.offset());
  CHECK(a.rng.seed() == b.rng.seed());
  auto x = state_dict(a.net), y = state_dict(b.net);
  for (std::size_t i = 0; i < x.size(); ++i) {
    INFO(x[i].name);
    CHECK(same_bits(x[i].tensor.detach(), y[i].tensor.detach()));
  }
  auto s = a.adam.state(), t = b.adam.state();
  REQUIRE(s.size() == t.size());
  for (auto& [name, v] : s) {
    INFO(name);
    CHECK(same_bits(v, t.at(name)));
  }
}

}  // namespace

TEST_CASE("training: 2k steps are k steps, save, load elsewhere, k steps", "[training]") {
  TempFolder folder;
  for (int k : {0, 1, 5}) {
    INFO("k " << k);
    Run whole(1), first(1), second(2);
    for (int i = 0; i < 3; ++i) second.one_step();  // a stranger's moments, generator and weights
    std::vector<double> want, got;
    for (int i = 0; i < 2 * k; ++i) want.push_back(whole.one_step());
    for (int i = 0; i < k; ++i) got.push_back(first.one_step());
    first.save(folder / "c");
    second.load(folder / "c");
    for (int i = 0; i < k; ++i) got.push_back(second.one_step());
    CHECK(want == got);
    same(whole, second);
    // Saving changed nothing for the one that saved.
    for (int i = 0; i < k; ++i) first.one_step();
    same(whole, first);
  }
}

TEST_CASE("training: one thread and two give the same bits", "[training]") {
  auto train = [](int threads) {
    set_num_threads(threads);
    auto run = std::make_unique<Run>(3);
    for (int i = 0; i < 5; ++i) run->one_step(300);
    set_num_threads(0);
    return run;
  };
  auto one = train(1), two = train(2), again = train(2);
  same(*one, *two);
  same(*one, *again);
}

TEST_CASE("training: the state and the configuration come back", "[training]") {
  TempFolder folder;
  Run run(1);
  run.one_step();
  const std::map<std::string, std::string> config{
      {"dim", "8"}, {"", "empty key"}, {"rng.seed", "not this one"}, {"text", "ü\n\"\\"}};
  save_checkpoint(run.net, folder / "c", run.adam, run.rng, {41, config});
  TrainingState state = read_checkpoint_state(folder / "c");
  CHECK(state.step == 41);
  CHECK(state.position == 41);
  CHECK(state.config == config);
  Run other(2);
  state = load_checkpoint(other.net, folder / "c", other.adam, other.rng);
  CHECK(state.step == 41);
  CHECK(state.config == config);
  CHECK(other.rng.seed() == 101);
  CHECK_THROWS_AS(save_checkpoint(run.net, folder / "c", run.adam, run.rng, {.step = -1}), ValueError);
  CHECK(read_checkpoint_state(folder / "c").step == 41);
}

TEST_CASE("training: load reads the weights of a checkpoint, or of a part of them", "[training]") {
  TempFolder folder;
  Run a(1), b(2), c(3);
  a.one_step();
  a.save(folder / "c");
  load(b.net, folder / "c");
  const auto want = state_dict(a.net), got = state_dict(b.net);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(want[i].tensor.detach(), got[i].tensor.detach()));
  const Tensor first = clone(want[0].tensor.detach());
  load(c.net, folder / "c", {.prefix = "nothing begins so", .strict = false});
  CHECK_FALSE(same_bits(state_dict(c.net)[0].tensor.detach(), first));
  CHECK_THROWS_AS(load(c.net, folder / "c", {.prefix = "model."}), IOError);
}

TEST_CASE("training: loading fills the tensors that the optimiser holds", "[training]") {
  TempFolder folder;
  Run a(1), b(2);
  a.one_step();
  a.save(folder / "c");
  auto before = parameters(b.net);
  b.load(folder / "c");
  auto after = parameters(b.net);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(before[i].tensor.ref() == after[i].tensor.ref());
  CHECK(after[0].tensor.requires_grad());
}

TEST_CASE("training: frozen parameters are saved, without moments", "[training]") {
  TempFolder folder;
  auto make = [](uint64_t seed) {
    Rng rng(seed);
    Mlp m({.dim = 3}, rng);
    m.in.weight.requires_grad_(false);
    return m;
  };
  Mlp a = make(1), b = make(2);
  Adam oa(parameters(a)), ob(parameters(b));
  Rng rng(5), other(6);
  save_checkpoint(a, folder / "c", oa, rng, {});
  load_checkpoint(b, folder / "c", ob, other);
  CHECK(same_bits(a.in.weight, b.in.weight));
  CHECK_FALSE(b.in.weight.requires_grad());
  CHECK(other.seed() == 5);

  RmsProp rms(parameters(b), {.centered = true});  // whose entries are called m and v, too
  CHECK_THROWS_WITH(load_checkpoint(b, folder / "c", rms, other), Contains("holds the state of adam, not of rmsprop"));

  a.in.weight.requires_grad_();  // the optimisers of run and restart have other parameters: the error says how to go on
  Adam of_all(parameters(a));
  CHECK_THROWS_WITH(of_all.load_state(oa.state()), Contains("'in.weight.updates'") && Contains("freeze it before"));
  CHECK_THROWS_WITH(oa.load_state(of_all.state()), Contains("'in.weight.m'") && Contains("before freeze()"));
}

TEST_CASE("training: a process killed while it saves leaves a whole checkpoint", "[training]") {
  TempFolder folder;
  const std::string path = folder / "c";
  Rng rng(1);
  Mlp m({.dim = 64, .hidden = 256}, rng);
  Adam adam(parameters(m));
  // The step stands in the weights, too, so that a mixture of two saves shows.
  const auto save = [&](int64_t step) {
    for (Tensor w : {m.in.weight.detach(), m.out.weight.detach()})  // by a loop: a child of fork() has one thread
      std::fill_n(w.mutable_data<float>(), w.numel(), static_cast<float>(step));
    save_checkpoint(m, path, adam, rng, {step, {}});
  };
  save(0);
  int64_t latest = 0;
  for (int round = 0; round < 8; ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        for (int64_t step = 1;; ++step) save(step);
      } catch (...) {}
      ::_exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(15 + 7 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    Rng r2(2);
    Mlp m2({.dim = 64, .hidden = 256}, r2);
    Adam adam2(parameters(m2));
    TrainingState state = load_checkpoint(m2, path, adam2, r2);
    for (const Tensor& w : {m2.in.weight, m2.out.weight})
      CHECK(max_abs(w.detach() - static_cast<double>(state.step)) == 0);
    latest = std::max(latest, state.step);
    CHECK(r2.seed() == 1);
  }
  CHECK(latest > 0);
}
