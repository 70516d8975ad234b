// A small CLIP (Radford et al. 2021) whose two towers are gated attention units: pictures and captions are mapped to
// vectors that point the same way when they belong together. A picture shows two articles of Fashion-MNIST side by
// side, its caption says which ("a bag left of an ankle boot", bytes). Of the 100 pairs of classes 20 are never seen in
// training: their captions can only be found by who understands words and places. Retrieval among all 100 captions,
// against chance and nearest mean pictures:
//
//   fashion_clip --data FOLDER [--steps N] [--smoke]
//
// examples/report.sh fetches the data (Debian package dataset-fashion-mnist).
#include "support/encoder.h"
#include "support/fashion.h"
#include "support/options.h"
#include "support/study.h"

#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

constexpr int64_t kBytes = 40;  // of a caption

bool held_out(int64_t left, int64_t right) { return (left + right * 7) % 5 == 3; }  // each class twice on either side

/// All captions, i64 [100, kBytes], filled up with 0; caption 10·left + right.
Tensor captions() {
  std::vector<int64_t> bytes(100 * kBytes, 0);
  for (size_t i = 0; i < 100; ++i) {
    auto article = [](std::string_view name) { return std::string(name[0] == 'a' ? "an " : "a ") + std::string(name); };
    const std::string text = article(kFashion[i / 10]) + " left of " + article(kFashion[i % 10]);
    for (size_t k = 0; k < text.size() && k < size_t(kBytes); ++k) bytes[i * size_t(kBytes) + k] = text[k];
  }
  return Tensor::from(bytes, {100, kBytes});
}

/// Pictures [pairs, 28, 56] for pairs of labels: a random picture of each class.
struct Pairs {
  const Labelled& data;
  std::vector<std::vector<int64_t>> of_class;

  explicit Pairs(const Labelled& d) : data(d), of_class(10) {
    for (int64_t i = 0; i < d.y.dim(0); ++i) of_class[size_t(d.y.data<int64_t>()[i])].push_back(i);
  }
  Tensor draw(const std::vector<int64_t>& pairs, Rng& rng) const {
    std::vector<int64_t> left, right;
    for (int64_t p : pairs)
      for (bool is_left : {true, false}) {
        const auto& rows = of_class[size_t(is_left ? p / 10 : p % 10)];
        (is_left ? left : right).push_back(rows[size_t(randint(0, std::ssize(rows), {1}, rng).item<int64_t>())]);
      }
    return cat({index_select(data.x, 0, Tensor::from(left)), index_select(data.x, 0, Tensor::from(right))}, 2);
  }
};

struct Clip {
  Linear patch;
  Tensor positions;  // [patches, dim]
  Encoder image, text;
  Embedding letters;
  Linear image_out, text_out;
  Tensor temperature;  // [1], its logarithm

  Clip(const EncoderOptions& o, Rng& rng)
      : patch({64, o.dim}, rng), positions(init_normal({6 * 13, o.dim}, 0.02, rng)), image(o, rng), text(o, rng),
        letters({128, o.dim, 0.1}, rng), image_out({o.dim, o.dim, false}, rng), text_out({o.dim, o.dim, false}, rng),
        temperature(init_vector(1, std::log(10.0))) {}

  /// Vectors of length 1, [batch, dim].
  Tensor of_pictures(const Tensor& pictures) const {
    return unit(image_out(mean(image(patch(patches(pictures)) + positions), {1})));
  }
  Tensor of_captions(const Tensor& bytes) const {
    const Tensor real = bytes > 0;
    return unit(text_out(masked_mean(text(letters(bytes), {.key_mask = real}), real)));
  }
  static Tensor unit(const Tensor& x) { return x / norm(x, {-1}, keep); }
  SLUICE_PARTS(patch, positions, image, text, letters, image_out, text_out, temperature);
};

/// % of pictures of these pairs whose own caption comes first among all, for scores [pictures, 100].
double found(const std::vector<int64_t>& pairs, const Tensor& scores) {
  return 100 * mean(to(eq(argmax(scores, 1), Tensor::from(pairs)), f32)).item();
}

