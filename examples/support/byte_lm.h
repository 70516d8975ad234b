// A byte-level language model: embedding, a stack of causal GAUs, a norm, and a map to 256 logits.
#pragma once

#include <sluice/sluice.h>

#include <functional>
#include <string>
#include <string_view>

namespace sluice::examples {

struct ByteLmOptions {
  int64_t dim = 128, layers = 4, key_dim = 64;
  double dropout = 0;
};

struct ByteLm {
  static constexpr const char* type = "ByteLm";
  Embedding embed;
  std::vector<Gau> blocks;
  Norm norm;
  Linear head;

  ByteLm(ByteLmOptions o, Rng& rng)
      : embed({256, o.dim, 0.02}, rng), norm({o.dim, NormKind::layer}), head({o.dim, 256, true}, rng) {
    for (int64_t i = 0; i < o.layers; ++i) {
      GauOptions g{.dim = o.dim, .key_dim = o.key_dim, .causal = true};
      g.dropout = o.dropout;
      blocks.emplace_back(g, rng);
    }
  }

  /// bytes [batch, n] i64 → logits [batch, n, 256].
  Tensor operator()(const Tensor& bytes, const Pass& pass = {}) const {
    Tensor x = embed(bytes);
    for (const Gau& block : blocks) x = block(x, pass);
    return head(norm(x));
  }

  SLUICE_PARTS(embed, blocks, norm, head);
};

/// Of a step when the share `done` of the training is over: warm-up over the first 2 %, then a cosine down to a
/// twentieth.
double learning_rate(double lr, double done);

/// Windows of n + 1 bytes at random places: inputs and targets, each [batch, n] i64.
struct Batch {
  Tensor inputs, targets;
};
Batch random_batch(std::string_view text, int64_t batch, int64_t n, Rng& rng, Device device = cpu);

/// Bits per byte of `text`, every byte predicted from at least n/2 earlier ones (fewer at the start). The model
/// turns bytes [batch, n] into logits [batch, n, 256]. Several ranks share the work and get the same figure.
double bits_per_byte(const std::function<Tensor(const Tensor&)>& model, std::string_view text, int64_t n,
                     Device device = cpu, const Communicator& ranks = {});

/// Continues `prompt` by `count` bytes, as a stream.
std::string sample(const ByteLm& model, std::string_view prompt, int64_t count, double temperature, Rng& rng);

}  // namespace sluice::examples
