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
  using Layer = std::variant<MultiHeadAttention, Gau, Flash, LinearAttention, Retention, Gla, FusedAttention>;
  using State = std::variant<std::monostate, MultiHeadAttention::State, Gau::State, Flash::State, FusedAttention::State,
                             Stream>;

  Norm norm;
  Layer layer;

  template <class L>
    requires std::is_constructible_v<Layer, L>
  Mixer(L l) : layer(std::move(l)) {
    std::visit(
        [this](const auto& f) {
          if constexpr (requires { f.options.heads.dim; }) norm = Norm({f.options.heads.dim, NormKind::layer});
        },
        layer);
  }
  Tensor operator()(const Tensor& x) const {
    return std::visit([&](const auto& f) { return complete(f) ? f(x) : x + f(norm(x)); }, layer);
  }
  /// The next tokens of a stream, x [batch, m, dim]; the state starts empty.
  Tensor step(const Tensor& x, State& state) const {
    NoGrad guard;
    return std::visit(
        [&](const auto& f) {
          if constexpr (TakesPass<std::remove_cvref_t<decltype(f)>>) {
            if (!std::holds_alternative<Stream>(state)) state = Stream();
            return x + sluice::step(f, norm(x), std::get<Stream>(state));
          } else {
            using S = typename std::remove_cvref_t<decltype(f)>::State;
            S* old = std::get_if<S>(&state);
            auto result = f.step(complete(f) ? x : norm(x), old ? std::move(*old) : S{});
            state = std::move(result.second);
            return complete(f) ? result.first : x + result.first;
          }
        },
        layer);
  }

  static void visit(auto& self, auto&& f) {
    f("norm", self.norm);
    std::visit([&](auto& layer) { f("layer", layer); }, self.layer);
  }

 private:
  template <class L>
  static constexpr bool complete(const L&) {
    return std::is_same_v<L, Gau> || std::is_same_v<L, Flash>;
  }
};

/// Numbers a stream keeps, all sequences of the batch together.
inline int64_t state_size(const Mixer::State& state) {
  return std::visit([](const auto& s) -> int64_t {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(s)>, std::monostate>) return 0;
    else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(s)>, Stream>) return s.numel();
    else return sluice::state_size(s);
  }, state);
}

/// x + glu(norm(x)).
struct FeedForward {
  static constexpr const char* type = "FeedForward";
  Norm norm;
  Glu glu;

  FeedForward(int64_t dim, int64_t hidden, Rng& rng)
      : norm({dim, NormKind::layer}), glu({.dim = dim, .hidden = hidden}, rng) {}
  Tensor operator()(const Tensor& x) const { return x + glu(norm(x)); }
  static void visit(auto& self, auto&& f) {
    f("norm", self.norm);
    f("glu", self.glu);
  }
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
  Tensor operator()(const Tensor& bytes) const {
    return through(bytes, [&](std::size_t i, const Tensor& x) { return mixers[i](x); });
  }
  using State = std::vector<Mixer::State>;
  /// Logits of the next m bytes of a stream; the state starts empty.
  Tensor step(const Tensor& bytes, State& state) const {
    NoGrad guard;
    state.resize(mixers.size());
    return through(bytes, [&](std::size_t i, const Tensor& x) { return mixers[i].step(x, state[i]); });
  }
  /// The same with mix(i, x) in place of mixer i, for those who want to look inside.
  Tensor through(const Tensor& bytes, auto&& mix) const {
    Tensor x = embed(bytes);
    for (std::size_t i = 0; i < mixers.size(); ++i) {
      x = mix(i, x);
      if (!feeds.empty()) x = feeds[i](x);
    }
    return head(norm(x));
  }

  static void visit(auto& self, auto&& f) {
    f("embed", self.embed);
    f("mixers", self.mixers);
    f("feeds", self.feeds);
    f("norm", self.norm);
    f("head", self.head);
  }
};

}  // namespace sluice::examples
