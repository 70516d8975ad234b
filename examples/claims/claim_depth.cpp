// Depth without warm-up (Su 2022, "Does GAU still need warm-up?", https://spaces.ac.cn/archives/8990): claims C6 and
// C7. Byte-level language models of 12 to 96 residual layers in post-norm, GAU against the Transformer of equal
// parameters, with warm-up and without, no clipping. Two GAUs take the place of attention and MLP.
#include "claims/claim.h"
#include "claims/training.h"

#include <sluice/sluice.h>

#include <algorithm>
#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Sizes {
  int64_t dim = 32, key_dim = 16, n = 32, batch = 16, steps = 300, seeds = 3;
  std::vector<int64_t> depths{12, 24, 48, 96};
};
Sizes sizes(const Run& run) { return run.smoke ? Sizes{8, 4, 8, 2, 3, 2, {2, 4}} : Sizes{}; }

struct DeepLm {
  Embedding embed;
  Norm norm;
  std::vector<Gau> gau;
  std::vector<TransformerBlock<MultiHeadAttention>> blocks;
  Linear head;

  /// alpha: what the residual is multiplied by, of the Transformer (DeepNorm).
  DeepLm(bool use_gau, int64_t layers, double alpha, const Sizes& s, Rng& rng)
      : embed({256, s.dim, 0.02}, rng), norm({s.dim}), head({s.dim, 256}, rng) {
    for (int64_t i = 0; use_gau && i < layers; ++i)
      gau.emplace_back(GauOptions{.dim = s.dim, .key_dim = s.key_dim, .causal = true, .placement = GauPlacement::post},
                       rng);
    for (int64_t i = 0; !use_gau && i < layers / 2; ++i) {
      // Not as an argument: the order in which arguments draw would be the compiler's.
      const Mlp mlp({.dim = s.dim, .hidden = 4 * s.dim + s.key_dim, .init = Init::xavier()}, rng);
      blocks.emplace_back(MultiHeadAttention({.dim = s.dim, .heads = 4, .causal = true, .use_rope = true}, rng), mlp,
                          TransformerBlockOptions{.placement = NormPlacement::post, .residual_scale = alpha});
    }
  }
  Tensor operator()(const Tensor& bytes) const {
    Tensor x = norm(embed(bytes));
    for (const Gau& layer : gau) x = layer(x);
    for (const auto& block : blocks) x = block(x);
    return head(x);
  }
  SLUICE_PARTS(embed, norm, gau, blocks, head);
};

/// Entropy of single bytes in nats: what a model reaches that has learned nothing of their order.
double unigram(std::string_view text) {
  std::vector<double> seen(256, 0);
  for (const char c : text) ++seen[static_cast<unsigned char>(c)];
  double nats = 0;
  for (const double n : seen)
    if (n > 0) nats -= n / double(text.size()) * std::log(n / double(text.size()));
  return nats;
}

std::string name_of(bool gau, bool warm) { return str(gau ? "GAU" : "Transformer", warm ? " + warm-up" : ""); }
std::string arm_of(const std::string& model, int64_t layers) { return str(model, ", ", layers, " layers"); }

/// "learned": whether the last tenth of the steps lies 5 % below the entropy of single bytes.
Figures train_deep(bool gau, int64_t layers, double alpha, bool warm, int64_t seed, const TextTask& task,
                   const Sizes& s) {
  Rng rng(static_cast<uint64_t>(seed));
  const DeepLm model(gau, layers, alpha, s, rng);
  const std::vector<double> losses =
      train(model, task.windows(s.batch, s.n, seed),
            {.steps = s.steps, .warmup = warm ? s.steps / 4 : 0, .lr = 1e-3, .clip = 0, .beta2 = 0.999, .floor = 0});
  const double nothing = unigram(task.text.train);
  const bool finite = std::isfinite(losses.back());
  const std::vector<double> tail(losses.end() - std::min<long>(long(losses.size()), s.steps / 10 + 1), losses.end());
  const double last = finite ? mean_of(tail).value : std::log(256.0);  // that of a model that says nothing
  return {{"loss", last}, {"learned", last < 0.95 * nothing}, {"diverged", !finite || last > std::log(256.0)}};
}

Trials trials(const Run& run) {
  const Sizes s = sizes(run);
  const TextTask task(run.text, static_cast<std::size_t>(s.n), 1000);
  Trials t(run.out, "depth",
           str(run.smoke, ' ', run.seed, ' ', run.text.empty(), ' ', s.dim, ' ', s.n, ' ', s.batch, ' ', s.steps));
  std::vector<std::string> arms;
  for (const int64_t layers : s.depths)
    for (const bool gau : {true, false})
      for (const bool warm : {false, true}) arms.push_back(arm_of(name_of(gau, warm), layers));
  t.run(arms, 100 * run.seed, s.seeds, run.seconds, [&](const std::string& arm, int64_t seed) {
    const int64_t layers = *std::ranges::find_if(s.depths, [&](int64_t l) { return arm.ends_with(arm_of("", l)); });
    return train_deep(arm.starts_with("GAU"), layers, 1, arm.find('+') != std::string::npos, seed, task, s);
  });
  return t;
}

