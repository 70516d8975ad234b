// Text classification with stacked gated attention units and masked mean pooling: what kind of thing does a dictionary
// entry define? 82,115 glosses of WordNet's nouns, 26 classes (animal, food, time, …), against a bag of words (the same
// embedding and pooling, no layers) and a softmax Transformer of equal parameters.
//
//   gloss_classifier --data data.noun [--out FOLDER] [--epochs N] [--smoke]
//
// examples/report.sh fetches the data (Debian package wordnet-base). FOLDER gets glosses.svg.
#include "support/classify.h"
#include "support/encoder.h"
#include "support/options.h"
#include "support/study.h"

#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <unordered_map>

using namespace sluice;
using namespace sluice::examples;

namespace {

constexpr int64_t kWords = 24;  // of a gloss, more are cut off: 5 % have more

struct Gloss {
  int64_t label;
  std::vector<std::string> words;
};

/// Lines "offset class … | definition; "example"", without the examples.
std::vector<Gloss> read_glosses(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail<IOError>("gloss_classifier: cannot open '", path, "'; examples/report.sh fetches it");
  std::vector<Gloss> glosses;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const auto bar = line.find(" | ");
    if (line.starts_with("  ") || bar == std::string::npos) continue;  // the licence
    int64_t of_file = 0;
    const std::string digits = bar > 10 ? line.substr(9, 2) : "";
    const char* const end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, of_file).ptr != end || of_file < 3 || of_file > 28)
      fail<IOError>("gloss_classifier: '", path, "' line ", number, ": need a class from 03 to 28 — got \"", digits,
                    "\"");
    Gloss g{of_file - 3, {}};
    std::string word;
    for (char c : line.substr(bar + 3, line.find("; \"", bar) - bar - 3) + ' ') {
      if (std::isalnum(static_cast<unsigned char>(c)))
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      else if (!word.empty()) g.words.push_back(std::move(word)), word.clear();
    }
    if (g.words.size() > kWords) g.words.resize(kWords);
    if (!g.words.empty()) glosses.push_back(std::move(g));
  }
  if (glosses.empty()) fail<IOError>("gloss_classifier: '", path, "' has no line \"offset class … | definition\"");
  return glosses;
}

/// Words as numbers from 2 on, those that occur less than three times in training glosses as 1; 0 fills up. Tenths of a
/// random order: eight to train, one to validate, one to test.
struct Glosses {
  Labelled train, valid, test;
  int64_t vocabulary = 2, classes = 26;
};
Glosses tokenize(const std::vector<Gloss>& glosses, Rng& rng) {
  const auto n = static_cast<int64_t>(glosses.size()), used = n * 8 / 10, tenth = n / 10;
  const Tensor order = permutation(n, rng);
  const int64_t* at = order.data<int64_t>();
  std::unordered_map<std::string, int64_t> seen, number;
  Glosses out;
  for (int64_t i = 0; i < used; ++i)
    for (const std::string& w : glosses[size_t(at[i])].words)
      if (++seen[w] == 3) number[w] = out.vocabulary++;
  std::vector<int64_t> words(size_t(n * kWords), 0), labels;
  for (int64_t i = 0; i < n; ++i) {
    const Gloss& g = glosses[size_t(at[i])];
    labels.push_back(g.label);
    for (size_t k = 0; k < g.words.size(); ++k) {
      const auto found = number.find(g.words[k]);
      words[size_t(i * kWords) + k] = found == number.end() ? 1 : found->second;
    }
  }
  const Tensor x = Tensor::from(words, {n, kWords}), y = Tensor::from(labels);
  auto part = [&](int64_t first, int64_t count) {
    return Labelled{narrow(x, 0, first, count), narrow(y, 0, first, count)};
  };
  out.train = part(0, used), out.valid = part(used, tenth), out.test = part(used + tenth, tenth);
  return out;
}

struct Classifier {
  Embedding embed;
  Encoder encoder;
  Linear out;
  double dropout;

