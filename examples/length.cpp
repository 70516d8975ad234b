// What a token costs as a sequence grows: processor time and memory of forward and backward, for softmax attention with
// the n × n weights in full and tiled, for GAU, FLASH, two linear ones and the gated delta rule. One causal layer,
// batch 1.
//
//   length [--longest N] [--dim N] [--seconds S] [--smoke]
//
// Time is that of all threads in the fastest of several steps, memory the most that tensors hold in one beyond the
// weights. The weights in full are left out where four copies of them pass 1 GiB.
#include "support/mixer.h"
#include "support/options.h"

#include <sluice/ops/attention/attention_reference.h>

#include <chrono>
#include <cstdio>
#include <ctime>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  int64_t dim = 256, heads = 4, chunk = 256, shortest = 512, longest = 8192;
  double seconds = 1;
  bool smoke = false;
};
Settings parse(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("dim", s.dim, at_least(1), "width of the layers");
  o("heads", s.heads, at_least(1), "heads of attention and of the linear layers");
  o("chunk", s.chunk, at_least(1), "chunk of FLASH");
  o("shortest", s.shortest, at_least(1), "shortest sequence; each is twice the one before");
  o("longest", s.longest, at_least(1), "longest sequence");
  o("seconds", s.seconds, above(0), "for each figure, but at least two steps");
  o("smoke", s.smoke, "tiny layers, short sequences");
  parse_flags("length", "what a token costs as a sequence grows", o, argc, argv);
  if (s.smoke) s.dim = 32, s.chunk = 16, s.shortest = 32, s.longest = 64, s.seconds = 1e-3;
  if (s.longest < s.shortest) throw std::runtime_error("length: needs shortest <= longest");
  return s;
}

/// Multi-head attention as its definition, without tiles.
struct InFull {
  static constexpr const char* type = "InFull";
  int64_t heads;
  Linear in, out;
  InFull(int64_t dim, int64_t heads_, Rng& rng) : heads(heads_), in({dim, 3 * dim}, rng), out({dim, dim}, rng) {}
  Tensor operator()(const Tensor& x) const {
    std::vector<Tensor> part = split(in(x), {x.dim(2), x.dim(2), x.dim(2)}, -1);
    for (Tensor& p : part) p = detail::split_heads(p, heads);
    return out(detail::merge_heads(attention_reference(part[0], part[1], part[2], {.mask = {.causal = true}})));
  }
  SLUICE_PARTS(in, out);
};

struct Cost {
  double seconds;
  int64_t bytes;
};
template <class Model> Cost cost(const Model& model, int64_t n, const Settings& s) {
  using Clock = std::chrono::steady_clock;
  Rng rng(2);
  const Tensor x = normal({1, n, s.dim}, 0, 1, rng).requires_grad_();
  std::vector<Tensor> wanted{x};
  for (const NamedTensor& p : parameters(model)) wanted.push_back(p.tensor);
  Cost best{1e30, 0};
  const auto begun = Clock::now();
  for (int step = 0; step < 2 || std::chrono::duration<double>(Clock::now() - begun).count() < s.seconds; ++step) {
    const int64_t before = memory_stats().live;
    reset_peak_memory();
    const std::clock_t start = std::clock();
    grad({sum(model(x))}, wanted);
    best.seconds = std::min(best.seconds, double(std::clock() - start) / CLOCKS_PER_SEC);
    best.bytes = memory_stats().peak - before;
  }
  return best;
}

int program(int argc, char** argv) {
  const Settings s = parse(argc, argv);
  Rng rng(1);
  const InFull in_full(s.dim, s.heads, rng);
  const Mixer softmax(
      MultiHeadAttention({.heads = {.dim = s.dim, .heads = s.heads, .causal = true, .use_rope = true}}, rng));
  const Mixer gau(Gau({.dim = s.dim, .key_dim = s.dim / 2, .causal = true}, rng));
  const Mixer flash(Flash({.dim = s.dim, .key_dim = s.dim / 2, .chunk = s.chunk, .causal = true}, rng));
  const Mixer linear(LinearAttention({.dim = s.dim, .heads = s.heads, .direction = LinearDirection::causal}, rng));
  const Mixer gla(Gla({.dim = s.dim, .heads = s.heads}, rng));
  const Mixer delta(GatedDeltaNet({.dim = s.dim, .heads = s.heads}, rng));

  std::printf("%s\nforward and backward of a causal layer of width %lld, batch 1\n\n", describe_machine().c_str(),
              (long long)s.dim);
  std::printf("layer               tokens   µs/token        MiB\n");
  const auto row = [&](const char* name, int64_t n, const auto& model) {
    const Cost c = cost(model, n, s);
    std::printf("%-18s %7lld %10.2f %10.2f\n", name, (long long)n, 1e6 * c.seconds / double(n),
                double(c.bytes) / (1 << 20));
    std::fflush(stdout);
  };
  for (int64_t n = s.shortest; n <= s.longest; n *= 2) {
    if (4 * s.heads * n * n * 4 <= int64_t{1} << 30) row("softmax, n × n", n, in_full);
    row("softmax, tiled", n, softmax);
    row("GAU", n, gau);
    row("FLASH", n, flash);
    row("linear attention", n, linear);
    row("GLA", n, gla);
    row("gated delta rule", n, delta);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }
