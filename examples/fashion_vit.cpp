// A vision Transformer made of gated attention units: pictures as sequences of patches. ViT-GAU on Fashion-MNIST
// against a ViT with softmax attention and an MLP on pixels, all of equal parameters and the same training.
//
//   fashion_vit --data FOLDER [--out FOLDER] [--epochs N] [--smoke]
//
// examples/report.sh fetches the data (Debian package dataset-fashion-mnist). The out folder gets fashion.svg.
#include "support/encoder.h"
#include "support/fashion.h"
#include "support/options.h"
#include "support/study.h"

#include <filesystem>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Vit {
  Linear patch, stem;
  Tensor positions;  // [patches, dim]
  Encoder encoder;
  Linear out;

  Vit(const EncoderOptions& o, Rng& rng)
      : patch({64, 2 * o.dim}, rng), stem({2 * o.dim, o.dim}, rng), positions(init_normal({36, o.dim}, 0.02, rng)),
        encoder(o, rng), out({o.dim, 10}, rng) {}
  Tensor operator()(const Tensor& pictures, const Pass& pass = {}) const {
    return out(mean(encoder(stem(gelu(patch(patches(pictures)))) + positions, pass), {1}));
  }
  SLUICE_PARTS(patch, stem, positions, encoder, out);
};

struct PixelMlp {
  Linear in, hidden, out;
  double dropout;
  PixelMlp(int64_t width, double p, Rng& rng)
      : in({784, width, true, Init{InitKind::he}}, rng), hidden({width, width, true, Init{InitKind::he}}, rng),
        out({width, 10}, rng), dropout(p) {}
  Tensor operator()(const Tensor& pictures, const Pass& pass = {}) const {
    const Tensor h = Dropout{dropout}(relu(in(reshape(pictures, {pictures.dim(0), 784}))), pass.rng);
    return out(relu(hidden(h)));
  }
  SLUICE_PARTS(in, hidden, out);
};

int program(int argc, char** argv) {
  std::string data = "build/data/fashion-mnist", out = "build/report";
  int64_t epochs = 4, dim = 64, layers = 4, batch = 64, seed = 1;
  double lr = 3e-3, dropout = 0;
  bool smoke = false;
  OptionList o;
  o("data", data, "folder of the four files");
  o("out", out, "folder of the picture");
  o("epochs", epochs, at_least(1), "passes over the training pictures");
  o("dim", dim, at_least(1), "width");
  o("layers", layers, at_least(1), "GAU layers; half as many Transformer blocks");
  o("batch", batch, at_least(1), "pictures of a step");
  o("lr", lr, "highest learning rate");
  o("dropout", dropout, "on the layers");
  o("seed", seed, at_least(0), "of weights and batches");
  o("smoke", smoke, "made-up pictures, one epoch");
  parse_flags("fashion_vit", "a vision Transformer of gated attention units", o, argc, argv);
  std::filesystem::create_directories(out);  // before the long work
  Rng noise(3);
  if (smoke) epochs = 1, dim = 16, layers = 2;
  const Labelled all = smoke ? made_up_fashion(160, noise) : read_fashion(data, "train");
  const Labelled test = smoke ? made_up_fashion(20, noise) : read_fashion(data, "t10k");
  const int64_t used = all.y.dim(0) * 19 / 20, rest = all.y.dim(0) - used;
  const Labelled train{narrow(all.x, 0, 0, used), narrow(all.y, 0, 0, used)};
  const Labelled valid{narrow(all.x, 0, used, rest), narrow(all.y, 0, used, rest)};

  ClassifyOptions c{.epochs = epochs, .batch = batch, .lr = lr, .seed = static_cast<uint64_t>(seed)};
  c.augment = [](const Tensor& x, Rng& rng) { return randint(0, 2, {1}, rng).item<int64_t>() ? flip(x, {2}) : x; };
  std::printf(
      "%lld pictures to train on, %lld to test\n\nmodel        weights   ms/step   %% right: validation    test\n",
      (long long)used, (long long)test.y.dim(0));
  std::vector<Series> curves;
  double right[3];
  auto study = [&](int i, const char* name, const auto& model) {
    const Fit r = fit(model, train, valid, c);
    right[i] = accuracy(model, test);
    std::printf("%-10s %9lld %9.1f %21.2f %7.2f\n", name, (long long)count(model), r.ms, r.accuracy.back(), right[i]);
    std::fflush(stdout);
    curves.push_back(series(name, r.accuracy, false, 1));
  };
  Rng rng(static_cast<uint64_t>(seed));
  const EncoderOptions e{.mixing = Mixing::gau,
                         .dim = dim,
                         .layers = layers,
                         .key_dim = dim / 2,
                         .kind = GauKind::softmax,
                         .dropout = dropout};
  EncoderOptions softmax = e;
  softmax.mixing = Mixing::softmax;
  const Vit gau(e, rng), transformer(softmax, rng);
  int64_t width = 1;  // of the MLP: as many weights
  while ((784 + 1) * width + (width + 1) * width + (width + 1) * 10 < count(gau)) ++width;
  study(0, "MLP", PixelMlp(width, dropout, rng));
  study(1, "softmax ViT", transformer);
  study(2, "ViT-GAU", gau);
  write_svg_curve(out + "/fashion.svg",
                  {.title = "Fashion-MNIST", .x_label = "epoch", .y_label = "% right (validation)"}, curves);
  print_result("fashion_vit", "ViT-GAU: " + fixed(right[2], 1) + " % right",
               "MLP: " + fixed(right[0], 1) + " %; softmax ViT: " + fixed(right[1], 1) + " %", right[2] > right[0],
               seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output of fashion_vit --data build/data/fashion-mnist (two busy cores):
//
// 57000 pictures to train on, 10000 to test
//
// model        weights   ms/step   % right: validation    test
// MLP           128902       0.3                 89.07   87.97
// softmax ViT    127370      17.1                 88.90   87.95
// ViT-GAU       128586      21.7                 89.17   88.87
