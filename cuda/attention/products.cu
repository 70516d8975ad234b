// Attention on tensor cores for what the rungs refuse: GAU's values wider than its keys, biases, row scales, dropout,
// caps, any mask and width. Scores and weights of a slice of queries stand in memory:
//
//   S = Q Kᵀ    P = w(S) ⊙ Z, rounded    O = P V
//   backward    S = Q Kᵀ    dP = G Vᵀ    dS = ρ P ⊙ (dP ⊙ Z − δ) or ρ φ'(S) ⊙ dP ⊙ Z
//               dV += (P ⊙ Z)ᵀ G    dQ = (scale · dS ⊙ cap') K    dK += (scale · dS ⊙ cap')ᵀ Q
//
// The products are cuBLASLt's (blas.h), from operands rounded to bf16, with sums in f32. One kernel between them does
// the rest: forward `weigh_rows`, backward `differentiate_rows`. Slices follow each other in one order, so results
// always have the same bits. Slices of a causal mask or a window have only the keys that one of their queries sees. The
// last queries come first: without a window they see all keys, so their slice writes dK and dV, and the others add.
//
// On tensor cores 0 · NaN is NaN. So the rounded operands have 0 in place of what is not finite, and their rows are
// marked. Scores of marked rows are computed number by number, and `add_marked` adds what the zeros hid to O, dQ, dK
// and dV. A weight of 0 takes nothing from a NaN.
//
// What limits it: memory. A pair takes 12 bytes forward (softmax 16, which reads scores twice) and 26 backward; a
// column of a key or a value costs it 2 operations forward. So the wider the values, the less that counts.
#include <sluice/cuda/attention/products.h>

#include <sluice/cuda/attention/products.cuh>
#include <sluice/cuda/blas.h>
#include <sluice/cuda/kernels.h>

namespace sluice::cuda {

int64_t attention_products_bytes = int64_t{256} << 20;
int64_t attention_products_width = 32;

namespace {

using sluice::detail::AttentionCall;
using sluice::detail::Trans;

constexpr int64_t kLeastRows = 16;        // of a slice, of a call, and of its keys
constexpr int64_t kCutRows = 1024;        // rows of a slice that sees a part of the keys
constexpr int64_t kMostMatrices = 65535;  // of one product
constexpr int64_t kOperands = 4;          // q, k, v, g

void clear(int* flags, int64_t n) {
  for_each(n, [=] __device__(int64_t i) { flags[i] = 0; });
}
/// A flag for each operand, 0.
struct Flags : Scratch<int> {
  Flags() : Scratch(kOperands) { clear(get(), kOperands); }
};

/// An operand [batch, heads, rows, width], rounded.
struct RoundedOperand {
  const int64_t ld, all;  // `all`: rows of all heads
  const Scratch<BFloat16> numbers;
  const Scratch<uint8_t> marks;
  const Marked view;

  RoundedOperand(const Tensor& x, int* any)
      : ld(padded_to_8(x.dim(3))), all(x.dim(0) * x.dim(1) * x.dim(2)), numbers(static_cast<std::size_t>(all * ld)),
        marks(static_cast<std::size_t>(all)), view{AnyRows(x), marks.get(), any, x.dim(1), x.dim(2), x.dim(3)} {
    view.exact.narrow ? round<BFloat16>(x, any) : round<float>(x, any);
  }
  /// Row `row` of head `head`, counted over the batch.
  const BFloat16* at(int64_t head, int64_t row) const { return numbers.get() + (head * view.rows + row) * ld; }

