// Learning rates and lengths (Qiu et al. 2025, "Gated Attention for Large Language Models", Tables 2 and 5, A.5):
// claims C31, C32 and C35. Byte-level Transformers of equal parameters; all arms of a seed see the same batches.
#include "claims/claim.h"
#include "claims/small_lm.h"
#include "claims/training.h"

#include <sluice/layers/train/curve.h>

#include <algorithm>
#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Sizes {
  int64_t dim = 32, layers = 8, heads = 2, hidden = 96, n = 64, batch = 8, steps = 200, seeds = 5;
  std::size_t valid = 10'000;
  double lr = 4e-3;
};
Sizes sizes(const Run& run) { return run.smoke ? Sizes{16, 2, 2, 32, 16, 2, 3, 2, 300} : Sizes{}; }

SmallLm make_model(const Sizes& s, bool gated, SmallLmOptions extra, Rng& rng) {
  SmallLmOptions o = extra;
  o.dim = s.dim, o.layers = s.layers, o.hidden = s.hidden - (gated ? s.dim / 3 : 0);  // the GLU pays for the gate
  const HeadsOptions heads{.dim = s.dim, .heads = s.heads, .causal = true, .use_rope = true};
  return SmallLm(
      o,
      [&](int64_t) {
        return MultiHeadAttention(
            {.heads = heads, .norm = o.norm, .gates = std::vector<AttentionGateOptions>(gated ? 1 : 0)}, rng);
      },
      rng);
}

const std::vector<double> kFactors{1, 4, 16};  // of the learning rate
const std::vector<std::string> kModels{"none", "G1", "sandwich norm", "clipped to ±3", "clipped to ±1"};
std::string arm_of(const std::string& model, double factor) { return str(model, ", rate × ", factor); }

/// "loss" of the last tenth of the training; a run that diverged counts as one that says nothing, ln 256.
Figures train_arm(const std::string& arm, int64_t seed, const TextTask& task, const Sizes& s) {
  Rng rng(static_cast<uint64_t>(seed));
  SmallLmOptions extra;
  extra.sandwich = arm.starts_with("sandwich");
  extra.clip = arm.starts_with("clipped to ±3") ? 3 : arm.starts_with("clipped to ±1") ? 1 : 0;
  const SmallLm model = make_model(s, arm.starts_with("G1"), extra, rng);
  const double factor = *std::ranges::find_if(kFactors, [&](double f) { return arm.ends_with(arm_of("", f)); });
  const std::vector<double> losses =
      train(model, task.windows(s.batch, s.n, seed), {.steps = s.steps, .warmup = s.steps / 20, .lr = s.lr * factor});
  const std::vector<double> tail(losses.end() - std::min<long>(long(losses.size()), s.steps / 10 + 1), losses.end());
  const bool finite = std::isfinite(losses.back());
  const double nothing = std::log(256.0), last = finite ? std::min(nothing, mean_of(tail).value) : nothing;
  int64_t spikes = 0;  // steps half a nat above the one before, after the first tenth
  for (std::size_t i = losses.size() / 10 + 1; i < losses.size(); ++i) spikes += losses[i] > losses[i - 1] + 0.5;
  return {{"loss", last}, {"diverged", last >= nothing}, {"spikes", double(spikes)}};
}

/// Of both claims, which share the runs.
Trials sweep(const Run& run) {
  const Sizes s = sizes(run);
  const TextTask task(run.text, static_cast<std::size_t>(s.n), s.valid);
  std::vector<std::string> arms;
  for (const double f : kFactors)
    for (const std::string& model : kModels)
      if (f == kFactors.back() || !model.starts_with("clipped")) arms.push_back(arm_of(model, f));
  Trials t(run.out, "learning_rates",
           str(run.smoke, ' ', run.seed, ' ', run.text.empty(), ' ', s.dim, ' ', s.layers, ' ', s.n, ' ', s.batch, ' ',
               s.steps, ' ', s.lr));
  t.run(arms, 100 * run.seed, s.seeds, run.seconds,
        [&](const std::string& arm, int64_t seed) { return train_arm(arm, seed, task, s); });
  return t;
}
constexpr const char* kSize =
    "48 layers in bf16, as the paper's; in a small model in f32 few learning rates lie between good and useless";

/// C31. The rule: at the highest rate the baseline is worse than at its best, and both G1 and sandwich norm are better
/// than it.
void c31(const Run& run, Result& r) {
  const Trials t = sweep(run);
  const double top = kFactors.back();
  const Measured gate = t.difference(arm_of("G1", top), arm_of("none", top), "loss"),
                 sandwich = t.difference(arm_of("sandwich norm", top), arm_of("none", top), "loss"),
                 harm = t.difference(arm_of("none", top), arm_of("none", kFactors[0]), "loss");
  r.add(str("loss of G1 − none, rate × ", top), gate, "nats", std::log(7.325 / 9.195));
  r.add(str("loss of sandwich norm − none, rate × ", top), sandwich, "nats", std::log(7.407 / 9.195));
  r.add(str("loss of none, rate × ", top, " − rate × 1"), harm, "nats");
  std::vector<Series> curves;
  for (const char* model : {"none", "G1", "sandwich norm"}) {
    Series curve{.name = model};
    for (const double f : kFactors) {
      const std::string arm = arm_of(model, f);
      r.add("loss, " + arm, t.mean(arm, "loss"), "nats");
      r.add("share that diverged, " + arm, t.mean(arm, "diverged"));
      r.add("jumps of the loss, " + arm, t.mean(arm, "spikes"));
      curve.x.push_back(std::log2(sizes(run).lr * f)), curve.y.push_back(t.mean(arm, "loss").value);
    }
    curves.push_back(curve);
  }
  r.verdict = can_only_show(all({exceeds(harm), below(gate), below(sandwich)}));
  r.why = str("at ", sizes(run).lr * top, ", ", top, " times a good rate, the baseline loses ") + text(harm) +
          " nats, G1 changes that by " + text(gate) + ", sandwich norm by " + text(sandwich);
  r.size = kSize;
  r.picture = "learning_rates.svg";
  write_svg_curve(run.file(r.picture),
                  {.title = "Loss after training", .x_label = "log₂ of the learning rate", .y_label = "nats"}, curves);
}

