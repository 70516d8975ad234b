// What a gate changes in attention that needs a sink (Qiu et al. 2025, "Gated Attention for Large Language Models",
// Table 4, Fig. 2 and 3, 4.3, A.2, A.3, A.7): claims C27 to C30, C33 and C36. Text of a million characters grows no
// sink in a small model. The Bigram-Backcopy task (bigram_backcopy.h) gives attention a reason for one.
#include "claims/claim.h"
#include "claims/sink_arms.h"

#include <sluice/layers/train/curve.h>

using namespace sluice;
using namespace sluice::examples;

namespace {

constexpr int64_t kSeeds = 5;
SinkSizes sizes(const Run& run) { return run.smoke ? SinkSizes{16, 8, 16, 2, 3, 2} : SinkSizes{}; }

/// All arms of all claims of this program: they share the runs.
Trials trials(const Run& run) {
  const SinkSizes s = sizes(run);
  const BigramBackcopy task(learning_text(run.text), run.smoke ? 12 : 64);
  Trials t(run.out, "bigram_backcopy",
           str(run.smoke, ' ', run.seed, ' ', run.text.empty(), ' ', s.dim, ' ', s.n, ' ', s.batch, ' ', s.steps, ' ',
               s.hidden));
  std::vector<std::string> names{kRelu2, kLate, kTwice};
  for (const SinkArm& a : sink_arms()) names.push_back(a.name);
  t.run(names, 100 * run.seed, run.smoke ? 2 : kSeeds, run.seconds,
        [&](const std::string& arm, int64_t seed) { return train_sink_arm(arm, seed, task, s); });
  return t;
}

/// A hidden state this many times as long as the others' is massive; those of trained models are 100 times and more.
constexpr double kMassive = 5;
const std::string kTask = " on Bigram-Backcopy, one layer";

void picture(const Trials& t, const Run& run, Result& r) {
  std::vector<Series> curves;
  const SinkSizes s = sizes(run);
  for (const char* arm : {"no gate", "G1", "G2", "headwise", "two heads, shared", "sink logit"}) {
    Series one{.name = arm};
    for (int64_t step = 0; step < s.steps; step += std::max<int64_t>(1, s.steps / 20))
      one.x.push_back(double(step)), one.y.push_back(100 * t.mean(arm, str("at ", step)).value);
    curves.push_back(one);
  }
  r.picture = "first_token.svg";
  write_svg_curve(run.file(r.picture), {.title = "Attention to the first token" + kTask, .y_label = "% of attention"},
                  curves);
}

/// C27. The rule: the baseline grows a sink, above 30 %, and G1 has less than half of it.
void c27(const Run& run, Result& r) {
  const Trials t = trials(run);
  const Measured none = t.mean("no gate", "first token"), gate = t.mean("G1", "first token");
  r.add("first-token share, no gate", none, "", 0.467);
  r.add("G1", gate, "", 0.048);
  const std::pair<const char*, double> printed[] = {{"headwise", 0.073},
                                                    {"G2", 0.297},
                                                    {"two heads, shared", 0.301},
                                                    {"input-independent", 0.364},
                                                    {"never sparse", 0.451}};
  for (const auto& [arm, said] : printed) r.add(arm, t.mean(arm, "first token"), "", said);
  for (const char* arm : {"G3", "G4", "G5", "additive", "SiLU", "two heads", "two heads, G1", "sink logit", kRelu2})
    r.add(arm, t.mean(arm, "first token"));
  double uniform = 0;  // row i of n has i + 1 keys; row 0 does not count
  const auto n = double(sizes(run).n);
  for (double keys = 2; keys <= n; ++keys) uniform += 1 / keys / (n - 1);
  r.add("uniform attention", uniform);
  std::vector<double> halved = t.values("G1", "first token");
  const std::vector<double> of = t.values("no gate", "first token");
  for (std::size_t i = 0; i < of.size(); ++i) halved[i] -= of[i] / 2;
  r.verdict = can_only_show(all({exceeds(none, 0.3), below(mean_of(halved))}));
  r.why = "without a gate " + text(none) + " of the attention goes to the first token, with G1 " + text(gate) +
          ", of " + str(t.seeds()) + " seeds" + kTask +
          ". The sizes of the task were chosen so that the baseline grows a sink";
  r.size = "a sink that G1 need not keep shows in models whose task has more tokens that need no attention";
  picture(t, run, r);
}

/// C28. The rule: the first token's hidden state is massive without a gate, and the largest activation smaller with G1.
void c28(const Run& run, Result& r) {
  const Trials t = trials(run);
  const Measured less = t.difference("G1", "no gate", "largest");
  const std::pair<const char*, double> printed[] = {
      {"no gate", 1053},          {"G1", 94},           {"headwise", 98}, {"G2", 125}, {"two heads, shared", 286},
      {"input-independent", 471}, {"never sparse", 892}};
  for (const auto& [arm, said] : printed) r.add(str("largest activation, ", arm), t.mean(arm, "largest"), "", said);
  r.add("norm of the first token over the others', no gate", t.mean("no gate", "spike"));
  r.add("the same, G1", t.mean("G1", "spike"));
  r.add("G1 − no gate, paired", less);
  const Measured spike = t.mean("no gate", "spike");
  // A massive activation is one of the first token's: without that, a difference is not what the claim means.
  r.verdict = exceeds(spike, kMassive) == Verdict::shown ? below(less) : Verdict::not_visible;
  r.why = "the largest activation is " + text(t.mean("no gate", "largest")) + " without a gate and " +
          text(t.mean("G1", "largest")) + " with G1; the first token's hidden state is " + text(spike) +
          " times as long as the others'" + kTask;
  r.size = "massive activations need several layers and long training; the paper's models have 28 and 48 layers";
}

/// C29. The rule: the mean score is below ½, and more than half of the scores are.
void c29(const Run& run, Result& r) {
  const Trials t = trials(run);
  const std::pair<const char*, double> printed[] = {{"G1", 0.116},
                                                    {"headwise", 0.172},
                                                    {"G2", 0.221},
                                                    {"two heads, shared", 0.271},
                                                    {"input-independent", 0.335},
                                                    {"never sparse", 0.653}};
  for (const auto& [arm, said] : printed) r.add(str("mean score, ", arm), t.mean(arm, "gate"), "", said);
  const Measured mean = t.mean("G1", "gate"), half = t.mean("G1", "below half");
  r.add("share of G1's scores below ½", half);
  r.add("share of G1's scores below 0.01", t.mean("G1", "gate 1e-2"));
  r.verdict = all({below(mean, 0.5), exceeds(half, 0.5)});
  r.why = "gates begin at ½; trained, G1's mean is " + text(mean) + " and " + text(half) +
          " of its scores are below ½" + kTask;
  r.size = "gates close over many thousand steps";
}

/// C30. The rule: behind G1 the output is smaller than the mean score explains.
void c30(const Run& run, Result& r) {
  const Trials t = trials(run);
  std::vector<double> ratio = t.values("G1", "output");
  const std::vector<double> before = t.values("G1", "before"), score = t.values("G1", "gate");
  for (std::size_t i = 0; i < ratio.size(); ++i) ratio[i] /= before[i] * score[i];
  r.add("mean |Y| before G1", t.mean("G1", "before"), "", 0.71);
  r.add("mean |Y| behind G1", t.mean("G1", "output"), "", 0.05);
  r.add("mean |Y| behind over before, over the mean score", mean_of(ratio));
  r.add("mean |Y| without a gate", t.mean("no gate", "output"));
  for (const auto& [limit, name] : {std::pair{"0.01", "output 1e-2"}, std::pair{"0.001", "output 1e-3"}}) {
    r.add(str("share of |Y| below ", limit, ", G1"), t.mean("G1", name));
    r.add(str("share of |Y| below ", limit, ", no gate"), t.mean("no gate", name));
  }
  r.verdict = can_only_show(all({below(mean_of(ratio), 1), exceeds(t.difference("G1", "no gate", "output 1e-2"))}));
  r.why = "G1 lowers mean |Y| from " + text(t.mean("G1", "before")) + " to " + text(t.mean("G1", "output")) + ", " +
          text(mean_of(ratio)) + " of what its mean score would give";
  r.size = "gates that close for whole tokens, after many thousand steps";
}

/// C33. The rule: a gate from the start lowers the share, and after as long a training with the gate that came late
/// more than half of the sink is still there.
void c33(const Run& run, Result& r) {
  const Trials t = trials(run);
  const Measured after = t.mean(kLate, "first token"), control = t.mean(kTwice, "first token"),
                 early = t.mean("G1", "first token");
  std::vector<double> kept = t.values(kLate, "first token");
  const std::vector<double> was = t.values(kLate, "before the gate");
  for (std::size_t i = 0; i < was.size(); ++i) kept[i] /= was[i];
  r.add("share of the sink that is left", mean_of(kept));
  r.add("first-token share before the gate", t.mean(kLate, "before the gate"));
  r.add("after training with it", after);
  r.add("after as long without a gate", control);
  r.add("with a gate from the start", early);
  const Verdict early_helps = below(t.difference("G1", kTwice, "first token"));
  r.verdict = early_helps == Verdict::shown ? exceeds(mean_of(kept), 0.5) : Verdict::not_visible;
  r.why = "the gate came at " + text(mean_of(was)) + "; after as many steps again " + text(after) +
          " of the attention goes to the first token, without a gate " + text(control) + ", with one from the start " +
          text(early);
  r.size = "a task in which a gate from the start removes the sink";
}

/// C36. The rule: with a gate on the values, the sink is there (above 20 %) and activations are smaller than without.
void c36(const Run& run, Result& r) {
  const Trials t = trials(run);
  const Measured share = t.mean("G2", "first token"), less = t.difference("G2", "no gate", "largest");
  r.add("first-token share, G2", share, "", 0.297);
  r.add("largest activation, G2", t.mean("G2", "largest"), "", 125);
  r.add("largest activation, no gate", t.mean("no gate", "largest"), "", 1053);
  r.add("norm of the first token over the others', no gate", t.mean("no gate", "spike"));
  r.add("first-token share, no gate", t.mean("no gate", "first token"), "", 0.467);
  r.add("norm of the first token's values over the others', no gate", t.mean("no gate", "drain"));
  // A sink without a massive activation shows the claim, whichever arm has it.
  const Verdict without =
      all({exceeds(t.mean("no gate", "first token"), 0.2), below(t.mean("no gate", "spike"), kMassive)});
  r.verdict = without == Verdict::shown ? without : all({exceeds(share, 0.2), below(less)});
  r.why = "without a gate the first token has " + text(t.mean("no gate", "first token")) +
          " of the attention, and its hidden state is " + text(t.mean("no gate", "spike")) +
          " times as long as the others'; with G2 it has " + text(share) + kTask;
  r.size = "more seeds";
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_sinks", {{"C27", c27}, {"C28", c28}, {"C29", c29}, {"C30", c30}, {"C33", c33}, {"C36", c36}},
                    argc, argv);
}