 private:
  template <class T> void round(const Tensor& x, int* any) {
    for_each_row(all, ld,
                 RoundRow<T, MarkRow>{.x = HeadRows<const T>(x),
                                      .heads = view.heads,
                                      .rows = view.rows,
                                      .width = view.width,
                                      .to = numbers.get(),
                                      .ld = ld,
                                      .mark = {marks.get(), any}});
  }
};

/// y_r += Σ_c w_rc x_c over the marked rows c of x, of their numbers that are not finite in bf16: `rows` rows of y and
/// `cols` of x in each matrix of a slice. x and y have the slice's rows and a head for each key head. A warp takes a
/// row of y; without marks it ends at once.
struct AddMarked {
  Slice s;
  int64_t kv_heads, rows, cols;
  const BFloat16* weights;
  int64_t y_step, x_step;  // from weight to weight
  Marked x;
  AnyRows y;
};
__global__ void __launch_bounds__(kThreads) add_marked(AddMarked p) {
  if (*p.x.any == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t r = int64_t{blockIdx.x} * kTeams + threadIdx.x / kWarp; r < p.s.count * p.rows;
       r += int64_t{gridDim.x} * kTeams) {
    const int64_t matrix = p.s.first + r / p.rows, b = matrix / p.kv_heads, kv = matrix % p.kv_heads;
    const BFloat16* const w = p.weights + r / p.rows * p.s.rows * p.s.ld + r % p.rows * p.y_step;
    for (int64_t first = 0; first < p.cols; first += kWarp) {  // a lane asks for one of 32 columns
      const unsigned marked =
          __ballot_sync(kAllLanes, first + lane < p.cols && p.x.marked(b, kv, first + lane) ? 1 : 0);
      for (int bit = 0; bit < kWarp && marked >> bit; ++bit) {
        const int64_t c = first + bit;
        const float weight = marked >> bit & 1 ? to_float(w[c * p.x_step]) : 0.0f;
        if (weight == 0) continue;
        for (int64_t e = lane; e < p.x.width; e += kWarp)
          if (const BFloat16 number(p.x.exact.at(b, kv, c, e)); (number.bits & 0x7f80) == 0x7f80)
            p.y.add(b, kv, r % p.rows, e, weight * to_float(number));
      }
    }
  }
}

/// A matrix of a product for each matrix of a slice.
struct Side {
  const BFloat16* at;
  int64_t stride;  // from matrix to matrix
  sluice::detail::Operand read;
};
struct Sum {
  void* at;
  DType dtype;  // f32, or bf16: rounded once
  int64_t stride, ld;
  bool adds = false;
};
/// to [n, m] = left [n, k] right [k, m], or += for a sum that adds. False if cuBLASLt is not there.
bool multiply(const Side& left, const Side& right, const Sum& to, int64_t n, int64_t m, int64_t k, int64_t count) {
  return blas({.dtype = bf16,
               .result = to.dtype,
               .n = n,
               .m = m,
               .k = k,
               .a = left.at,
               .left = left.read,
               .b = right.at,
               .right = right.read,
               .bias = nullptr,
               .c = to.at,
               .batch = count,
               .a_stride = left.stride,
               .b_stride = right.stride,
               .c_stride = to.stride,
               .accumulate = to.adds,
               .c_ld = to.ld,
               .any_size = true});
}

/// A call, its rounded operands, and its slices.
struct Products {
  AttentionView<float> a;
  const Flags any;  // is any row marked, of q, k, v and g?
  const RoundedOperand q, k, v;

  Products(const AttentionCall& c, const DeviceMask& mask)
      : a(c, mask.view), q(c.q, any.get()), k(c.k, any.get() + 1), v(c.v, any.get() + 2) {}

  /// The most rows of a slice that takes `bytes` for a pair.
  int64_t rows_of_slice(int64_t bytes) const {
    int64_t rows = std::min(a.m, attention_products_bytes / (padded_to_8(a.n) * bytes));
    if (a.mask.causal || a.mask.windowed) rows = std::min(rows, kCutRows);
    return rows < a.m ? rows / kLeastRows * kLeastRows : rows;
  }
  /// f(slice) for all slices, of which each takes `bytes` for a pair, for each set of heads from the last queries to
  /// the first; `results` are the tensors that products write. False as soon as f is false.
  template <class F> bool each_slice(int64_t bytes, std::initializer_list<const Tensor*> results, F f) const {
    bool merges = true;  // a product may go from one batch to the next
    for (const Tensor* x : results)
      merges &= !x->defined() || a.batch == 1 || a.kv_heads == 1 || x->strides()[0] == x->dim(1) * x->strides()[1];
    const int64_t rows = rows_of_slice(bytes), all = a.batch * a.kv_heads;
    const int64_t most =
        std::clamp<int64_t>(attention_products_bytes / (rows * padded_to_8(a.n) * bytes), 1, kMostMatrices);
    for (int64_t first = 0, count = 0; first < all; first += count) {
      count = std::min(most, merges ? all - first : a.kv_heads - first % a.kv_heads);
      for (int64_t member = 0; member < a.group; ++member)
        for (int64_t end = a.m, row; end > 0; end = row) {
          row = (end - 1) / rows * rows;
          Slice s{first, count, member, row, end - row, 0, 0, 0};
          const Span seen = a.mask.keys_of(row, s.rows);
          s.col = std::min(seen.begin, a.n - 1) / 64 * 64;  // products begin at whole lines of memory
          s.cols = std::max<int64_t>(1, seen.end - s.col), s.ld = padded_to_8(s.cols);
          if (!f(s)) return false;
        }
    }
    return true;
  }
  /// The most numbers that a slab of each_slice() has.
  std::size_t slab(int64_t bytes) const {
    return static_cast<std::size_t>(
        std::min(attention_products_bytes / bytes, a.batch * a.kv_heads * a.m * padded_to_8(a.n)));
  }

