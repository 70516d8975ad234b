// Generation with every streaming state. A layer that generates keeps something about the tokens so far: all keys
// and values, those of a window, or sums of fixed size. For each kind a small model writes 8,192 bytes one by one,
// and then reads them again at once: both ways have to give the same logits.
//
//   generate_streams [--dim D] [--layers N] [--seed S] [--smoke]        about 10 s on two cores
//
// The models are untrained: with weights drawn at random every layer contributes, and what they write is noise.
// Printed for each kind: the numbers its state holds after 64, 512, 2,048 and 8,192 tokens (all layers, one sequence;
// equal to what cost() computes from the options), the time of a token there, and the largest difference of
// logits, relative to the largest logit.
#include "support/mixer.h"
#include "support/options.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  int64_t dim = 128, layers = 2, seed = 1;
  bool smoke = false;
};

struct Kind {
  std::string name;
  std::function<Mixer(Rng&)> make;
};
std::vector<Kind> kinds(int64_t d) {
  const int64_t heads = 4;
  const MultiHeadAttentionOptions softmax{.heads = {.dim = d, .heads = heads, .causal = true, .use_rope = true}};
  MultiHeadAttentionOptions gated = softmax, window = softmax;
  gated.gates = {AttentionGateOptions{}};
  window.heads.kv_heads = 2, window.window = 128;
  auto make = [](auto layer, auto options) { return [=](Rng& rng) { return Mixer(decltype(layer)(options, rng)); }; };
  return {
      {"softmax, KV cache", make(MultiHeadAttention{}, softmax)},
      {"  gated (G1)", make(MultiHeadAttention{}, gated)},
      {"  2 KV heads, window 128", make(MultiHeadAttention{}, window)},
      {"GAU", make(Gau{}, GauOptions{.dim = d, .key_dim = d / 2, .causal = true})},
      {"FLASH, chunks of 64", make(Flash{}, FlashOptions{.dim = d, .key_dim = d / 2, .chunk = 64, .causal = true})},
      {"linear",
       make(LinearAttention{}, LinearAttentionOptions{.dim = d, .heads = heads, .direction = LinearDirection::causal})},
      {"retention", make(Retention{}, RetentionOptions{.dim = d, .heads = heads})},
      {"GLA", make(Gla{}, GlaOptions{.dim = d, .heads = heads})},
      {"fused softmax+linear",
       make(FusedAttention{}, FusedAttentionOptions{.heads = {.dim = d, .heads = heads, .causal = true}})},
  };
}

struct Result {
  std::vector<int64_t> numbers;  // in the stream, at each mark
  std::vector<double> micros;    // of a token, the median of the 32 up to the mark
  double difference = 0;         // the largest of logits, relative to the largest logit
};

/// Writes until the last mark, then reads what it wrote in one pass.
Result write_and_read(const MixerLm& model, const std::vector<int64_t>& marks, Rng& rng) {
  using Clock = std::chrono::steady_clock;
  Result r;
  Stream stream;
  std::vector<int64_t> written{'\n'};
  std::vector<double> micros;
  std::vector<Tensor> logits;
  while (static_cast<int64_t>(written.size()) <= marks.back()) {
    const auto start = Clock::now();
    logits.push_back(step(model, Tensor::from(std::vector{written.back()}, {1, 1}), stream));
    const Tensor p = softmax(logits.back());
    written.push_back(sample_discrete(p.data<float>(), 256, rng));
    micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    if (std::find(marks.begin(), marks.end(), static_cast<int64_t>(logits.size())) == marks.end()) continue;
    std::vector<double> recent(micros.end() - std::min<std::ptrdiff_t>(32, std::ssize(micros)), micros.end());
    std::nth_element(recent.begin(), recent.begin() + std::ssize(recent) / 2, recent.end());
    r.micros.push_back(recent[recent.size() / 2]);
    int64_t computed = 0;
    for (const Mixer& m : model.mixers)
      computed += std::visit([&](const auto& f) { return cost(f.options, stream.length()).state; }, m.layer);
    r.numbers.push_back(stream.numel());
    if (stream.numel() != computed) fail<ValueError>("streams: it keeps ", stream.numel(), ", cost() says ", computed);
  }
  NoGrad guard;
  written.pop_back();
  const Tensor once = model(Tensor::from(written, {1, std::ssize(written)}));
  r.difference = max(abs(once - cat(logits, 1))).item() / max(abs(once)).item();
  return r;
}

