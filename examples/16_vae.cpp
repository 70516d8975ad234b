// A variational autoencoder (Kingma & Welling 2014): blobs of light are squeezed into two numbers, and new ones are
// drawn.
#include <sluice/sluice.h>

#include <cstdio>
#include <string>

using namespace sluice;

constexpr int64_t kSize = 10;

/// One round spot at a random place: [batch, 10·10], in [0, 1]. Two numbers describe it, which the model has to find.
Tensor spots(int64_t batch, Rng& rng) {
  const Tensor place = uniform({batch, 2, 1}, 2, kSize - 3.0, rng), axis = reshape(arange(kSize, {f32}), {1, 1, kSize});
  const Tensor near = exp(square(axis - place) * -0.25);  // along each axis: [batch, 2, 10]
  return flatten(unsqueeze(select(near, 1, 0), 2) * unsqueeze(select(near, 1, 1), 1), 1);
}

struct Vae {
  Linear in, to_code, from_code, out;

  explicit Vae(Rng& rng)
      : in({kSize * kSize, 64}, rng), to_code({64, 4}, rng), from_code({2, 64}, rng), out({64, kSize * kSize}, rng) {}
  /// Mean and log variance of q(z|x), each [batch, 2].
  std::vector<Tensor> encode(const Tensor& x) const { return chunk(to_code(gelu(in(x))), 2, -1); }
  /// Logits of the pixels of z [batch, 2].
  Tensor decode(const Tensor& z) const { return out(gelu(from_code(z))); }
  SLUICE_PARTS(in, to_code, from_code, out);
};

/// −ELBO per image: what the pixels cost, and what the code costs, KL(q(z|x) ‖ N(0, 1)).
std::pair<Tensor, Tensor> costs(const Vae& model, const Tensor& x, Rng& rng) {
  const std::vector<Tensor> code = model.encode(x);
  const Tensor z =
      code[0] + exp(code[1] * 0.5) * normal(code[0].shape(), 0, 1, rng);  // so that gradients reach the code
  const Tensor pixels = bce_with_logits(model.decode(z), x, Reduction::sum) / double(x.dim(0));
  const Tensor kl = map([](auto m, auto v) { return 0.5 * (m * m + exp(v) - v - 1.0); }, code[0], code[1]);
  return {pixels, sum(kl) / double(x.dim(0))};
}

void show(const Tensor& images) {  // [count, 10·10], side by side
  for (int64_t row = 0; row < kSize; ++row) {
    std::string line;
    for (int64_t i = 0; i < images.dim(0); ++i, line += "  ")
      for (const float v : narrow(select(images, 0, i), 0, row * kSize, kSize).to_vector())
        line += " .:-=+*#%@"[std::min(9, int(10 * v))];
    std::printf("%s\n", line.c_str());
  }
}

int main(int argc, char**) {
  const int64_t steps = argc > 1 ? 5 : 1500;  // any argument (--smoke): few steps
  Rng rng(1);
  const Vae model(rng);
  Adam adam(parameters(model), {.lr = 3e-3});
  const Schedule rate = cosine_schedule({.lr = 3e-3, .total = steps});
  Progress progress({.steps = steps});
  for (int64_t step = 1; step <= steps; ++step) {
    adam.zero_grad();
    const auto [pixels, code] = costs(model, spots(64, rng), rng);
    backward(pixels + code);
    adam.set_lr(rate(adam.steps()));
    adam.step();
    progress.update(step, {{"pixels", pixels.item()}, {"code", code.item()}});
  }
  progress.finish();

  NoGrad guard;
  const Tensor some = spots(5, rng);
  std::printf("seen\n");
  show(some);
  std::printf("from their codes\n");
  show(sigmoid(model.decode(model.encode(some)[0])));
  std::printf("from N(0, 1)\n");
  show(sigmoid(model.decode(normal({5, 2}, 0, 1, rng))));
}

// Expected output:
// …
// from N(0, 1)
//
//   .:-:
//  .-**=.                      .--:                    ...
//  .+##*:         ...          -*#=.                  .==-.
//  .=**+:        :=+-.        .=#%+:     ...         .-*#*-.
//   :-=:.       .=##+:         -##+:    .-++:        .=##*-.
//    ..         .=##+:         .==-.    :*%#=.        :+*+:
//               .-++=.          ..      :*##=.        .:::.
//                .::.                   .-+=:
//                                        ....
