// c[b] = a[b]·b[b]           da = g·bᵀ,  db = aᵀ·g   (batch dims that were broadcast are summed by the
//                                                     engine)
#include <sluice/ops/matmul/matmul.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/gemm/operand.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/kernels.h>

#include <algorithm>

namespace sluice {

namespace {

/// All dims but the last merged: a matrix, also when a dim is 0 (where −1 could not be inferred).
Tensor as_rows(const Tensor& x) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) rows *= x.shape()[d];
  return reshape(x, {rows, x.dim(-1)});
}

struct MatMul final : Op<"matmul"> {
  Tensors vjp(const Tensor& g) override {
    return {needs(0) ? matmul(g, transpose(saved(1), -2, -1)) : Tensor(),
            needs(1) ? matmul(transpose(saved(0), -2, -1), g) : Tensor()};
  }
};

/// linear() of operands that fit, for the op that was called.
Tensor product_of_rows(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Shape shape = x.shape();
  shape[shape.rank() - 1] = weight.dim(1);
  Tensor y = empty(shape, x.options(), op);
  if (y.numel() > 0) {
    NoGrad guard;
    const PrecisionScope scope(precision_of(y.dtype()));
    const Tensor rows = as_rows(x.detach());
    Tensor out = alias(y, Layout({rows.dim(0), weight.dim(1)}));
    if (detail::beyond_blas(x.device(), rows.dim(0), rows.dim(1), out.dim(1)))
      fail(op, ": a dimension exceeds 2^31 — got ", x, " and ", weight);
    kernel::matmul(rows, weight.detach(), bias.defined() ? bias.detach() : Tensor(), out);
  }
  // y = x·W + b over all leading dims at once: dx = g·Wᵀ, dW = xᵀ·g, db = Σ_rows g.
  return record(op, std::move(y), {x, weight, bias}, {x, weight}, [](const Node& node, const Tensor& g) {
    const Tensor rows = as_rows(g);
    return Tensors{node.needs(0) ? matmul(g, transpose(node.saved(1), 0, 1)) : Tensor(),
                   node.needs(1) ? matmul(transpose(as_rows(node.saved(0)), 0, 1), rows) : Tensor(),
                   node.needs(2) ? sum(rows, {0}) : Tensor()};
  });
}

}  // namespace

Tensor matmul(const Tensor& a_in, const Tensor& b_in) {
  detail::check_floats("matmul", {{"a", a_in}, {"b", b_in}});
  if (a_in.rank() == 0 || b_in.rank() == 0)
    fail("matmul: scalars have no inner dimension — got a=", a_in, ", b=", b_in);
  const int inner = b_in.rank() == 1 ? -1 : -2;
  if (a_in.dim(-1) != b_in.dim(inner))
    fail("matmul: inner dimensions differ — got a=", a_in, ", b=", b_in, "; need a.dim(-1)==b.dim(", inner, ")");
  for (int d = 3; d <= std::min(a_in.rank(), b_in.rank()); ++d)
    if (a_in.dim(-d) != b_in.dim(-d) && a_in.dim(-d) != 1 && b_in.dim(-d) != 1)
      fail("matmul: batch dimensions do not broadcast — got a=", a_in, ", b=", b_in, "; sizes at dim ", -d,
           " differ and neither is 1");
  if (a_in.rank() == 1) return squeeze(matmul(unsqueeze(a_in, 0), b_in), b_in.rank() == 1 ? -1 : -2);
  if (b_in.rank() == 1) return squeeze(matmul(a_in, unsqueeze(b_in, 1)), -1);
  if (b_in.rank() == 2 && a_in.rank() > 2) return product_of_rows("matmul", a_in, b_in, Tensor());

  Shape batch_a(std::span(a_in.shape().begin(), a_in.rank() - 2));
  Shape batch_b(std::span(b_in.shape().begin(), b_in.rank() - 2));
  Shape batch = broadcast("matmul", batch_a, batch_b);
  auto stretched = [&](const Tensor& x) {
    Shape s = batch;
    s.push_back(x.dim(-2)), s.push_back(x.dim(-1));
    checked_numel("matmul", s);
    return alias(x, x.layout().expanded(s));
  };
  Shape shape = batch;
  shape.push_back(a_in.dim(-2)), shape.push_back(b_in.dim(-1));
  Tensor c = empty(shape, a_in.options(), "matmul");
  const Tensor a = stretched(a_in), b = stretched(b_in);
  const PrecisionScope scope(precision_of(c.dtype()));
  if (c.numel() > 0) {
    if (detail::beyond_blas(c.device(), c.dim(-2), a.dim(-1), c.dim(-1)))
      fail("matmul: a dimension exceeds 2^31 — got a=", a_in, ", b=", b_in);
    kernel::matmul(a, b, Tensor(), c);
  }
  return record<MatMul>(std::move(c), {a_in, b_in}, {a_in, b_in});
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  detail::check_floats("linear", {{"x", x}, {"weight", weight}});
  if (weight.rank() != 2 || x.rank() < 1 || x.dim(-1) != weight.dim(0))
    fail("linear: x=", x, " and weight=", weight, " do not fit; need x [..., in] and weight [in, out]");
  if (bias.defined()) {
    detail::check_floats("linear", {{"x", x}, {"bias", bias}});
    if (bias.shape() != Shape{weight.dim(1)})
      fail("linear: bias=", bias, " does not fit weight=", weight, "; need bias [out]");
  }
  return product_of_rows("linear", x, weight, bias);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  detail::check_defined("outer", {{"a", a}, {"b", b}});
  detail::check_devices("outer", {a, b});
  if (a.rank() != 1 || b.rank() != 1) fail("outer: needs two tensors of rank 1 — got a=", a, ", b=", b);
  if (a.dtype() != b.dtype()) fail<DTypeError>("outer: dtypes differ — got a=", a.dtype(), a, ", b=", b.dtype(), b);
  if (a.dtype() == boolean) fail<DTypeError>("outer: needs numbers — got bool of shapes ", a, " and ", b);
  checked_numel("outer", {a.numel(), b.numel()});
  return unsqueeze(a, 1) * b;
}

}  // namespace sluice
