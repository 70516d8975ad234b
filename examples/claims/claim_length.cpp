// Time of layers, training and generation, over the length: claims C9, C10, C22 (speed), C23, C34 and C45. Programs
// take turns, and a time is the median of their rounds.
#include "claims/claim.h"
#include "claims/fit.h"

#include <sluice/sluice.h>

#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

Rng rng_of(const Run& run) { return Rng(static_cast<uint64_t>(run.seed)); }
Tensor noise(const Shape& shape, const Run& run) {
  Rng rng = rng_of(run);
  return normal(shape, 0, 1, rng);
}
/// A step of forward and backward.
template <class L> std::function<void()> training_step(const L& layer, const Tensor& x) {
  return [&layer, x] {
    zero_grad(layer);
    backward(mean(layer(x)));
  };
}

Measured scaled(Measured m, double factor) { return {factor * m.value, factor * m.spread}; }
/// Microseconds per token.
std::vector<double> micros(const std::vector<Measured>& seconds, const std::vector<double>& tokens) {
  std::vector<double> us;
  for (std::size_t i = 0; i < seconds.size(); ++i) us.push_back(1e6 * seconds[i].value / tokens[i]);
  return us;
}
/// The first, third, … and the second, fourth, … of programs that come in pairs.
std::pair<std::vector<Rounds>, std::vector<Rounds>> halves(std::vector<Rounds> seconds) {
  std::pair<std::vector<Rounds>, std::vector<Rounds>> two;
  for (std::size_t i = 0; i < seconds.size(); ++i) (i % 2 ? two.second : two.first).push_back(std::move(seconds[i]));
  return two;
}
void c9(const Run& run, Result& r) {
  const int64_t d = run.smoke ? 16 : 128, s = run.smoke ? 8 : 64, chunk = run.smoke ? 16 : 256;
  Rng rng = rng_of(run);
  const Flash flash({.dim = d, .key_dim = s, .chunk = chunk, .causal = true}, rng);
  const Gau gau({.dim = d, .key_dim = s, .causal = true}, rng);
  std::vector<double> lengths, flops;
  std::vector<std::function<void()>> programs;
  for (const int64_t length : {512, 1024, 2048, 4096, 8192}) {
    const int64_t n = run.smoke ? length / 16 : length;
    const Tensor x = noise({1, n, d}, run);
    programs.push_back(training_step(flash, x)), programs.push_back(training_step(gau, x));
    flops.push_back(double(cost(flash, n).flops)), lengths.push_back(double(length));
  }
  const auto [of_flash, of_gau] = halves(alternating(programs, run.smoke ? 3 : 100, run));
  const Measured slope = slope_in_rounds(lengths, of_flash), quadratic = slope_in_rounds(lengths, of_gau);
  r.add("exponent of FLASH's time in n, forward and backward, C = 256", slope, "", 1);
  const std::vector<Measured> flash_medians = medians_of(of_flash), gau_medians = medians_of(of_gau);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    r.add("microseconds per token, FLASH, n = " + text(lengths[i]), scaled(flash_medians[i], 1e6 / lengths[i]), "µs");
  r.add("exponent of its operations", log_log_slope(lengths, flops), "", 1);
  r.add("exponent of GAU's time", quadratic);
  draw_over_length(
      run, r, "A training step of one layer", "µs per token", lengths,
      {{.name = "FLASH", .y = micros(flash_medians, lengths)}, {.name = "GAU", .y = micros(gau_medians, lengths)}});
  const Crossover c = crossover(lengths, flash_medians, gau_medians);
  r.verdict = equals(slope, 1, 0.1);
  r.why = "from 512 to 8,192 tokens the time of a training step grows with the exponent " + text(slope) +
          ", that of a GAU with " + text(quadratic) + "; FLASH is faster " + text(c, lengths);
  r.size = "a quiet machine and more rounds";
}

/// A block of Transformer++: RoPE, and a gated feed-forward part with as many parameters as an MLP of 4d channels.
using Transformer = TransformerBlock<MultiHeadAttention, Glu>;
Transformer transformer_plus(int64_t d, int64_t heads, Rng& rng) {
  return {MultiHeadAttention({.dim = d, .heads = heads, .causal = true, .use_rope = true}, rng),
          Glu({.dim = d, .kind = GluKind::geglu}, rng),
          {}};
}
template <class L> struct Pair {
  L first, second;
  Tensor operator()(const Tensor& x) const { return second(first(x)); }
  SLUICE_PARTS(first, second);
};

void c10(const Run& run, Result& r) {
  const int64_t d = run.smoke ? 16 : 256, heads = 4, s = run.smoke ? 8 : 128, tokens = run.smoke ? 128 : 8192;
  Rng rng = rng_of(run);
  const Transformer transformer = transformer_plus(d, heads, rng);
  const GauOptions quad{.dim = d, .key_dim = s, .causal = true};
  const FlashOptions mixed{.dim = d, .key_dim = s, .chunk = run.smoke ? 16 : 256, .causal = true};
  const Pair<Gau> gau{Gau(quad, rng), Gau(quad, rng)};
  const Pair<Flash> flash{Flash(mixed, rng), Flash(mixed, rng)};
  std::vector<double> lengths, gains;
  std::vector<std::function<void()>> programs;
  for (const int64_t length : {512, 1024, 2048, 4096, 8192}) {
    const int64_t n = run.smoke ? length / 64 : length;
    const Tensor x = noise({tokens / n, n, d}, run);
    programs.push_back(training_step(transformer, x)), programs.push_back(training_step(gau, x));
    programs.push_back(training_step(flash, x)), lengths.push_back(double(length));
  }
  const std::vector<Rounds> seconds = alternating(programs, run.smoke ? 3 : 20, run);
  const Measured last = ratio_in_rounds(seconds[12], seconds[14]);
  r.add("Transformer++ over FLASH, time of a training step of 8,192 tokens, n = 8192", last, "", 4.8);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Measured gain = ratio_in_rounds(seconds[3 * i], seconds[3 * i + 2]);
    if (i + 1 < lengths.size()) r.add("Transformer++ over FLASH, n = " + text(lengths[i]), gain);
    r.add("Transformer++ over FLASH-Quad, n = " + text(lengths[i]),
          ratio_in_rounds(seconds[3 * i], seconds[3 * i + 1]));
    gains.push_back(gain.value);
  }
  draw_over_length(run, r, "Training steps of equal tokens", "Transformer++ over FLASH", lengths,
                   {{.name = "gain", .y = gains}});
  const auto flops = [&](const auto& layer) { return double(cost(layer, 8192).flops); };
  const int64_t wide = 768;
  const double counted = (flops(MultiHeadAttentionOptions{.heads = {.dim = wide, .heads = 12, .causal = true}}) +
                          flops(GluOptions{.dim = wide})) /
                         (2 * flops(FlashOptions{.dim = wide, .causal = true}));
  r.add("the same in operations, d = 768", counted);
  const Measured slope = log_log_slope(lengths, gains);
  r.verdict = can_only_show(exceeds(last, 4.8));  // the least of the three
  const double reached = lengths.back() * std::pow(4.8 / last.value, 1 / std::max(slope.value, 0.05));
  r.why = "two FLASH layers train " + text(last) +
          " times as fast as a layer of Transformer++ at n = 8192 and width 256;" +
          " at width 768 the operations alone give " + text(counted) +
          "; the printed 12.1 is a ratio of times to equal quality";
  r.size = "the gain grows with the exponent " + text(slope) + " of n and would be 4.8 at about " + text(reached) +
           " tokens here; at 8,192 it takes an accelerator, where stored weights cost more than their operations";
}

