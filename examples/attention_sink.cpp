// What a gate on the attention output changes in a trained language model (Qiu et al. 2025, "Gated Attention for Large
// Language Models"): where attention goes that nothing deserves, how large activations get, how sparse the gate
// becomes, and what high learning rates do. Two byte-level Transformers of equal parameters, with and without gate G1;
// every window opens with the same start token.
//
//   attention_sink --text FILE [--out FOLDER] [--steps N] [--smoke]
//
// examples/run.sh and examples/report.sh fetch a text. FOLDER gets sink.svg (attention to the start token while
// training) and spikes.svg (loss at the highest rate).
#include "support/byte_lm.h"
#include "support/corpus.h"
#include "support/insight.h"
#include "support/options.h"
#include "support/study.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  std::string text, out = "build/report";
  int64_t dim = 96, layers = 4, heads = 4, hidden = 256, context = 256, batch = 8, steps = 1200, short_steps = 300,
          seed = 1;
  double lr = 2e-3;
  bool smoke = false;
};

MixerLm make_model(bool gated, const Settings& s) {
  Rng rng(static_cast<uint64_t>(s.seed));
  std::vector<Mixer> mixers;
  for (int64_t i = 0; i < s.layers; ++i)
    mixers.emplace_back(MultiHeadAttention({.heads = {.dim = s.dim, .heads = s.heads, .causal = true, .use_rope = true},
                                            .gates = std::vector<AttentionGateOptions>(gated ? 1 : 0)},
                                           rng));
  return MixerLm(s.dim, std::move(mixers), s.hidden - (gated ? s.dim / 3 : 0), 0.02, rng);  // SwiGLU pays for the gate
}

/// The window's bytes with byte 0, which no text has, before them.
Tensor with_start(const Tensor& bytes) { return cat({zeros({bytes.dim(0), 1}, {i64}), bytes}, 1); }
Tensor logits(const MixerLm& model, const Tensor& bytes) {
  return narrow(model(with_start(bytes)), 1, 1, bytes.dim(1));
}

struct Run {
  std::vector<double> bits, looked_at, first_token, largest;
};

Run train(const MixerLm& model, std::string_view text, const Tensor& sample, int64_t steps, double lr,
          const Settings& s) {
  Rng rng(static_cast<uint64_t>(s.seed) + 1000);  // the same batches for all
  Adam adam(parameters(model), {.beta2 = 0.95, .weight_decay = 0.05});
  const Schedule rate = cosine_schedule({.lr = lr, .warmup = steps / 50, .total = steps + 1, .floor = lr / 20});
  Run run;
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = random_batch(text, s.batch, s.context, rng);
    adam.zero_grad();
    Tensor loss = cross_entropy(logits(model, batch.inputs), batch.targets);
    run.bits.push_back(loss.item() / std::log(2.0));
    backward(loss);
    clip_grad_norm(adam.parameters(), 1.0);
    adam.set_lr(rate(step));
    adam.step();
    if (sample.defined() && (step % std::max<int64_t>(1, steps / 24) == 0 || step + 1 == steps)) {
      const Insight in = look_inside(model, with_start(sample));
      run.looked_at.push_back(double(step)), run.first_token.push_back(100 * in.first_token),
          run.largest.push_back(in.largest);
    }
  }
  return run;
}

/// Steps whose loss lies more than half a bit above the mean of the 20 before them, after the first tenth.
int64_t spikes(const std::vector<double>& bits) {
  int64_t found = 0;
  for (std::size_t i = std::max<std::size_t>(20, bits.size() / 10); i < bits.size(); ++i) {
    const double before = std::accumulate(bits.begin() + long(i) - 20, bits.begin() + long(i), 0.0) / 20;
    found += !(bits[i] <= before + 0.5);
  }
  return found;
}