  // Sides of products: rows of a slice of q or g, its keys, its weights; transposed as a product needs them.
  Side queries(const RoundedOperand& x, const Slice& s) const {
    return {x.at(s.first * a.group + s.member, s.row), a.group * a.m * x.ld, {Trans::no, x.ld}};
  }
  Side keys(const RoundedOperand& x, const Slice& s, Trans trans) const {
    return {x.at(s.first, s.col), a.n * x.ld, {trans, x.ld}};
  }
  static Side pairs(const BFloat16* w, const Slice& s, Trans trans) { return {w, s.rows * s.ld, {trans, s.ld}}; }
  static Sum scores(float* to, const Slice& s) { return {to, f32, s.rows * s.ld, s.ld}; }
  /// The slice's part of a result of queries, or of one of keys.
  AnyRows of_queries(const AnyRows& x, const Slice& s) const { return x.part(a.group, s.member, s.row); }
  AnyRows of_keys(const AnyRows& x, const Slice& s) const { return x.part(1, 0, s.col); }
  /// The rows of such a part.
  Sum rows(const AnyRows& part, const Slice& s, bool adds = false) const {
    return {part.address(s.first / a.kv_heads, s.first % a.kv_heads, 0), part.narrow ? bf16 : f32,
            a.kv_heads == 1 ? part.batch : part.head, part.row, adds};
  }

  bool score(const Slice& s, float* to) const {
    return multiply(queries(q, s), keys(k, s, Trans::yes), scores(to, s), s.rows, s.cols, a.d, s.count);
  }

  /// y += what zeros hid of the marked rows of x in the product of the pairs' `weights` with them: for each query of
  /// keys (k or v), or for each key of queries (q or g).
  void add_marked_rows(bool of_keys, const BFloat16* weights, const RoundedOperand& x, const AnyRows& y,
                       const Slice& s) const {
    const AddMarked what{.s = s,
                         .kv_heads = a.kv_heads,
                         .rows = of_keys ? s.rows : s.cols,
                         .cols = of_keys ? s.cols : s.rows,
                         .weights = weights,
                         .y_step = of_keys ? s.ld : 1,
                         .x_step = of_keys ? 1 : s.ld,
                         .x = of_keys ? x.view.part(1, 0, s.col) : x.view.part(a.group, s.member, s.row),
                         .y = y};
    // Few blocks: nearly always nothing is marked, and they end at once.
    const int64_t blocks = std::min<int64_t>(ceil_div(s.count * what.rows, kTeams), multiprocessors());
    launch(add_marked, grid_of(blocks), dim3(kThreads), 0, what);
  }
};

/// A result that slices add up. That of a bf16 tensor is f32 unless a number is written `once`; end() rounds it once.
class SumOfSlices {
 public:
  SumOfSlices(Tensor& to, bool once)
      : to_(to), sum_(to.defined() && to.dtype() == bf16 && !once ? empty(to.shape(), {f32, to.device()}) : to) {}
  Tensor& get() { return sum_; }
  void clear() {
    if (sum_.defined()) fill(sum_, 0);
  }
  void end() {
    if (to_.defined() && to_.dtype() != sum_.dtype()) copy(sum_, to_);
  }

