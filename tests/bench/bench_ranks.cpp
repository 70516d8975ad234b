// What ranks cost: latency and bandwidth of collectives, a data-parallel training step with and without overlap, each
// beside what support/scaling.h says of it on paper.
//
//   bench_ranks; mpirun -n 4 --oversubscribe bench_ranks       ranks of one machine, whose memory they share
//   mpirun … bench_ranks --network                             ranks with a network of their own
//   (tests/bench/namespaces.sh) bench_ranks --paper GB/s MICROSECONDS                      a step over 1 … 4,096 such
//   ranks
#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include "support/scaling.h"
#include <sluice/layers/train/data_parallel.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/parallel/mpi/world.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

using namespace sluice;
using namespace sluice::testing;

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
  SLUICE_PARTS(embed, blocks, head);
};

int64_t gradient_bytes(const Model& model) { return count(model) * int64_t{4}; }
constexpr int64_t kBucket = 1 << 20;

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

/// A training step of a global batch: without any communication layer, overlapped, and sent after the backward pass.
/// They take turns, so that a slow moment of the machine hits all. Returns the parts of the first.
StepParts train(const Communicator& ranks, int64_t batch, int rounds, const Network& network) {
  Rng rng(1);
  Model model(rng);
  DataParallel overlapped(model, ranks, {.bucket_bytes = kBucket}),
      after(model, ranks, {.bucket_bytes = kBucket, .overlap = false});
  Adam adam(parameters(model));
  const Tensor x = randint(0, 256, {batch, 256}, rng), mine = rows_of(x, ranks);
  std::vector<double> times[3], forward, back, update;
  for (int i = 0; i < 3 * rounds; ++i) {
    const int variant = i % 3;
    ranks.barrier();
    Tensor loss;
    const double first = seconds_of([&] {
      adam.zero_grad();
      loss = cross_entropy(model(mine), mine);
    });
    const double second = seconds_of([&] {
      if (variant == 0) backward(loss);
      else (variant == 1 ? overlapped : after).backward(loss, static_cast<double>(mine.numel()));
    });
    const double third = seconds_of([&] {
      adam.step();
      ranks.barrier();  // where ranks share processors, one's work is another's waiting
    });
    times[variant].push_back(first + second + third);
    if (variant == 0) forward.push_back(first), back.push_back(second), update.push_back(third);
  }
  const auto slowest = [&](double t) { return all_reduce(full({}, t, {f64}), ranks, ReduceOp::max).item(); };
  const StepParts parts{slowest(median(forward)), slowest(median(back)), slowest(median(update)), gradient_bytes(model),
                        kBucket};
  double ms[3], paper[3] = {0, parts.data_parallel(network, ranks.size()), 0};
  StepParts late = parts;
  late.overlap = false;
  paper[2] = late.data_parallel(network, ranks.size());
  for (int v = 0; v < 3; ++v) ms[v] = 1000 * slowest(median(times[v]));
  if (ranks.rank() == 0)
    std::printf(
        "%lld windows of 256, %lld weights: backward() alone %.2f ms, DataParallel %.2f ms (%.3f; on paper %.2f), "
        "without overlap "
        "%.2f ms (%.3f; on paper %.2f)\n",
        (long long)batch, (long long)count(model), ms[0], ms[1], ms[1] / ms[0], paper[1] * 1e3, ms[2], ms[2] / ms[0],
        paper[2] * 1e3);
  return parts;
}

/// Measured latency and bandwidth, and other sizes beside what they say.
Network measure(const Communicator& ranks, bool shared) {
  const int n = ranks.size();
  const auto all_reduce_seconds = [&](int64_t bytes) {
    const Tensor x = zeros({bytes / 4});
    return best(ranks, bytes > 1 << 22 ? 5 : 100, [&] { all_reduce(x, ranks); });
  };
  const double barrier = best(ranks, 2000, [&] { ranks.barrier(); });
  constexpr int64_t large = 16 << 20;
  Network network{.latency = 0, .bandwidth = 1, .shared = shared};
  const double units = network.all_reduce(n, large);  // seconds at one byte a second
  network.latency = 1;
  network.latency = barrier / network.agreement(n);
  const double measured = all_reduce_seconds(large);
  network.bandwidth = units / (measured - barrier);
  if (ranks.rank() == 0)
    std::printf("latency %.1f us, %.2f GB/s%s\n", 1e6 * network.latency, network.bandwidth * 1e-9,
                shared ? " of all ranks together" : " of each rank");
  for (const int64_t bytes : {int64_t{8}, int64_t{16} << 10, int64_t{1} << 20, int64_t{4} << 20, large}) {
    const double t = all_reduce_seconds(bytes);
    if (ranks.rank() == 0)
      std::printf("all_reduce of %9lld bytes %10.1f us, on paper %10.1f us\n", (long long)bytes, 1e6 * t,
                  1e6 * network.all_reduce(n, bytes));
  }
  return network;
}

/// A step of this machine's speed for each rank, over ever more ranks.
void paper(double gbs, double us) {
  const Network network{.latency = us * 1e-6, .bandwidth = gbs * 1e9};
  const StepParts parts = train({}, 16, 5, network);
  std::printf("a rank computes %.1f ms a step; %.2f GB/s, %.1f us\n%8s %14s %12s %16s\n", 1e3 * parts.alone(), gbs, us,
              "ranks", "step", "efficiency", "without overlap");
  for (int ranks = 1; ranks <= 4096; ranks *= 4) {
    StepParts late = parts;
    late.overlap = false;
    const double t = parts.data_parallel(network, ranks);
    std::printf("%8d %11.1f ms %11.0f%% %13.1f ms\n", ranks, 1e3 * t, 100 * parts.alone() / t,
                1e3 * late.data_parallel(network, ranks));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_world([&](const Communicator& ranks) {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "--paper" && argc == 4) return paper(std::stod(argv[2]), std::stod(argv[3])), 0;
    if (argc > 2 || (!mode.empty() && mode != "--network"))
      return std::printf("usage: see the top of bench_ranks.cpp\n"), 2;
    if (ranks.rank() == 0) std::printf("%d ranks of %d threads\n", ranks.size(), num_threads());
    train(ranks, 16, 15, ranks.size() > 1 ? measure(ranks, mode.empty()) : Network{.latency = 0, .bandwidth = 1});
    return 0;
  });
}