int program(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("text", s.text, "file to learn from (bytes)");
  o("out", s.out, "folder of the pictures");
  o("dim", s.dim, at_least(1), "width of the models");
  o("layers", s.layers, at_least(1), "Transformer blocks");
  o("hidden", s.hidden, at_least(1), "width of the baseline's SwiGLU");
  o("steps", s.steps, at_least(1), "updates of each model");
  o("short-steps", s.short_steps, at_least(1), "updates of each model at each high rate");
  o("lr", s.lr, "learning rate");
  o("seed", s.seed, at_least(0), "of weights and batches");
  o("smoke", s.smoke, "three tiny steps on a built-in text");
  parse_flags("attention_sink", "attention sinks, massive activations and loss spikes, with gate G1 and without", o,
              argc, argv);
  if (s.smoke) s.dim = 24, s.layers = 2, s.hidden = 64, s.context = 32, s.batch = 2, s.steps = s.short_steps = 3;
  else if (s.text.empty()) throw std::runtime_error("attention_sink: --text FILE is needed (or --smoke)");
  if (s.hidden <= s.dim / 3)  // what the gate takes from SwiGLU
    throw std::runtime_error(
        str("attention_sink: hidden must be above dim / 3 — got hidden ", s.hidden, ", dim ", s.dim));
  const std::string words = learning_text(s.text);
  const std::size_t window = static_cast<std::size_t>(s.context) + 1;
  const Split text = split_text(words, window);
  const std::string_view valid = baseline_part(text.valid, window);
  Rng sample_rng(7);
  const Tensor sample = random_batch(valid, 8, s.context, sample_rng).inputs;
  std::filesystem::create_directories(s.out);

  std::vector<Series> sinks, curves;
  double bits[2], share[2];
  std::printf("%lld steps of %lld windows of %lld bytes, learning rate %g\n", (long long)s.steps, (long long)s.batch,
              (long long)s.context, s.lr);
  for (int gated = 0; gated < 2; ++gated) {
    const char* name = gated ? "gate G1" : "no gate";
    MixerLm model = make_model(gated, s);
    const Run run = train(model, text.train, sample, s.steps, s.lr, s);
    bits[gated] = bits_per_byte([&](const Tensor& bytes) { return logits(model, bytes); }, valid, s.context);
    const Insight in = look_inside(model, with_start(sample));
    share[gated] = 100 * in.first_token;
    std::printf("\n%s: %lld weights, %.3f bits/char (training %.3f), %lld spikes\n", name, (long long)count(model),
                bits[gated], last_tenth(run.bits), (long long)spikes(run.bits));
    std::printf("layer   start token   largest activation   gate: mean   < 1/2   < 0.01\n");
    for (std::size_t i = 0; i < in.first_by_layer.size(); ++i) {
      std::printf("%5zu %11.1f %% %20.1f", i, 100 * in.first_by_layer[i], in.largest_by_layer[i]);
      if (gated)
        std::printf(" %12.3f %5.0f %% %6.2f %%", in.gates[i].mean, 100 * in.gates[i].below_half,
                    100 * in.gates[i].below_1e2);
      std::printf("\n");
    }
    std::fflush(stdout);
    sinks.push_back({name, run.looked_at, run.first_token, false});
  }
  write_svg_curve(s.out + "/sink.svg",
                  {.title = "Attention to the start token, mean of all layers and heads", .y_label = "% of attention"},
                  sinks);

  std::printf("\n%lld steps at high rates\n     rate   model     bits/char (last tenth)   spikes\n",
              (long long)s.short_steps);
  for (double factor : {4.0, 16.0}) {
    curves.clear();
    for (int gated = 0; gated < 2; ++gated) {
      const Run run = train(make_model(gated, s), text.train, {}, s.short_steps, factor * s.lr, s);
      std::printf("%9g   %-7s   %22.3f   %6lld\n", factor * s.lr, gated ? "gate G1" : "no gate", last_tenth(run.bits),
                  (long long)spikes(run.bits));
      std::fflush(stdout);
      curves.push_back(series(gated ? "gate G1" : "no gate", run.bits, true));
    }
  }
  write_svg_curve(s.out + "/spikes.svg",
                  {.title = str("Loss at a learning rate of ", 16 * s.lr), .y_label = "bits per character"}, curves);
  print_result(
      "attention_sink",
      "gate G1: " + fixed(bits[1], 3) + " bits/char, " + fixed(share[1], 1) + " % of attention to the start token",
      "no gate: " + fixed(bits[0], 3) + ", " + fixed(share[0], 1) + " %", bits[1] < bits[0], s.seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output of attention_sink --text build/data/jargon.txt (two busy cores):
//
// 1200 steps of 8 windows of 256 bytes, learning rate 0.002
//
// no gate: 493504 weights, 2.234 bits/char (training 2.136), 2 spikes
// layer   start token   largest activation   gate: mean   < 1/2   < 0.01
//     0         2.2 %                 11.7
//     1         0.6 %                 15.3
//     2         0.8 %                 18.3
//     3         0.8 %                 26.2
//
// gate G1: 493504 weights, 2.216 bits/char (training 2.113), 1 spikes
// layer   start token   largest activation   gate: mean   < 1/2   < 0.01
//     0         1.8 %                  6.0        0.338    79 %   0.00 %
//     1         0.5 %                  8.4        0.438    60 %   0.00 %
//     2         0.6 %                 11.0        0.484    53 %   0.00 %
//     3         2.5 %                 18.1        0.475    55 %   0.00 %
//
// 300 steps at high rates
//      rate   model     bits/char (last tenth)   spikes
//     0.008   no gate                    2.910        3
//     0.008   gate G1                    2.838        5
//     0.032   no gate                    3.576        5
//     0.032   gate G1                    3.467        6
