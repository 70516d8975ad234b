// Six ways to mix tokens on long text: what does a token cost as the context grows, in training and in generation, and
// does the model still learn? Byte-level language models with equal parameters see the same bytes, in windows of 512 to
// 16,384.
//
//   hybrid_lm --text FILE [--only A,B] [--steps N] [--longest N] [--out FOLDER] [--smoke]   half an hour on two cores
//   mpirun -n 4 hybrid_lm --text FILE …                                                     windows cut over 4 ranks
//
//   softmax    blocks of multi-head attention (RoPE) and SwiGLU                         n² a layer, tiled
//   gated      the same with the gate G1                                                n²
//   GAU        two gated attention units in place of each block                         n²
//   FLASH      two layers of mixed-chunk attention in place of each, chunks of 256      n·256 a layer
//   delta      blocks of Gated DeltaNet and SwiGLU                                      n·64
//   hybrid     three blocks of delta, then one of gated, as in Qwen3-Next               n² in a quarter of the layers
//
// examples/report.sh runs it; examples/run.sh fetches a text (build/data/jargon.txt). Each step reads --tokens bytes,
// as few long windows or many short ones; time is the median step, memory the largest sum of all tensors during one.
// State is what a stream keeps after a window, in numbers, and the last column the time of a step that reads one byte
// more. Over ranks each window is cut: a rank has its piece of it, the same weights as all, and the memory shown is
// that of the rank that needs most.
#include "support/byte_lm.h"
#include "support/corpus.h"
#include "support/mixer.h"
#include "support/options.h"
#include "support/ranks.h"
#include "support/study.h"

#include <sluice/parallel/collectives.h>
#include <sluice/parallel/mpi/world.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <sstream>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  std::string text, out, device = "cpu", only;
  int64_t dim = 128, heads = 4, blocks = 4, chunk = 256;
  int64_t steps = 32, tokens = 16384, shortest = 512, longest = 16384, factor = 2, seed = 1;
  double lr = 4e-3;
  bool smoke = false;
};

Settings parse(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("text", s.text, "file to learn from (bytes)");
  o("out", s.out, "folder for hybrid_bits.svg and hybrid_time.svg; empty: no pictures");
  o("only", s.only, "names of models, with commas between; empty: all");
  o("dim", s.dim, at_least(1), "width of the models");
  o("blocks", s.blocks, at_least(1), "Transformer blocks; twice as many layers of GAU or FLASH");
  o("chunk", s.chunk, at_least(1), "chunk of FLASH");
  o("steps", s.steps, at_least(1), "updates of each model at each length");
  o("tokens", s.tokens, at_least(1), "bytes a step");
  o("shortest", s.shortest, at_least(8), "shortest window");
  o("longest", s.longest, at_least(1), "longest window");
  o("factor", s.factor, at_least(2), "of a window to the one before");
  o("lr", s.lr, "highest learning rate");
  o("seed", s.seed, at_least(0), "of weights and batches");
  o("device", s.device, "cpu, or cuda where there is a GPU");
  o("smoke", s.smoke, "two tiny steps on a built-in text");
  parse_flags("hybrid_lm", "softmax attention, GAU, FLASH and the delta rule on long text", o, argc, argv);
  if (s.smoke) s.dim = 32, s.chunk = 16, s.steps = 2, s.tokens = 128, s.shortest = 32, s.longest = 128, s.factor = 4;
  else if (s.text.empty()) throw std::runtime_error("hybrid_lm: --text FILE is needed (or --smoke); see --help");
  if (s.longest < s.shortest || s.tokens < s.longest)
    throw std::runtime_error("hybrid_lm: needs shortest <= longest <= tokens");
  return s;
}

/// A block of 13d² weights: its mixer, and SwiGLU with the rest. Two layers of GAU or FLASH with e = 2d and s = d/2 are
/// as large without SwiGLU, 2·(3de + ds).
struct Contestant {
  const char* name;
  Mixer (*mixer)(const Settings&, int64_t block, Rng&);
  bool complete = false;  // two layers a block, no SwiGLU
};

