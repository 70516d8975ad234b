// The slots of attention on tensor cores. Operands of f32 are rounded once a call, into contiguous memory; those of
// bf16 are read as they lie, if TMA can.
#include <sluice/cuda/attention/bf16.h>
#include <sluice/cuda/attention/chosen_blocks.h>
#include <sluice/cuda/attention/few.cuh>
#include <sluice/cuda/attention/gate_backward.cuh>
#include <sluice/cuda/attention/mma.cuh>
#include <sluice/cuda/attention/products.h>
#include <sluice/cuda/attention/wgmma_backward.cuh>
#include <sluice/cuda/bf16_rows.cuh>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/shape/create.h>

#include <array>
#include <atomic>

namespace sluice::cuda {

namespace {

constexpr int64_t kLongest = int64_t{1} << 30;  // positions are int, and sums of two of them
constexpr int64_t kMostHeads = 65535;           // the limit of a grid's y and z
constexpr int64_t kMmaFewest = 16;              // queries of the rungs
constexpr int64_t kManyKeys = 1024;             // from which on few blocks take longer than the parts' joining

std::array<std::atomic<int64_t>, 3> served{};
/// Counts a call; false if the general tiles must serve it.
bool count(AttentionServer by) {
  ++served[static_cast<std::size_t>(by)];
  return by != AttentionServer::tiles;
}
bool count(bool by_products) { return count(by_products ? AttentionServer::products : AttentionServer::tiles); }

/// True if kernels of tensor cores know the call's options and widths.
bool knows(const sluice::detail::AttentionCall& c) {
  const AttentionOptions& o = c.options;
  const AttentionMask& mask = o.mask;
  const int64_t batch = c.q.dim(0), heads = c.q.dim(1), m = c.q.dim(2), n = c.k.dim(2), d = c.q.dim(3), dv = c.v.dim(3);
  return (c.q.dtype() == f32 || c.q.dtype() == bf16) && d <= 128 && dv <= 128 && d % 2 == 0 && dv % 2 == 0 &&
         d + dv >= 32 && m <= kLongest && n >= 16 && n <= kLongest && batch >= 1 && batch <= kMostHeads && heads >= 1 &&
         heads <= kMostHeads && !o.bias.defined() && !o.relative_bias.defined() && !o.row_scale.defined() &&
         *o.scale > 0 && o.softcap == 0 && o.dropout == 0 && mask.dilation == 1 &&
         (mask.window == 0 || mask.global.empty()) && !mask.query_segments.defined() && !mask.dense.defined() &&
         (!mask.blocks.defined() || serves_chosen_blocks(c)) &&
         (!mask.keys.defined() || mask.keys.rank() == 2 || mask.keys.dim(1) == 1) &&
         (!o.sink.defined() || (o.sink.dim(0) == heads && (heads == 1 || o.sink.strides()[0] == 1)));
}

/// True if the rungs serve the call under Precision::bf16; false for few queries.
bool serves(const sluice::detail::AttentionCall& c) { return c.q.dim(2) >= kMmaFewest && knows(c); }
/// True if the kernel of few queries serves the forward pass of bf16 tensors: there are fewer than the rungs serve, or
/// a block of rung 3 for each head would leave most multiprocessors idle, before many keys.
bool few_serve(const sluice::detail::AttentionCall& c) {
  const int64_t m = c.q.dim(2);
  const bool idle = m <= kMmaRows && c.k.dim(2) >= kManyKeys && 2 * c.q.dim(0) * c.q.dim(1) <= multiprocessors();
  return c.q.dtype() == bf16 && m >= 1 && (m < kMmaFewest || idle) && !c.options.mask.blocks.defined() && knows(c);
}

/// The width that the rungs compute with: narrower operands get columns of zeros.
int64_t width_of(const sluice::detail::AttentionCall& c) { return std::max(c.q.dim(3), c.v.dim(3)) <= 64 ? 64 : 128; }

/// True if the rung that serves the call also applies its gate.
bool gates(const sluice::detail::AttentionCall& c) {
  return c.gate.defined() && c.v.dim(3) == width_of(c) && !c.options.mask.blocks.defined() &&
         (c.options.weighting == Weighting::softmax || c.options.weighting == Weighting::relu2);
}

/// Writes a key mask for all heads as [batch, n].
void spread(const MaskTensor<bool, 3>& keys, int64_t batch, int64_t n, uint8_t* to) {
  for_each(batch * n,
           [=] __device__(int64_t i) { to[i] = keys.at[i / n * keys.strides[0] + i % n * keys.strides[2]]; });
}

/// The operands and the mask of a call, converted for the rungs.
struct RungOperands {
  Bf16Rows q, k, v;
  Tensor sink;
  std::optional<Scratch<uint8_t>> keys;
  Window mask;

