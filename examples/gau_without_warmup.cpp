// Do gated attention units need warm-up (Su 2022, https://spaces.ac.cn/archives/8990)? At the start a GAU adds almost
// nothing to its input, so that a deep stack of x ← norm(x + GAU(x)) is close to the identity; the post-norm
// Transformer is not, and needs small learning rates first. Byte-level language models of 24 and 48 residual layers,
// GAU against Transformer of equal parameters, with warm-up and without, no clipping:
//
//   gau_without_warmup --text FILE [--out FOLDER] [--steps N] [--smoke]
//
// examples/run.sh and examples/report.sh fetch a text. FOLDER gets the loss curves, warmup_24.svg and warmup_48.svg.
#include "support/byte_lm.h"
#include "support/corpus.h"
#include "support/options.h"
#include "support/study.h"

#include <sluice/sluice.h>

#include <cmath>
#include <filesystem>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  std::string text, out = "build/report";
  int64_t dim = 64, key_dim = 32, context = 64, batch = 16, steps = 200, layers = 0, seed = 1;
  double lr = 1e-3;
  bool smoke = false;
};

/// x ← norm(x + attention(x)), x ← norm(x + mlp(x)): two residual layers. Two GAUs have 12d² + 2ds weights (e = 2d) and
/// attention has 4d², so that the MLP gets 4d + s hidden channels.
TransformerBlock<MultiHeadAttention> post_norm_block(const Settings& s, Rng& rng) {
  MultiHeadAttention attention({.heads = {.dim = s.dim, .heads = 4, .causal = true, .use_rope = true}}, rng);
  return {std::move(attention),
          Mlp({.dim = s.dim, .hidden = 4 * s.dim + s.key_dim, .init = Init::xavier()}, rng),
          {.placement = NormPlacement::post}};
}

struct Lm {
  Embedding embed;
  Norm norm;
  std::vector<Gau> gau;
  std::vector<TransformerBlock<MultiHeadAttention>> blocks;
  Linear head;

  Lm(bool use_gau, int64_t layers, const Settings& s, Rng& rng)
      : embed({256, s.dim, 0.02}, rng), norm({s.dim}), head({s.dim, 256}, rng) {
    for (int64_t i = 0; use_gau && i < layers; ++i)
      gau.emplace_back(GauOptions{.dim = s.dim, .key_dim = s.key_dim, .causal = true, .placement = GauPlacement::post},
                       rng);
    for (int64_t i = 0; !use_gau && i < layers / 2; ++i) blocks.push_back(post_norm_block(s, rng));
  }
  Tensor operator()(const Tensor& bytes, const Pass& pass = {}) const {
    Tensor x = norm(embed(bytes));
    for (const Gau& layer : gau) x = layer(x, pass);
    for (const auto& block : blocks) x = block(x, pass);
    return head(x);
  }
  SLUICE_PARTS(embed, norm, gau, blocks, head);
};

/// Bits per character of every step; not-a-number from the step on that diverged.
std::vector<double> train(const Lm& model, std::string_view text, int64_t warmup, const Settings& s) {
  Rng rng(static_cast<uint64_t>(s.seed) + 1000);  // the same batches for all
  Adam adam(parameters(model), {.lr = s.lr});
  const Schedule rate = cosine_schedule({.lr = s.lr, .warmup = warmup, .total = s.steps + 1});
  std::vector<double> bits;
  for (int64_t step = 0; step < s.steps; ++step) {
    const Batch batch = random_batch(text, s.batch, s.context, rng);
    adam.zero_grad();
    Tensor loss = cross_entropy(model(batch.inputs), batch.targets);
    bits.push_back(loss.item() / std::log(2.0));
    backward(loss);
    adam.set_lr(rate(step));
    adam.step();
  }
  return bits;
}

/// ‖GAU(x)‖/‖x‖ of an untrained layer with s = 128 and n = 512, x ~ N(0, 1), all weights `scale` times LeCun's.
double branch_size(double scale) {
  Rng rng(5);
  Gau gau({.dim = 256, .key_dim = 128, .use_rope = false, .norm = NormKind::none, .init = {InitKind::lecun, scale}},
          rng);
  Tensor x = normal({1, 512, 256}, 0, 1, rng);
  NoGrad guard;
  return norm(gau(x) - x).item() / norm(x).item();
}

