// Quality of small language models at equal parameters and equal data (Hua et al. 2022, "Transformer Quality in Linear
// Time"; Su 2022, "It is said that attention and softmax go better together", https://spaces.ac.cn/archives/9019;
// Ainslie et al. 2023, "GQA"): claims C11, C12, C13 and C16, and the quality of C22. Losses are nats per byte on text
// that was not trained on; all arms of a seed see the same batches.
#include "claims/claim.h"
#include "claims/training.h"
#include "support/mixer.h"

#include <algorithm>
#include <cmath>
#include <optional>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Sizes {
  int64_t dim = 64, key_dim = 32, gaus = 4, n = 128, batch = 8, steps = 300, seeds = 5;
  std::size_t valid = 20'000;
};
Sizes sizes(const Run& run) { return run.smoke ? Sizes{16, 8, 2, 16, 2, 3, 2, 300} : Sizes{}; }

/// A model of `gaus` layers of 6d² + ds weights each; a Transformer layer takes the place of two.
MixerLm make_model(const std::string& arm, const Sizes& s, Rng& rng) {
  std::vector<Mixer> layers;
  const auto repeat = [&](int64_t times, auto make) {
    for (int64_t i = 0; i < times; ++i) layers.emplace_back(make());
  };
  const auto transformer = [&](int64_t heads, int64_t kv_heads) {
    repeat(s.gaus / 2, [&] {
      return MultiHeadAttention({.dim = s.dim, .heads = heads, .kv_heads = kv_heads, .causal = true, .use_rope = true},
                                rng);
    });
    return MixerLm(s.dim, std::move(layers), (8 * s.dim + 2 * s.key_dim) / 3, 0.02, rng);
  };
  if (arm == "Transformer++") return transformer(4, 4);
  if (arm == "MHA") return transformer(8, 8);
  if (arm == "GQA") return transformer(8, 2);
  if (arm == "MQA") return transformer(8, 1);

  GauOptions gau{.dim = s.dim, .key_dim = s.key_dim, .causal = true, .length = GauLength::n};
  FlashOptions flash{.dim = s.dim, .key_dim = s.key_dim, .chunk = s.n / 4, .causal = true};
  bool quadratic = true;
  if (arm == "FLASH-Quad") gau.length = std::nullopt;
  else if (arm == "softmax") gau.kind = GauKind::softmax;
  else if (arm == "4 heads") gau.length = std::nullopt, gau.heads = 4;
  else if (arm == "relu²/512") gau.length = GauLength::constant;
  else if (arm == "softmax_plus") gau.kind = GauKind::softmax_plus, gau.length = GauLength::visible;
  else if (arm != "relu²/n" && arm != "relu²/n, mixed lengths") {
    quadratic = false;
    if (arm == "local only") flash.linear = false;
    else if (arm == "global only") flash.quadratic = false;
    else if (arm == "FLASH, C = n/8") flash.chunk = s.n / 8;
    else if (arm == "FLASH, C = n/2") flash.chunk = s.n / 2;
    else if (arm != "FLASH") fail<ValueError>("claim_quality: no arm ", arm);
  }
  repeat(s.gaus, [&]() -> Mixer {
    if (quadratic) return Gau(gau, rng);
    return Flash(flash, rng);
  });
  return MixerLm(s.dim, std::move(layers), 0, 0.02, rng);
}

/// Lengths at which C16 tests, besides that of training.
std::vector<int64_t> lengths(const Sizes& s) { return {s.n / 8, s.n, 4 * s.n}; }

Figures train_arm(const std::string& arm, int64_t seed, const TextTask& task, const Sizes& s, bool many_lengths) {
  Rng rng(static_cast<uint64_t>(seed));
  const MixerLm model = make_model(arm, s, rng);
  auto windows = task.windows(s.batch, s.n, seed);
  Rng of_lengths(static_cast<uint64_t>(seed) + 2000);
  const auto next = [&]() -> Batch {
    if (!arm.ends_with("mixed lengths")) return windows();
    // As many tokens in every step: n/8 to 4n, in powers of two.
    const int64_t n = s.n / 8 << randint(0, 6, {1}, of_lengths).item<int64_t>();
    return random_batch(task.text.train, std::max<int64_t>(1, s.batch * s.n / n), n, of_lengths);
  };
  train(model, next, {.steps = s.steps, .warmup = s.steps / 50, .lr = 4e-3, .weight_decay = 0.05});
  Figures r{{"loss", task.loss(model, s.n)}, {"weights", double(count(model))}};
  for (const int64_t n : many_lengths ? lengths(s) : std::vector<int64_t>{}) r[str("at ", n)] = task.loss(model, n);
  return r;
}

Trials trials(const Run& run, const char* name, const std::vector<std::string>& arms, bool many_lengths = false) {
  const Sizes s = sizes(run);
  const TextTask task(run.text, static_cast<std::size_t>(4 * s.n), s.valid);
  Trials t(run.out, name,
           str(run.smoke, ' ', run.seed, ' ', run.text.empty(), ' ', s.dim, ' ', s.gaus, ' ', s.n, ' ', s.batch, ' ',
               s.steps));
  t.run(arms, 100 * run.seed, s.seeds, run.seconds,
        [&](const std::string& arm, int64_t seed) { return train_arm(arm, seed, task, s, many_lengths); });
  return t;
}
Measured add(Result& r, const Trials& t, const char* a, const char* b, std::optional<double> said = {}) {
  const Measured d = t.difference(a, b, "loss");
  r.add(str("loss of ", a, " − ", b), d, "nats", said);
  return d;
}
/// The claim: |difference| is at most `bound`.
Verdict within(Measured d, double bound) { return below({std::abs(d.value), d.spread}, bound); }