void c22(const Run& run, Result& r) {
  NoGrad guard;
  const int64_t d = run.smoke ? 32 : 1024, heads = run.smoke ? 8 : 32, n = run.smoke ? 16 : 2048, batch = 2;
  const std::vector<int64_t> kv_heads = {heads, 8, 1};
  std::vector<MultiHeadAttention> layers;
  std::vector<Stream> streams(kv_heads.size());
  Rng rng = rng_of(run);
  std::vector<std::function<void()>> programs;
  const Tensor prompt = noise({batch, n, d}, run), token = noise({batch, 1, d}, run);
  for (const int64_t g : kv_heads)
    layers.emplace_back(HeadsOptions{.dim = d, .heads = heads, .kv_heads = g, .causal = true}, rng);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    step(layers[i], prompt, streams[i]);
    programs.push_back([&layers, &streams, &token, i] { step(layers[i], token, streams[i]); });
  }
  const auto seconds = alternating(programs, run.smoke ? 3 : 200, run);
  const Measured eight = ratio_in_rounds(seconds[0], seconds[1]), one = ratio_in_rounds(seconds[0], seconds[2]);
  r.add("time of a token with 32 KV heads over that with one", one, "", 1.51 / 0.24);
  r.add("over that with eight", eight, "", 1.51 / 0.28);
  r.add("microseconds of a token with 32 KV heads after 2,048 tokens, width 1,024, batch 2",
        scaled(median_of(seconds[0]), 1e6), "µs");
  r.verdict = all({exceeds(one, 1), exceeds(eight, 1)});  // the claim is the order; the factors are of other machines
  r.why = "after 2,048 tokens a layer with one KV head generates " + text(one) +
          " times as fast as with 32, with eight " + text(eight) + " times";
  r.size = "a longer context, or a quiet machine";
}

void c23(const Run& run, Result& r) {
  NoGrad guard;
  const int64_t d = run.smoke ? 32 : 128, heads = 2;
  Rng rng = rng_of(run);
  const MultiHeadAttention softmax_layer({.dim = d, .heads = heads, .causal = true}, rng);
  const LinearAttention linear({.dim = d, .heads = heads, .direction = LinearDirection::causal}, rng);
  const Tensor token = noise({1, 1, d}, run);
  const std::vector<double> lengths = {256, 1024, 4096, 8192, 16384};
  // Each kind by itself: the keys of long softmax streams would push the linear layer out of the caches.
  const auto tokens_after = [&](const auto& layer, double share) {
    std::vector<Stream> streams(lengths.size());
    std::vector<std::function<void()>> programs;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto n = static_cast<int64_t>(lengths[i]);
      step(layer, noise({1, run.smoke ? n / 64 : n, d}, run), streams[i]);
      programs.push_back([&layer, &token, &stream = streams[i]] { step(layer, token, stream); });
    }
    return alternating(programs, run.smoke ? 3 : 200, run, share);  // streams grow by a token each
  };
  const std::vector<Rounds> growing = tokens_after(softmax_layer, 0.5), constant = tokens_after(linear, 1);
  // Softmax attention has a constant part, its maps: the exponent counts from 4,096 tokens on.
  const Measured flat = slope_in_rounds(lengths, constant);
  const Measured steep = slope_in_rounds({lengths.begin() + 2, lengths.end()}, {growing.begin() + 2, growing.end()});
  r.add("exponent of a token's time in n, linear attention", flat, "", 0);
  r.add("exponent of a token's time in n, softmax, from 4,096", steep, "", 1);
  const std::vector<Measured> softmax_medians = medians_of(growing), linear_medians = medians_of(constant);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    r.add("token after " + text(lengths[i]) + ", softmax", scaled(softmax_medians[i], 1e6), "µs");
    r.add("token after " + text(lengths[i]) + ", linear", scaled(linear_medians[i], 1e6), "µs");
  }
  const std::vector<double> one(lengths.size(), 1);
  draw_over_length(
      run, r, "A generated token", "µs", lengths,
      {{.name = "softmax", .y = micros(softmax_medians, one)}, {.name = "linear", .y = micros(linear_medians, one)}});
  // Caches that overflow may add to the growth, but take nothing of it away.
  r.verdict = all({below({std::abs(flat.value), flat.spread}, 0.1), exceeds(steep, 0.75)});
  r.why = "the exponent is " + text(flat) + " for linear attention and " + text(steep) +
          " for softmax; linear is faster " + text(crossover(lengths, linear_medians, softmax_medians), lengths);
  r.size = "longer contexts, where the maps no longer count";
}

void c34(const Run& run, Result& r) {
  const int64_t d = run.smoke ? 16 : 512, heads = 8, n = run.smoke ? 16 : 512, batch = run.smoke ? 1 : 4;
  std::vector<TransformerBlock<MultiHeadAttention, Glu>> blocks;
  std::vector<double> flops;
  for (const int kind : {0, 1, 2}) {
    Rng rng = rng_of(run);
    MultiHeadAttentionOptions o{.heads = {.dim = d, .heads = heads, .causal = true, .use_rope = true}};
    if (kind > 0) o.gates = {{.granularity = kind == 1 ? GateGranularity::elementwise : GateGranularity::headwise}};
    flops.push_back(double(cost(o, n).flops + cost(GluOptions{.dim = d}, n).flops));
    blocks.push_back({MultiHeadAttention(o, rng), Glu({.dim = d}, rng), {.norm = NormKind::rms}});
  }
  const Tensor x = noise({batch, n, d}, run);
  const auto seconds = alternating(
      {training_step(blocks[0], x), training_step(blocks[1], x), training_step(blocks[2], x)}, run.smoke ? 3 : 60, run);
  const auto overhead = [&](std::size_t i) {
    const Measured q = ratio_in_rounds(seconds[i], seconds[0]);
    return Measured{100 * (q.value - 1), 100 * q.spread};
  };
  const Measured elementwise = overhead(1), headwise = overhead(2);
  r.add("time that an elementwise gate adds to a training step of a block, width 512, n = 512", elementwise, "%", 2);
  r.add("a headwise gate", headwise, "%", 2);
  r.add("operations that the elementwise gate adds", 100 * (flops[1] / flops[0] - 1), "%");
  r.add("operations that the headwise gate adds", 100 * (flops[2] / flops[0] - 1), "%");
  r.verdict = can_only_show(below(elementwise, 2));
  r.why = "an elementwise gate adds " + text(elementwise) + " % to a training step, where it adds " +
          text(r.figures[2].measured) + " % to the operations; a headwise gate adds " + text(headwise) + " %";
  r.size = "an accelerator on which the rest of a step is bound by memory and the gate's product is not";
}

void c45(const Run& run, Result& r) {
  const int64_t d = run.smoke ? 24 : 768, n = run.smoke ? 16 : 512;
  Rng rng = rng_of(run);
  const GauOptions o = gau_alpha_options(d, 24, 0);
  const Pair<Gau> gau{Gau(o, rng), Gau(o, rng)};
  const TransformerBlock<MultiHeadAttention, Mlp> roformer{
      MultiHeadAttention({.dim = d, .heads = 12, .use_rope = true, .qkv_bias = true, .out_bias = true}, rng),
      Mlp({.dim = d}, rng),
      {.placement = NormPlacement::post}};
  const Tensor x = noise({1, n, d}, run);
  const auto seconds = alternating({training_step(roformer, x), training_step(gau, x)}, run.smoke ? 3 : 40, run);
  const Measured gain = ratio_in_rounds(seconds[0], seconds[1]);
  r.add("time of a RoFormer layer over that of two GAU-α layers, training step, n = 512, d = 768", gain, "", 1.45);
  r.add("parameters of the layer over those of the two", double(count(roformer)) / double(count(gau)));
  r.verdict = can_only_show(equals(gain, 1.45, 0.1));
  r.why = "on a CPU a RoFormer layer takes " + text(gain) + " times the time of two GAU-α layers; CLUE is out of reach";
  r.size = "a GPU, where one head's map in place of twelve saves memory traffic, and pre-training for CLUE";
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_length",
                    {{"C9", c9}, {"C10", c10}, {"C22-speed", c22}, {"C23", c23}, {"C34", c34}, {"C45", c45}}, argc,
                    argv);
}