int program(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("text", s.text, "file to learn from (bytes)");
  o("out", s.out, "folder of the pictures");
  o("steps", s.steps, at_least(1), "updates of each model");
  o("layers", s.layers, at_least(0), "residual layers; 0: 24, then 48");
  o("lr", s.lr, "highest learning rate");
  o("seed", s.seed, at_least(0), "of weights and batches");
  o("smoke", s.smoke, "three tiny steps on a built-in text");
  parse_flags("gau_without_warmup", "deep GAU and post-norm Transformers, with warm-up and without", o, argc, argv);
  if (s.smoke) s.dim = 16, s.key_dim = 8, s.context = 16, s.batch = 2, s.steps = 3;
  else if (s.text.empty()) throw std::runtime_error("gau_without_warmup: --text FILE is needed (or --smoke)");
  const std::string words = learning_text(s.text);
  const Split text = split_text(words, static_cast<std::size_t>(s.context) + 1);

  std::printf(
      "a GAU's branch / its input, s = 128, n = 512: %.4f (theory 0.0112); all weights halved: %.6f, a factor of "
      "1/%.0f (theory 1/128)\n\n",
      branch_size(1), branch_size(0.5), branch_size(1) / branch_size(0.5));
  std::printf("layers  model        weights  warm-up   bits/char: training (last tenth)   validation\n");
  std::filesystem::create_directories(s.out);
  double gau_worst = 0, transformer_best = 1e9;
  for (int64_t layers : s.layers > 0 ? std::vector{s.layers} : std::vector<int64_t>{24, 48}) {
    std::vector<Series> curves;
    for (bool use_gau : {true, false}) {
      for (int64_t warmup : {int64_t{0}, s.steps / 4}) {
        Rng rng(static_cast<uint64_t>(s.seed));
        Lm model(use_gau, layers, s, rng);
        const std::vector<double> bits = train(model, text.train, warmup, s);
        const double valid =
            bits_per_byte(model, baseline_part(text.valid, static_cast<std::size_t>(s.context) + 1), s.context);
        std::printf("%6lld  %-11s %8lld  %7lld   %32.3f   %10.3f\n", (long long)layers, use_gau ? "GAU" : "Transformer",
                    (long long)count(model), (long long)warmup, last_tenth(bits), valid);
        std::fflush(stdout);
        if (warmup == 0 && use_gau) gau_worst = std::max(gau_worst, valid);
        if (warmup == 0 && !use_gau) transformer_best = std::min(transformer_best, valid);
        curves.push_back(series(str(use_gau ? "GAU" : "Transformer", warmup ? " + warm-up" : ""), bits, true));
      }
    }
    write_svg_curve(str(s.out, "/warmup_", layers, ".svg"),
                    {.title = str(layers, " residual layers, post-norm"), .y_label = "bits per character"}, curves);
  }
  print_result("gau_without_warmup", "GAU without warm-up: at most " + fixed(gau_worst, 2) + " bits/char",
               "post-norm Transformer without warm-up: at least " + fixed(transformer_best, 2),
               gau_worst < transformer_best, s.seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output of gau_without_warmup --text build/data/jargon.txt (two busy cores):
//
// a GAU's branch / its input, s = 128, n = 512: 0.0630 (theory 0.0112); all weights halved: 0.000109, a factor of 1/580
// (theory 1/128)
//
// layers  model        weights  warm-up   bits/char: training (last tenth)   validation
//     24  GAU           686720        0                              3.947        3.978
//     24  GAU           686720       50                              3.965        3.969
//     24  Transformer   679424        0                              4.690        4.739
//     24  Transformer   679424       50                              4.614        4.710
//     48  GAU          1340288        0                              4.317        4.191
//     48  GAU          1340288       50                              4.349        4.187
//     48  Transformer  1325696        0                              4.844        4.789
//     48  Transformer  1325696       50                              4.848        4.795