  Classifier(const EncoderOptions& o, int64_t vocabulary, int64_t classes, Rng& rng)
      : embed({vocabulary, o.dim, 0.1}, rng), encoder(o, rng), out({o.dim, classes}, rng), dropout(o.dropout) {}
  /// words i64 [batch, kWords] → logits.
  Tensor operator()(const Tensor& words, const Pass& pass = {}) const {
    const Tensor real = words > 0, x = Dropout{dropout}(embed(words), pass.rng);
    const Pass masked{.key_mask = real, .rng = pass.rng};
    return out(Dropout{dropout}(masked_mean(encoder(x, masked), masked.key_mask), pass.rng));
  }
  SLUICE_PARTS(embed, encoder, out);
};

int program(int argc, char** argv) {
  std::string data = "build/data/data.noun", out = "build/report";
  int64_t epochs = 3, dim = 64, layers = 4, seed = 1;
  double dropout = 0.2, lr = 2e-3, bag_lr = 1e-2;
  bool smoke = false;
  OptionList o;
  o("data", data, "data.noun of WordNet");
  o("out", out, "folder of the picture");
  o("epochs", epochs, at_least(1), "passes over the training glosses");
  o("dim", dim, at_least(1), "width");
  o("layers", layers, at_least(1), "GAU layers; half as many Transformer blocks");
  o("dropout", dropout, "on embeddings, layers and the pooled vector");
  o("lr", lr, "highest learning rate");
  o("bag-lr", bag_lr, "that of the bag of words");
  o("seed", seed, at_least(0), "of split, weights and batches");
  o("smoke", smoke, "a few made-up glosses, one epoch");
  parse_flags("gloss_classifier", "classes of WordNet's glosses: GAU, softmax attention, a bag of words", o, argc,
              argv);
  std::filesystem::create_directories(out);  // before the long work
  std::vector<Gloss> glosses;
  if (smoke) {
    for (int64_t i = 0; i < 200; ++i)
      glosses.push_back({i % 26, {"a", str("kind", i % 26), "of", str("thing", i % 7)}});
    epochs = 1, dim = 16;
  } else {
    glosses = read_glosses(data);
  }
  Rng split(static_cast<uint64_t>(seed));
  const Glosses g = tokenize(glosses, split);
  std::printf(
      "%lld glosses to train on, %lld to test, %lld words\n\n"
      "model          weights  in layers   ms/step   %% right: validation    test\n",
      (long long)g.train.y.dim(0), (long long)g.test.y.dim(0), (long long)g.vocabulary);
  std::vector<Series> curves;
  double right[3];
  for (int i = 0; i < 3; ++i) {
    const Mixing mixing[] = {Mixing::none, Mixing::softmax, Mixing::gau};
    const char* names[] = {"bag of words", "softmax", "GAU"};
    Rng rng(static_cast<uint64_t>(seed));
    const Classifier model({.mixing = mixing[i],
                            .dim = dim,
                            .layers = layers,
                            .key_dim = dim / 2,
                            .kind = GauKind::softmax,
                            .dropout = dropout},
                           g.vocabulary, g.classes, rng);
    const Fit r = fit(model, g.train, g.valid,
                      {.epochs = epochs, .lr = i == 0 ? bag_lr : lr, .seed = static_cast<uint64_t>(seed)});
    right[i] = accuracy(model, g.test);
    std::printf("%-12s %9lld %10lld %9.1f %21.2f %7.2f\n", names[i], (long long)count(model),
                (long long)count(model.encoder), r.ms, r.accuracy.back(), right[i]);
    std::fflush(stdout);
    curves.push_back(series(names[i], r.accuracy, false, 1));
  }
  write_svg_curve(
      out + "/glosses.svg",
      {.title = "WordNet glosses: % of 26 classes right", .x_label = "epoch", .y_label = "% right (validation)"},
      curves);
  print_result("gloss_classifier", "GAU: " + fixed(right[2], 1) + " % right",
               "bag of words: " + fixed(right[0], 1) + " %; softmax, equal parameters: " + fixed(right[1], 1) + " %",
               right[2] > right[0], seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output of gloss_classifier --data build/data/data.noun (two busy cores):
//
// 65692 glosses to train on, 8211 to test, 16934 words
//
// model          weights  in layers   ms/step   % right: validation    test
// bag of words   1085594        128       1.3                 79.37   79.26
// softmax        1193306     107840      14.4                 82.06   82.56
// GAU            1194522     109056      15.9                 80.78   81.45