int run(const Settings& s) {
  const std::vector<int64_t> marks =
      s.smoke ? std::vector<int64_t>{8, 32, 96, 192} : std::vector<int64_t>{64, 512, 2048, 8192};
  std::printf("%s\nwidth %lld, %lld layers, f32\n\n", describe_machine().c_str(), (long long)s.dim,
              (long long)s.layers);
  std::printf("%34s | %35s | %27s  |  relative\n", "", "numbers in the state after", "µs per token at");
  std::printf("%-24s %9s |", "layers", "weights");
  for (int64_t m : marks) std::printf(" %8lld", (long long)m);
  std::printf(" |");
  for (int64_t m : marks) std::printf(" %6lld", (long long)m);
  std::printf(" | difference\n");
  double worst = 0;
  for (const Kind& kind : kinds(s.dim)) {
    Rng rng(static_cast<uint64_t>(s.seed));
    std::vector<Mixer> mixers;
    for (int64_t i = 0; i < s.layers; ++i) mixers.push_back(kind.make(rng));
    const MixerLm model(s.dim, std::move(mixers), 0, 1, rng);
    const Result r = write_and_read(model, marks, rng);
    std::printf("%-24s %9lld |", kind.name.c_str(), (long long)count(model));
    for (int64_t n : r.numbers) std::printf(" %8lld", (long long)n);
    std::printf(" |");
    for (double t : r.micros) std::printf(" %6.0f", t);
    std::printf(" | %.1e\n", r.difference);
    std::fflush(stdout);
    worst = std::max(worst, r.difference);
  }
  if (!(worst < 1e-4))
    fail<ValueError>("streams: step by step and at once differ by ", worst, " of the largest logit; need 1e-4");
  return 0;
}

int program(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("dim", s.dim, at_least(1), "width of the models");
  o("layers", s.layers, at_least(1), "layers of each model");
  o("seed", s.seed, at_least(0), "of weights and samples");
  o("smoke", s.smoke, "192 tokens, narrow models");
  parse_flags("generate_streams", "generation with every streaming state", o, argc, argv);
  if (s.smoke) s.dim = 32;
  return run(s);
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output (two busy cores), after a line about the machine:
//
// width 128, 2 layers, f32
//
//                                    |          numbers in the state after |            µs per token at  |  relative
// layers                     weights |       64      512     2048     8192 |     64    512   2048   8192 | difference
// softmax, KV cache           197632 |    32768   262144  1048576  4194304 |     22     43    110    500 | 5.3e-07
//   gated (G1)                230400 |    32768   262144  1048576  4194304 |     25     46    114    560 | 5.0e-07
//   2 KV heads, window 128    164864 |    16384    32768    32768    32768 |     19     22     22     22 | 5.9e-07
// GAU                         281472 |    40960   327680  1310720  5242880 |     27     47    104    880 | 6.2e-07
// FLASH, chunks of 64         281474 |    81920    81920    81920    81920 |     30     31     31     31 | 6.3e-07
// linear                      197632 |     8448     8448     8448     8448 |     24     24     24     24 | 6.6e-07
// retention                   329728 |    16384    16384    16384    16384 |     39     39     39     39 | 7.1e-07
// GLA                         203968 |     4096     4096     4096     4096 |     26     27     27     27 | 7.0e-07
// fused softmax+linear        230656 |    41216   270592  1057024  4202752 |     34     57    123    595 | 5.4e-07
