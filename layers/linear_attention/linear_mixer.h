// The parts that the layers of the linear family share, around a layer's own features, decay, scan and norm:
//
//   before: q, k, v = conv(x·Wq | x·Wk | x·Wv) in heads, RoPE on q and k, k and v repeated for the heads that read them
//   behind: y = (norm(o) ⊙ swish(x·Wg))·Wo, then dropout
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/layers/nn/short_convolution.h>
#include <sluice/ops/elementwise/activation.h>

#include <optional>

namespace sluice {

/// The maps that every layer of the family has, and what it does with them. A layer derives from it, lists the members
/// in its own `visit`, and draws them in its own order, which decides what a seed gives.
struct LinearMixer {
  Heads heads;            // Wq, Wk, Wv, Wo
  ShortConvolution conv;  // over the channels q | k | v; empty: none
  Linear output_gate;     // Wg, dim → heads·dv; empty: no gate

 protected:
  /// Makes `conv`, a convolution over `taps` tokens; none for 0.
  void draw_conv(const HeadsOptions& h, int64_t taps, Rng& rng);
  /// Makes `output_gate`.
  void draw_gate(const HeadsOptions& h, Rng& rng);

  /// q, k, v of the call's tokens, [batch, heads, n, ·]; the activation is that of all three.
  Heads::Projected project(const HeadsOptions& h, const Call& call, Act activation = Act::identity) const;
  /// o_t = scale·q_t S_t with S_t = e^{g_t} ∘ S_{t−1} + k_tᵀ v_t. g = log_decay [batch, heads, n] or with a channel
  /// dim; its dims broadcast. `scale` defaults to dk^{−1/2}. In a stream the scan continues from the stream's S.
  static Tensor decayed(Call& call, const Heads::Projected& x, const Tensor& log_decay, int64_t chunk,
                        std::optional<double> scale = {});
  /// The layer's output from the normed values of all heads, [batch, n, heads·dv].
  Tensor finish(const HeadsOptions& h, const Tensor& normed, const Call& call) const;
};

namespace detail {

/// Describes the options that all layers of the family have by the same names: sizes, and what describe_rest() adds.
void describe_sizes(auto& o, auto& f) {
  f.required("dim", o.dim, at_least(1), "width d");
  f("heads", o.heads, at_least(1), "number of heads");
  f("kv_heads", o.kv_heads, at_least(0), "key and value heads; head i reads head i // (heads/kv_heads); 0: heads");
  if constexpr (requires { o.expand_k; }) {
    f("expand_k", o.expand_k, above(0), "heads*dk = expand_k*dim");
    f("expand_v", o.expand_v, above(0), "heads*dv = expand_v*dim");
  } else {
    f("head_dim", o.head_dim, at_least(0), "width of a head's queries and keys; 0: dim/heads");
    f("value_dim", o.value_dim, at_least(0), "width of a head's values; 0: head_dim");
  }
}
void describe_rest(auto& o, auto& f) {
  f("norm_eps", o.norm_eps, at_least(0), "of the norm");
  if constexpr (requires { o.short_conv; })
    f("short_conv", o.short_conv, between(0, 1024),
      "> 0: q, k and v pass a causal convolution over so many tokens, with silu, before heads and RoPE (as in fla); "
      "0: none");
  f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
  f.training("dropout", o.dropout, probability(), "on the output");
  describe_parameters(o, f);
}

/// Returns expansion·dim / heads. Throws ValueError naming `layer` and `what` unless this is a whole number.
int64_t expanded_width(const char* layer, const char* what, double expansion, int64_t dim, int64_t heads);

/// The heads of a layer's options, which give the widths of heads or their expansions.
HeadsOptions heads_of(const char* layer, const auto& o) {
  HeadsOptions h{.dim = o.dim, .heads = o.heads, .kv_heads = o.kv_heads, .dropout = o.dropout};
  h.init = o.init, h.dtype = o.dtype;
  if constexpr (requires { o.expand_k; }) {
    h.head_dim = expanded_width(layer, "expand_k", o.expand_k, o.dim, o.heads);
    h.value_dim = expanded_width(layer, "expand_v", o.expand_v, o.dim, o.heads);
  } else {
    h.head_dim = o.head_dim, h.value_dim = o.value_dim;
  }
  if constexpr (requires { h.use_rope = o.use_rope; }) h.use_rope = o.use_rope, h.rope = o.rope;
  return h;
}

}  // namespace detail

}  // namespace sluice