 private:
  Tensor &to_, sum_;
};

/// True for calls that slices can serve: `bytes` for a pair.
bool fits(const AttentionCall& c, int64_t bytes) {
  const int64_t m = c.q.dim(2), n = c.k.dim(2);
  return (c.q.dtype() == f32 || c.q.dtype() == bf16) && m >= kLeastRows && n >= kLeastRows && c.q.dim(3) > 0 &&
         c.v.dim(3) > 0 && c.q.dim(3) + c.v.dim(3) >= attention_products_width && c.q.dim(0) > 0 && c.k.dim(1) > 0 &&
         kLeastRows * padded_to_8(n) * bytes <= attention_products_bytes;
}

constexpr int64_t kForwardBytes = sizeof(float) + sizeof(BFloat16), kBackwardBytes = 2 * kForwardBytes;

}  // namespace

bool attention_by_products(const AttentionCall& given, Tensor& out, Tensor& lse) {
  if (!fits(given, kForwardBytes)) return false;
  const AttentionCall call = with_wide_options(given);
  const DeviceMask mask(call.options.mask, call.q.dim(0), call.q.dim(1), call.q.dim(2), call.k.dim(2));
  const Products x(call, mask);
  const AttentionView<float>& a = x.a;
  const AnyRows y(out);
  const Scratch<float> scores(x.slab(kForwardBytes));
  const Scratch<BFloat16> weights(x.slab(kForwardBytes));
  const bool softmax = a.weighting == Weighting::softmax;
  return x.each_slice(kForwardBytes, {&out}, [&](const Slice& s) {
    if (!x.score(s, scores.get())) return false;
    with_teams(s, [&]<int threads>() {
      launch(softmax ? &weigh_rows<true, threads> : &weigh_rows<false, threads>,
             grid_of(ceil_div(s.count * s.rows, kThreads / threads)), dim3(kThreads), 0, a, s, x.q.view, x.k.view,
             scores.get(), weights.get(), data_or_null<float>(lse));
    });
    const AnyRows here = x.of_queries(y, s);
    if (!multiply(x.pairs(weights.get(), s, Trans::no), x.keys(x.v, s, Trans::no), x.rows(here, s), s.rows, a.dv,
                  s.cols, s.count))
      return false;
    x.add_marked_rows(true, weights.get(), x.v, here, s);
    return true;
  });
}

bool attention_backward_by_products(const AttentionCall& given, const Tensor& g_in, const Tensor& lse,
                                    const Tensor& delta, sluice::detail::AttentionGradients& out) {
  if (!fits(given, kBackwardBytes)) return false;
  const AttentionCall call = with_wide_options(given);
  const DeviceMask mask(call.options.mask, call.q.dim(0), call.q.dim(1), call.q.dim(2), call.k.dim(2));
  Products x(call, mask);
  AttentionView<float>& a = x.a;
  a.lse = data_or_null<float>(lse), a.delta = data_or_null<float>(delta);
  const RoundedOperand g(g_in, x.any.get() + 3);
  const bool once = a.group == 1 && x.rows_of_slice(kBackwardBytes) == a.m;  // one slice has all queries of a key head
  SumOfSlices sum_k(out.dk, once), sum_v(out.dv, once);
  if (a.mask.windowed)  // the first slice does not see all keys
    for (SumOfSlices* sum : {&sum_k, &sum_v}) sum->clear();
  const AnyRows dq(out.dq), dk(sum_k.get()), dv(sum_v.get());
  const BiasGradient bias(out.bias);
  const std::size_t size = x.slab(kBackwardBytes);
  const Scratch<float> scores(size), dp(size);
  const Scratch<BFloat16> weights(size), ds(size);
  const bool softmax = a.weighting == Weighting::softmax;
  const bool all = x.each_slice(kBackwardBytes, {&out.dq, &sum_k.get(), &sum_v.get()}, [&](const Slice& s) {
    if (!x.score(s, scores.get()) ||
        !multiply(x.queries(g, s), x.keys(x.v, s, Trans::yes), x.scores(dp.get(), s), s.rows, s.cols, a.dv, s.count))
      return false;
    with_teams(s, [&]<int threads>() {
      launch(softmax ? &differentiate_rows<true, threads> : &differentiate_rows<false, threads>,
             grid_of(ceil_div(s.count * s.rows, kThreads / threads)), dim3(kThreads), 0, a, s, x.q.view, x.k.view,
             g.view, x.v.view, scores.get(), dp.get(), weights.get(), ds.get(), bias, out.relative.defined());
    });
    if (out.relative.defined())  // the whole gradient goes into the first split
      add_diagonals(a, s, dp.get(), data_of<float>(out.relative), out.relative.dim(2) * out.relative.dim(3));
    const bool adds = s.member > 0 || s.row + s.rows < a.m;  // false for the first slice of a set of heads
    if (dq.base) {
      const AnyRows here = x.of_queries(dq, s);
      if (!multiply(x.pairs(ds.get(), s, Trans::no), x.keys(x.k, s, Trans::no), x.rows(here, s), s.rows, a.d, s.cols,
                    s.count))
        return false;
      x.add_marked_rows(true, ds.get(), x.k, here, s);
    }
    const auto add_to_keys = [&](const AnyRows& sum, const BFloat16* by, const RoundedOperand& of, int64_t width) {
      if (!sum.base) return true;
      const AnyRows here = x.of_keys(sum, s);
      if (!multiply(x.pairs(by, s, Trans::yes), x.queries(of, s), x.rows(here, s, adds), s.cols, width, s.rows,
                    s.count))
        return false;
      x.add_marked_rows(false, by, of, here, s);
      return true;
    };
    return add_to_keys(dk, ds.get(), x.q, a.d) && add_to_keys(dv, weights.get(), g, a.dv);
  });
  if (all)
    for (SumOfSlices* sum : {&sum_k, &sum_v}) sum->end();
  return all;
}

}  // namespace sluice::cuda
