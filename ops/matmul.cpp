// c[b] = a[b]·b[b]           da = g·bᵀ,  db = aᵀ·g   (batch dims that were broadcast are summed by the
//                                                     engine)
// OpenBLAS runs single-threaded inside tiles of c; tiles are cut by shape alone, so the result does not
// depend on the number of threads.
#include <sluice/ops/matmul.h>

#include <sluice/core/node.h>
#include <sluice/core/parallel.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <algorithm>
#include <climits>

namespace sluice {

namespace {

/// One matrix as BLAS wants it: row-major with leading dimension ld, or its transpose.
struct Operand {
  detail::Read read = detail::Read::plain;
  int64_t ld = 1;
};

/// How BLAS can read the last two dims of x without a copy, if it can.
std::optional<Operand> blas_operand(const Tensor& x) {
  const int r = x.rank();
  const int64_t rows = x.shape()[r - 2], cols = x.shape()[r - 1];
  const int64_t rs = x.strides()[r - 2], cs = x.strides()[r - 1];
  if ((cs == 1 || cols <= 1) && (rs >= std::max<int64_t>(1, cols) || rows <= 1))
    return Operand{detail::Read::plain, rows <= 1 ? std::max<int64_t>(1, cols) : rs};
  if ((rs == 1 || rows <= 1) && (cs >= std::max<int64_t>(1, rows) || cols <= 1))
    return Operand{detail::Read::transposed, cols <= 1 ? std::max<int64_t>(1, rows) : cs};
  return std::nullopt;
}

/// How one product is cut into tiles of rows × cols. Each GEMM call packs its operands again, which costs
/// about 1/rows + 1/cols of its arithmetic, so tiles are large (>= 128 a side, about 32 MFLOP) and few.
struct Tiling {
  int64_t rows, cols, row_tiles, col_tiles;

  Tiling(int64_t n, int64_t m, int64_t k) {
    const int64_t wanted = std::clamp<int64_t>(n * m * k >> 24, 1, 64);
    auto cut = [](int64_t size, int64_t tiles) {
      tiles = std::clamp<int64_t>(size / 128, 1, tiles);
      return ((size + tiles - 1) / tiles + 15) / 16 * 16;
    };
    rows = cut(n, wanted), row_tiles = (n + rows - 1) / rows;
    cols = cut(m, (wanted + row_tiles - 1) / row_tiles), col_tiles = (m + cols - 1) / cols;
  }
};

/// c [batch…, n, m] = a·b (+ c when accumulate). a and b already have c's batch dims, stride 0 where
/// they repeat.
void matmul_cpu(const Tensor& a_in, const Tensor& b_in, Tensor& c, bool accumulate) {
  if (a_in.dim(-1) == 0) {  // an empty sum
    if (!accumulate) fill_(c, 0);
    return;
  }
  Tensor a = a_in, b = b_in;
  auto oa = blas_operand(a), ob = blas_operand(b);
  if (!oa) a = clone(a), oa = blas_operand(a);
  if (!ob) b = clone(b), ob = blas_operand(b);
  const int r = c.rank();
  const int64_t n = c.shape()[r - 2], m = c.shape()[r - 1], k = a.shape()[r - 1];
  if (std::max({n, m, k, oa->ld, ob->ld}) > INT_MAX) fail("matmul: a dimension exceeds 2^31 — got a=", a, ", b=", b);
  int64_t batch = 1;
  for (int d = 0; d < r - 2; ++d) batch *= c.shape()[d];

  const Tiling tile(n, m, k);
  const int64_t tiles = tile.row_tiles * tile.col_tiles;
  const int64_t per_task = std::max<int64_t>(1, (int64_t{1} << 16) / std::max<int64_t>(1, n * m * k));
  dispatch_float("matmul", c.dtype(), [&]<class T>() {
    const T *pa = a.data<T>(), *pb = b.data<T>();
    T* pc = c.mutable_data<T>();
    parallel_for(batch * tiles, per_task, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % tiles / tile.col_tiles * tile.rows, col = i % tile.col_tiles * tile.cols;
        int64_t at_a = 0, at_b = 0, rest = i / tiles;
        const int64_t index = rest;
        for (int d = r - 3; d >= 0; --d) {
          const int64_t j = rest % c.shape()[d];
          rest /= c.shape()[d];
          at_a += j * a.strides()[d];
          at_b += j * b.strides()[d];
        }
        at_a += row * (oa->read == detail::Read::plain ? oa->ld : 1);
        at_b += col * (ob->read == detail::Read::plain ? 1 : ob->ld);
        detail::gemm(oa->read, ob->read, std::min(tile.rows, n - row), std::min(tile.cols, m - col), k, T(1), pa + at_a,
                     oa->ld, pb + at_b, ob->ld, T(accumulate), pc + (index * n + row) * m + col, m);
      }
    });
  });
}

