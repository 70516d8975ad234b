// What layers with heads share: sizes, the four maps, their checks, RoPE, and the way out. A multi-head layer is a
// HeadsOptions in its options, a Heads, and what happens between q, k, v and the attended values.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/ops/rope.h>

namespace sluice {

struct HeadsOptions {
  int64_t dim;
  int64_t heads = 1;
  int64_t kv_heads = 0;     // 0 means heads; head h reads KV head ⌊h/(heads/kv_heads)⌋
  int64_t head_dim = 0;     // dk; 0 means dim/heads
  int64_t value_dim = 0;    // dv, of one head; 0 means head_dim
  int64_t context_dim = 0;  // > 0: cross attention, K and V come from a context this wide

  bool causal = false;
  bool use_rope = false;  // on q and k
  RopeOptions rope = {};
  bool qkv_bias = false, out_bias = false;
  bool project_out = true;  // false: y is [batch, n, heads·dv]
  bool residual = false;
  double attention_dropout = 0, dropout = 0;  // on the weights, on what is added

  Init init = Init::xavier();
  DType dtype = f32;

  int64_t source_dim() const { return context_dim > 0 ? context_dim : dim; }  // of what K and V read

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of query heads h");
    f("kv_heads", o.kv_heads, at_least(0), "key and value heads g; head i reads head i // (heads/kv_heads); 0: heads");
    f("head_dim", o.head_dim, at_least(0), "dk, width of a head's queries and keys; 0: dim/heads");
    f("value_dim", o.value_dim, at_least(0), "dv of a head; 0: head_dim");
    f("context_dim", o.context_dim, at_least(0), "> 0: cross attention with a context this wide");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("use_rope", o.use_rope, "rotate Q and K");
    f.nested("rope_", o.rope);
    f("qkv_bias", o.qkv_bias, "biases of Wq, Wk, Wv");
    f("out_bias", o.out_bias, "bias of Wo");
    f("project_out", o.project_out, "false: y is [batch, n, heads*dv]");
    f("residual", o.residual, "add x");
    f.training("attention_dropout", o.attention_dropout, share(), "on the weights");
    f.training("dropout", o.dropout, share(), "on what is added");
    f.nested("init_", o.init);
    f.training("dtype", o.dtype, "of the parameters");
  }
};

/// What a layer can do with them, for checked_heads().
struct HeadsRules {
  bool cross = false;   // takes context_dim
  bool grouped = true;  // takes kv_heads other than heads
  bool causal = true;   // can be causal
  bool rope = true;     // its queries and keys have common positions
};
/// Options with every default filled in; ValueError, naming `layer`, for those that do not fit.
HeadsOptions checked_heads(const char* layer, HeadsOptions o, HeadsRules rules = {});

/// The maps of multi-head attention.
struct Heads {
  static constexpr const char* type = "Heads";
  Linear q, k, v;  // dim → heads·dk; source → kv_heads·dk, kv_heads·dv
  Linear out;      // heads·dv → dim, unless the options say otherwise

  Heads() = default;
  /// `o` from checked_heads().
  Heads(const HeadsOptions& o, Rng& rng);

  /// What attention reads.
  struct Projected {
    Tensor q, k, v;  // [batch, heads or kv_heads, n, ·]
  };
  /// q, k, v of x [batch, n, dim], rotated; the first token stands at `position`.
  Projected project(const HeadsOptions& o, const Tensor& x, int64_t position = 0) const;
  /// The same of what the maps gave, [batch, n, ·].
  static Projected arranged(const HeadsOptions& o, const Tensor& q, const Tensor& k, const Tensor& v, int64_t position = 0);
  /// What comes after attended values [batch, heads, n, dv]: merged, mapped, dropped, added to x.
  Tensor finish(const HeadsOptions& o, const Tensor& attended, const Tensor& x, Rng* rng = nullptr) const;

  static void visit(auto& self, auto&& f) {
    f("q", self.q);
    f("k", self.k);
    f("v", self.v);
    f("out", self.out);
  }
};

/// x [batch, n, d] with NaN and infinities in padded rows replaced by 0; x itself without a mask. Attention
/// already ignores padded keys, but as a query such a row would come back through the gradients, as 0·NaN.
Tensor finite_padding(const char* layer, const Tensor& x, const Tensor& key_mask);
/// The same once x is [batch, n, dim] and key_mask a bool [batch, n]; else ShapeError or DTypeError, naming `layer`,
/// the tensor (`what`) and the mask (`mask`).
Tensor checked_input(const char* layer, const Tensor& x, int64_t dim, const Tensor& key_mask = {},
                     const char* what = "x", const char* mask = "key_mask");

namespace detail {
/// [batch, n, heads·w] → [batch, heads, n, w], a view, and back.
Tensor split_heads(const Tensor& x, int64_t heads);
Tensor merge_heads(const Tensor& x);
/// ValueError, naming `layer`, unless RoPE can turn rows of `width` channels, which `what` gives.
void check_rope(const char* layer, const RopeOptions& o, const char* what, int64_t width);
/// RoPE for a stream, or a piece of a sequence: the first row stands at `position`. Keys give o.of_keys().
Tensor rope_from(const Tensor& x, RopeOptions o, int64_t position);
}  // namespace detail

}  // namespace sluice
