// Stacks of layers that read a sequence in both directions, with equal numbers of weights: GAU, FLASH, or a
// Transformer.
#pragma once

#include <sluice/sluice.h>

#include <vector>

namespace sluice::examples {

enum class Mixing { none, gau, flash, softmax };
constexpr const char* name_of(Mixing m) {
  return m == Mixing::gau ? "GAU" : m == Mixing::flash ? "FLASH" : m == Mixing::softmax ? "softmax" : "none";
}

struct EncoderOptions {
  Mixing mixing = Mixing::gau;
  int64_t dim = 64, layers = 4;  // of GAU or FLASH; a Transformer block takes the place of two
  int64_t key_dim = 32, heads = 4, chunk = 256;
  GauKind kind = GauKind::su;  // of GAU
  double dropout = 0;
};

/// Two GAUs have 12d² + 2ds weights (e = 2d) and attention has 4d², so that a block's MLP gets 4d + s hidden channels.
inline TransformerBlock<MultiHeadAttention> encoder_block(const EncoderOptions& o, Rng& rng) {
  MultiHeadAttention attention({.heads = {.dim = o.dim, .heads = o.heads, .use_rope = true}}, rng);
  return {std::move(attention), Mlp({.dim = o.dim, .hidden = 4 * o.dim + o.key_dim}, rng), {.dropout = o.dropout}};
}

/// x [batch, n, dim] → the same, normed.
struct Encoder {
  static constexpr const char* type = "Encoder";
  std::vector<Gau> gau;
  std::vector<Flash> flash;
  std::vector<TransformerBlock<MultiHeadAttention>> blocks;
  Norm norm;

  Encoder(const EncoderOptions& o, Rng& rng) : norm({o.dim}) {
    for (int64_t i = 0; i < o.layers; ++i) {
      if (o.mixing == Mixing::gau)
        gau.emplace_back(GauOptions{.dim = o.dim, .key_dim = o.key_dim, .kind = o.kind, .dropout = o.dropout}, rng);
      if (o.mixing == Mixing::flash)
        flash.emplace_back(
            FlashOptions{
                .dim = o.dim, .key_dim = o.key_dim, .chunk = o.chunk, .norm = NormKind::layer, .dropout = o.dropout},
            rng);
      if (o.mixing == Mixing::softmax && i % 2 == 0) blocks.push_back(encoder_block(o, rng));
    }
  }
  Tensor operator()(Tensor x, const Pass& pass = {}) const {
    for (const Gau& layer : gau) x = layer(x, pass);
    for (const Flash& layer : flash) x = layer(x, pass);
    for (const auto& block : blocks) x = block(x, pass);
    return norm(x);
  }
  SLUICE_PARTS(gau, flash, blocks, norm);
};

/// The mean of x [batch, n, dim] over real tokens: [batch, dim].
inline Tensor masked_mean(const Tensor& x, const Tensor& key_mask) {
  const Tensor real = unsqueeze(to(key_mask, f32), -1);
  return sum(x * real, {1}) / clamp(sum(real, {1}), 1);
}

}  // namespace sluice::examples