Mixer softmax_block(const Settings& s, int64_t, Rng& rng) {
  return MultiHeadAttention({.heads = {.dim = s.dim, .heads = s.heads, .causal = true, .use_rope = true}}, rng);
}
Mixer gated_block(const Settings& s, int64_t, Rng& rng) {
  return MultiHeadAttention(
      {.heads = {.dim = s.dim, .heads = s.heads, .causal = true, .use_rope = true}, .gates = {AttentionGateOptions{}}},
      rng);
}
Mixer gau_block(const Settings& s, int64_t, Rng& rng) {
  return Gau({.dim = s.dim, .key_dim = s.dim / 2, .linear_bias = false, .causal = true}, rng);
}
Mixer flash_block(const Settings& s, int64_t, Rng& rng) {
  return Flash({.dim = s.dim, .key_dim = s.dim / 2, .chunk = s.chunk, .causal = true, .linear_bias = false}, rng);
}
Mixer delta_block(const Settings& s, int64_t, Rng& rng) {
  const int64_t dv = s.dim / s.heads;
  return GatedDeltaNet({.dim = s.dim, .heads = s.heads, .key_dim = std::max<int64_t>(1, dv / 2), .value_dim = dv}, rng);
}
Mixer hybrid_block(const Settings& s, int64_t block, Rng& rng) {
  return block % 4 == 3 ? gated_block(s, block, rng) : delta_block(s, block, rng);
}
constexpr Contestant kContestants[] = {
    {"softmax", softmax_block},   {"gated", gated_block}, {"GAU", gau_block, true},
    {"FLASH", flash_block, true}, {"delta", delta_block}, {"hybrid", hybrid_block},
};

/// The models that --only names.
std::vector<Contestant> chosen(const Settings& s) {
  std::vector<std::string> names, wanted;
  for (const Contestant& c : kContestants) names.push_back(c.name);
  std::istringstream only(s.only);
  for (std::string name; std::getline(only, name, ','); wanted.push_back(name))
    if (std::find(names.begin(), names.end(), name) == names.end())
      fail<ValueError>("hybrid_lm: --only names \"", name, "\", which is no model", did_you_mean(name, names));
  if (wanted.empty()) wanted = names;
  std::vector<Contestant> out;
  for (const Contestant& c : kContestants)
    if (std::find(wanted.begin(), wanted.end(), c.name) != wanted.end()) out.push_back(c);
  return out;
}

MixerLm model_of(const Contestant& c, const Settings& s, Rng& rng) {
  std::vector<Mixer> mixers;
  for (int64_t i = 0; i < s.blocks * (c.complete ? 2 : 1); ++i) mixers.push_back(c.mixer(s, i, rng));
  MixerLm model(s.dim, std::move(mixers), 0, 0.02, rng);
  if (!c.complete)
    for (const Mixer& m : model.mixers)
      model.feeds.emplace_back(s.dim, (13 * s.dim * s.dim - count(m)) / (3 * s.dim), rng);
  return model;
}

struct Result {
  double seconds = 0;  // a step
  int64_t peak = 0;    // bytes
  double train_bits = 0, valid_bits = 0;
};

/// A model over the lengths so far: log2 of the window, bits of unseen text, µs a token of training.
struct Row {
  std::vector<double> length, bits, micros;
};
using Rows = std::map<std::string, Row>;

void draw(const Rows& rows, const std::string& folder) {
  std::filesystem::create_directories(folder);
  const auto picture = [&](const char* file, const char* title, const char* y, std::vector<double> Row::*values) {
    std::vector<Series> all;
    for (const Contestant& c : kContestants)
      if (const auto row = rows.find(c.name); row != rows.end())
        all.push_back({c.name, row->second.length, row->second.*values});
    write_svg_curve(folder + "/" + file, {.title = title, .x_label = "log2 of the window", .y_label = y}, all);
  };
  picture("hybrid_bits.svg", "Equal parameters and bytes read", "bits/char of unseen text", &Row::bits);
  picture("hybrid_time.svg", "A training step", "microseconds a token", &Row::micros);
}

