// A small language model whose attention takes any of the forms that the claims about gates compare, and what the
// literature measures in it (Qiu et al. 2025, "Gated Attention for Large Language Models").
#pragma once

#include <sluice/sluice.h>

#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::examples {

/// Attention whose weights are relu(q·k/√dk)²/(number of visible keys): they need not sum to 1.
struct Relu2Attention {
  static constexpr const char* type = "Relu2Attention";
  HeadsOptions options;
  Norm norm;
  Heads heads;

  Relu2Attention(HeadsOptions o, NormKind kind, Rng& rng)
      : options(checked_heads(type, std::move(o))), norm({options.dim, kind}), heads(options, rng) {}

  Tensor operator()(const Tensor& x) const {
    const auto [q, k, v] = heads.project(options, norm(x));
    return heads.finish(options, gau_attention(q, k, v, {.length = GauLength::visible, .mask = {.causal = true}}), x);
  }
  /// The weights of each row over their sum.
  Tensor map(const Tensor& x) const {
    const auto p = heads.project(options, norm(x));
    const Tensor weights = attention_map(p.q, p.k, {.weighting = Weighting::relu2, .mask = {.causal = true}}) + 1e-9;
    return weights / sum(weights, {-1}, true);
  }
  SLUICE_PARTS(norm, heads);
};

/// Attention whose values are sums over experts, V = Σ_e g_e ⊙ (x̂·W_e), with one score σ for each expert and head;
/// only the `top` best scores of a head stay. One expert is a headwise gate at G2.
struct SwitchValues {
  static constexpr const char* type = "SwitchValues";
  HeadsOptions options;
  int64_t experts, top;
  Norm norm;
  Heads heads;  // its value map is the first expert
  std::vector<Linear> more;
  Linear router;  // dim → heads·experts

  SwitchValues(HeadsOptions o, NormKind kind, int64_t count, int64_t best, Rng& rng)
      : options(checked_heads(type, std::move(o))), experts(count), top(best), norm({options.dim, kind}),
        heads(options, rng), router({options.dim, options.heads * count, false, Init::paper()}, rng) {
    const LinearOptions value{options.dim, options.heads * options.value_dim, false, options.init};
    for (int64_t e = 1; e < experts; ++e) more.emplace_back(value, rng);
  }

  Tensor operator()(const Tensor& x) const {
    const Heads::Projected p = projected(x);
    return heads.finish(options, attention(p.q, p.k, p.v, {.mask = {.causal = true}}), x);
  }
  Tensor map(const Tensor& x) const {
    const Heads::Projected p = projected(x);
    return attention_map(p.q, p.k, {.mask = {.causal = true}});
  }
  SLUICE_PARTS(norm, heads, more, router);

 private:
  Heads::Projected projected(const Tensor& x) const {
    const Tensor normed = norm(x);
    Heads::Projected p = heads.project(options, normed);
    const Tensor logits = reshape(router(normed), {x.dim(0), x.dim(1), options.heads, experts});
    Tensor score = sigmoid(logits);
    if (top < experts) score = where(topk_mask(logits.detach(), top), score, 0.0);
    score = transpose(score, 1, 2);  // [batch, heads, n, experts]
    Tensor v = p.v * narrow(score, 3, 0, 1);
    for (int64_t e = 1; e < experts; ++e)
      v = v +
          detail::split_heads(more[static_cast<std::size_t>(e - 1)](normed), options.heads) * narrow(score, 3, e, 1);
    p.v = v;
    return p;
  }
};

struct SmallLmOptions {
  int64_t vocabulary = 256, dim = 64, layers = 2;
  int64_t hidden = 128;  // of the GLU behind each attention; 0: none
  NormKind norm = NormKind::rms;
  bool feed_first = false;  // the GLU before its attention: nothing but the head reads the last attention
  bool sandwich = false;    // a second norm behind each branch
  double clip = 0;          // > 0: what a branch adds is clipped to ±clip
  double embedding_std = 0.02;
};

/// Pre-norm Transformer: x ← x + attention(x), x ← x + glu(norm(x)). The attention layers bring their own pre-norm.
struct SmallLm {
  static constexpr const char* type = "SmallLm";
  struct Attention {
    std::variant<MultiHeadAttention, Relu2Attention, SwitchValues> layer;

    template <class L>
    requires(!std::is_same_v<L, Attention>) Attention(L l) : layer(std::move(l)) {}
    Tensor operator()(const Tensor& x) const {
      return std::visit([&](const auto& f) { return f(x); }, layer);
    }
    Tensor map(const Tensor& x) const {
      return std::visit([&](const auto& f) { return f.map(x); }, layer);
    }
    static void visit(auto& self, auto&& f) {
      std::visit([&](auto& layer) { f("layer", layer); }, self.layer);
    }
  };

  SmallLmOptions options;
  Embedding embed;
  std::vector<Attention> attention;
  std::vector<Norm> feed_norm, behind;
  std::vector<Glu> feed;
  Norm norm;
  Linear head;

