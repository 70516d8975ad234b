// The slot of linear_scan: chooses the kernel of a call and prepares its operands.
#include <sluice/cuda/bf16_rows.cuh>
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/scan/mma.cuh>
#include <sluice/cuda/scan/simt_kernel.cuh>
#include <sluice/core/node.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

namespace sluice::cuda {

namespace {

ScanDecay decay_of(const Tensor& g, const LinearScanOptions& o) {
  if (!g.defined()) return ScanDecay::none;
  return g.rank() == 3 ? ScanDecay::scalar : o.decay_on_values ? ScanDecay::values : ScanDecay::keys;
}

/// detail::spread_heads(), whose header nvcc cannot read.
Tensor spread(const Tensor& x, int64_t heads) {
  return x.dim(1) == heads ? x : repeat_interleave(x, heads / x.dim(1), 1);
}

// -- f32 and f64, every option ---------------------------------------------------------------------------------------

template <class T, int N, ScanDecay decay>
void run_simt(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
              Tensor& y) {
  using Tile = ScanTile<N, decay>;
  ScanView<T> s = view_of<ScanView<T>, T>(q, v, g, o, N, Tile::steps, kScanBlocks<N>);
  set_rows<T, T>(s, HeadRows<const T>(q), HeadRows<const T>(k), HeadRows<const T>(v), HeadRows<T>(y), o.reverse);
  scan_in_pieces(s, decay, [&](const ScanView<T>& x) {
    launch(scan_simt<T, N, decay, false>, grid_of(x.blocks), dim3(Tile::threads), std::size_t{Tile::end} * sizeof(T), x,
           ScanLearned<T, decay>());
  });
}

template <class T, int N>
void run_tile(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
              Tensor& y) {
  switch (decay_of(g, o)) {
    case ScanDecay::none: return run_simt<T, N, ScanDecay::none>(q, k, v, g, o, y);
    case ScanDecay::scalar: return run_simt<T, N, ScanDecay::scalar>(q, k, v, g, o, y);
    case ScanDecay::keys: return run_simt<T, N, ScanDecay::keys>(q, k, v, g, o, y);
    case ScanDecay::values: return run_simt<T, N, ScanDecay::values>(q, k, v, g, o, y);
  }
}

void simt_scan(const Tensor& queries, const Tensor& keys, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
               Tensor& y) {
  const Tensor q = spread(queries, v.dim(1)), k = spread(keys, v.dim(1));
  with_scan_tile(q, v, [&]<class T, int N>() { run_tile<T, N>(q, k, v, g, o, y); });
}

// -- running sums ----------------------------------------------------------------------------------------------------

#ifdef __CUDACC__
constexpr int64_t kManyNumbers = 1 << 17;
#else
constexpr int64_t kManyNumbers = 1 << 10;
#endif
/// True for a state of one row or one column without decay, as a normaliser and its gradients have it. From
/// kManyNumbers of an operand on, several passes are faster than tiles of 64 columns.
bool is_running_sum(const Tensor& q, const Tensor& v, const Tensor& g) {
  return !g.defined() && (q.dim(3) == 1 || v.dim(3) == 1) && q.dim(1) == v.dim(1) &&
         std::max(q.numel(), v.numel()) >= kManyNumbers;
}
/// m = 1: y_t = q_t Σ_{j <= t} k_j v_j.   e = 1: y_t = Σ_c q_tc Σ_{j <= t} k_jc v_j.
void by_running_sums(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const LinearScanOptions& o,
                     Tensor& y) {
  NoGrad guard;
  const Tensor state = cumsum(k * v, 2, {.exclusive = o.exclusive, .reverse = o.reverse}), terms = q * state;
  copy_(y, v.dim(3) == 1 ? sum(terms, {-1}, keep) : terms);
}

// -- tensor cores ----------------------------------------------------------------------------------------------------

/// True if tensor cores serve the call. As on the CPU, decays per channel stay exact. Calls that a tile cannot hold, or
/// that would not fill one, go to the other kernel.
bool on_tensor_cores(const Tensor& q, const Tensor& v, const Tensor& g) {
  return precision() == Precision::bf16 && q.dtype() != f64 && (!g.defined() || g.rank() == 3) && q.dim(2) >= 16 &&
         q.dim(3) >= 16 && q.dim(3) <= 128 && v.dim(3) >= 16 && std::max(q.dim(2), v.dim(3)) < INT32_MAX;
}

template <int M, int halves, bool weighted, class Out>
void run_mma(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
             Tensor& y) {
  using Tile = ScanMmaTile<M, halves>;
  using View = ScanView<BFloat16, Out, float>;
  const auto rows = [](const Tensor& x) { return Bf16Rows(x, padded_to_8(x.dim(3)), InPlace::any); };
  const Bf16Rows queries = rows(q), keys = rows(k), values = rows(v);
  View s = view_of<View, float>(q, v, g, o, Tile::columns, Tile::steps, 2 / halves);
  set_rows<BFloat16, Out>(s, queries.rows(), keys.rows(), values.rows(), HeadRows<Out>(y), o.reverse);
  const bool pairs = in_pairs(s.y);
  scan_in_pieces(s, weighted ? ScanDecay::scalar : ScanDecay::none, [&](const View& x) {
    launch(scan_mma<M, halves, weighted, Out>, grid_of(x.blocks), dim3(Tile::threads), Tile::bytes, x, pairs);
  });
}

template <class Out>
void run_mma(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
             Tensor& y) {
  const auto with_width = [&]<int M, int halves>() {
    g.defined() ? run_mma<M, halves, true, Out>(q, k, v, g, o, y) : run_mma<M, halves, false, Out>(q, k, v, g, o, y);
  };
  const auto with_rows = [&]<int M>() {
    v.dim(3) <= 64 ? with_width.template operator()<M, 1>() : with_width.template operator()<M, 2>();
  };
  q.dim(3) <= 64 ? with_rows.template operator()<64>() : with_rows.template operator()<128>();
}

/// Without the step's own term: a scan of one step less, whose results e^g takes on to the next step. A kernel that
/// leaves the term out itself would need more registers than it has.
void exclusive_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, LinearScanOptions o,
                    Tensor& y) {
  NoGrad guard;
  if (q.dtype() == bf16) return call_widened(&exclusive_scan, false, q, k, v, g, o, y);  // e^g keeps its digits
  o.exclusive = false;
  const int64_t n = q.dim(2);
  const auto without = [n](const Tensor& x, bool last) { return narrow(x, 2, last ? 0 : 1, n - 1); };
  Tensor edge = narrow(y, 2, o.reverse ? n - 1 : 0, 1);
  fill_(edge, 0);
  if (n == 1) return;
  Tensor read = spread(without(q, o.reverse), v.dim(1)), kept, decay, to = without(y, o.reverse);
  if (g.defined()) {
    kept = sluice::to(exp(without(g, false)), q.dtype()), decay = contiguous(without(g, !o.reverse));
    if (g.rank() == 3) kept = unsqueeze(kept, -1);
    else if (!o.decay_on_values) read = kept * read, kept = Tensor();
  }
  linear_scan(read, spread(without(k, !o.reverse), v.dim(1)), without(v, !o.reverse), decay, o, to);
  if (kept.defined()) copy_(to, kept * to);
}

}  // namespace

void linear_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
                 Tensor& y) {
  if (is_running_sum(q, v, g))
    return q.dtype() == bf16 ? call_widened(&by_running_sums, false, q, k, v, g, o, y)
                             : by_running_sums(q, k, v, g, o, y);
  if (o.exclusive) return exclusive_scan(q, k, v, g, o, y);
  if (on_tensor_cores(q, v, g))
    return y.dtype() == bf16 ? run_mma<BFloat16>(q, k, v, converted(g, f32), o, y) : run_mma<float>(q, k, v, g, o, y);
  q.dtype() == bf16 ? call_widened(&simt_scan, false, q, k, v, g, o, y) : simt_scan(q, k, v, g, o, y);
}

}  // namespace sluice::cuda