/// C32. The rule: where a high rate harms the baseline and G1 helps, clipping gives less than half of what G1 gives.
void c32(const Run& run, Result& r) {
  const Trials t = sweep(run);
  const double top = kFactors.back();
  const std::string none = arm_of("none", top);
  const Measured gate = t.difference(arm_of("G1", top), none, "loss");
  std::vector<Verdict> parts{below(gate)};
  if (parts[0] == Verdict::contradicted) parts[0] = Verdict::not_visible;  // nothing to compare clipping with
  std::string gains;
  for (const char* arm : {"clipped to ±3", "clipped to ±1"}) {
    const std::vector<double> clipped = t.values(arm_of(arm, top), "loss"), base = t.values(none, "loss"),
                              g1 = t.values(arm_of("G1", top), "loss");
    std::vector<double> missing;  // above 0: less than half of the gate's gain
    for (std::size_t i = 0; i < base.size(); ++i) missing.push_back((clipped[i] - base[i]) - (g1[i] - base[i]) / 2);
    const Measured change = t.difference(arm_of(arm, top), none, "loss");
    r.add(str("loss of branches ", arm, " − none, rate × ", top), change, "nats");
    parts.push_back(exceeds(mean_of(missing)));
    gains += std::string(gains.empty() ? "" : ", ") + arm + " by " + text(change);
  }
  r.add(str("loss of G1 − none, rate × ", top), gate, "nats");
  r.verdict = parts[0] == Verdict::not_visible ? Verdict::not_visible : all(parts);
  r.why = str("at ", top, " times a good rate clipping what the branches add changes the loss, ") + gains + ", G1 by " +
          text(gate);
  r.size = kSize;
}

/// The model's loss at n bytes, trained at `trained` bytes; `yarn` scales the rotations.
double loss_at(SmallLm& model, const TextTask& task, int64_t n, int64_t trained, bool yarn) {
  for (SmallLm::Attention& a : model.attention) {
    HeadsOptions& h = std::get<MultiHeadAttention>(a.layer).options.heads;
    h.rope = yarn ? yarn_rope({}, h.head_dim, double(n) / double(trained), trained) : RopeOptions{};
  }
  return task.loss(model, n);
}

/// C35. The rule: from the length of training to four times as much, the loss of G1 grows less than the baseline's.
void c35(const Run& run, Result& r) {
  Sizes s = sizes(run);
  if (!run.smoke) s.dim = 64, s.layers = 2, s.heads = 4, s.hidden = 192, s.steps = 400, s.valid = 20'000;
  const TextTask task(run.text, static_cast<std::size_t>(8 * s.n), s.valid);
  Trials t(run.out, "extrapolation",
           str(run.smoke, ' ', run.seed, ' ', run.text.empty(), ' ', s.dim, ' ', s.n, ' ', s.batch, ' ', s.steps));
  t.run({"none", "G1"}, 100 * run.seed, s.seeds, run.seconds, [&](const std::string& arm, int64_t seed) {
    Rng rng(static_cast<uint64_t>(seed));
    SmallLm model = make_model(s, arm == "G1", {}, rng);
    train(model, task.windows(s.batch, s.n, seed), {.steps = s.steps, .warmup = s.steps / 50, .lr = s.lr});
    Figures r;
    const double short_loss = loss_at(model, task, s.n, s.n, false);
    r["at n"] = short_loss;
    for (const int64_t times : {4, 8})
      for (const bool yarn : {false, true})
        r[str("growth to ", times, "n", yarn ? ", YaRN" : "")] =
            loss_at(model, task, times * s.n, s.n, yarn) - short_loss;
    return r;
  });
  const Measured gain = t.difference("G1", "none", "growth to 4n, YaRN");
  r.add("growth of the loss to 4n with YaRN, G1 − none", gain, "nats");
  r.add("the same without YaRN", t.difference("G1", "none", "growth to 4n"), "nats");
  r.add("the same to 8n with YaRN", t.difference("G1", "none", "growth to 8n, YaRN"), "nats");
  for (const char* arm : {"none", "G1"})
    for (const char* figure : {"at n", "growth to 4n", "growth to 4n, YaRN", "growth to 8n", "growth to 8n, YaRN"})
      r.add(str("loss ", figure, ", ", arm), t.mean(arm, figure), "nats");
  r.verdict = can_only_show(below(gain));
  r.why = str("trained at ", s.n, " bytes and tested at ", 4 * s.n, " with YaRN, the loss without a gate changes by ") +
          text(t.mean("none", "growth to 4n, YaRN")) + " nats, with G1 by " + text(t.mean("G1", "growth to 4n, YaRN"));
  r.size = "models that grow a sink, whose baseline then depends on the first token, and tests of retrieval";
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_stability", {{"C31", c31}, {"C32", c32}, {"C35", c35}}, argc, argv);
}
