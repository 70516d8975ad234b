// What layers of a fixed state remember: claims C46 and C47 of the delta rule, on associative recall
// (support/recall.h). All arms have two layers, no short convolution unless their name says so, the same optimiser and,
// of one seed, the same sequences.
#include "claims/claim.h"
#include "claims/training.h"
#include "support/recall.h"

#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Sizes {
  int64_t steps = 700, seeds = 3, questions = 2048, most = 64, fillers = 2048;
};
Sizes sizes(const Run& run) { return run.smoke ? Sizes{2, 2, 64, 8, 16} : Sizes{}; }

/// A layer of 64 channels with `heads` heads, whose state has 64²/heads numbers; linear attention's 64 more.
Mixer layer_of(const std::string& kind, int64_t heads, Rng& rng) {
  const int64_t d = kRecallDim, conv = kind.ends_with("convolution") ? 4 : 0;
  if (kind.starts_with("DeltaNet")) return DeltaNet({.dim = d, .heads = heads, .short_conv = conv}, rng);
  if (kind == "Gated DeltaNet")
    return GatedDeltaNet({.heads = {.dim = d, .heads = heads, .short_conv = 0}, .output_gate = DeltaGate::none}, rng);
  if (kind == "GLA") return Gla({.dim = d, .heads = heads, .expand_k = 1, .output_gate = false}, rng);
  if (kind == "RetNet")
    return Retention({.dim = d, .heads = heads, .expand_v = 1, .use_rope = false, .gate = false}, rng);
  if (kind.starts_with("Mamba-2"))
    return Mamba2({.dim = d, .heads = heads, .head_dim = d / heads, .state = d / heads, .short_conv = conv}, rng);
  if (kind == "linear attention")
    return LinearAttention({.dim = d, .heads = heads, .direction = LinearDirection::causal}, rng);
  fail<ValueError>("claim_recall: no layer ", kind);
}
RecallModel model_of(const std::string& kind, int64_t heads, int64_t seed, bool filler) {
  Rng rng(static_cast<uint64_t>(seed));
  Mixer first = layer_of(kind, heads, rng), second = layer_of(kind, heads, rng);
  return RecallModel({std::move(first), std::move(second)}, rng, filler);
}
std::string arm_of(const std::string& kind, int64_t heads) { return str(kind, ", heads ", heads); }

/// Runs that both claims keep in a file each; `measure` trains one arm.
Trials trials(const Run& run, const char* file, const std::vector<std::string>& kinds,
              const std::vector<int64_t>& heads,
              const std::function<Figures(const std::string& kind, int64_t heads, int64_t seed)>& measure) {
  const Sizes s = sizes(run);
  std::vector<std::string> arms;
  std::map<std::string, std::pair<std::string, int64_t>> of;
  for (const std::string& kind : kinds)
    for (const int64_t h : heads) arms.push_back(arm_of(kind, h)), of[arms.back()] = {kind, h};
  Trials t(run.out, file, str(run.smoke, ' ', run.seed, ' ', s.steps, ' ', s.questions));
  t.run(arms, 100 * run.seed, s.seeds, run.seconds, [&](const std::string& arm, int64_t seed) {
    const auto& [kind, h] = of.at(arm);
    return measure(kind, h, seed);
  });
  return t;
}

/// C46. The rule: with a state of equal size, whichever of the three, DeltaNet names more of 64 values than GLA,
/// RetNet and Mamba-2, whose convolutions are on.
void c46(const Run& run, Result& r) {
  const Sizes s = sizes(run);
  const std::vector<int64_t> heads{4, 2, 1};
  const std::vector<std::string> kinds{"DeltaNet",        "GLA", "RetNet", "Mamba-2 with convolution", "Gated DeltaNet",
                                       "linear attention"};
  const Trials t = trials(run, "recall_state", kinds, heads, [&](const std::string& kind, int64_t h, int64_t seed) {
    const RecallModel model = model_of(kind, h, seed, false);
    std::vector<int64_t> pairs;
    for (int64_t p = 4; p <= s.most; p *= 2) pairs.push_back(p);
    train_recall(model, s.steps, recall_lessons(pairs, s.steps, static_cast<uint64_t>(seed) + 1000));
    return Figures{{"few", percent_recalled(model, pairs.front(), s.questions)},
                   {"recalled", percent_recalled(model, pairs.back(), s.questions)},
                   {"state", double(state_after(model, 256))}};
  });
  std::vector<Series> curves;
  std::vector<Verdict> parts;
  for (const std::string& kind : kinds) {
    Series curve{.name = kind};
    for (const int64_t h : heads) {
      const std::string arm = arm_of(kind, h);
      const Measured state = t.mean(arm, "state");
      r.add(str("values named of 64 pairs, ", kind, ", state of ", state.value, " numbers"), t.mean(arm, "recalled"),
            "%");
      curve.x.push_back(std::log2(state.value)), curve.y.push_back(t.mean(arm, "recalled").value);
      if (kind == "GLA" || kind == "RetNet" || kind.starts_with("Mamba-2"))
        parts.push_back(exceeds(t.difference(arm_of("DeltaNet", h), arm, "recalled")));
    }
    curves.push_back(curve);
  }
  r.verdict = all(parts);
  const auto said = [&](const char* kind) {
    std::string all;
    for (const int64_t h : heads)
      all += (h == 4 ? "" : h == 1 ? " and " : ", ") + text(t.mean(arm_of(kind, h), "recalled"));
    return all;
  };
  r.why = "with four heads, two and one, DeltaNet names " + said("DeltaNet") + " % of the values, GLA " + said("GLA") +
          ", RetNet " + said("RetNet") + ", Mamba-2 " + said("Mamba-2 with convolution") +
          "; linear attention, which divides by the sum of its weights, " + said("linear attention");
  r.size = "more seeds, or longer training";
  r.picture = "recall_state.svg";
  write_svg_curve(run.file(r.picture),
                  {.title = "Recall of 64 pairs, by the size of the state",
                   .x_label = "log₂ of the numbers in the state",
                   .y_label = "% of values"},
                  curves);
}

