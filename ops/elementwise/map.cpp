#include <sluice/ops/elementwise/map.h>

#include <sluice/ops/shape/create.h>

#include <algorithm>

namespace sluice::detail {

namespace {

constexpr int64_t kMapGrain = 32 * kTile;

/// The common dtype of an op's operands; throws naming the op. bool operands count as 0 and 1 of any dtype.
DType common_dtype(const char* op, const Tensor* const* xs, std::size_t n, bool integral) {
  DType common = boolean;
  for (std::size_t k = 0; k < n; ++k) {
    if (!xs[k]->defined()) fail<ValueError>(op, ": operand ", k, " is undefined (default-constructed or moved from)");
    const DType t = xs[k]->dtype();
    if (t == boolean || t == common) continue;
    if (common != boolean)
      fail<DTypeError>(op, ": dtypes differ — got ", common, " and ", t, " for shapes ", *xs[0], " and ", *xs[k],
                       "; convert with to(x, dtype)");
    common = t;
  }
  if (!is_float(common) && !(integral && is_integer(common)))
    fail<DTypeError>(op, ": needs ", integral ? "f32, f64, bf16, i64 or i32" : "f32, f64 or bf16", " — got ", common,
                     " of shape ", *xs[0], "; convert with to(x, f32)");
  return common;
}

/// An operand, read tile by tile. It is read once if it repeats after at most kTile elements. If each of its numbers
/// stands for at least kTile elements, each number is read once.
template <class T> class TileOperand {
 public:
  static constexpr int64_t kLength = 4096 / sizeof(T);  // shorter tiles are too much overhead for short formulas
  static constexpr int64_t kBuffer = kLength + kTile;   // and the longest period
  TileOperand() = default;
  /// A transposed operand is copied whole before.
  TileOperand(const Tensor& x, const MapPlan& p) : x_(reads_across(x.layout()) ? contiguous(x.detach()) : x) {
    walk_ = StridedRange(x_.layout().expanded(p.shape));
    at_ = x_.raw(), as_it_is_ = x.dtype() == dtype_of<T>();
    bf16_run_ = x.dtype() == bf16 && walk_.contiguous;
    if (walk_.rank == 0 || walk_.contiguous) return;
    const int last = walk_.rank - 1;
    numel_ = p.shape.numel();
    if (walk_.strides[0] == 0 && numel_ / walk_.shape[0] <= kTile) period_ = numel_ / walk_.shape[0];
    else if (walk_.strides[last] == 0 && walk_.shape[last] >= kTile) constant_ = walk_.shape[last];
  }

  /// Where the elements from i on lie, or null; n becomes the number of them that lie there.
  const T* in_place(int64_t i, int64_t& n) const {
    if (constant_ > 0) n = std::min(n, constant_ - i % constant_);
    if (!as_it_is_ || period_ > 0) return nullptr;
    const T* at = reinterpret_cast<const T*>(at_);
    if (walk_.contiguous) return at + i;
    const StridedRange::Run run = walk_.run(i);
    if (run.count == 0) return nullptr;
    n = std::min(n, run.count);
    return at + run.offset;
  }
  /// Whether every tile is read, if not in place.
  bool varies() const { return period_ == 0 && constant_ == 0; }
  /// The n elements from i on, in the buffer; `held`, −1 at first, tells what it holds.
  const T* buffered(int64_t i, int64_t n, T* buffer, int64_t& held) const {
    if (period_ > 0) {
      const int64_t all = std::min(numel_, kLength + period_);
      if (held < 0) read_tile(walk_, at_, x_.dtype(), 0, period_, buffer);
      for (int64_t have = period_; held < 0 && have < all; have *= 2)
        std::copy_n(buffer, std::min(have, all - have), buffer + have);
      held = 0;
      return buffer + i % period_;  // a tile begins anywhere in the period
    }
    if (constant_ > 0) {
      if (held == i / constant_) return buffer;
      held = i / constant_;
      T number;
      read_tile(walk_, at_, x_.dtype(), i, 1, &number);
      std::fill_n(buffer, kLength, number);
    } else if (bf16_run_) {
      const BFloat16* at = reinterpret_cast<const BFloat16*>(at_) + i;
      for (int64_t j = 0; j < n; ++j) buffer[j] = convert<T>(at[j]);
    } else {
      read_tile(walk_, at_, x_.dtype(), i, n, buffer);
    }
    return buffer;
  }

 private:
  Tensor x_;
  StridedRange walk_;
  const std::byte* at_ = nullptr;
  int64_t numel_ = 0;     // of the map's result
  int64_t period_ = 0;    // the operand repeats after so many elements; 0: after none, or too many
  int64_t constant_ = 0;  // each number stands for so many elements; 0: for few
  bool as_it_is_ = false, bf16_run_ = false;
};

/// Runs the loop tile by tile. Undefined results go into a buffer that is discarded. bf16 results go into a buffer,
/// too, and are rounded while it is in cache.
template <class T>
void run_tiles(const MapPlan& p, TileLoop<T> loop, const void* formula, T* const* out, std::size_t n_results) {
  const bool narrow = p.dtype == bf16;
  constexpr int64_t kLength = TileOperand<T>::kLength, kLine = 64 / sizeof(T);
  TileOperand<T> operands[kMapOperands];
  for (std::size_t k = 0; k < p.count; ++k) operands[k] = TileOperand<T>(*p.operands[k], p);
  parallel_for(p.shape.numel(), kMapGrain, [&](int64_t begin, int64_t end) {
    alignas(64) T buffer[kMapOperands][TileOperand<T>::kBuffer], unwanted[kMapOperands][kLength];
    const T* in[kMapOperands];
    T* to[kMapOperands];
    int64_t held[kMapOperands];
    std::fill_n(held, p.count, -1);
    for (int64_t i = begin, n; i < end; i += n) {
      n = std::min(kLength, end - i);
      bool busy = false;
      for (std::size_t k = 0; k < p.count; ++k) {
        in[k] = operands[k].in_place(i, n);
        busy |= !in[k] && operands[k].varies();
      }
      for (std::size_t k = 0; busy && k < p.count; ++k)  // arrives while the others are read
        for (int64_t j = 0; in[k] && j < n; j += kLine) __builtin_prefetch(in[k] + j);
      for (std::size_t k = 0; k < p.count; ++k)
        if (!in[k]) in[k] = operands[k].buffered(i, n, buffer[k], held[k]);
      for (std::size_t k = 0; k < n_results; ++k) to[k] = out[k] && !narrow ? out[k] + i : unwanted[k];
      loop(formula, in, to, n);
      if constexpr (std::is_same_v<T, float>)
        for (std::size_t k = 0; narrow && k < n_results; ++k) {
          BFloat16* rounded = reinterpret_cast<BFloat16*>(out[k]) + i;
          for (int64_t j = 0; out[k] && j < n; ++j) rounded[j] = BFloat16(unwanted[k][j]);
        }
    }
  });
}

template <class T>
void run(const MapPlan& p, TileLoop<T> loop, const void* formula, Tensor* results, std::size_t n_results) {
  const T* base[kMapOperands];
  T* out[kMapOperands];
  bool whole = true;  // no buffer is needed, neither for an operand nor for a result
  for (std::size_t k = 0; k < p.count; ++k) {
    base[k] = reinterpret_cast<const T*>(p.operands[k]->raw());
    whole = whole && p.direct[k];
  }
  for (std::size_t k = 0; k < n_results; ++k) {
    out[k] = results[k].defined() ? reinterpret_cast<T*>(results[k].raw()) : nullptr;
    whole = whole && out[k];
  }
  whole = whole && p.dtype != bf16;
  if (!whole) return run_tiles(p, loop, formula, out, n_results);
  const int64_t n = p.shape.numel();
  if (n <= kMapGrain) return n > 0 ? loop(formula, base, out, n) : void();
  parallel_for(n, kMapGrain, [&](int64_t begin, int64_t end) {
    const T* in[kMapOperands];
    T* to[kMapOperands];
    for (std::size_t k = 0; k < p.count; ++k) in[k] = base[k] + begin;
    for (std::size_t k = 0; k < n_results; ++k) to[k] = out[k] + begin;
    loop(formula, in, to, end - begin);
  });
}

}  // namespace

MapPlan plan_map(const char* op, const Tensor* const* xs, std::size_t n, bool integral) {
  MapPlan p;
  p.count = n;
  p.dtype = common_dtype(op, xs, n, integral);
  p.shape = xs[0]->shape();
  bool same = true;
  for (std::size_t k = 1; k < n; ++k) same = same && xs[k]->shape() == p.shape;
  for (std::size_t k = 1; k < n && !same; ++k) p.shape = broadcast(op, p.shape, xs[k]->shape());
  for (std::size_t k = 0; k < n; ++k) {
    p.operands[k] = xs[k];
    p.direct[k] = xs[k]->dtype() == p.dtype && xs[k]->is_contiguous() && (same || xs[k]->shape() == p.shape);
  }
  return p;
}

MapPlan plan_map_vjp(const Node& node, const Tensor* xs, std::size_t n, const Tensor& g, Tensors& grads) {
  const Tensor* all[kMapOperands];
  for (std::size_t k = 0; k < n; ++k) all[k] = xs + k;
  all[n] = &g;
  MapPlan plan = plan_map(node.name(), all, n + 1, false);
  grads.resize(n);
  for (std::size_t k = 0; k < n; ++k)
    if (node.needs(k)) grads[k] = empty(plan.shape, {plan.dtype, g.device()});
  return plan;
}

Tensors pulled_back(const Node& node, std::span<const Tensor> slopes, const Tensor& g, DType dtype, bool selects) {
  Tensors grads(slopes.size());
  for (std::size_t k = 0; k < slopes.size(); ++k) {
    if (!node.needs(k)) continue;
    const Tensor& slope = slopes[k];
    // Masked before the product, so that no slope's own gradient is 0 · ∞.
    const Tensor from = selects && slope.defined() ? masked_fill(g, slope == 0.0, 0) : g;
    const Tensor dx = PartialOps<Tensor>::mul(from, slope);
    grads[k] = dx.defined() ? to(dx, dtype) : zeros(g.shape(), {dtype, g.device()});
  }
  return grads;
}

void run_map(const MapPlan& plan, const TileLoops& loops, const void* formula, Tensor* results, std::size_t n) {
  switch (plan.dtype) {
    case f32:
    case bf16: return run<float>(plan, loops.f32, formula, results, n);
    case f64: return run<double>(plan, loops.f64, formula, results, n);
    case i64: return run<int64_t>(plan, loops.i64, formula, results, n);
    default: return run<int32_t>(plan, loops.i32, formula, results, n);
  }
}

namespace {
constexpr uint32_t kUnitMark = 0xFFFFFFFF;  // an output_index; unused in a tensor without history
}

Tensor unit(const Tensor& x) {
  Tensor one = full({}, 1, x.options());
  one.impl().output_index = kUnitMark;
  return one;
}
bool is_unit(const Tensor& x) { return x.impl().output_index == kUnitMark; }

}  // namespace sluice::detail