  /// make(i) is the attention of layer i.
  template <class Make>
  SmallLm(SmallLmOptions o, Make make, Rng& rng)
      : options(o), embed({o.vocabulary, o.dim, o.embedding_std}, rng), norm({o.dim, o.norm}),
        head({o.dim, o.vocabulary, false}, rng) {
    for (int64_t i = 0; i < o.layers; ++i) {
      attention.emplace_back(make(i));
      if (o.hidden > 0) {
        feed_norm.emplace_back(Norm({o.dim, o.norm}));
        feed.emplace_back(GluOptions{.dim = o.dim, .hidden = o.hidden}, rng);
      }
      for (int k = 0; o.sandwich && k < 2; ++k) behind.emplace_back(Norm({o.dim, o.norm}));
    }
  }

  Tensor operator()(const Tensor& tokens) const {
    return read(tokens, [](std::size_t, const Tensor&, const Tensor&) {});
  }
  /// The logits; see(i, x, y) gets the input of layer i's attention and the output of the layer.
  template <class See> Tensor read(const Tensor& tokens, See see) const {
    Tensor x = embed(tokens);
    for (std::size_t i = 0; i < attention.size(); ++i) {
      const auto feed_forward = [&] {
        if (options.hidden > 0) x = x + added(2 * i + 1, feed[i](feed_norm[i](x)));
      };
      if (options.feed_first) feed_forward();
      const Tensor in = x;
      x = x + added(2 * i, attention[i](x));
      if (!options.feed_first) feed_forward();
      see(i, in, x);
    }
    return head(norm(x));
  }

  SLUICE_PARTS(embed, attention, feed_norm, behind, feed, norm, head);

 private:
  Tensor added(std::size_t branch, Tensor y) const {
    if (options.sandwich) y = behind[branch](y);
    return options.clip > 0 ? clamp(y, -options.clip, options.clip) : y;
  }
};

/// What Qiu et al. 2025 measure, of a model on tokens [batch, n] that open with the start token.
struct Findings {
  double first_token = 0;       // share of the attention on the first token, mean of layers and heads
  double first_token_most = 0;  // the same, of the layer that has the most
  double largest = 0;           // mean over layers of the largest |hidden state|
  double spike = 0;             // largest norm of the first token's hidden state over the mean norm of the others'
  double drain = 0;  // norm of the first token's values over the mean norm of the others', smallest of layers
  double gate = 0, below_half = 0, below_1e2 = 0, below_1e3 = 0;  // scores of the gates
  double output = 0, output_1e2 = 0, output_1e3 = 0;  // mean |Y| behind gate G1, shares of |Y| below 10⁻², 10⁻³
  double before = 0;                                  // mean |Y| before gate G1
};

inline Findings look_inside(const SmallLm& model, const Tensor& tokens) {
  NoGrad guard;
  const int64_t n = tokens.dim(1);
  auto first_over_rest = [n](const Tensor& norms) {  // [batch, n]
    return mean(narrow(norms, 1, 0, 1)).item() / mean(narrow(norms, 1, 1, n - 1)).item();
  };
  auto norms = [](const Tensor& x) { return sqrt(sum(square(x), {-1})); };
  auto below = [](const Tensor& y, double limit) { return mean(to(lt(y, limit), f32)).item(); };
  Findings r;
  r.drain = std::numeric_limits<double>::infinity();
  std::vector<Tensor> maps, hidden, scores;
  const auto layers = static_cast<double>(model.attention.size());
  model.read(tokens, [&](std::size_t i, const Tensor& in, const Tensor& out) {
    maps.push_back(model.attention[i].map(in));
    hidden.push_back(out);
    r.first_token_most = std::max(r.first_token_most, first_token_share(maps.back()));
    r.spike = std::max(r.spike, first_over_rest(norms(out)));
    const auto* layer = std::get_if<MultiHeadAttention>(&model.attention[i].layer);
    if (!layer) return;
    const HeadsOptions& h = layer->options.heads;
    const Tensor normed = layer->norm(in);
    Tensor v = detail::split_heads(layer->heads.v(normed), h.kv_heads);
    for (const AttentionGate& gate : layer->gates) {
      scores.push_back(gate.scores(normed));
      if (gate.options.position == GatePosition::g2) v = gate(v, normed);
    }
    r.drain = std::min(r.drain, first_over_rest(norms(detail::merge_heads(v))));
    Tensor y = matmul(maps.back(), v);
    r.before += mean(abs(y)).item() / layers;
    for (const AttentionGate& gate : layer->gates)
      if (gate.options.position == GatePosition::g1) y = gate(y, normed);
    y = abs(y);
    r.output += mean(y).item() / layers;
    r.output_1e2 += below(y, 1e-2) / layers, r.output_1e3 += below(y, 1e-3) / layers;
  });
  r.first_token = first_token_share(maps);
  r.largest = max_activation(hidden);
  if (!scores.empty()) {
    const GateStatistics g = gate_statistics(scores);
    r.gate = g.mean, r.below_half = g.below_half, r.below_1e2 = g.below_1e2, r.below_1e3 = g.below_1e3;
  }
  return r;
}

}  // namespace sluice::examples
