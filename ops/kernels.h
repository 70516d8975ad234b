// The kernel slots of ops. Elsewhere are the slots of map, a pair per formula (ops/elementwise/map.h), of core
// (core/kernel/kernel.h) and of the optimisers (ops/optim_kernels.h). Each CPU kernel is beside its op.
//
// A kernel may assume that the op has checked shapes, dtypes and options, that all tensors are on one device, and that
// results are allocated. Unless stated otherwise, tensors are contiguous; x, y and g have one dtype, f32, f64, or bf16
// as the slot's Bf16 says; indices are i64; results have at least one element. Values are not checked: a kernel that
// reads indices must check them.
#pragma once

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/number/random.h>

namespace sluice {

struct AttentionMask;      // ops/attention/attention_mask.h
struct CumsumOptions;      // ops/scan/scan.h
struct LinearScanOptions;  // ops/scan/linear_scan.h
struct T5BucketOptions;    // ops/rows/rope.h
enum class RopePairing;

namespace detail {
struct AttentionCall;  // ops/attention/attention_kernels.h
struct AttentionGradients;
}  // namespace detail

/// A reduction sees its input as [outer, n, inner] and reduces the middle.
struct ReduceShape {
  int64_t outer, n, inner;
  /// `shape` with the dims first to last as the middle.
  static ReduceShape along(const Shape& shape, int first, int last) {
    ReduceShape s{1, 1, 1};
    for (int d = 0; d < shape.rank(); ++d) (d < first ? s.outer : d > last ? s.inner : s.n) *= shape[d];
    return s;
  }
  static ReduceShape along(const Shape& shape, int dim) { return along(shape, dim, dim); }
};
enum class ReduceKind { sum, max, min, norm };
enum class Compare { eq, ne, lt, le, gt, ge, both, either, finite };
struct NormSpec {
  bool centred;  // layer norm, else rms norm
  double eps;
};
struct DropoutSpec {
  double p;
  RngBlocks from;  // element i is kept if word i of the generator, counted from `from`, is at least p·2³²
};

namespace kernel {

// -- making and editing tensors: any dtype --------------------------------------------------------------
/// Every element of x, of any layout, becomes `value`, converted as by to().
extern Kernel<void(Tensor& x, double value)> fill;
/// y [n], y_i = start + i·step, computed in f64.
extern Kernel<void(Tensor& y, double start, double step)> ramp;
/// y [n, m], y_ij = [i = j].
extern Kernel<void(Tensor& y)> eye;
/// y [index…, classes], y_ic = [index_i = c]; checks the index.
extern Kernel<void(const Tensor& index, Tensor& y)> one_hot;
/// y [lq, lk] bool, y_ij = [j <= i + lk − lq].
extern Kernel<void(Tensor& y)> causal_mask;
/// x += factor · y, y of any layout and of the shape of x.
extern Kernel<void(Tensor& x, const Tensor& y, double factor)> add_to;
/// y [..., length, ...] = windows [..., count, ..., size] of dim, `step` apart, added up: y_p is 0 plus the entries at
/// p in the order of their places in the windows. The dims between dim and the last are one run of memory. f32, f64,
/// i64, i32; bf16 with y in f32. On the CPU alone.
extern Kernel<void(const Tensor& windows, Tensor& y, int dim, int64_t step)> fold;
/// Zeroes the part of each matrix of y [..., n, m] that triu (upper) or tril drops.
extern Kernel<void(Tensor& y, bool upper, int64_t k)> zero_triangle;

// -- comparing, reducing, ordering -----------------------------------------------------------------------
/// y = a ⋛ b: operands of any layout and dtype, y bool of their broadcast shape.
extern Kernel<void(Compare kind, const Tensor& a, const Tensor& b, Tensor& y)> compare;
/// y [outer, inner] from x [outer, n, inner]. norm is √Σx². sum also of i64. On the CPU alone: max and min of i64 and
/// i32, norm of f64, a y of f32 from an x of bf16, and sums in i64 of i32 and bool.
extern Kernel<void(ReduceKind kind, const Tensor& x, Tensor& y, ReduceShape shape)> reduce;
/// y [outer, inner], products of x [outer, n, inner]; on the CPU also of i64.
extern Kernel<void(const Tensor& x, Tensor& y, ReduceShape shape)> prod;
/// y [outer, inner] = log Σ e^x of x [outer, n, inner]; on the CPU bf16 only with inner = 1.
extern Kernel<void(const Tensor& x, Tensor& y, ReduceShape shape)> logsumexp;
/// Index of the first largest or smallest value; x of any dtype but bf16.
extern Kernel<void(bool largest, const Tensor& x, Tensor& index, ReduceShape shape)> arg_extreme;
/// y = running sums along dim; also i64 and i32.
extern Kernel<void(const Tensor& x, Tensor& y, int dim, CumsumOptions options)> cumsum;
/// y = running products along dim; on the CPU also i64 and i32.
extern Kernel<void(const Tensor& x, Tensor& y, int dim)> cumprod;
/// dx from g: the gradient of y or, if g has size 1 along dim, of its last entries alone.
extern Kernel<void(const Tensor& x, const Tensor& g, Tensor& dx, int dim)> cumprod_backward;
/// Each row of x [..., n] gives index [..., k] of its first k values in order; ties by index, NaN last.
extern Kernel<void(const Tensor& x, Tensor& index, bool descending)> argsort;

// -- indexing: any dtype; the index is checked -------------------------------------------------------------
/// y = x gathered along dim; x of any layout, y of the shape of the index.
extern Kernel<void(const Tensor& x, int dim, const Tensor& index, Tensor& y)> gather;
/// y[index] += src along dim; src of the shape of the index; f32, f64, i64, i32.
extern Kernel<void(Tensor& y, int dim, const Tensor& index, const Tensor& src)> scatter_add;
/// y[index] = src along dim, the last of several; src of the shape of the index.
extern Kernel<void(Tensor& y, int dim, const Tensor& index, const Tensor& src)> scatter;
/// y = slices of x along dim, x of any layout. Errors name `op`.
extern Kernel<void(const char* op, const Tensor& x, int dim, const Tensor& index, Tensor& y)> index_select;
/// y's slice index[i] += slice i of src; f32, f64, bf16, i64, i32.
extern Kernel<void(Tensor& y, int dim, const Tensor& index, const Tensor& src)> index_add;

// -- products ------------------------------------------------------------------------------------------------
/// c [batch…, n, m] = a·b + bias. a [batch…, n, k], b [batch…, k, m] of any layout, stride 0 where they repeat; bias
/// [m] or undefined.
extern Kernel<void(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c)> matmul;

// -- rows: along the last dim ----------------------------------------------------------------------------------
extern Kernel<void(const Tensor& x, Tensor& y, bool log)> softmax;
/// dx from y = softmax(x) or, with log, log_softmax(x).
extern Kernel<void(const Tensor& y, const Tensor& g, Tensor& dx, bool log)> softmax_backward;
/// softmax and softmax_backward along the middle of tensors seen as [outer, n, inner].
extern Kernel<void(const Tensor& x, Tensor& y, ReduceShape shape, bool log)> softmax_columns;
extern Kernel<void(const Tensor& y, const Tensor& g, Tensor& dx, ReduceShape shape, bool log)> softmax_columns_backward;
/// w, b [n] or undefined; stats [rows, 2]: mean (0 unless centred) and 1/√(mean c² + eps) of each row.
extern Kernel<void(const Tensor& x, const Tensor& w, const Tensor& b, Tensor& y, Tensor& stats, NormSpec spec)> norm;
/// dx, and dw and db [n] when defined.
extern Kernel<void(const Tensor& x, const Tensor& w, const Tensor& g, const Tensor& stats, Tensor& dx, Tensor& dw,
                   Tensor& db, NormSpec spec)>
    norm_backward;
/// Checks targets [n] against [0, classes). flat = targets, −1 where ignored; share {} = 1/max(1, targets not ignored).
extern Kernel<void(const Tensor& targets, int64_t ignore_index, int64_t classes, Tensor& flat, Tensor& share)>
    cross_entropy_targets;
/// Loss [n] of rows x [n, C]; rows whose target is negative give 0.
extern Kernel<void(const Tensor& x, const Tensor& targets, Tensor& loss, double smoothing)> cross_entropy;
/// dx = g·(softmax(x) − q), g [n].
extern Kernel<void(const Tensor& x, const Tensor& targets, const Tensor& g, Tensor& dx, double smoothing)>
    cross_entropy_backward;
/// x may be empty.
extern Kernel<void(const Tensor& x, Tensor& y, DropoutSpec spec)> dropout;

// -- positions -------------------------------------------------------------------------------------------------
/// cos and sin [n, half] of (positions + offset) · frequencies, f64 [half], computed in f64; may be empty.
extern Kernel<void(const Tensor& positions, int64_t offset, const Tensor& frequencies, Tensor& cos, Tensor& sin)>
    rope_angles;
/// y = x [outer, n, inner, d] with pairs of channels rotated by the angles of n, by their negatives if `inverse`.
extern Kernel<void(const Tensor& x, const Tensor& cos, const Tensor& sin, Tensor& y, RopePairing pairing, bool inverse)>
    rope;
/// T5's bucket of each distance (key − query position).
extern Kernel<void(const Tensor& distance, const T5BucketOptions& options, Tensor& bucket)> t5_buckets;

// -- attention and the scan --------------------------------------------------------------------------------------
/// out [batch, heads, m, dv] (any strides, last dim contiguous); lse [batch, heads, m], softmax only.
extern Kernel<void(const detail::AttentionCall& call, Tensor& out, Tensor& lse)> attention;
/// Gradients from g, the gradient of out (last dim contiguous), and, for softmax, from lse and delta, both
/// [batch, heads, m]; delta = Σ_c g·out − (gradient of lse).
extern Kernel<void(const detail::AttentionCall& call, const Tensor& g, const Tensor& lse, const Tensor& delta,
                   detail::AttentionGradients& out)>
    attention_backward;
/// y [batch or 1, heads or 1, m, n] bool: the pairs that a mask over [batch, heads, m, n] allows.
extern Kernel<void(const AttentionMask& mask, int64_t batch, int64_t heads, Tensor& y)> visible_pairs;
/// y [batch or 1, heads or 1, m] i64: how many of n keys each query may see.
extern Kernel<void(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t n, Tensor& y)> visible_count;
/// y [..., m, n] = 1/(1 − p) where attention keeps a weight, else 0: the mask that dropout inside attention uses.
extern Kernel<void(Tensor& y, DropoutSpec spec)> attention_keep_mask;
/// q, k, v as linear_scan() takes them, last dim contiguous. q and k may have fewer heads than v only where there is a
/// linear_scan_backward or a linear_scan_bf16_backward. g undefined, [batch, heads, n] or [batch, heads, n, channels];
/// y [batch, heads, n, e], last dim contiguous.
extern Kernel<void(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
                   Tensor& y)>
    linear_scan;
/// Gradients of a linear_scan that is neither reverse nor exclusive, with m and e over 1 and without a decay by channel
/// of v. dout: gradient of its result; dg is undefined if it is not wanted. dq and dk [batch, parts, n, m] hold sums
/// over the heads of v that belong to each part; parts is a multiple of k's heads that divides v's.
extern Kernel<void(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& dout,
                   int64_t chunk, Tensor& dq, Tensor& dk, Tensor& dv, Tensor& dg)>
    linear_scan_backward;
/// The same on tensor cores, with operands rounded to bf16: for g and dg [batch, heads, n] of f32, at least 16 steps,
/// and m and e from 16 to 128. A CPU has none, and computes in f32 where a decay is learned.
extern Kernel<void(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& dout, Tensor& dq,
                   Tensor& dk, Tensor& dv, Tensor& dg)>
    linear_scan_bf16_backward;
/// The gradient dg of the decays of y = linear_scan(a, b, c, g, o), with x the gradient of y, and what it takes: y, and
/// z, the gradient of c, for which the scan linear_scan(b, a, x) runs the other way. Decays by channel are those of c
/// and x, whatever o says. All have the same heads; y, z and dg are written; c has numbers. A CPU has none.
extern Kernel<void(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& x, const Tensor& g,
                   const LinearScanOptions& o, Tensor& y, Tensor& z, Tensor& dg)>
    linear_scan_decay_backward;
/// y = causal_conv1d(x, weight, bias, before), or SiLU of it; x and y [..., n, c]; bias and before may be undefined.
/// Devices have kernels for widths up to kCausalConvWidth.
constexpr int64_t kCausalConvWidth = 4;
extern Kernel<void(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before, bool silu,
                   Tensor& y)>
    causal_conv;
/// Gradients from g, the gradient of y. Undefined ones are not wanted.
extern Kernel<void(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before, const Tensor& g,
                   bool silu, Tensor& dx, Tensor& dweight, Tensor& dbias, Tensor& dbefore)>
    causal_conv_backward;
/// q, k, erase, write as delta_scan() takes them, last dim contiguous; g undefined, [batch, value_heads, n] or
/// [batch, value_heads, n, dk]; out [batch, value_heads, n, dv], last dim contiguous. `state` holds S_0 and becomes
/// S_n. `states` [batch, value_heads, chunks, dk, dv], if defined, receives S before each chunk. Without q `out`
/// receives u.
extern Kernel<void(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
                   int64_t chunk, Tensor& out, Tensor& state, Tensor& states)>
    delta_scan;
/// Gradients of delta_scan from dout, the gradient of out, and dstate, the gradient of S_n, which becomes that of S_0.
/// `states` are the forward call's.
extern Kernel<void(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& g,
                   const Tensor& states, const Tensor& dout, int64_t chunk, Tensor& dq, Tensor& dk, Tensor& derase,
                   Tensor& dwrite, Tensor& dg, Tensor& dstate)>
    delta_scan_backward;

}  // namespace kernel
}  // namespace sluice