/// C6. The rule: with 24 and 48 layers and no warm-up, every GAU learns and is better than the Transformer without
/// warm-up; the Transformer does not learn, or loses to the one with warm-up.
void c6(const Run& run, Result& r) {
  const Sizes s = sizes(run);
  const Trials t = trials(run);
  std::vector<Verdict> parts;
  std::vector<Series> curves;
  for (const bool gau : {true, false})
    for (const bool warm : {false, true}) {
      Series curve{.name = name_of(gau, warm)};
      for (const int64_t layers : s.depths) {
        const std::string arm = arm_of(curve.name, layers);
        r.add("loss, " + arm, t.mean(arm, "loss"), "nats");
        curve.x.push_back(double(layers)), curve.y.push_back(t.mean(arm, "loss").value);
      }
      curves.push_back(curve);
    }
  double learned = 0, of_transformer = 0, diverged = 0;
  for (const int64_t layers : s.depths) {
    const std::string gau = arm_of("GAU", layers), other = arm_of("Transformer", layers);
    r.add("share that learned, " + gau, t.mean(gau, "learned").value);
    r.add("share that learned, " + other, t.mean(other, "learned").value);
    r.add("share that learned, " + arm_of("Transformer + warm-up", layers),
          t.mean(arm_of("Transformer + warm-up", layers), "learned").value);
    diverged += t.mean(gau, "diverged").value + t.mean(other, "diverged").value;
    if (layers != 24 && layers != 48 && !run.smoke) continue;
    learned += t.mean(gau, "learned").value / 2, of_transformer += t.mean(other, "learned").value / 2;
    const Measured lost = t.difference(other, gau, "loss");
    parts.push_back(exceeds(lost));
    const bool warm_helps =
        exceeds(t.difference(other, arm_of("Transformer + warm-up", layers), "loss")) == Verdict::shown;
    const double share = t.mean(other, "learned").value;
    parts.push_back(t.mean(gau, "learned").value < 1 ? Verdict::contradicted
                    : share == 0 || warm_helps       ? Verdict::shown
                    : share == 1                     ? Verdict::contradicted
                                                     : Verdict::not_visible);
  }
  r.add("runs without warm-up that diverged", diverged / double(2 * s.depths.size()));
  r.verdict = can_only_show(all(parts));
  r.why = "without warm-up, of 24 and 48 layers, " + text(100 * learned) +
          " % of the GAUs learn more than the frequency"
          " of bytes, and " +
          text(100 * of_transformer) + " % of the Transformers";
  r.size = "more seeds, and longer training";
  r.picture = "depth.svg";
  write_svg_curve(run.file(r.picture),
                  {.title = "Loss after training, post-norm", .x_label = "residual layers", .y_label = "nats"}, curves);
}

/// rms(x)/rms(GAU(x)) of an untrained layer, x ~ N(0, 1): what the residual would have to be multiplied by where a
/// branch were as large as its input.
double effective_alpha(const Run& run, int64_t seed) {
  NoGrad guard;
  Rng rng(static_cast<uint64_t>(seed));
  GauOptions o{.dim = run.smoke ? 32 : 768, .key_dim = run.smoke ? 16 : 128, .use_rope = false};
  o.norm = NormKind::none, o.residual = false, o.init = Init::lecun();
  const Gau gau(o, rng);
  const Tensor x = normal({1, run.smoke ? 32 : 512, o.dim}, 0, 1, rng);
  return norm(x).item() / norm(gau(x)).item();
}

/// C7. The rule: α is 100, up to a quarter.
void c7(const Run& run, Result& r) {
  const Sizes s = sizes(run);
  std::vector<double> alphas;
  for (int64_t i = 0; i < 5; ++i) alphas.push_back(effective_alpha(run, 100 * run.seed + i));
  const Measured alpha = mean_of(alphas);
  r.add("rms(x)/rms(GAU(x)) at the start", alpha, "", 100);
  const int64_t layers = s.depths[std::min<std::size_t>(2, s.depths.size() - 1)], deepest = s.depths.back();
  const TextTask task(run.text, static_cast<std::size_t>(s.n), 1000);
  Trials t(run.out, "deepnorm",
           str(run.smoke, ' ', run.seed, ' ', run.text.empty(), ' ', s.dim, ' ', s.n, ' ', s.batch, ' ', s.steps));
  const std::pair<const char*, double> residuals[] = {
      {"Transformer, α = 1", 1}, {"Transformer, α = 5", 5}, {"Transformer, α = 18", 18}, {"Transformer, α = 100", 100}};
  std::vector<std::string> arms{"GAU", "GAU, deepest"};
  for (const auto& [name, a] : residuals) arms.emplace_back(name);
  t.run(arms, 100 * run.seed, s.seeds, run.seconds, [&](const std::string& arm, int64_t seed) {
    double a = 1;
    for (const auto& [name, value] : residuals)
      if (arm == name) a = value;
    return train_deep(arm.starts_with("GAU"), arm == "GAU, deepest" ? deepest : layers, a, false, seed, task, s);
  });
  for (const std::string& arm : arms)
    r.add(str("loss of ", arm, ", ", arm == "GAU, deepest" ? deepest : layers, " layers, no warm-up"),
          t.mean(arm, "loss"), "nats");
  r.verdict = equals(alpha, 100, 0.25);
  r.why = "at d = 768, s = 128, n = 512 the branch is 1/" + text(alpha) + " of its input, and not 1/100; " +
          str(deepest) + " layers of GAU reach " + text(t.mean("GAU, deepest", "loss")) + " nats without warm-up";
}

}  // namespace

int main(int argc, char** argv) { return run_claims("claim_depth", {{"C6", c6}, {"C7", c7}}, argc, argv); }
