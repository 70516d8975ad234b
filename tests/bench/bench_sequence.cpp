// What a training step over one long sequence needs, cut over the ranks of a job: memory, time, and what is sent.
//
//   bench_sequence; mpirun -n 4 --oversubscribe bench_sequence
#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/core/node.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/mpi/world.h>
#include <sluice/parallel/sequence.h>

#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

using namespace sluice;

namespace {

constexpr int64_t kDim = 64, kLayers = 2, kChunk = 256;

struct Model {
  std::vector<NamedTensor> parameters;
  std::function<Tensor(const Tensor&)> call;
};

template <class Layer> struct Blocks {
  std::vector<Norm> norms;
  std::vector<Layer> layers;
  SLUICE_PARTS(norms, layers);
};

/// kLayers times x + layer(norm(x)).
template <class Layer, class Make> Model stack(Make make) {
  auto blocks = std::make_shared<Blocks<Layer>>();
  for (int64_t i = 0; i < kLayers; ++i)
    blocks->norms.emplace_back(NormOptions{.dim = kDim}), blocks->layers.push_back(make());
  return {parameters(*blocks), [blocks](const Tensor& x) {
            Tensor y = x;
            for (std::size_t i = 0; i < blocks->layers.size(); ++i) y = y + blocks->layers[i](blocks->norms[i](y));
            return y;
          }};
}

Model make_model(const std::string& name, Rng& rng) {
  if (name == "linear")
    return stack<LinearAttention>(
        [&] { return LinearAttention({.dim = kDim, .heads = 1, .direction = LinearDirection::causal}, rng); });
  if (name == "softmax")
    return stack<GatedAttention>(
        [&] { return GatedAttention({.heads = {.dim = kDim, .causal = true, .use_rope = true}}, rng); });
  if (name != "flash") fail<ValueError>("bench_sequence: models are flash, linear and softmax — got ", name);
  FlashModelOptions o;
  o.layers = kLayers, o.layer.dim = kDim, o.layer.key_dim = kDim, o.layer.chunk = kChunk, o.layer.causal = true;
  auto model = std::make_shared<FlashModel>(o, rng);
  return {parameters(*model), [model](const Tensor& x) { return (*model)(x); }};
}

/// Bytes that all ranks send in a step for what lies along the sequence, n tokens in equal pieces of whole chunks: f32,
/// and the number of losses as f64.
double formula(const std::string& name, double n, double ranks) {
  const double pairs = ranks * (ranks - 1) / 2, d = kDim, count = 2 * pairs * 8;
  if (name == "linear") return 4 * kLayers * 2 * pairs * d * (d + 1) + count;
  if (name == "flash") return 4 * kLayers * pairs * (2 * d * (2 * d) + 1) + count;
  // Pairs of ranks that are worked on where the queries are, and where the keys are (parallel/ring_attention.cpp).
  double here = 0, there = ranks > 1 && std::fmod(ranks, 2) == 0 ? ranks / 4 : 0;
  for (double distance = 1; distance < ranks; ++distance) (2 * distance <= ranks ? here : there) += ranks - distance;
  return 4 * kLayers * (n / ranks) * (3 * here * 2 * d + there * (5 * d + 3)) + count;
}

void measure(const std::string& name, int64_t n, const Communicator& all) {
  Rng rng(1);
  Model model = make_model(name, rng);
  Adam adam(model.parameters, {.lr = 1e-3});
  const std::vector<int64_t> chunks = even_pieces(n / kChunk, all.size());
  Rng own(2 + static_cast<uint64_t>(all.rank()));
  const Tensor x = normal({1, chunks[static_cast<std::size_t>(all.rank())] * kChunk, kDim}, 0, 1, own);
  Traffic traffic;
  double seconds = 0;
  for (int step = 0; step < 2; ++step) {  // the first one makes the optimiser's moments
    reset_peak_memory();
    all.barrier();
    all.reset_traffic();
    const auto begin = std::chrono::steady_clock::now();
    {
      SequenceScope scope(all);
      backward(sequence_mean(square(model.call(x))));
    }
    traffic = all.traffic();
    for (const NamedTensor& p : model.parameters) {
      Tensor w = p.tensor;
      w.set_grad(all_reduce(w.grad(), all));
    }
    adam.step(), adam.zero_grad();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  NoGrad guard;
  auto over_ranks = [&](double v, ReduceOp op) { return all_reduce(full({}, v, {f64}), all, op).item(); };
  const double peak = over_ranks(static_cast<double>(memory_stats().peak), ReduceOp::max);
  const double sent = over_ranks(static_cast<double>(traffic.total().bytes), ReduceOp::sum);
  const double agreed = over_ranks(static_cast<double>(traffic.by_kind["agreement"].bytes), ReduceOp::sum);
  const double slowest = over_ranks(seconds, ReduceOp::max);
  const double expected = formula(name, static_cast<double>(n), all.size());
  if (all.rank() == 0)
    std::printf(
        "%-8s n=%-7lld ranks=%d  peak %9.2f MiB a rank  %8.2f s  sent %12.0f B (formula %12.0f)  agreement %.0f B\n",
        name.c_str(), static_cast<long long>(n), all.size(), peak / (1 << 20), slowest, sent, expected, agreed);
}

}  // namespace

int main(int argc, char** argv) {
  return run_world([&](const Communicator& all) {
    std::vector<std::string> names;
    std::vector<int64_t> lengths;
    for (int i = 1; i < argc; ++i) {
      if (std::isdigit(static_cast<unsigned char>(argv[i][0]))) lengths.push_back(std::atoll(argv[i]));
      else names.emplace_back(argv[i]);
    }
    if (names.empty()) names = {"flash", "linear", "softmax"};
    if (lengths.empty()) lengths = {16384, 65536};
    for (const std::string& name : names)
      for (const int64_t n : lengths) measure(name, n, all);
    return 0;
  });
}
