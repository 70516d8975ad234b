// FLASH against softmax attention on long text: what does a token cost as the context grows, and does the model
// still learn? Byte-level language models with equal parameters see the same bytes, in windows of 512 … 8,192.
//
//   flash_long_text --text FILE [--steps N] [--longest N] [--tokens N] [--smoke]       about 3 minutes on two cores
//   mpirun -n 4 flash_long_text --text FILE …                                          windows cut over 4 ranks
//
//   softmax  blocks of multi-head attention (RoPE) and SwiGLU                         n² a layer, tiled
//   FLASH    two layers of mixed-chunk attention in place of each, chunks of 256      n·256 a layer
//
// examples/run.sh fetches a text (build/data/jargon.txt). Each step reads --tokens bytes, as few long windows or many
// short ones; time is the median step, memory the largest sum of all tensors during one. Over ranks each window is cut:
// a rank has its piece of it, the same weights as all, and the memory shown is that of the rank that needs most.
#include "support/byte_lm.h"
#include "support/corpus.h"
#include "support/mixer.h"
#include "support/options.h"

#include <sluice/parallel/collectives.h>
#include <sluice/parallel/mpi/world.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  std::string text, device = "cpu";
  int64_t dim = 128, heads = 4, blocks = 2, chunk = 256;
  int64_t steps = 32, tokens = 8192, shortest = 512, longest = 8192, seed = 1;
  double lr = 4e-3;
  bool smoke = false;
};

Settings parse(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("text", s.text, "file to learn from (bytes)");
  o("dim", s.dim, at_least(1), "width of the models");
  o("blocks", s.blocks, at_least(1), "Transformer blocks; twice as many FLASH layers");
  o("chunk", s.chunk, at_least(1), "chunk of FLASH");
  o("steps", s.steps, at_least(1), "updates of each model at each length");
  o("tokens", s.tokens, at_least(1), "bytes a step");
  o("shortest", s.shortest, at_least(8), "shortest window");
  o("longest", s.longest, at_least(1), "longest window; each is four times the one before");
  o("lr", s.lr, "highest learning rate");
  o("seed", s.seed, at_least(0), "of weights and batches");
  o("device", s.device, "cpu, or cuda where there is a GPU");
  o("smoke", s.smoke, "two tiny steps on a built-in text");
  parse_flags("flash_long_text", "FLASH against softmax attention on long text", o, argc, argv);
  if (s.smoke) s.dim = 32, s.blocks = 1, s.chunk = 16, s.steps = 2, s.tokens = 256, s.shortest = 32, s.longest = 128;
  else if (s.text.empty()) throw std::runtime_error("flash_long_text: --text FILE is needed (or --smoke); see --help");
  if (s.longest < s.shortest || s.tokens < s.longest)
    throw std::runtime_error("flash_long_text: needs shortest <= longest <= tokens");
  return s;
}

/// s = d/2: two FLASH layers have 2·(3de + ds) = 13d² weights, an attention layer 4d²; SwiGLU gets the other 9d².
MixerLm softmax_model(const Settings& s, Rng& rng) {
  std::vector<Mixer> mixers;
  for (int64_t i = 0; i < s.blocks; ++i)
    mixers.emplace_back(
        MultiHeadAttention({.heads = {.dim = s.dim, .heads = s.heads, .causal = true, .use_rope = true}}, rng));
  return MixerLm(s.dim, std::move(mixers), 3 * s.dim, 0.02, rng);
}
MixerLm flash_model(const Settings& s, Rng& rng) {
  std::vector<Mixer> mixers;
  for (int64_t i = 0; i < 2 * s.blocks; ++i)
    mixers.emplace_back(
        Flash({.dim = s.dim, .key_dim = s.dim / 2, .chunk = s.chunk, .causal = true, .linear_bias = false}, rng));
  return MixerLm(s.dim, std::move(mixers), 0, 0.02, rng);
}

struct Result {
  double seconds = 0;  // a step
  int64_t peak = 0;    // bytes
  double train_bits = 0, valid_bits = 0;
};

