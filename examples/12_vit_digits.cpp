// A Vision Transformer: images are cut into patches, and patches are tokens.
//
//   12_vit_digits [digits.csv]      examples/fetch_digits.sh fetches 1,797 handwritten digits; without: bars in noise
#include <sluice/sluice.h>

#include <cstdio>
#include <string>
#include <vector>

using namespace sluice;

struct Images {
  Tensor pixels, labels;  // f32 [count, 8, 8], i64 [count]
};

Images read_digits(const std::string& path) {
  const Csv csv = read_csv(path, {.header = false});
  return {reshape(narrow(csv.columns(), 1, 0, 64) / 16, {-1, 8, 8}), csv.column("64", i64)};
}

/// Rows 0 … 7 (labels 0 … 7) that are brighter than the noise around them.
Images bars(int64_t count, Rng& rng) {
  const Tensor labels = randint(0, 8, {count}, rng);
  return {unsqueeze(one_hot(labels, 8), 2) + normal({count, 8, 8}, 0, 0.4, rng), labels};
}

struct ViT {
  Linear patch;
  Tensor place;  // [1, 17, dim], of the class token and 16 patches
  Tensor token;  // [1, 1, dim]
  std::vector<TransformerBlock<MultiHeadAttention, Mlp>> blocks;
  Norm norm;
  Linear head;

  ViT(int64_t dim, int64_t depth, Rng& rng) : patch({4, dim}, rng), norm({dim}), head({dim, 10}, rng) {
    place = normal({1, 17, dim}, 0, 0.02, rng).requires_grad_();
    token = normal({1, 1, dim}, 0, 0.02, rng).requires_grad_();
    for (int64_t i = 0; i < depth; ++i)
      blocks.push_back(
          {MultiHeadAttention({.heads = {.dim = dim, .heads = 4}}, rng), Mlp({.dim = dim}, rng), {.dropout = 0.1}});
  }
  /// pixels [batch, 8, 8] → logits [batch, 10].
  Tensor operator()(const Tensor& pixels, const Pass& pass = {}) const {
    const Tensor patches = patch(rearrange("b (h p) (w q) -> b (h w) (p q)", pixels, {{"p", 2}, {"q", 2}}));
    Tensor x = cat({expand(token, {patches.dim(0), 1, -1}), patches}, 1) + place;
    for (const auto& block : blocks) x = block(x, pass);
    return head(norm(select(x, 1, 0)));
  }
  SLUICE_PARTS(patch, place, token, blocks, norm, head);
};

int main(int argc, char** argv) try {
  const bool smoke = argc > 1 && std::string(argv[1]) == "--smoke", real = argc > 1 && !smoke;
  Rng rng(1);
  const Images all = real ? read_digits(argv[1]) : bars(smoke ? 64 : 1600, rng);
  const int64_t n = all.labels.dim(0), used = n * 4 / 5, epochs = smoke ? 1 : real ? 15 : 5;

  const ViT model(32, 2, rng);
  std::printf("%s\n", summary(model, narrow(all.pixels, 0, 0, 1)).c_str());
  Loader loader({.rows = used, .batch = 32, .seed = 1}, [&](const Tensor& rows) {
    return Images{index_select(all.pixels, 0, rows), index_select(all.labels, 0, rows)};
  });
  Adam adam(parameters(model), {.lr = 4e-3, .weight_decay = 0.05});
  const Schedule rate =
      cosine_schedule({.lr = 4e-3, .warmup = loader.batches(), .total = epochs * loader.batches() + 1});
  Progress progress({.steps = epochs * loader.batches()});
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    for (const auto& [pixels, labels] : loader) {
      adam.zero_grad();
      const Tensor loss = cross_entropy(model(pixels, {.rng = &rng}), labels);
      backward(loss);
      clip_grad_norm(adam.parameters(), 1);
      adam.set_lr(rate(adam.steps()));
      adam.step();
      progress.update(adam.steps(), {{"loss", loss.item()}});
    }
  progress.finish();

  NoGrad guard;
  const Tensor right = argmax(model(slice(all.pixels, 0, used)), 1) == slice(all.labels, 0, used);
  std::printf("%.1f %% of %lld images not seen before\n", 100 * mean(to(right, f32)).item(), (long long)(n - used));
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

// Expected output:
// …
// 97.8 % of 320 images not seen before

// Expected output with digits.csv:
// …
// 90.0 % of 360 images not seen before
