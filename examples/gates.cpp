// What training does to a gate: two byte-level language models, of GAUs and of softmax attention with sigmoid gates,
// are looked into before and after. Prints JSON for docs/pictures/gates.svg.
//
//   gates --text FILE [--steps N] > gates.json
//
// Of the last layers: the weights A of the GAU over one line of text, how often its gates U = φ(x̂·Wu) have which
// value, and how often the gates σ(x̂·W) of the attention do. A comes from the layer's parts. The program compares the
// output of these parts with the layer's own and fails if they differ.
#include "support/byte_lm.h"
#include "support/corpus.h"
#include "support/mixer.h"
#include "support/options.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

using namespace sluice;
using namespace sluice::examples;

namespace {

const std::string kLine = "a gate decides what a token reads, and a gate decides what stays";

struct Settings {
  std::string text;
  int64_t steps = 300, dim = 128, layers = 2, heads = 4, context = 64, batch = 16, seed = 1;
  double lr = 4e-3;
  bool smoke = false;
};
Settings parse(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("text", s.text, "file to learn from (bytes)");
  o("steps", s.steps, at_least(1), "updates of each model");
  o("dim", s.dim, at_least(8), "width of the models");
  o("layers", s.layers, at_least(1), "layers of each model");
  o("context", s.context, at_least(8), "bytes a model sees");
  o("batch", s.batch, at_least(1), "windows a step");
  o("lr", s.lr, above(0), "highest learning rate");
  o("seed", s.seed, at_least(0), "of weights and batches");
  o("smoke", s.smoke, "a few tiny steps on a built-in text");
  parse_flags("gates", "what training does to the gates of a GAU and of gated attention", o, argc, argv);
  if (s.smoke) s.steps = 2, s.dim = 32, s.context = 32, s.batch = 2;
  else if (s.text.empty()) throw std::runtime_error("gates: --text FILE is needed (or --smoke); see --help");
  return s;
}

/// How often x lies in each of `bins` equal parts of [low, high); what lies outside counts at the ends.
std::vector<int64_t> histogram(const Tensor& x, double low, double high, int64_t bins) {
  std::vector<int64_t> count(static_cast<std::size_t>(bins));
  for (const double v : x.to_vector<double>()) {
    const double at = std::floor((v - low) / (high - low) * double(bins));
    ++count[static_cast<std::size_t>(std::clamp(at, 0.0, double(bins - 1)))];
  }
  return count;
}
/// Each weight as a digit: nine times the root of its share of the largest in its row.
std::vector<std::string> digits(const Tensor& a) {
  const int64_t n = a.dim(-1);
  const std::vector<double> weight = a.to_vector<double>();
  std::vector<std::string> rows;
  for (auto row = weight.begin(); row != weight.end(); row += n) {
    const double largest = std::max(1e-30, *std::max_element(row, row + n));
    rows.emplace_back();
    for (int64_t j = 0; j < n; ++j) rows.back() += char('0' + std::lround(9 * std::sqrt(row[j] / largest)));
  }
  return rows;
}

struct Parts {
  Tensor gate, weights;  // U [batch, n, e], A [batch, 1, n, n]
};
/// Takes a causal GAU of one head apart.
Parts parts_of(const Gau& gau, const Tensor& x) {
  const GauOptions& o = gau.options;
  const std::vector<Tensor> uvz = split(gau.in(gau.norm(x)), {o.expansion, o.expansion, o.key_dim}, -1);
  const Tensor u = activate(o.activation, uvz[0]), v = activate(o.activation, uvz[1]);
  const Tensor z = activate(o.activation, uvz[2]);
  const auto side = [&](int64_t i) {
    return detail::rope_from(unsqueeze(z * select(gau.gamma, 0, i) + select(gau.beta, 0, i), 1), o.rope, 0);
  };
  const int64_t n = x.dim(1);
  const Tensor unit = expand(reshape(eye(n), {1, 1, n, n}), {x.dim(0), 1, n, n});
  const Tensor a =
      gau_attention(side(0), side(1), unit, {.kind = o.kind, .length = *o.length, .mask = {.causal = true}});
  const Tensor y = x + gau.out(u * matmul(squeeze(a, 1), v));
  const double error = max(abs(y - gau(x))).item() / max(abs(y)).item();
  if (!(error < 1e-3)) throw std::runtime_error(str("gates: the parts of the GAU miss its output by ", error));
  return {u, a};
}

struct Look {
  std::vector<std::string> weights;
  std::vector<int64_t> gau, sigmoid;
};
constexpr double kLow = -0.3, kHigh = 2.1;  // of U
constexpr int64_t kBins = 60;

Tensor input_of_last(const ByteLm& model, const Tensor& bytes) {
  Tensor x = model.embed(bytes);
  for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i) x = model.blocks[i](x);
  return x;
}
Look look_into(const ByteLm& gau, const MixerLm& gated, const Tensor& bytes) {
  NoGrad guard;
  std::vector<int64_t> codes(kLine.begin(), kLine.end());
  const Tensor text = unsqueeze(Tensor::from(codes), 0);
  Look r;
  r.weights = digits(parts_of(gau.blocks.back(), input_of_last(gau, text)).weights);
  r.gau = histogram(parts_of(gau.blocks.back(), input_of_last(gau, bytes)).gate, kLow, kHigh, kBins);
  Tensor x = gated.embed(bytes);
  for (std::size_t i = 0; i + 1 < gated.mixers.size(); ++i) x = gated.feeds[i](gated.mixers[i](x));
  const auto& attention = std::get<MultiHeadAttention>(gated.mixers.back().layer);
  r.sigmoid = histogram(attention.gates[0].scores(gated.mixers.back().norm(x)), 0, 1, kBins);
  return r;
}

