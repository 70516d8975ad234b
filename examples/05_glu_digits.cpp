// GLU against MLP on real handwritten digits, with equal parameters.
//
//   05_glu_digits [--data digits.csv] [--epochs N] [--smoke]
//
// Data: 1,797 rows of 64 pixels (0…16) and a label, from the Debian package python3-sklearn;
// examples/fetch_digits.sh gets it without installing anything.
#include "support/options.h"

#include <sluice/sluice.h>

#include <cstdio>
#include <fstream>
#include <sstream>

using namespace sluice;

struct Data {
  Tensor images, labels;
};

Data read_csv(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail<IOError>("digits: cannot open ", path, "; examples/fetch_digits.sh fetches it");
  std::vector<float> pixels;
  std::vector<int64_t> labels;
  for (std::string line; std::getline(in, line);) {
    std::istringstream row(line);
    std::vector<float> v;
    for (std::string cell; std::getline(row, cell, ',');) v.push_back(std::strtof(cell.c_str(), nullptr));
    if (v.size() != 65) continue;  // the first line is a header
    for (int i = 0; i < 64; ++i) pixels.push_back(v[static_cast<std::size_t>(i)] / 16);
    labels.push_back(static_cast<int64_t>(v[64]));
  }
  if (labels.empty()) fail<IOError>("digits: no rows of 65 numbers in ", path);
  const int64_t n = static_cast<int64_t>(labels.size());
  return {Tensor::from(pixels, {n, 64}), Tensor::from(labels)};
}

/// Noisy prototypes, for a run without the file.
Data synthetic(Rng& rng) {
  Tensor labels = randint(0, 10, {200}, rng), prototypes = uniform({10, 64}, 0, 1, rng);
  return {embedding(prototypes, labels) + normal({200, 64}, 0, 0.2, rng), labels};
}

template <class Block>
struct Classifier {
  Linear in, out;
  Block block;
  Tensor operator()(const Tensor& x) const {
    Tensor h = in(x);
    return out(h + block(h));
  }
  static void visit(auto& self, auto&& f) { f("in", self.in), f("block", self.block), f("out", self.out); }
};

template <class Model>
double train(const Model& model, const Data& data, int64_t epochs, Rng& rng) {
  const int64_t n = data.labels.dim(0), held_out = n / 5, used = n - held_out, batch = 64;
  Adam adam(parameters(model), {.lr = 2e-3, .weight_decay = 0.01});
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    Tensor order = permutation(used, rng);
    for (int64_t at = 0; at + batch <= used; at += batch) {
      Tensor pick = narrow(order, 0, at, batch);
      adam.zero_grad();
      backward(cross_entropy(model(index_select(data.images, 0, pick)), index_select(data.labels, 0, pick)));
      adam.step();
    }
  }
  NoGrad guard;
  Tensor guess = argmax(model(narrow(data.images, 0, used, held_out)), 1);
  return 100 * mean(to(eq(guess, narrow(data.labels, 0, used, held_out)), f32)).item();
}

int main(int argc, char** argv) try {
  std::string path = "build/data/digits.csv";
  int64_t epochs = 20;
  bool smoke = false;
  examples::Options o("05_glu_digits", "GLU against MLP on handwritten digits");
  o.add("data", path, "digits.csv");
  o.add("epochs", epochs, "passes over the training rows");
  o.flag("smoke", smoke, "synthetic digits, two epochs");
  o.parse(argc, argv);
  Rng rng(3);
  if (smoke) epochs = 2;
  Data data = smoke ? synthetic(rng) : read_csv(path);
  // 3·d·hidden (GLU) = 2·d·hidden (MLP): two thirds of the width.
  for (int run = 0; run < 3; ++run) {
    Classifier<Mlp> mlp{Linear({64, 32}, rng), Linear({32, 10}, rng), Mlp({.dim = 32, .hidden = 96, .bias = false}, rng)};
    Classifier<Glu> glu{Linear({64, 32}, rng), Linear({32, 10}, rng), Glu({.dim = 32, .hidden = 64}, rng)};
    Rng order(static_cast<uint64_t>(run)), same_order(static_cast<uint64_t>(run));
    std::printf("run %d: MLP (%lld parameters) %.1f %%, GLU (%lld parameters) %.1f %% right on held-out digits\n", run,
                (long long)count(mlp), train(mlp, data, epochs, order), (long long)count(glu),
                train(glu, data, epochs, same_order));
  }
} catch (const examples::HelpShown&) {
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