  RungOperands(const sluice::detail::AttentionCall& c, InPlace strides)
      : RungOperands(c, strides, width_of(c), width_of(c)) {}
  RungOperands(const sluice::detail::AttentionCall& c, InPlace strides, int64_t d, int64_t dv)
      : q(c.q, d, strides), k(c.k, d, strides), v(c.v, dv, strides), sink(c.options.sink) {
    if (sink.defined()) sink = sluice::to(sink, f32);
    const AttentionMask& rules = c.options.mask;
    mask = {static_cast<int>(rules.window == 0 || rules.window > kLongest ? kLongest : rules.window), rules.causal};
    if (!rules.keys.defined()) return;
    const int64_t batch = c.q.dim(0), n = c.k.dim(2);
    keys.emplace(static_cast<std::size_t>(batch * n));
    spread(DeviceMask(rules, batch, c.q.dim(1), c.q.dim(2), n).view.keys, batch, n, keys->get());
  }
  const uint8_t* seen() const { return keys ? keys->get() : nullptr; }
};

/// f.operator()<D, weighting>().
template <class F> void with_instance(const sluice::detail::AttentionCall& c, F f) {
  const auto with_width = [&]<int D>() {
    switch (c.options.weighting) {
      case Weighting::softmax: return f.template operator()<D, Softmax>();
      case Weighting::relu2: return f.template operator()<D, Relu2>();
      case Weighting::laplace: return f.template operator()<D, Laplace>();
      case Weighting::sigmoid: return f.template operator()<D, SigmoidWeight>();
      default: return f.template operator()<D, LinearWeight>();
    }
  };
  width_of(c) == 64 ? with_width.template operator()<64>() : with_width.template operator()<128>();
}

/// f.operator()<Gate>(). Kernels gate softmax and relu² only; for other weightings the gate is a separate op.
template <class W> constexpr bool kHasGates = std::is_same_v<W, Softmax> || std::is_same_v<W, Relu2>;
template <class W, class F> void with_gate(const sluice::detail::AttentionCall& c, F f) {
  if constexpr (kHasGates<W>)
    if (gates(c))
      return c.gate.dim(3) == 1 ? f.template operator()<SigmoidGate<true>>()
                                : f.template operator()<SigmoidGate<false>>();
  f.template operator()<NoGate>();
}

/// True if rung 4 computes all of a call's results: it reads strided rows.
bool all_by_rung_4(const sluice::detail::AttentionCall& c, bool backward) {
  constexpr int64_t rows = WgmmaTile<64>::rows;
  return c.q.dim(2) >= rows && (!backward || (c.k.dim(2) >= rows && c.options.weighting != Weighting::laplace));
}

template <bool by_keys, int D, class W>
void run_backward(const AttentionBackwardProblem& p, Window mask, const BackwardRows& rows) {
  if (by_keys ? !p.dk.base && !p.dv.base : !p.dq.base) return;
  if constexpr (!by_keys || wgmma_backward_has_keys<W>)
    if ((by_keys ? p.n : p.m) >= WgmmaBackwardTile<D, by_keys>::rows)
      return run_attention_wgmma_backward<by_keys, D, W>(p, mask, rows);
  run_attention_mma_backward<by_keys, D, W>(p, mask);  // a smaller block for fewer rows
}

/// Computes from g, the gradient of a gated result: the gradient of attention, rounded, that of the logits, and δ.
template <class T>
void through_gate(const sluice::detail::AttentionCall& c, const Tensor& g, BFloat16* to,
                  sluice::detail::AttentionGradients& out) {
  const Bf16Rows gate(c.gate, c.gate.dim(3), InPlace::contiguous);
  const GateBackwardProblem<T> p{.g = HeadRows<const T>(g),
                                 .y = HeadRows<const T>(c.gated),
                                 .gate = gate.get(),
                                 .out = to,
                                 .delta = data_of<float>(out.delta),
                                 .dgate = HeadRows<T>(out.gate),
                                 .batch = g.dim(0),
                                 .heads = g.dim(1),
                                 .m = g.dim(2)};
  const auto with_width = [&]<int D>() {
    c.gate.dim(3) == 1 ? run_attention_gate_backward<D, true>(p) : run_attention_gate_backward<D, false>(p);
  };
  g.dim(3) == 64 ? with_width.template operator()<64>() : with_width.template operator()<128>();
}

/// The forward pass of few queries of bf16, whose result is bf16, too.
void run_few(const sluice::detail::AttentionCall& c, Tensor& out, Tensor& lse) {
  const int64_t d = padded_to_8(c.q.dim(3)), dv = padded_to_8(c.v.dim(3)), heads = c.q.dim(1), kv_heads = c.k.dim(1);
  const RungOperands x(c, InPlace::any, d, dv);
  const FewProblem p{
      .q = x.q.rows(),
      .k = x.k.rows(),
      .v = x.v.rows(),
      .group = static_cast<int>(heads / kv_heads),
      .m = static_cast<int>(c.q.dim(2)),
      .n = static_cast<int>(c.k.dim(2)),
      .d = static_cast<int>(d),
      .dv = static_cast<int>(dv),
      .part_cols = 0,
      .scale = static_cast<float>(*c.options.scale),
      .keys = x.seen(),
      .out = {c.q.dim(0), heads, c.q.dim(2), c.v.dim(3), 1, nullptr, c.options.weighting == Weighting::softmax,
              data_or_null<float>(x.sink), 1, data_or_null<float>(lse)}};
  with_instance(c, [&]<int D, class W>() {
    run_attention_few<D, W>(p, x.mask, static_cast<int>(kv_heads), HeadRows<BFloat16>(out));
  });
}

}  // namespace

int64_t attention_calls(AttentionServer by) { return served[static_cast<std::size_t>(by)]; }

bool attention_bf16(const sluice::detail::AttentionCall& c, Tensor& out, Tensor& lse) {
  const bool rounds = precision() == Precision::bf16;
  if (rounds && few_serve(c)) return run_few(c, out, lse), count(AttentionServer::rungs);
  if (!rounds || !serves(c)) {
    const bool by_products = rounds && attention_by_products(c, out, lse);
    return (by_products || c.q.dtype() != bf16) && count(by_products);  // bf16 comes again, in f32
  }
  count(AttentionServer::rungs);
  const bool by_rung_4 = all_by_rung_4(c, false);
  const RungOperands x(c, by_rung_4 ? InPlace::above_0 : InPlace::contiguous);
  std::optional<Bf16Rows> gate;
  if (gates(c)) gate.emplace(c.gate, c.gate.dim(3), InPlace::contiguous), *c.gates = true;
  const auto run = [&]<class Out>() {
    AttentionProblem<BFloat16, Out> p{.q = x.q.get(),
                                      .k = x.k.get(),
                                      .v = x.v.get(),
                                      .out = data_of<Out>(out),
                                      .batch = static_cast<int>(c.q.dim(0)),
                                      .heads = static_cast<int>(c.q.dim(1)),
                                      .kv_heads = static_cast<int>(c.k.dim(1)),
                                      .m = static_cast<int>(c.q.dim(2)),
                                      .n = static_cast<int>(c.k.dim(2)),
                                      .scale = static_cast<float>(*c.options.scale)};
    p.keys = x.seen(), p.sink = data_or_null<float>(x.sink), p.lse = data_or_null<float>(lse);
    p.out_batch = out.strides()[0], p.out_head = out.strides()[1], p.out_row = out.strides()[2];
    p.columns = static_cast<int>(out.dim(3));
    if (gate) p.gate = gate->get();
    if (c.options.mask.blocks.defined())
      return run_attention_chosen_blocks<Out>(c, width_of(c), x.mask, p, x.q.rows(), x.k.rows(), x.v.rows());
    with_instance(c, [&]<int D, class W>() {
      with_gate<W>(c, [&]<class Gate>() {
        if (by_rung_4) run_attention_wgmma<D, W, Window, Gate, Out>(p, x.mask, x.q.rows(), x.k.rows(), x.v.rows());
        else run_attention_mma<D, W, Window, Gate, Out>(p, x.mask);  // a smaller block for fewer queries
      });
    });
  };
  out.dtype() == bf16 ? run.template operator()<BFloat16>() : run.template operator()<float>();
  return true;
}

bool attention_backward_bf16(const sluice::detail::AttentionCall& c, const Tensor& g, const Tensor& lse,
                             const Tensor& delta, sluice::detail::AttentionGradients& out) {
  const bool rounds = precision() == Precision::bf16;
  if (!rounds || !serves(c) || out.bias.defined() || out.relative.defined()) {
    if (c.gated.defined()) fail("attention: the tensor cores gated q=", c.q, ", and do not serve its gradients");
    const bool by_products = rounds && attention_backward_by_products(c, g, lse, delta, out);
    return (by_products || c.q.dtype() != bf16) && count(by_products);
  }
  count(AttentionServer::rungs);
  const InPlace strides = all_by_rung_4(c, true) ? InPlace::above_0 : InPlace::contiguous;
  const RungOperands x(c, strides);
  std::optional<Bf16Rows> gradient;
  std::optional<Scratch<BFloat16>> ungated;
  HeadRows<const BFloat16> rows_of_g;
  if (gates(c)) {
    BFloat16* const to = ungated.emplace(static_cast<std::size_t>(g.numel())).get();
    g.dtype() == bf16 ? through_gate<BFloat16>(c, g, to, out) : through_gate<float>(c, g, to, out);
    rows_of_g = packed_heads(ungated->get(), static_cast<int>(g.dim(1)), static_cast<int>(g.dim(2)),
                             static_cast<int>(g.dim(3)));
  } else {
    rows_of_g = gradient.emplace(g, width_of(c), strides).rows();
  }
  AttentionBackwardProblem p{.q = x.q.get(),
                             .k = x.k.get(),
                             .v = x.v.get(),
                             .g = rows_of_g.base,
                             .lse = data_or_null<float>(lse),
                             .delta = data_or_null<float>(gates(c) ? out.delta : delta),
                             .dq = HeadRows<float>(out.dq),
                             .dk = HeadRows<float>(out.dk),
                             .dv = HeadRows<float>(out.dv),
                             .narrow = c.q.dtype() == bf16,
                             .key_columns = static_cast<int>(c.q.dim(3)),
                             .value_columns = static_cast<int>(c.v.dim(3)),
                             .batch = static_cast<int>(c.q.dim(0)),
                             .heads = static_cast<int>(c.q.dim(1)),
                             .kv_heads = static_cast<int>(c.k.dim(1)),
                             .m = static_cast<int>(c.q.dim(2)),
                             .n = static_cast<int>(c.k.dim(2)),
                             .scale = static_cast<float>(*c.options.scale)};
  p.keys = x.seen();
  const BackwardRows rows{x.q.rows(), x.k.rows(), x.v.rows(), rows_of_g};
  if (c.options.mask.blocks.defined()) {
    run_attention_chosen_blocks_backward(c, width_of(c), x.mask, p, rows);
    return true;
  }
  with_instance(c, [&]<int D, class W>() {
    run_backward<false, D, W>(p, x.mask, rows), run_backward<true, D, W>(p, x.mask, rows);
  });
  return true;
}

}  // namespace sluice::cuda