/// Returns the mean bits per byte of the last tenth of the steps.
template <class Model> double train(const Model& model, std::string_view text, const Settings& s) {
  Rng rng(static_cast<uint64_t>(s.seed) + 1);
  Adam adam(parameters(model), {.lr = s.lr, .beta2 = 0.95, .weight_decay = 0.05});
  double nats = 0;
  const int64_t last = std::max<int64_t>(1, s.steps / 10);
  for (int64_t step = 0; step < s.steps; ++step) {
    const Batch batch = random_batch(text, s.batch, s.context, rng);
    adam.set_lr(learning_rate(s.lr, double(step) / double(s.steps)));
    adam.zero_grad();
    const Tensor loss = cross_entropy(model(batch.inputs), batch.targets);
    backward(loss);
    clip_grad_norm(adam.parameters(), 1.0);
    adam.step();
    if (step >= s.steps - last) nats += loss.item();
  }
  return nats / double(last) / std::log(2.0);
}

template <class T> void print_list(const char* name, const std::vector<T>& before, const std::vector<T>& after) {
  std::printf(",\n\"%s\":[", name);
  for (const auto* values : {&before, &after}) {
    std::printf("%s[", values == &before ? "" : ",\n");
    for (std::size_t i = 0; i < values->size(); ++i)
      if constexpr (std::is_same_v<T, std::string>) std::printf("%s\"%s\"", i ? ",\n" : "", (*values)[i].c_str());
      else std::printf("%s%lld", i ? "," : "", (long long)(*values)[i]);
    std::printf("]");
  }
  std::printf("]");
}

int program(int argc, char** argv) {
  const Settings s = parse(argc, argv);
  const std::string words = learning_text(s.text);
  const Split text = split_text(words, static_cast<std::size_t>(s.context) + 1);
  Rng rng(static_cast<uint64_t>(s.seed));
  const ByteLm gau({s.dim, s.layers, s.dim / 2, 0}, rng);
  std::vector<Mixer> mixers;
  for (int64_t i = 0; i < s.layers; ++i)
    mixers.emplace_back(MultiHeadAttention({.heads = {.dim = s.dim, .heads = s.heads, .causal = true, .use_rope = true},
                                            .gates = {AttentionGateOptions{}}},
                                           rng));
  const MixerLm gated(s.dim, std::move(mixers), 2 * s.dim, 0.02, rng);
  Rng windows(7);
  const Tensor bytes = random_batch(text.valid, 8, s.context, windows).inputs;

  const Look before = look_into(gau, gated, bytes);
  const double gau_bits = train(gau, text.train, s), gated_bits = train(gated, text.train, s);
  const Look after = look_into(gau, gated, bytes);
  std::printf("{\"text\":\"%s\",\"steps\":%lld,\"gau_bits\":%.3f,\"gated_bits\":%.3f,\"low\":%g,\"high\":%g",
              kLine.c_str(), (long long)s.steps, gau_bits, gated_bits, kLow, kHigh);
  print_list("weights", before.weights, after.weights);
  print_list("gau", before.gau, after.gau);
  print_list("sigmoid", before.sigmoid, after.sigmoid);
  std::printf("}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }
