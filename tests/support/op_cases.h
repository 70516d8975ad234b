// The table of ops. One row is one call of one public op: its inputs, the call, and what must come out,
// written as plain loops. The drivers in tests/ops/op_cases*_test.cpp run every row in every way; a
// public op without a row fails the suite.
#pragma once

#include "support/approx.h"
#include "support/array.h"

#include <sluice/core/tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice::testing {

struct Input {
  enum Kind {
    uniform,   // reals in [lo, hi], each at least `margin` away from every kink
    distinct,  // reals in [lo, hi], no two of the row's distinct inputs nearer than half their spacing
    levels,    // few different reals, so that ties occur
    mask,      // bool
    index,     // i64 in [0, n)
  };
  Kind kind = uniform;
  Dims shape;
  double lo = -2, hi = 2;
  std::vector<double> kinks = {};
  double margin = 0.05;
  int64_t n = 0;
  bool constant = false;  // no gradient with respect to it
};

// How inputs are spelt in rows.
inline Input real(Dims shape, double lo = -2, double hi = 2) { return {Input::uniform, shape, lo, hi}; }
inline Input positive(Dims shape) { return {Input::uniform, shape, 0.25, 3}; }
inline Input away(Dims shape, std::vector<double> kinks, double lo = -2, double hi = 2, double margin = 0.05) {
  return {Input::uniform, shape, lo, hi, kinks, margin};
}
inline Input distinct(Dims shape) { return {Input::distinct, shape}; }
inline Input levels(Dims shape) { return {Input::levels, shape}; }
inline Input mask(Dims shape) { return {Input::mask, shape}; }
inline Input index(Dims shape, int64_t n) { return {Input::index, shape, 0, 0, {}, 0, n}; }
inline Input constant(Input x) {
  x.constant = true;
  return x;
}

using In = std::vector<Tensor>;
/// What a call returns: one tensor or several.
struct Outputs : std::vector<Tensor> {
  Outputs(Tensor y) : std::vector<Tensor>{std::move(y)} {}
  Outputs(std::vector<Tensor> ys) : std::vector<Tensor>(std::move(ys)) {}
};

struct OpCase {
  const char* op = "";       // public name
  const char* variant = "";  // what is special about this row
  std::vector<Input> inputs = {};
  std::function<Outputs(const In&)> call = {};
  Reference reference = {};

  /// Why gradients are not checked; null for a differentiable op.
  const char* flat = nullptr;
  /// f32 error allowed, in ε₃₂ · (|y| + condition), condition measured on the reference.
  double ulps = 4;
  /// f32 gradient error allowed, in ε₃₂ · (|g| + largest |g|); 0 means twice `ulps`.
  double gradient_ulps = 0;
  /// The result must equal the reference exactly: nothing is rounded.
  bool exact = false;
  /// Any shape will do: also run on lengths around tile boundaries, on empty and on large tensors.
  bool any_shape = false;
  /// Other shapes of the inputs to run, one list per run.
  std::vector<std::vector<Dims>> shapes = {};
  /// Shapes just beyond tiles, lanes, slabs and grains in every dim, remainders of 1 included, and split among threads;
  /// empty: not run.
  std::vector<Dims> large = {};
  /// Memory layout may not change a bit. False where BLAS chooses another order of summation.
  bool bitwise = true;

  std::string name() const { return *variant ? std::string(op) + " (" + variant + ")" : op; }
};

using Cases = std::vector<OpCase>;
const Cases& all_cases();

// One function per file cases_*.cpp.
void add_elementwise_cases(Cases&);
void add_mathematics_cases(Cases&);
void add_comparison_cases(Cases&);
void add_activation_cases(Cases&);
void add_reduce_cases(Cases&);
void add_view_cases(Cases&);
void add_join_cases(Cases&);
void add_matmul_cases(Cases&);
void add_create_cases(Cases&);
void add_softmax_cases(Cases&);
void add_index_cases(Cases&);
void add_loss_cases(Cases&);
void add_contract_cases(Cases&);
void add_attention_cases(Cases&);
void add_bias_cases(Cases&);
void add_scan_cases(Cases&);
void add_delta_cases(Cases&);

// -- running a row -----------------------------------------------------------------------------------------

/// check(row) for every row; one that throws fails, and the others go on.
void for_each_row(const std::function<void(const OpCase&)>& check);

/// Input values of a row, representable in f32. `shapes` replaces the row's own, if not empty.
Arrays input_values(const OpCase& row, const std::vector<Dims>& shapes, uint64_t seed = 1);
/// The values as tensors: reals of `dtype`, masks bool, indices i64. With `grad`, the inputs that may
/// have a gradient require one.
In input_tensors(const OpCase& row, const Arrays& values, DType dtype, bool grad = false);

/// Bounds on |op − reference| per element and output: tolerance · (|y| + condition + a little), where
/// condition is how much the reference moves, per unit, when its inputs move in the last place.
std::vector<std::vector<double>> allowed_errors(const OpCase& row, const Arrays& values, const Expected& expected,
                                                double tolerance);

/// The shapes a row runs on: its own (an empty list) and every other one it allows.
std::vector<std::vector<Dims>> shapes_of(const OpCase& row);

/// Ones of the dtype of x: bool · ones_of(x) is a mask in numbers.
Tensor ones_of(const Tensor& x);

inline Shape shape_of(const Dims& d) { return Shape(std::span(d.data(), d.size())); }

}  // namespace sluice::testing
