// The slot of linear_scan_bf16_backward: heads in turns, their states first, then the gradients of all their chunks.
#include <sluice/cuda/bf16_rows.cuh>
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/scan/gradients_mma.cuh>

namespace sluice::cuda {

namespace {

constexpr int64_t kMostParts = 65535;  // of a grid's second dim

template <int M, int E, class Out> void scan_backward(ScanGradients<Out> o, int64_t batch) {
  using Tile = ScanGradientsTile<M, E>;
  const int64_t chunks = ceil_div(o.of.n, Tile::steps), bytes = 2 * chunks * M * E * int64_t{sizeof(BFloat16)};
  const int64_t part = o.part, heads = batch * o.of.heads,
                parts = std::clamp<int64_t>(kScanStates / bytes / part, 1, kMostParts),
                span = std::min(heads, parts * part);
  const Scratch<BFloat16> states(static_cast<std::size_t>(span * bytes) / sizeof(BFloat16));
  o.of.before = states.get(), o.of.behind = states.get() + span * chunks * M * E;
  for (int64_t head = 0; head < heads; head += span) {
    o.of.first_head = static_cast<int>(head), o.of.span = static_cast<int>(std::min(span, heads - head));
    o.of.cut = ScanCut(o.of.n, Tile::steps, 2 * o.of.span);
    store_states<M, E>(o.of);
    launch(scan_gradients<M, E, Out>, grid_of(chunks, o.of.span / part, 1), dim3(Tile::threads), Tile::bytes, o);
  }
}

template <class Out>
void scan_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& dout, Tensor& dq,
                   Tensor& dk, Tensor& dv, Tensor& dg) {
  const auto rows = [](const Tensor& x) { return Bf16Rows(x, padded_to_8(x.dim(3)), InPlace::any); };
  const Bf16Rows queries = rows(q), keys = rows(k), values = rows(v), douts = rows(dout);
  const HeadRows<Out> to_q(dq), to_k(dk), to_v(dv);
  const ScanGradients<Out> o{.of = {.q = queries.rows(),
                                    .k = keys.rows(),
                                    .v = values.rows(),
                                    .dout = douts.rows(),
                                    .g = data_of<float>(g),
                                    .n = v.dim(2),
                                    .m = q.dim(3),
                                    .e = v.dim(3),
                                    .heads = static_cast<int>(v.dim(1)),
                                    .share = static_cast<int>(v.dim(1) / q.dim(1)),
                                    .first_head = 0,
                                    .span = 0,
                                    .cut = ScanCut(v.dim(2), kScanMmaSteps, v.dim(0) * v.dim(1)),
                                    .before = nullptr,
                                    .behind = nullptr},
                             .dq = to_q,
                             .dk = to_k,
                             .dv = to_v,
                             .dg = data_of<float>(dg),
                             .part = static_cast<int>(v.dim(1) / dq.dim(1)),
                             .pairs_of_keys = in_pairs(to_q) && in_pairs(to_k),
                             .pairs_of_columns = in_pairs(to_v)};
  const auto with_rows = [&]<int M>() {
    o.of.e <= 64 ? scan_backward<M, 64>(o, v.dim(0)) : scan_backward<M, 128>(o, v.dim(0));
  };
  o.of.m <= 64 ? with_rows.template operator()<64>() : with_rows.template operator()<128>();
}

}  // namespace

void linear_scan_bf16_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& dout,
                               Tensor& dq, Tensor& dk, Tensor& dv, Tensor& dg) {
  dv.dtype() == bf16 ? scan_backward<BFloat16>(q, k, v, g, dout, dq, dk, dv, dg)
                     : scan_backward<float>(q, k, v, g, dout, dq, dk, dv, dg);
}

}  // namespace sluice::cuda
