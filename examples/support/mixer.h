// The library's causal attention layers behind one face, so that a program can compare them.
#pragma once

#include <sluice/sluice.h>

#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::examples {

/// y = x + layer(norm(x)). Gau and Flash bring norm and residual of their own.
struct Mixer {
  static constexpr const char* type = "Mixer";
  using Layer = std::variant<MultiHeadAttention, Gau, Flash, LinearAttention, Retention, Gla, FusedAttention, DeltaNet,
                             GatedDeltaNet, Kda, Mamba2>;

  Norm norm;
  Layer layer;

  template <class L>
  requires std::is_constructible_v<Layer, L> Mixer(L l) : layer(std::move(l)) {
    std::visit(
        [this](const auto& f) {
          if constexpr (requires { f.options.heads.dim; }) norm = Norm({f.options.heads.dim, NormKind::layer});
          else if (!complete(f)) norm = Norm({f.options.dim, NormKind::layer});
        },
        layer);
  }
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    return std::visit([&](const auto& f) { return complete(f) ? f(x, pass) : x + f(norm(x), pass); }, layer);
  }

  SLUICE_PARTS(norm, layer);

 private:
  template <class L> static constexpr bool complete(const L&) {
    return std::is_same_v<L, Gau> || std::is_same_v<L, Flash>;
  }
};

/// x + glu(norm(x)).
struct FeedForward {
  static constexpr const char* type = "FeedForward";
  Norm norm;
  Glu glu;

  FeedForward(int64_t dim, int64_t hidden, Rng& rng)
      : norm({dim, NormKind::layer}), glu({.dim = dim, .hidden = hidden}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const { return x + glu(norm(x), pass); }
  SLUICE_PARTS(norm, glu);
};

/// A byte-level language model of such layers: embedding, mixers (each with a feed-forward part behind it, or none),
/// a norm, a map to 256 logits.
struct MixerLm {
  static constexpr const char* type = "MixerLm";
  Embedding embed;
  std::vector<Mixer> mixers;
  std::vector<FeedForward> feeds;
  Norm norm;
  Linear head;

  /// hidden: width of the feed-forward parts; 0 for none.
  MixerLm(int64_t dim, std::vector<Mixer> layers, int64_t hidden, double embedding_std, Rng& rng)
      : embed({256, dim, embedding_std}, rng), mixers(std::move(layers)), norm({dim, NormKind::layer}),
        head({dim, 256}, rng) {
    for (std::size_t i = 0; hidden > 0 && i < mixers.size(); ++i) feeds.emplace_back(dim, hidden, rng);
  }

  /// Bytes [batch, n] i64 → logits [batch, n, 256].
  Tensor operator()(const Tensor& bytes, const Pass& pass = {}) const {
    Tensor x = embed(bytes);
    for (std::size_t i = 0; i < mixers.size(); ++i) {
      x = mixers[i](x, pass);
      if (!feeds.empty()) x = feeds[i](x, pass);
    }
    return head(norm(x));
  }

  SLUICE_PARTS(embed, mixers, feeds, norm, head);
};

}  // namespace sluice::examples