/// Losses within 0.02 nats, 2 % of perplexity, count as equal.
constexpr double kEqual = 0.02;
constexpr const char* kSize = "a smaller spread: more seeds, or models of 10 M parameters and a day of training";

/// C11. The rule: FLASH is at most kEqual worse than Transformer++.
void c11(const Run& run, Result& r) {
  const Trials t = trials(run, "quality", {"Transformer++", "FLASH-Quad", "FLASH"});
  const Measured flash = add(r, t, "FLASH", "Transformer++", std::log(3.897 / 3.933));
  add(r, t, "FLASH-Quad", "Transformer++");
  for (const char* arm : {"Transformer++", "FLASH-Quad", "FLASH"}) {
    r.add(str("loss, ", arm), t.mean(arm, "loss"), "nats");
    r.add(str("weights, ", arm), t.mean(arm, "weights"));
  }
  r.verdict = can_only_show(below(flash, kEqual));
  r.why = "FLASH loses " + text(flash) +
          " nats against Transformer++ (less than 0 is better), at equal parameters and " + str(t.seeds(), " seeds");
  r.size = kSize;
}

/// C12. The rule: softmax and four heads change the loss by at most kEqual, or make it worse.
void c12(const Run& run, Result& r) {
  const Trials t = trials(run, "quality", {"FLASH-Quad", "softmax", "4 heads"});
  const Measured relu2 = add(r, t, "FLASH-Quad", "softmax"), one = add(r, t, "FLASH-Quad", "4 heads");
  r.add("loss, FLASH-Quad", t.mean("FLASH-Quad", "loss"), "nats");
  r.verdict = can_only_show(all({below(relu2, kEqual), below(one, kEqual)}));
  r.why = "relu² loses " + text(relu2) + " nats against softmax, and one head " + text(one) + " against four, over " +
          str(t.seeds(), " seeds");
  r.size = kSize;
}

/// C13. The rule: without local attention the loss is worst, without either worse than with both; chunks of n/8 and
/// n/2 differ by at most kEqual.
void c13(const Run& run, Result& r) {
  const Trials t = trials(run, "quality", {"FLASH", "local only", "global only", "FLASH, C = n/8", "FLASH, C = n/2"});
  const Measured more = add(r, t, "global only", "local only"), local = add(r, t, "local only", "FLASH"),
                 global = add(r, t, "global only", "FLASH"), chunk = add(r, t, "FLASH, C = n/8", "FLASH, C = n/2");
  r.add("loss, FLASH", t.mean("FLASH", "loss"), "nats");
  r.verdict = can_only_show(all({exceeds(more), exceeds(local), exceeds(global), within(chunk, kEqual)}));
  r.why = "local attention alone loses " + text(local) + " nats against both, global attention alone " + text(global) +
          ", and chunks of n/8 " + text(chunk) + " against n/2";
  r.size = kSize;
}

/// C16. Transfer: the loss at four times the length of training less that of softmax_plus. The rule: relu²/n transfers
/// worse than a constant length, mixed lengths and softmax_plus; softmax_plus is best.
void c16(const Run& run, Result& r) {
  const std::vector<std::string> arms{"relu²/n", "relu²/512", "relu²/n, mixed lengths", "softmax_plus"};
  const Trials t = trials(run, "lengths", arms, true);
  const Sizes s = sizes(run);
  const std::string longer = str("at ", 4 * s.n), shorter = str("at ", s.n / 8);
  const auto worse = [&](const std::string& a, const std::string& b, const std::string& at) {
    const Measured d = t.difference(a, b, at);
    r.add(str("loss of ", a, " − ", b, ' ', at), d, "nats");
    return d;
  };
  const Measured fixed = worse(arms[0], arms[1], longer), mixed = worse(arms[0], arms[2], longer),
                 plus = worse(arms[0], arms[3], longer), best = worse(arms[1], arms[3], longer),
                 best_mixed = worse(arms[2], arms[3], longer);
  worse(arms[0], arms[3], shorter);
  for (const std::string& arm : arms)
    for (const int64_t n : lengths(s))
      r.add(str("loss of ", arm, ", trained at ", s.n, ", at ", n), t.mean(arm, str("at ", n)), "nats");
  r.verdict = can_only_show(all({exceeds(fixed), exceeds(mixed), exceeds(plus), exceeds(best), exceeds(best_mixed)}));
  r.why = str("trained on ", s.n, " and tested on ", 4 * s.n, " bytes, relu²/n loses ") + text(plus) +
          " nats against softmax_plus, " + text(fixed) + " against a constant length, " + text(mixed) +
          " against mixed lengths";
  r.size = kSize;
}

/// C22, quality. The rule: one KV head is worse than two, and two no better than eight.
void c22(const Run& run, Result& r) {
  const Trials t = trials(run, "quality", {"MHA", "GQA", "MQA"});
  const Measured one = add(r, t, "MQA", "GQA"), few = add(r, t, "GQA", "MHA");
  for (const char* arm : {"MHA", "GQA", "MQA"}) {
    r.add(str("loss, ", arm), t.mean(arm, "loss"), "nats");
    r.add(str("weights, ", arm), t.mean(arm, "weights"));
  }
  r.verdict = can_only_show(all({exceeds(one), exceeds(few)}));
  r.why = "one KV head loses " + text(one) + " nats against two, two lose " + text(few) + " against eight";
  r.size = kSize;
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_quality", {{"C11", c11}, {"C12", c12}, {"C13", c13}, {"C16", c16}, {"C22-quality", c22}},
                    argc, argv);
}