int program(int argc, char** argv) {
  std::string data = "build/data/fashion-mnist";
  int64_t steps = 3000, dim = 64, layers = 2, batch = 40, per_pair = 20, seed = 1;
  double lr = 2e-3;
  bool smoke = false;
  OptionList o;
  o("data", data, "folder of the four files");
  o("steps", steps, at_least(1), "updates");
  o("dim", dim, at_least(1), "width");
  o("layers", layers, at_least(1), "GAU layers of each tower");
  o("batch", batch, at_least(1), "pairs of classes in a step, all different; at most 80");
  o("lr", lr, "highest learning rate");
  o("seed", seed, at_least(0), "of weights and batches");
  o("smoke", smoke, "made-up pictures, two steps");
  parse_flags("fashion_clip", "pictures and captions in one space, by gated attention units", o, argc, argv);
  Rng noise(3);
  if (smoke) steps = 2, dim = 16, layers = 1, per_pair = 1;
  const Labelled train = smoke ? made_up_fashion(200, noise) : read_fashion(data, "train");
  const Labelled test = smoke ? made_up_fashion(200, noise) : read_fashion(data, "t10k");
  const Pairs train_pairs(train), test_pairs(test);
  std::vector<int64_t> known, unknown;
  for (int64_t p = 0; p < 100; ++p) (held_out(p / 10, p % 10) ? unknown : known).push_back(p);
  if (batch < 2 || batch > std::ssize(known)) throw std::runtime_error("fashion_clip: --batch must be 2 … 80");

  Rng rng(static_cast<uint64_t>(seed));
  const Clip model({.mixing = Mixing::gau, .dim = dim, .layers = layers, .key_dim = dim / 2, .kind = GauKind::softmax},
                   rng);
  const Tensor texts = captions();
  Adam adam(parameters(model), {.weight_decay = 0.05});
  const Schedule rate = cosine_schedule({.lr = lr, .warmup = steps / 20, .total = steps + 1, .floor = lr / 50});
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> pairs;  // different ones: each picture has one caption in the batch
    const Tensor order = permutation(std::ssize(known), rng);
    for (int64_t i = 0; i < batch; ++i) pairs.push_back(known[size_t(order.data<int64_t>()[i])]);
    const Tensor pictures = train_pairs.draw(pairs, rng), own = arange(batch);
    adam.zero_grad();
    const Tensor words = model.of_captions(index_select(texts, 0, Tensor::from(pairs)));
    const Tensor scores = exp(model.temperature) * matmul(model.of_pictures(pictures), transpose(words, 0, 1));
    const Tensor loss = (cross_entropy(scores, own) + cross_entropy(transpose(scores, 0, 1), own)) / 2;
    backward(loss);
    clip_grad_norm(adam.parameters(), 1.0);
    adam.set_lr(rate(step));
    adam.step();
    if (step % 100 == 99) std::fprintf(stderr, "step %lld: loss %.3f\n", (long long)step + 1, loss.item());
  }

  NoGrad guard;
  std::vector<Tensor> of_class;
  for (const auto& rows : train_pairs.of_class)
    of_class.push_back(mean(index_select(train.x, 0, Tensor::from(rows)), {0}));
  const Tensor means = reshape(stack(of_class), {10, 28 * 28});
  const Tensor words = model.of_captions(texts);
  std::printf(
      "%lld weights, %lld steps of %lld pairs\n\n%% of pictures whose caption is found among 100 (chance 1 %%)\n"
      "pairs of classes    CLIP-GAU   nearest means\n",
      (long long)count(model), (long long)steps, (long long)batch);
  double clip[2], nearest[2];
  for (int seen = 1; seen >= 0; --seen) {
    std::vector<int64_t> pairs;
    for (int64_t p : seen ? known : unknown) pairs.insert(pairs.end(), size_t(per_pair), p);
    const Tensor pictures = test_pairs.draw(pairs, rng);
    std::vector<Tensor> scores;
    for (int64_t at = 0; at < pictures.dim(0); at += 100)
      scores.push_back(matmul(model.of_pictures(slice(pictures, 0, at, at + 100)), transpose(words, 0, 1)));
    clip[seen] = found(pairs, cat(scores));
    auto distance = [&](int64_t half) {  // [pictures, 10]: squared, but for what all classes share
      const Tensor x = reshape(narrow(pictures, 2, 28 * half, 28), {-1, 28 * 28});
      return sum(square(means), {1}) - 2 * matmul(x, transpose(means, 0, 1));
    };
    nearest[seen] = found(pairs, reshape(-(unsqueeze(distance(0), 2) + unsqueeze(distance(1), 1)), {-1, 100}));
    std::printf("%-18s %8.1f %% %13.1f %%\n", seen ? "seen in training" : "never seen", clip[seen], nearest[seen]);
  }
  print_result("fashion_clip", "CLIP-GAU: " + fixed(clip[0], 1) + " % of pairs never seen",
               "nearest means: " + fixed(nearest[0], 1) + " %; chance: 1 %", clip[0] > nearest[0], seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output of fashion_clip --data build/data/fashion-mnist (two busy cores):
//
// 134721 weights, 3000 steps of 40 pairs
//
// % of pictures whose caption is found among 100 (chance 1 %)
// pairs of classes    CLIP-GAU   nearest means
// seen in training       72.6 %          45.1 %
// never seen             61.8 %          44.7 %