/// The hybrid beside softmax at the longest window, if both ran.
void compare(const Rows& rows, const Settings& s) {
  const auto hybrid = rows.find("hybrid"), softmax = rows.find("softmax");
  if (hybrid == rows.end() || softmax == rows.end()) return;
  const auto figures = [](const Row& row) {
    return str(fixed(row.bits.back(), 3), " bits/char, ", fixed(row.micros.back(), 1), " µs/token");
  };
  const Row &h = hybrid->second, &r = softmax->second;
  print_result("hybrid_lm", str("hybrid, windows of ", std::exp2(h.length.back()), ": ", figures(h)),
               str("softmax: ", figures(r)), h.bits.back() < r.bits.back() && h.micros.back() < r.micros.back(),
               s.seed);
}

/// What a stream of n bytes keeps, and the median seconds of steps that read one more.
std::pair<int64_t, double> streamed(const MixerLm& model, int64_t n, Device device) {
  using Clock = std::chrono::steady_clock;
  Stream stream;
  step(model, zeros({1, n}, {i64, device}), stream);
  const int64_t numbers = stream.numel();
  std::vector<double> seconds;
  for (int i = 0; i < 33; ++i) {
    const auto start = Clock::now();
    to(step(model, zeros({1, 1}, {i64, device}), stream), cpu);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + 16, seconds.end());
  return {numbers, seconds[16]};
}

Result train(const MixerLm& model, const Split& text, int64_t n, const Settings& s, const Communicator& ranks) {
  using Clock = std::chrono::steady_clock;
  const std::vector<int64_t> lengths = even_pieces(n, ranks.size());
  const auto self = static_cast<std::size_t>(ranks.rank());
  const int64_t first = std::accumulate(lengths.begin(), lengths.begin() + ranks.rank(), int64_t{0});
  auto mine = [&](const Tensor& windows) { return narrow(windows, 1, first, lengths[self]); };
  const Device device = device_named(s.device);
  Rng rng(static_cast<uint64_t>(s.seed) + 1000);  // the same windows for all models
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
      baseline_part(text.valid, static_cast<std::size_t>(n) + 1), n, device);
  return r;
}

int run(const Settings& s, const Communicator& ranks) {
  const std::vector<Contestant> contestants = chosen(s);
  const std::string words = common_text(s.text, ranks);
  const Split text = split_text(words, static_cast<std::size_t>(s.longest) + 1);

  if (ranks.rank() == 0) {
    std::printf("%s\n%lld steps of %lld bytes, width %lld", describe_machine().c_str(), (long long)s.steps,
                (long long)s.tokens, (long long)s.dim);
    if (ranks.size() > 1) std::printf(", windows cut over %d ranks", ranks.size());
    std::printf("\n\nwindow  layers    weights   µs/token   peak MiB   train bits   valid bits     state   µs/byte\n");
  }
  const Device device = device_named(s.device);
  Rows rows;
  for (int64_t n = s.shortest; n <= s.longest; n *= s.factor) {
    for (const Contestant& c : contestants) {
      Rng rng(static_cast<uint64_t>(s.seed));
      MixerLm model = model_of(c, s, rng);
      to(model, device);
      const Result r = train(model, text, n, s, ranks);
      if (ranks.rank() > 0) continue;
      const auto [numbers, seconds] = streamed(model, n, device);
      Row& row = rows[c.name];
      row.length.push_back(std::log2(n)), row.bits.push_back(r.valid_bits);
      row.micros.push_back(1e6 * r.seconds / static_cast<double>(s.tokens));
      std::printf("%6lld  %-8s %8lld   %8.1f   %8.1f   %10.3f   %10.3f   %7lld   %7.0f\n", (long long)n, c.name,
                  (long long)count(model), row.micros.back(), static_cast<double>(r.peak) / (1 << 20), r.train_bits,
                  r.valid_bits, (long long)numbers, 1e6 * seconds);
      std::fflush(stdout);
    }
  }
  if (ranks.rank() > 0) return 0;
  if (!s.out.empty()) draw(rows, s.out);
  compare(rows, s);
  return 0;
}

int program(int argc, char** argv) {
  const Settings s = parse(argc, argv);
  return run_world([&](const Communicator& ranks) { return run(s, ranks); });
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }
