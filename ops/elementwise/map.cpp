#include <sluice/ops/elementwise/map.h>

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/operands.h>
#include <sluice/ops/elementwise/tile_operand.h>

#include <algorithm>

namespace sluice::detail {

namespace {

constexpr int64_t kMapGrain = 32 * kTile;

/// The common dtype of an op's operands; throws naming the op. bool operands count as 0 and 1 of any dtype.
DType common_dtype(const char* op, const Tensor* const* xs, std::size_t n, bool integral) {
  DType common = boolean;
  for (std::size_t k = 0; k < n; ++k) {
    if (!xs[k]->defined()) fail_undefined(op, str("operand ", k));
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

/// Runs the loop tile by tile. Undefined results go into a buffer that is discarded. bf16 results go into a buffer,
/// too, and are rounded while it is in cache. `places` is where result 0 has its numbers; others are contiguous.
template <class T>
void run_tiles(const MapPlan& p, TileLoopsOf<T> loops, const void* formula, T* const* out, std::size_t n_results,
               const StridedRange& places) {
  const bool narrow = p.dtype != dtype_of<T>();  // bf16 in f32
  constexpr int64_t kLength = TileOperand<T>::kLength, kLine = 64 / sizeof(T);
  TileOperand<T> operands[kMapOperands];
  for (std::size_t k = 0; k < p.count; ++k) operands[k] = TileOperand<T>(*p.operands[k], p.shape);
  TileLoop<T> loop = loops.loop;
  for (std::size_t k = 0; k < 2 && loop == loops.loop; ++k)
    if (loops.beside_number[k] && operands[k].as_number()) loop = loops.beside_number[k];
  parallel_for(p.shape.numel(), kMapGrain, [&](int64_t begin, int64_t end) {
    alignas(64) T buffer[kMapOperands][TileOperand<T>::kBuffer], unwanted[kMapOperands][kLength];
    const T* in[kMapOperands];
    T* to[kMapOperands];
    int64_t held[kMapOperands];
    std::fill_n(held, p.count, -1);
    for (int64_t i = begin, n; i < end; i += n) {
      n = std::min(kLength, end - i);
      int64_t skipped = 0;  // numbers between those of result 0
      if (!places.contiguous) {
        const StridedRange::Run run = places.run(i);
        n = std::min(n, run.count), skipped = run.offset - i;
      }
      bool busy = false;
      for (std::size_t k = 0; k < p.count; ++k) {
        in[k] = operands[k].in_place(i, n);
        busy |= !in[k] && operands[k].varies();
      }
      for (std::size_t k = 0; busy && k < p.count; ++k)  // arrives while the others are read
        for (int64_t j = 0; in[k] && j < n; j += kLine) __builtin_prefetch(in[k] + j);
      for (std::size_t k = 0; k < p.count; ++k)
        if (!in[k]) in[k] = operands[k].buffered(i, n, buffer[k], held[k]);
      for (std::size_t k = 0; k < n_results; ++k) to[k] = out[k] && !narrow ? out[k] + i + skipped : unwanted[k];
      loop(formula, in, to, n);
      if constexpr (std::is_same_v<T, float>)
        for (std::size_t k = 0; narrow && k < n_results; ++k) {
          BFloat16* rounded = reinterpret_cast<BFloat16*>(out[k]) + i + skipped;
          for (int64_t j = 0; out[k] && j < n; ++j) rounded[j] = rounded_to_bf16(unwanted[k][j]);
        }
    }
  });
}

template <class T>
void run(const MapPlan& p, TileLoopsOf<T> loops, const void* formula, Tensor* results, std::size_t n_results) {
  const T* base[kMapOperands];
  T* out[kMapOperands];
  bool whole = true;  // no buffer is needed, neither for an operand nor for a result
  for (std::size_t k = 0; k < p.count; ++k) {
    base[k] = reinterpret_cast<const T*>(p.operands[k]->raw());
    whole = whole && p.direct[k];
  }
  for (std::size_t k = 0; k < n_results; ++k) {
    out[k] = results[k].defined() ? reinterpret_cast<T*>(results[k].raw()) : nullptr;
    whole = whole && out[k] && results[k].is_contiguous();
  }
  whole = whole && p.dtype == dtype_of<T>();
  if (!whole) {
    const StridedRange places(n_results == 1 ? results[0].layout() : Layout(p.shape));
    return run_tiles(p, loops, formula, out, n_results, places);
  }
  const int64_t n = p.shape.numel();
  const TileLoop<T> loop = loops.loop;
  if (n <= kMapGrain) return n > 0 ? loop(formula, base, out, n) : void();
  parallel_for(n, kMapGrain, [&](int64_t begin, int64_t end) {
    const T* in[kMapOperands];
    T* to[kMapOperands];
    for (std::size_t k = 0; k < p.count; ++k) in[k] = base[k] + begin;
    for (std::size_t k = 0; k < n_results; ++k) to[k] = out[k] + begin;
    loop(formula, in, to, end - begin);
  });
}

/// For operands that are all transposed alike, more of them than results: computes in the order of their memory, so
/// that results are transposed instead of operands. Returns false for other operands.
bool run_transposed(const MapPlan& p, const TileLoops& loops, const void* formula, Tensor* results, std::size_t n) {
  std::size_t wanted = 0;
  for (std::size_t k = 0; k < n; ++k) wanted += results[k].defined();
  if (p.count <= wanted || !reads_across(p.operands[0]->layout())) return false;
  const Shape order = p.operands[0]->layout().order_in_memory();
  for (std::size_t k = 0; k < p.count; ++k) {
    const Tensor& x = *p.operands[k];
    if (x.shape() != p.shape || !reads_across(x.layout()) || x.layout().order_in_memory() != order) return false;
  }
  const auto permuted = [&](const Tensor& x, bool back) {
    Layout l = x.layout();
    for (int i = 0; i < order.rank(); ++i) {
      const int d = static_cast<int>(order[i]), from = back ? i : d, to = back ? d : i;
      l.shape[to] = x.shape()[from], l.strides[to] = x.strides()[from];
    }
    return alias(x, l);
  };
  std::array<Tensor, kMapOperands> operands, made;
  const Tensor* given[kMapOperands];
  for (std::size_t k = 0; k < p.count; ++k)
    operands[k] = permuted(p.operands[k]->detach(), false), given[k] = &operands[k];
  const MapPlan plan = plan_map("map", given, p.count, true);
  for (std::size_t k = 0; k < n; ++k)
    if (results[k].defined()) made[k] = empty(plan.shape, results[k].options());
  run_map(plan, loops, formula, made.data(), n);
  for (std::size_t k = 0; k < n; ++k)
    if (made[k].defined()) copy_elements(permuted(made[k], true), results[k]);
  return true;
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
  CommonDevice where{op};  // a formula that runs as ops would name one of these
  for (std::size_t k = 0; k < n; ++k) {
    where(*xs[k]);
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
  if (run_transposed(plan, loops, formula, results, n)) return;
  if (plan.dtype == bf16 && loops.bf16.loop) return run<BFloat16>(plan, loops.bf16, formula, results, n);
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
