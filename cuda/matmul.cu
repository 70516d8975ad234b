// Slot matmul: the vendor's library computes the product if it can, else the kernel of gemm.cuh.
#include <sluice/cuda/bf16_rows.cuh>
#include <sluice/cuda/blas.h>
#include <sluice/cuda/gemm.cuh>
#include <sluice/cuda/kernels.h>

#include <sluice/ops/shape/create.h>

#include <optional>

namespace sluice::cuda {

namespace {

using sluice::detail::operand;
using sluice::detail::StridedRange;

/// The batch dims of x (a or b), expanded to those of c.
Layout batch_of(const Tensor& x, const Tensor& c) {
  const int r = c.rank() - 2;
  return Layout(Shape(std::span(c.shape().begin(), r)), Shape(std::span(x.strides().begin(), r)), 0);
}

/// The stride from one matrix to the next, in numbers, if it is the same for all.
std::optional<int64_t> stride_of(const StridedRange& batch) {
  if (batch.rank == 0) return 0;
  if (batch.rank == 1) return batch.strides[0];
  return std::nullopt;
}

/// An operand of [rows, cols] matrices, rounded to bf16. The constructor sets `read` and `stride` to those of the copy.
class RoundedMatrices {
 public:
  RoundedMatrices(const void* x, sluice::detail::Operand& read, int64_t rows, int64_t cols, int64_t batch,
                  int64_t& stride)
      : rows_(read.trans == sluice::detail::Trans::no ? rows : cols), width_(rows + cols - rows_),
        ld_(padded_to_8(width_)), matrices_(stride == 0 ? 1 : batch),
        data_(static_cast<std::size_t>(matrices_ * rows_ * ld_)) {
    const HeadRows<const float> from(static_cast<const float*>(x), 0, stride, read.ld);
    round_rows(1, RoundRow<float>{from, matrices_, rows_, width_, data_.get(), ld_});
    read.ld = ld_, stride = stride == 0 ? 0 : rows_ * ld_;
  }
  const void* get() const { return data_.get(); }

 private:
  int64_t rows_, width_, ld_, matrices_;
  Scratch<BFloat16> data_;
};
constexpr int64_t kOftenRead = 64;  // operands are rounded first if each number is multiplied at least this often

/// The product under Precision::bf16 with operands rounded first. The library itself would round f32 operands, each
/// number again whenever a tile reads it.
bool by_blas_rounded(BlasProduct p) {
  if (p.dtype != f32 || p.precision != Precision::bf16 || std::min(p.n, p.m) < kOftenRead) return false;
  const RoundedMatrices a(p.a, p.left, p.n, p.k, p.batch, p.a_stride), b(p.b, p.right, p.k, p.m, p.batch, p.b_stride);
  p.a = a.get(), p.b = b.get(), p.dtype = bf16;
  return blas(p);
}

bool by_blas(const Tensor& a_in, const Tensor& b_in, const Tensor& bias, Tensor& c, int64_t batch) {
  Tensor a = a_in, b = b_in;
  const bool begun = bias.defined() && c.dtype() == f64;  // the library adds no bias in f64, so c starts as the bias
  if (begun) copy(bias, c);
  auto left = operand(a), right = operand(b);
  if (!left) a = clone(a), left = operand(a);
  if (!right) b = clone(b), right = operand(b);
  const StridedRange walk_a(batch_of(a, c)), walk_b(batch_of(b, c));
  const auto stride_a = stride_of(walk_a), stride_b = stride_of(walk_b);
  const int64_t n = c.dim(-2), m = c.dim(-1), size = size_of(c.dtype());
  BlasProduct p{.dtype = c.dtype(),
                .result = c.dtype(),
                .n = n,
                .m = m,
                .k = a.dim(-1),
                .a = address_of(a),
                .left = *left,
                .b = address_of(b),
                .right = *right,
                .bias = bias.defined() && !begun ? address_of(bias) : nullptr,
                .c = address_of(c),
                .batch = batch,
                .c_stride = n * m,
                .precision = precision(),
                .accumulate = begun};
  if (stride_a && stride_b) {
    p.a_stride = *stride_a, p.b_stride = *stride_b;
    return by_blas_rounded(p) || blas(p);
  }
  p.batch = 1;  // batch dims that do not merge: one matrix after the other
  for (int64_t i = 0; i < batch; ++i) {
    p.a = address_of(a) + offset_at(walk_a, i) * size, p.b = address_of(b) + offset_at(walk_b, i) * size;
    p.c = address_of(c) + i * n * m * size;
    if (!blas(p)) return false;
  }
  return true;
}

template <class T> void by_kernel(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c, int64_t batch) {
  const int r = c.rank();
  const GemmProblem<T> p{.a = data_of<T>(a),
                         .b = data_of<T>(b),
                         .bias = data_or_null<T>(bias),
                         .c = data_of<T>(c),
                         .n = c.dim(-2),
                         .m = c.dim(-1),
                         .k = a.dim(-1),
                         .a_row = a.strides()[r - 2],
                         .a_col = a.strides()[r - 1],
                         .b_row = b.strides()[r - 2],
                         .b_col = b.strides()[r - 1],
                         .a_batch = StridedRange(batch_of(a, c)),
                         .b_batch = StridedRange(batch_of(b, c))};
  if (p.n > 16 && p.m > 16) run_gemm<T, 64, 4>(p, batch);
  else run_gemm<T, 16, 2>(p, batch);
}

}  // namespace

/// a and b must already have c's batch dims, with stride 0 where they repeat.
void matmul(const Tensor& a, const Tensor& b, const Tensor& bias_in, Tensor& c) {
  if (c.numel() == 0) return;
  if (a.dim(-1) == 0) return bias_in.defined() ? copy(bias_in, c) : fill(c, 0);  // an empty sum
  const Tensor bias = bias_in.defined() ? contiguous(bias_in) : bias_in;
  const int64_t batch = c.numel() / (c.dim(-2) * c.dim(-1));
  if (by_blas(a, b, bias, c, batch)) return;
  if (c.dtype() == bf16) {
    Tensor y = empty(c.shape(), {f32, c.device()});
    by_kernel<float>(converted(a, f32), converted(b, f32), converted(bias, f32), y, batch);
    return copy(y, c);
  }
  dispatch_float("matmul", c.dtype(), [&]<class T>() { by_kernel<T>(a, b, bias, c, batch); });
}

}  // namespace sluice::cuda