void check(const char* op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || (a.dtype() != f32 && a.dtype() != f64))
    fail<DTypeError>(op, ": needs two f32 or two f64 operands — got a=", a.dtype(), a, ", b=", b.dtype(), b);
}

/// All dims but the last merged: a matrix, also when a dim is 0 (where −1 could not be inferred).
Tensor as_rows(const Tensor& x) {
  int64_t rows = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) rows *= x.shape()[d];
  return reshape(x, {rows, x.dim(-1)});
}

struct MatMul final : Node {
  static const char* op_name() { return "matmul"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override {
    return {needs(0) ? matmul(g, transpose(saved(1), -2, -1)) : Tensor(),
            needs(1) ? matmul(transpose(saved(0), -2, -1), g) : Tensor()};
  }
};

// y = x·W + b over all leading dims at once: dx = g·Wᵀ, dW = xᵀ·g, db = Σ_rows g.
struct Linear final : Node {
  static const char* op_name() { return "linear"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override {
    Tensor rows = as_rows(g);
    Tensors grads(edges.size());
    if (needs(0)) grads[0] = matmul(g, transpose(saved(1), 0, 1));
    if (needs(1)) grads[1] = matmul(transpose(as_rows(saved(0)), 0, 1), rows);
    if (edges.size() > 2 && needs(2)) grads[2] = sum(rows, {0});
    return grads;
  }
};

}  // namespace

constinit decltype(kernel::matmul) kernel::matmul{
    "matmul", &matmul_cpu, [](const Tensor& a, const Tensor&, Tensor& c, bool) {
      return Work{.flops = 2 * checked_mul("matmul", c.numel(), a.dim(-1))};
    }};

Tensor matmul(const Tensor& a_in, const Tensor& b_in) {
  check("matmul", a_in, b_in);
  if (a_in.rank() == 0 || b_in.rank() == 0)
    fail("matmul: scalars have no inner dimension — got a=", a_in, ", b=", b_in);
  if (a_in.rank() == 1) return squeeze(matmul(unsqueeze(a_in, 0), b_in), b_in.rank() == 1 ? -1 : -2);
  if (b_in.rank() == 1) return squeeze(matmul(a_in, unsqueeze(b_in, 1)), -1);
  if (a_in.dim(-1) != b_in.dim(-2))
    fail("matmul: inner dimensions differ — got a=", a_in, ", b=", b_in, "; need a.dim(-1)==b.dim(-2)");
  if (b_in.rank() == 2 && a_in.rank() > 2) return linear(a_in, b_in);

  Shape batch_a(std::span(a_in.shape().begin(), a_in.rank() - 2));
  Shape batch_b(std::span(b_in.shape().begin(), b_in.rank() - 2));
  Shape batch = broadcast("matmul", batch_a, batch_b);
  auto stretched = [&](const Tensor& x) {
    Shape s = batch;
    s.push_back(x.dim(-2)), s.push_back(x.dim(-1));
    return alias(x, x.layout().expanded(s));
  };
  Shape shape = batch;
  shape.push_back(a_in.dim(-2)), shape.push_back(b_in.dim(-1));
  Tensor c = empty(shape, a_in.options(), "matmul");
  if (c.numel() > 0) kernel::matmul(stretched(a_in), stretched(b_in), c, false);
  return record<MatMul>(std::move(c), {a_in, b_in}, {a_in, b_in});
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check("linear", x, weight);
  if (weight.rank() != 2 || x.rank() < 1 || x.dim(-1) != weight.dim(0))
    fail("linear: x=", x, " and weight=", weight, " do not fit; need x [..., in] and weight [in, out]");
  const bool biased = bias.defined();
  if (biased) {
    check("linear", x, bias);
    if (bias.shape() != Shape{weight.dim(1)})
      fail("linear: bias=", bias, " does not fit weight=", weight, "; need bias [out]");
  }
  Shape shape = x.shape();
  shape[shape.rank() - 1] = weight.dim(1);
  Tensor y = empty(shape, x.options(), "linear");
  if (y.numel() > 0) {
    NoGrad guard;
    if (biased) kernel::copy(bias, y);
    Tensor rows = as_rows(x.detach());
    Tensor out = alias(y, Layout({rows.dim(0), weight.dim(1)}));
    kernel::matmul(rows, weight.detach(), out, biased);
  }
  if (biased) return record<Linear>(std::move(y), {x, weight, bias}, {x, weight});
  return record<Linear>(std::move(y), {x, weight}, {x, weight});
}

}  // namespace sluice
