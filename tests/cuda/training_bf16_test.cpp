// Layers and models of bf16 tensors on the device: each row of their gradients is the CPU's within 6 %, and a step of
// training copies no tensor in f32.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/kernel/observer.h>
#include <sluice/sluice.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

void same_gradients(const auto& layer, int64_t n, bool read_in_f32 = false) {
  Rng rng(4);
  const Tensor x = normal({2, n, layer.options.dim}, 0, 1, rng, {bf16}), weight = normal(x.shape(), 0, 1, rng, {bf16});
  const auto trained = [&](auto model, Device device) {
    to(model, device);
    const Tensor in = to(x, device).detach().requires_grad_();
    sluice::detail::WorkCounter counter;
    const Tensor y = model(in);
    backward(sum(to(y * to(weight, device), f32)));
    if (device != cpu) CHECK((counter.work().widened > 0) == read_in_f32);
    std::vector<Tensor> results{to(y.detach(), cpu), to(in.grad(), cpu)};
    for (const auto& p : parameters(model)) results.push_back(to(p.tensor.grad(), cpu));
    return results;
  };
  const std::vector<Tensor> want = trained(clone(layer), cpu), got = trained(clone(layer), Device::cuda());
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Tensor x = to(got[i], f64), y = to(want[i], f64);
    CHECK(got[i].dtype() == bf16);
    // By rows, so that none may be missing; a row is not more exact than a typical number of the tensor.
    const Tensor off = sum(square(x - y), {-1}), size = sum(square(y), {-1});
    CHECK(max(off / (size + 0.1 * mean(size))).item() <= 0x1p-8);
  }
}

/// Embedding, blocks, a norm, and logits of bytes, as the models of examples/ have them.
template <class Block> struct Model {
  Embedding embed;
  std::vector<Block> blocks;
  Norm norm;
  Linear head;
  Model(std::vector<Block> layers, int64_t dim, Rng& rng)
      : embed({256, dim, 0.02}, rng), blocks(std::move(layers)), norm({dim, NormKind::layer}),
        head({dim, 256, true}, rng) {}
  Tensor operator()(const Tensor& bytes, const Pass& pass = {}) const {
    Tensor x = embed(bytes);
    for (const Block& block : blocks) x = block(x, pass);
    return head(norm(x));
  }
  SLUICE_PARTS(embed, blocks, norm, head);
};

/// Copies in f32 in the second of two steps with dropout, clipping and Adam.
template <class Block> int64_t widened_in_a_step(std::vector<Block> blocks, int64_t dim, Rng& rng) {
  const Device gpu = Device::cuda();
  Model<Block> model(std::move(blocks), dim, rng);
  to(model, bf16), to(model, gpu);
  Adam adam(parameters(model), {.lr = 1e-3, .weight_decay = 0.05});
  const auto some_bytes = [&] { return to(to(uniform({2, 48}, 0, 256, rng), i64), gpu); };
  const Tensor bytes = some_bytes(), targets = some_bytes();
  int64_t widened = 0;
  for (int i = 0; i < 2; ++i) {
    sluice::detail::WorkCounter counter;
    adam.zero_grad();
    backward(cross_entropy(model(bytes, {.rng = &rng}), targets));
    clip_grad_norm(adam.parameters(), 1.0);
    adam.step();
    widened = counter.work().widened;
  }
  return widened;
}

}  // namespace

TEST_CASE("cuda: layers of bf16 tensors train as on the CPU, without copies in f32", "[cuda]") {
  Rng rng(5);
  for (const bool causal : {false, true})
    same_gradients(Gau({.dim = 24, .key_dim = 16, .causal = causal, .dtype = bf16}, rng), 40);
  same_gradients(Gau({.dim = 24, .key_dim = 16, .heads = 2, .causal = true, .dtype = bf16}, rng), 40);
  same_gradients(Gau({.dim = 72, .expansion = 72, .key_dim = 16, .heads = 2, .causal = true, .dtype = bf16}, rng), 200);
  same_gradients(Gau({.dim = 24, .key_dim = 16, .causal = true, .dtype = bf16}, rng), 1100);  // several slices
  same_gradients(Flash({.dim = 24, .key_dim = 16, .chunk = 16, .causal = true, .dtype = bf16}, rng), 48);
  same_gradients(Gau({.dim = 24, .key_dim = 16, .causal = true, .bias = GauBias::toeplitz, .dtype = bf16}, rng), 40,
                 true);
  same_gradients(Gau({.dim = 24, .key_dim = 16, .kind = GauKind::softmax_plus, .dtype = bf16}, rng), 40);
}

TEST_CASE("cuda: a training step of GAU, gated attention and FLASH in bf16 makes no copy in f32", "[cuda]") {
  Rng rng(6);
  std::vector<Gau> gau;
  std::vector<Flash> flash;
  std::vector<TransformerBlock<MultiHeadAttention, Glu>> gated;
  for (int i = 0; i < 2; ++i) {
    GauOptions of_gau{.dim = 64, .key_dim = 32, .causal = true};
    of_gau.dropout = 0.1;
    gau.emplace_back(of_gau, rng);
    flash.emplace_back(FlashOptions{.dim = 64, .key_dim = 32, .chunk = 16, .causal = true}, rng);
    gated.emplace_back(MultiHeadAttention({.heads = {.dim = 64, .heads = 2, .causal = true, .use_rope = true},
                                           .gates = {AttentionGateOptions{}}},
                                          rng),
                       Glu({.dim = 64, .hidden = 96}, rng));
  }
  CHECK(widened_in_a_step(std::move(gau), 64, rng) == 0);
  CHECK(widened_in_a_step(std::move(flash), 64, rng) == 0);
  CHECK(widened_in_a_step(std::move(gated), 64, rng) == 0);
}
