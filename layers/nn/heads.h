// The common part of layers with heads: sizes, the four maps, checks of the options, RoPE, and the output map. A
// multi-head layer has a HeadsOptions in its options and a Heads; the layer itself computes the attended values from q,
// k and v. A layer made from HeadsOptions alone has the defaults of its other options.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/ops/rows/rope.h>

namespace sluice {

struct HeadsOptions {
  int64_t dim;
  int64_t heads = 1;
  int64_t kv_heads = 0;     // 0 means heads; head h reads KV head ⌊h/(heads/kv_heads)⌋
  int64_t head_dim = 0;     // dk, width of a head's queries and keys; 0 means dim/heads
  int64_t value_dim = 0;    // dv, width of a head's values; 0 means head_dim
  int64_t context_dim = 0;  // > 0: cross attention, K and V come from a context of this width

  bool causal = false;
  bool use_rope = false;  // on q and k
  RopeOptions rope = {};
  bool qkv_bias = false, out_bias = false;
  bool project_out = true;  // false: y is [batch, n, heads·dv]
  bool residual = false;
  double attention_dropout = 0, dropout = 0;  // on the attention weights; on the output, before x is added

  Init init = Init::xavier();
  DType dtype = f32;

  int64_t source_dim() const { return context_dim > 0 ? context_dim : dim; }  // width of the input of K and V

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
    f.training("attention_dropout", o.attention_dropout, probability(), "on the weights");
    f.training("dropout", o.dropout, probability(), "on what is added");
    describe_parameters(o, f);
  }
};

/// A factor 1 + beta·ln(1 + ⌊(p + offset)/length⌋) of the query at position p, for texts longer than a model was
/// trained on (Llama 4, Ministral 3, Mistral 4). beta = 0: none.
struct QueryGrowth {
  double beta = 0;
  int64_t length = 8192;
  int64_t offset = 0;  // Llama 4: 1

  static void describe(auto& o, auto& f) {
    f("beta", o.beta, any_number(),
      "queries also times 1 + beta ln(1 + floor((position + growth_offset)/growth_length)); 0: not");
    f("length", o.length, at_least(1), "tokens, of growth_beta");
    f("offset", o.offset, at_least(0), "tokens, of growth_beta");
  }
};

/// Which options a layer supports, for checked_heads().
struct HeadsRules {
  bool cross = false;   // context_dim > 0
  bool grouped = true;  // kv_heads other than heads
  bool causal = true;   // causal
  bool rope = true;     // use_rope: the layer's queries and keys have common positions
};
/// Returns the options with all defaults filled in. Throws ValueError, naming `layer`, for options that do not fit.
HeadsOptions checked_heads(const char* layer, HeadsOptions o, HeadsRules rules = {});
/// check_options() of a layer's options, and checked_heads() of their `heads`.
template <class Options> Options checked_layer(const char* layer, Options o, HeadsRules rules = {}) {
  check_options(layer, o);
  o.heads = checked_heads(layer, o.heads, rules);
  return o;
}

/// The maps of multi-head attention.
struct Heads {
  static constexpr const char* type = "Heads";
  static constexpr bool in_place = true;  // its parts are listed as the layer's own: "q.weight", not "heads.q.weight"
  Linear q, k, v;                         // dim → heads·dk; source → kv_heads·dk, kv_heads·dv
  Linear out;                             // heads·dv → dim, with project_out

  Heads() = default;
  /// `o` must come from checked_heads().
  Heads(const HeadsOptions& o, Rng& rng);

  /// The operands of attention.
  struct Projected {
    Tensor q, k, v;  // [batch, heads or kv_heads, n, ·]
  };
  /// Returns q, k, v of x [batch, n, dim], rotated with use_rope; `position` is the position of the first token.
  Projected project(const HeadsOptions& o, const Tensor& x, int64_t position = 0) const;
  /// project() from the results [batch, n, ·] of the three maps.
  static Projected arranged(const HeadsOptions& o, const Tensor& q, const Tensor& k, const Tensor& v,
                            int64_t position = 0);
  /// Returns the layer's output from the attended values [batch, heads, n, dv]: merges the heads, then applies `out`
  /// (with project_out) and dropout, and adds x (with residual).
  Tensor finish(const HeadsOptions& o, const Tensor& attended, const Tensor& x, Rng* rng = nullptr) const;

  SLUICE_PARTS(q, k, v, out);
};

/// Returns x [batch, n, dim] with NaN and infinities in padded rows replaced by 0; x itself without a mask. Attention
/// already ignores padded keys. A padded row is also a query, and its NaN would come back through the gradients, as
/// 0·NaN. Throws ShapeError or DTypeError naming `layer`, the tensor (`what`) and the mask (`mask`), unless they fit;
/// key_mask is bool [batch, n].
Tensor checked_input(const char* layer, const Tensor& x, int64_t dim, const Tensor& key_mask = {},
                     const char* what = "x", const char* mask = "key_mask");

namespace detail {
/// Throws DTypeError or ShapeError, naming `op` and `name`, unless `rows` is undefined or [batch, n] of this dtype for
/// x [batch, …, n, ·], which is called `what`.
void check_rows(const char* op, const char* name, const Tensor& rows, DType dtype, const char* what, const Tensor& x);
/// q [..., m, d] times its growth; `position` is that of the first row.
Tensor grown(const Tensor& q, const QueryGrowth& growth, int64_t position);
/// [batch, n, heads·w] → [batch, heads, n, w], a view. merge_heads() is the inverse.
Tensor split_heads(const Tensor& x, int64_t heads);
Tensor merge_heads(const Tensor& x);
/// Throws ValueError, naming `layer`, unless RoPE can turn rows of `width` channels. `what` is the name of the option
/// that sets the width.
void check_rope(const char* layer, const RopeOptions& o, const char* what, int64_t width);
/// RoPE of rows whose first one has the position `position`, as in a stream or in a piece of a sequence. For keys pass
/// o.of_keys().
Tensor rope_from(const Tensor& x, RopeOptions o, int64_t position);
}  // namespace detail

}  // namespace sluice