/// C47. The rule: after 2,048 tokens of filler DeltaNet names at least 95 % of what it names after 64, the most that it
/// was trained with; Mamba-2 keeps less than DeltaNet, and less than Gated DeltaNet.
void c47(const Run& run, Result& r) {
  const Sizes s = sizes(run);
  constexpr int64_t pairs = 4, trained = 64;
  const std::vector<std::string> kinds{"DeltaNet", "Gated DeltaNet", "GLA", "RetNet", "Mamba-2 with convolution"};
  std::vector<int64_t> fillers{0};
  for (int64_t f = std::min(trained, s.fillers / 2); f <= s.fillers; f *= 2) fillers.push_back(f);
  const auto at = [](int64_t filler) { return str("filler ", filler); };
  const Trials t = trials(run, "recall_filler", kinds, {4}, [&](const std::string& kind, int64_t h, int64_t seed) {
    const RecallModel model = model_of(kind, h, seed, true);
    Rng rng(static_cast<uint64_t>(seed) + 1000);
    train_recall(model, s.steps, [&](int64_t step) {  // first short fillers only, from the last third on all
      const int64_t filler =
          randint(0, 1 + std::min(trained, 1 + trained * 3 * step / (2 * s.steps)), {1}, rng).to_vector<int64_t>()[0];
      return recall_task(pairs, std::max<int64_t>(1, 1024 / (4 * pairs + filler)), rng, filler);
    });
    Figures f;
    for (const int64_t filler : fillers) f[at(filler)] = percent_recalled(model, pairs, s.questions / 4, filler);
    f["kept"] = f[at(fillers.back())] / f[at(fillers[1])];
    return f;
  });
  std::vector<Series> curves;
  for (const std::string& kind : kinds) {
    Series curve{.name = kind};
    for (const int64_t filler : fillers)
      curve.x.push_back(std::log2(1 + double(filler))), curve.y.push_back(t.mean(arm_of(kind, 4), at(filler)).value);
    curves.push_back(curve);
  }
  const auto add = [&](const char* kind, int64_t filler, std::optional<double> said) {
    r.add(str("values named, ", kind, ", filler of ", filler), t.mean(arm_of(kind, 4), at(filler)), "%", said);
  };
  // Printed: S-NIAH-1, of a passkey in a text of 8K tokens that repeats itself.
  const std::pair<const char*, std::optional<double>> printed[] = {
      {"DeltaNet", 98.8}, {"Mamba-2 with convolution", 30.4}, {"Gated DeltaNet", 91.8}, {"GLA", {}}, {"RetNet", {}}};
  for (const auto& [kind, said] : printed) add(kind, fillers.back(), said);
  for (const auto& [kind, said] : printed) add(kind, fillers[1], {});
  const auto kept = [&](const char* kind) { return t.mean(arm_of(kind, 4), "kept"); };
  const auto more_than_mamba = [&](const char* kind) {
    return exceeds(t.difference(arm_of(kind, 4), arm_of("Mamba-2 with convolution", 4), "kept"));
  };
  r.verdict = all({exceeds(kept("DeltaNet"), 0.95), more_than_mamba("DeltaNet"), more_than_mamba("Gated DeltaNet")});
  r.why = str("after ", fillers.back(), " tokens of filler DeltaNet keeps ") + text(kept("DeltaNet")) +
          str(" of what it names after ", fillers[1], ", the most that it was trained with, Gated DeltaNet ") +
          text(kept("Gated DeltaNet")) + ", GLA " + text(kept("GLA")) + ", RetNet " + text(kept("RetNet")) +
          ", Mamba-2 " + text(kept("Mamba-2 with convolution"));
  r.size = "more seeds, or longer training";
  r.picture = "recall_filler.svg";
  write_svg_curve(
      run.file(r.picture),
      {.title = "Recall of 4 pairs behind filler", .x_label = "log₂ of 1 + filler tokens", .y_label = "% of values"},
      curves);
}

}  // namespace

int main(int argc, char** argv) { return run_claims("claim_recall", {{"C46", c46}, {"C47", c47}}, argc, argv); }