Result train(const MixerLm& model, const Split& text, int64_t n, const Settings& s, const Communicator& ranks) {
  using Clock = std::chrono::steady_clock;
  const std::vector<int64_t> lengths = even_pieces(n, ranks.size());
  const auto self = static_cast<std::size_t>(ranks.rank());
  const int64_t first = std::accumulate(lengths.begin(), lengths.begin() + ranks.rank(), int64_t{0});
  auto mine = [&](const Tensor& windows) { return narrow(windows, 1, first, lengths[self]); };
  const Device device = device_named(s.device);
  Rng rng(static_cast<uint64_t>(s.seed) + 1000);  // the same windows for both models
  Adam adam(parameters(model), {.beta2 = 0.95, .weight_decay = 0.05});
  const Schedule rate = cosine_schedule({.lr = s.lr, .warmup = s.steps / 8, .total = s.steps + 1, .floor = s.lr / 20});
  reset_peak_memory(device);
  std::vector<double> seconds, bits;
  for (int64_t step = 0; step < s.steps; ++step) {
    const auto start = Clock::now();
    auto [inputs, targets] = random_batch(text.train, s.tokens / n, n, rng, device);
    adam.zero_grad();
    Tensor loss;
    {
      SequenceScope scope(ranks);
      loss = sequence_mean(cross_entropy(model(mine(inputs)), mine(targets), {.reduction = Reduction::none}));
      backward(loss);
    }
    for (const NamedTensor& p : adam.parameters()) {
      Tensor w = p.tensor;
      w.set_grad(all_reduce(w.grad(), ranks));
    }
    clip_grad_norm(adam.parameters(), 1.0);
    adam.set_lr(rate(step));
    adam.step();
    bits.push_back(all_reduce(loss.detach(), ranks).item() / std::log(2.0));
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  Result r;
  r.peak =
      all_reduce(full({}, static_cast<double>(memory_stats(device).peak), {f64}), ranks, ReduceOp::max).item<int64_t>();
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  r.seconds = seconds[seconds.size() / 2];
  const std::size_t last = std::max<std::size_t>(1, bits.size() / 8);
  for (std::size_t i = bits.size() - last; i < bits.size(); ++i) r.train_bits += bits[i] / static_cast<double>(last);
  r.valid_bits = bits_per_byte(
      [&](const Tensor& windows) {
        SequenceScope scope(ranks);
        return sequence_rows(model(mine(windows)), 1, {0, n});
      },
      baseline_part(text.valid), n, device);
  return r;
}

int run(const Settings& s, const Communicator& ranks) {
  const std::string words = learning_text(s.text);
  const Split text = split_text(words, static_cast<std::size_t>(s.longest) + 1);

  if (ranks.rank() == 0) {
    std::printf("%s\n%lld steps of %lld bytes, width %lld", describe_machine().c_str(), (long long)s.steps,
                (long long)s.tokens, (long long)s.dim);
    if (ranks.size() > 1) std::printf(", windows cut over %d ranks", ranks.size());
    std::printf("\n\nwindow  layers    weights   µs/token   peak MiB   train bits   valid bits\n");
  }
  for (int64_t n = s.shortest; n <= s.longest; n *= 4) {
    for (bool flash : {false, true}) {
      Rng rng(static_cast<uint64_t>(s.seed));
      MixerLm model = flash ? flash_model(s, rng) : softmax_model(s, rng);
      to(model, device_named(s.device));
      const Result r = train(model, text, n, s, ranks);
      if (ranks.rank() > 0) continue;
      std::printf("%6lld  %-8s %8lld   %8.1f   %8.1f   %10.3f   %10.3f\n", (long long)n, flash ? "FLASH" : "softmax",
                  (long long)count(model), 1e6 * r.seconds / static_cast<double>(s.tokens),
                  static_cast<double>(r.peak) / (1 << 20), r.train_bits, r.valid_bits);
      std::fflush(stdout);
    }
  }
  return 0;
}

int program(int argc, char** argv) {
  const Settings s = parse(argc, argv);
  return run_world([&](const Communicator& ranks) { return run(s, ranks); });
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output of flash_long_text --text build/data/jargon.txt (two busy cores), after a line about the machine:
//
// 32 steps of 8192 bytes, width 128
//
// window  layers    weights   µs/token   peak MiB   train bits   valid bits
//    512  softmax    493056       53.7      205.0        3.820        3.819
//    512  FLASH      494084       81.3      433.3        3.801        3.824
//   2048  softmax    493056       89.3      205.5        4.330        4.016
//   2048  FLASH      494084       83.4      434.2        4.115        3.851
//   8192  softmax    493056      238.2      207.3        4.212        4.113
//   8192  FLASH      494084       81.7      438.0        3.908        3.845
//
// A token costs FLASH the same at every length; softmax attention is cheaper at 512, even at 2,048 and three times as
// dear at 8,192. Neither needs memory that grows with the window: attention() never holds the n² weights. Longer
// windows are fewer windows a step, and the same number of steps teaches less.
