// What ranks cost: latency and bandwidth of collectives, and a data-parallel training step with and without overlap.
//
//   bench_ranks; mpirun -n 4 --oversubscribe bench_ranks
#include <sluice/autograd/engine.h>
#include <sluice/core/parallel.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/train/data_parallel.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/create.h>
#include <sluice/ops/loss.h>
#include <sluice/parallel/mpi/world.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>

using namespace sluice;

namespace {

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The best of `rounds`, of the rank that took longest.
double best(const Communicator& ranks, int rounds, const std::function<void()>& f) {
  double least = 1e9;
  for (int i = 0; i < rounds; ++i) {
    ranks.barrier();
    least = std::min(least, seconds_of(f));
  }
  return all_reduce(full({}, least, {f64}), ranks, ReduceOp::max).item();
}

struct Model {
  Embedding embed;
  std::vector<Gau> blocks;
  Linear head;
  explicit Model(Rng& rng) : embed({256, 192, 0.02}, rng), head({.in = 192, .out = 256}, rng) {
    for (int i = 0; i < 4; ++i) blocks.emplace_back(GauOptions{.dim = 192, .key_dim = 64, .causal = true}, rng);
  }
  Tensor operator()(const Tensor& bytes) const {
    Tensor x = embed(bytes);
    for (const Gau& b : blocks) x = b(x);
    return head(x);
  }
  static void visit(auto& self, auto&& f) { f("embed", self.embed), f("blocks", self.blocks), f("head", self.head); }
};

/// A training step of the global batch, `variant`: 0 without any communication layer, 1 overlapped, 2 after the backward pass.
/// The variants take turns, so that a slow moment of the machine hits all.
void train(const Communicator& ranks, int64_t batch, int rounds) {
  Rng rng(1);
  Model model(rng);
  DataParallel overlapped(model, ranks, {.bucket_bytes = 1 << 20}), after(model, ranks, {.bucket_bytes = 1 << 20, .overlap = false});
  Adam adam(parameters(model));
  const Tensor x = randint(0, 256, {batch, 256}, rng), mine = rows_of(x, ranks);
  std::vector<double> times[3];
  for (int i = 0; i < 3 * rounds; ++i) {
    const int variant = i % 3;
    ranks.barrier();
    times[variant].push_back(seconds_of([&] {
      adam.zero_grad();
      const Tensor loss = cross_entropy(model(mine), mine);
      if (variant == 0) backward(loss);
      else (variant == 1 ? overlapped : after).backward(loss, static_cast<double>(mine.numel()));
      adam.step();
    }));
  }
  double ms[3];
  for (int v = 0; v < 3; ++v) {
    std::sort(times[v].begin(), times[v].end());
    ms[v] = 1000 * all_reduce(full({}, times[v][times[v].size() / 2], {f64}), ranks, ReduceOp::max).item();
  }
  if (ranks.rank() == 0)
    std::printf("%lld windows of 256, %lld weights: backward() alone %.2f ms, DataParallel %.2f ms (%.3f), without overlap %.2f ms (%.3f)\n",
                (long long)batch, (long long)count(model), ms[0], ms[1], ms[1] / ms[0], ms[2], ms[2] / ms[0]);
}

}  // namespace

int main() {
  return run_world([](const Communicator& ranks) {
    const int n = ranks.size();
    if (ranks.rank() == 0) std::printf("%d ranks of %d threads\n", n, num_threads());
    if (n > 1) {
      const double latency = best(ranks, 2000, [&] { ranks.barrier(); });
      if (ranks.rank() == 0) std::printf("barrier (what every collective begins with) %.1f us\n", 1e6 * latency);
      for (const int64_t bytes : {8, 16 << 10, 1 << 20, 64 << 20}) {
        const Tensor x = zeros({bytes / 4});
        const int rounds = bytes > 1 << 22 ? 10 : 300;
        const double t = best(ranks, rounds, [&] { all_reduce(x, ranks); });
        if (ranks.rank() == 0) std::printf("all_reduce of %9lld bytes %10.1f us  %6.2f GB/s of %d ranks' operands\n", (long long)bytes, 1e6 * t, double(bytes) * 1e-9 / t, n);
      }
    }
    train(ranks, 16, 15);
    return 0;
  });
}
