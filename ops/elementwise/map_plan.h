// What map() hands to the loops: the checked operands of a call, a formula's loops, and the walk over tiles. None of it
// depends on the formula's type.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/node.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::detail {

inline constexpr std::size_t kMapOperands = 7;  // six, and a gradient

/// One checked map() call: operands, and dtype and shape of the result. Not a template.
struct MapPlan {
  DType dtype = f32;  // of results and computation; bf16 is computed in f32
  Shape shape;        // of the result
  std::size_t count = 0;
  std::array<const Tensor*, kMapOperands> operands;  // each broadcasts to shape
  std::array<bool, kMapOperands> direct;             // contiguous, and of the shape and dtype above
  static constexpr bool borrows = true;

  void each_tensor(auto f) const {
    for (std::size_t k = 0; k < count; ++k) f(*operands[k]);
  }
};
/// Common dtype and shape of an op's operands; throws naming the op.
MapPlan plan_map(const char* op, const Tensor* const* xs, std::size_t n, bool integral);
/// Plan of a backward pass. Operands are the n inputs of the node, then g, the gradient of its output. Allocates
/// grads[k] for each input k whose gradient is needed.
MapPlan plan_map_vjp(const Node& node, const Tensor* xs, std::size_t n, const Tensor& g, Tensors& grads);
/// The gradients g · slopes[k] of a node's inputs in `dtype`, as ops. `selects`: a slope of 0 gives 0, even if g is ∞.
Tensors pulled_back(const Node& node, std::span<const Tensor> slopes, const Tensor& g, DType dtype, bool selects);

/// A formula's loop over contiguous runs: out[j][i] from in[k][i], i < n.
template <class T> using TileLoop = void (*)(const void* formula, const T* const* in, T* const* out, int64_t n);
/// The loop over T; and, for short formulas of two operands, loops in which operand k is one number, in[k][0].
template <class T> struct TileLoopsOf {
  TileLoop<T> loop = nullptr;
  TileLoop<T> beside_number[2] = {};
};
struct TileLoops {
  TileLoopsOf<float> f32;
  TileLoopsOf<double> f64;
  TileLoopsOf<int64_t> i64 = {};
  TileLoopsOf<int32_t> i32 = {};
  TileLoopsOf<BFloat16> bf16 = {};  // null: converted to f32 and back
};
/// Runs a plan on the CPU, in parallel. Operands that cannot be read in place are gathered tile by tile. Undefined
/// results go into a buffer that is discarded. A single result may have its rows apart, if they are long
/// (StridedRange::run); others are contiguous.
void run_map(const MapPlan& plan, const TileLoops& loops, const void* formula, Tensor* results, std::size_t n);

}  // namespace sluice::detail
