// The cost of layers, counted while they run on meta. Tensors on meta have shapes and no memory, so any length is fast.
#pragma once

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/node.h>
#include <sluice/layers/attention/attention_gate.h>
#include <sluice/layers/nn/meta_init.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/shape/create.h>

namespace sluice {

struct AttentionStack;
struct GatedResidual;
struct HyperConnection;
struct GlobalLocalAttention;

/// The cost of one layer for one sequence.
struct Cost {
  /// Trained values: count(layer).
  int64_t parameters = 0;
  /// Operations of the matrix products of a forward pass, as its kernels report them by the conventions of papers. A
  /// multiply-add counts 2. Norms, activations and masks are not counted. Biases are counted only if a product computes
  /// them (the table of a RoPE bias: 2·(2n − 1)·s). Causality does not halve an attention map. A window of W counts W
  /// keys per query (2W − 1 if not causal), also at the ends of a sequence. A mask of pairs, which the top-k and the
  /// threshold layers use, and blocks of keys for each query, which NSA, MoBA and MSA use, count all keys; the choice
  /// is counted in addition. Scans count their recurrence, 4·n·m·e per head, and not the products within chunks, whose
  /// size the kernel chooses.
  int64_t flops = 0;
  /// Elements of the attention maps. An implementation that materialises the maps stores them; attention() does not.
  int64_t attention_elements = 0;
  /// Bytes of the tensors that the kernels read and write, counted at each call.
  int64_t bytes = 0;
  /// Numbers that a stream keeps after the sequence; for cross attention those of the encoded context. 0 for a layer
  /// that cannot be streamed.
  int64_t state = 0;

  /// Adds the cost of another layer. Throws ValueError if a count leaves the range of int64.
  Cost& operator+=(const Cost& o);
  /// The cost of both layers.
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
  /// The cost of `layers` equal layers. Throws ValueError if a count leaves the range of int64.
  friend Cost operator*(int64_t layers, const Cost& c);
  /// True if all counts are equal.
  friend bool operator==(const Cost&, const Cost&) = default;
};

/// Sizes of a layer's inputs, from the options of a sample.
struct LayerWidth {
  int64_t width = 0;       // of x [batch, n, width]
  int64_t vocabulary = 0;  // > 0: x is i64 [batch, n], tokens in [0, vocabulary)
  int64_t context = 0;     // width of the context; without context_dim equal to `width`
};
/// Reads the sizes from the options that have the same names in all layers: dim or in_dim, vocabulary, context_dim, and
/// in a layer without heads groups (of channels) and count (of tokens), streams of a residual.
LayerWidth layer_width(const Json& options);

namespace detail {

/// Sums the work that the kernels report since construction.
class Meter final : public Observer {
 public:
  /// Throws ValueError if a sum has left the range of int64.
  Cost cost() const;

 private:
  void on_call(const KernelCall& call) override;
  Work work_;
  bool overflow_ = false;
};

/// The inputs of a layer for cost(), on meta.
struct CostInputs {
  Tensor x = {}, context = {};
  std::vector<int64_t> positions = {};  // global positions
  Pass pass() const { return {.context = context, .positions = positions}; }
};
/// What these inputs are.
struct CostSizes {
  int64_t width;           // of x; 0: tokens
  int64_t context = 0;     // width of the context; 0: none
  bool positions = false;  // the number of a context's tokens is one of global positions
};
/// Throws ValueError unless n and context fit.
CostInputs cost_inputs(const Members& m, int64_t n, int64_t context, const CostSizes& sizes);

template <class M> CostSizes cost_sizes(const M& m) {
  if constexpr (std::is_same_v<M, AttentionGate>)
    return {m.map.weight.defined() ? m.map.weight.dim(0) : m.heads * m.head_dim};
  else if constexpr (std::is_same_v<M, AttentionStack>) return cost_sizes(m.layers.front());
  else {
    static_assert(HasOptions<M>,
                  "cost(layer, n) reads the options of a layer; of a model write "
                  "cost_of(model, [&](const auto& m) { m(zeros({1, n}, {i64, meta})); })");
    const LayerWidth w = layer_width(to_json(options_of(m.options)));
    CostSizes sizes{w.vocabulary > 0 ? 0 : w.width};
    if constexpr (std::is_same_v<M, GlobalLocalAttention>) sizes.positions = true;
    else if constexpr (requires { m.options.context_dim; }) sizes.context = m.options.context_dim;
    else if constexpr (requires { m.options.heads.context_dim; }) sizes.context = m.options.heads.context_dim;
    return sizes;
  }
}
template <class M> void run(const M& m, const CostInputs& in) {
  const Tensor& x = in.x;
  if constexpr (std::is_same_v<M, GatedResidual>) m(x, x);
  else if constexpr (std::is_same_v<M, HyperConnection>) m(x, [](const Tensor& read) { return read; });
  else if constexpr (std::is_same_v<M, AttentionGate>)
    m(zeros(m.options.position == GatePosition::g5 ? Shape{1, x.dim(1), m.heads * m.head_dim}
                                                   : Shape{1, m.heads, x.dim(1), m.head_dim},
            x.options()),
      x);
  else m(x, in.pass());
}
template <class M> int64_t streamed(const M& m, const CostInputs& in) {
  if constexpr (TakesPass<M>) {
    try {
      Stream stream;
      step(m, in.x, stream, in.pass());
      return stream.numel();
    } catch (const ValueError&) {  // the forward pass did not throw, so the layer cannot be streamed
    }
  }
  return 0;
}
template <class O>
concept LayerOptions = requires {
  typename O::Layer;
};

}  // namespace detail

/// The cost of run(layer) on meta, for any `run`: a model, a training step, other inputs. Make a model that is larger
/// than memory while a MetaInit lives (layers/nn/meta_init.h).
///
///     cost_of(model, [&](const Model& m) { m(zeros({1, n, d}, {f32, meta})); })
template <class M, class Run> Cost cost_of(M layer, Run&& run) {
  to(layer, meta);
  detail::Meter meter;
  run(std::as_const(layer));
  Cost c = meter.cost();
  c.parameters = count(layer);
  return c;
}

/// The cost of a layer for n tokens. `context` is the number of tokens of the context, for a layer that reads a
/// context; for GlobalLocalAttention it is the number of global positions. A model with options whose first part is an
/// Embedding reads tokens. Throws ValueError or ShapeError for sizes and options that the layer refuses, and for
/// counts that leave the range of int64 (2^57 for one product or map).
template <class M>
requires(!detail::LayerOptions<M>) Cost cost(M layer, int64_t n, int64_t context = 0) {
  NoGrad guard;
  to(layer, meta);
  const detail::CostInputs in = detail::cost_inputs(detail::members(layer), n, context, detail::cost_sizes(layer));
  // Fills the cache of positions, so that equal calls have equal costs. The first run may empty it in between.
  for (int i = 0; i < 2; ++i) detail::run(layer, in);
  Cost c = cost_of(layer, [&](const M& m) { detail::run(m, in); });
  c.state = detail::streamed(layer, in);
  return c;
}
/// The cost of the layer O::Layer with these options, of any size: the weights are on meta, too.
template <detail::LayerOptions O> Cost cost(const O& options, int64_t n, int64_t context = 0) {
  MetaInit shapes_only;
  Rng rng(0);
  return cost(detail::build<typename O::Layer>(options, rng), n, context);
}
/// The cost of a gate with the arguments of the constructor: 2n·dim·heads·head_dim operations if elementwise.
Cost cost(const AttentionGateOptions& o, int64_t dim, int64_t heads, int64_t head_dim, int64_t n);

}  // namespace sluice
