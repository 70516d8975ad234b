// The kernel of matmul: c is cut into tiles by shape alone, so the result does not depend on the number of threads. Where
// many tiles use the same columns of b, these are packed once, by all threads, before the tiles are computed.
#include <sluice/core/parallel.h>
#include <sluice/ops/create.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <climits>

namespace sluice {

namespace {

using detail::PackedB;
using detail::Read;

/// One matrix as GEMM reads it: row-major with leading dimension ld, or its transpose.
struct Operand {
  Read read = Read::plain;
  int64_t ld = 1;
  int64_t at(int64_t row, int64_t col) const { return read == Read::plain ? row * ld + col : col * ld + row; }
};

/// How the last two dims of x can be read without a copy, if they can.
std::optional<Operand> operand(const Tensor& x) {
  const int r = x.rank();
  const int64_t rows = x.shape()[r - 2], cols = x.shape()[r - 1];
  const int64_t rs = x.strides()[r - 2], cs = x.strides()[r - 1];
  if ((cs == 1 || cols <= 1) && (rs >= std::max<int64_t>(1, cols) || rows <= 1))
    return Operand{Read::plain, rows <= 1 ? std::max<int64_t>(1, cols) : rs};
  if ((rs == 1 || rows <= 1) && (cs >= std::max<int64_t>(1, rows) || cols <= 1))
    return Operand{Read::transposed, cols <= 1 ? std::max<int64_t>(1, rows) : cs};
  return std::nullopt;
}

/// How a product is cut. A task should take some 20 µs or more, and there should be some 64. Rows are cut first, because
/// cutting columns has a's rows copied more often; but not below 56, for which a panel of b is fetched from L2.
struct Tiling {
  int64_t rows, cols, row_tiles, col_tiles;

  /// rows and cols are multiples of `height` and `columns`.
  Tiling(int64_t batch, int64_t n, int64_t m, int64_t k, int64_t height, int64_t columns) {
    const int64_t wanted = (std::clamp<int64_t>(batch * n * m * k >> 21, 1, 64) + batch - 1) / batch;
    row_tiles = std::clamp<int64_t>(wanted, (n + 167) / 168, std::max<int64_t>(1, n / 56));
    rows = ((n + row_tiles - 1) / row_tiles + height - 1) / height * height, row_tiles = (n + rows - 1) / rows;
    const int64_t panels = (m + columns - 1) / columns;
    col_tiles = std::clamp<int64_t>((wanted + row_tiles - 1) / row_tiles, 1, (panels + 3) / 4);
    cols = (panels + col_tiles - 1) / col_tiles * columns, col_tiles = (m + cols - 1) / cols;
  }
};

template <class T>
struct Matmul {
  const Tensor &a, &b;
  const Operand left, right;
  const T *pa, *pb;
  T* pc;
  int64_t batch, n, m, k;
  const T* bias;
  Shape dims;  // of the batch
  Precision precision;

  /// Where matrix i of an operand begins.
  int64_t offset(const Tensor& x, int64_t i) const {
    int64_t at = 0;
    for (int d = dims.rank() - 1; d >= 0; --d) at += i % dims[d] * x.strides()[d], i /= dims[d];
    return at;
  }

  /// Of two AMX tiles; others have all heights.
  int64_t height() const { return precision == Precision::bf16 ? 32 : 1; }

  /// Each task packs what it needs itself, if it is worth it.
  void separate() const {
    const Tiling t(batch, n, m, k, height(), 32);
    const int64_t tiles = t.row_tiles * t.col_tiles;
    parallel_for(batch * tiles, std::max<int64_t>(1, (int64_t{1} << 16) / (n * m * k)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % tiles / t.col_tiles * t.rows, col = i % t.col_tiles * t.cols, matrix = i / tiles;
        T* const to = pc + (matrix * n + row) * m + col;
        const int64_t rows = std::min(t.rows, n - row), cols = std::min(t.cols, m - col);
        detail::gemm(left.read, right.read, rows, cols, k, T(1), pa + offset(a, matrix) + left.at(row, 0), left.ld,
                     pb + offset(b, matrix) + right.at(0, col), right.ld, T(0), to, m, precision);
        if (bias) detail::add_bias(to, rows, cols, m, bias + col);
      }
    });
  }

  /// b's columns are packed first, as many at a time as fit some memory.
  void shared() const {
    constexpr int64_t kMemory = int64_t{16} << 20;
    const int64_t columns = PackedB<T>(k, m, nullptr, precision).panel_columns();
    const int64_t fitting = std::max<int64_t>(4, kMemory / int64_t{sizeof(T)} / k / columns);
    const int64_t width = std::min(fitting, (m + columns - 1) / columns) * columns;
    const Tensor memory = empty({PackedB<T>::size(k, std::min(width, m))}, {.dtype = dtype_of<T>()});
    int64_t packed = -1;  // the matrix whose columns are there
    for (int64_t matrix = 0; matrix < batch; ++matrix)
      for (int64_t first = 0; first < m; first += width) {
        const int64_t count = std::min(width, m - first), at = offset(b, matrix);
        PackedB<T> panels(k, count, reinterpret_cast<T*>(memory.raw()), precision);
        if (packed != at || width < m)
          parallel_for(panels.panels(), std::max<int64_t>(1, (int64_t{1} << 15) / (columns * k)), [&](int64_t begin, int64_t end) {
            panels.fill(right.read, pb + at + right.at(0, first), right.ld, begin, end);
          });
        packed = at;
        const Tiling t(1, n, count, k, height(), columns);
        parallel_for(t.row_tiles * t.col_tiles, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t row = i / t.col_tiles * t.rows, col = i % t.col_tiles * t.cols;
            panels.multiply(left.read, std::min(t.rows, n - row), T(1), pa + offset(a, matrix) + left.at(row, 0), left.ld, T(0),
                            pc + (matrix * n + row) * m + first + col, m, col / columns,
                            std::min((col + t.cols) / columns, panels.panels()),
                            {.bias = bias ? bias + first : nullptr});
          }
        });
      }
  }
};

/// a and b already have c's batch dims, stride 0 where they repeat.
void matmul_cpu(const Tensor& a_in, const Tensor& b_in, const Tensor& bias_in, Tensor& c) {
  if (a_in.dim(-1) == 0) {  // an empty sum
    if (bias_in.defined()) kernel::copy(bias_in, c);
    else fill_(c, 0);
    return;
  }
  Tensor a = a_in, b = b_in, bias = bias_in;
  if (bias.defined() && bias.strides()[0] != 1) bias = clone(bias);
  auto left = operand(a), right = operand(b);
  if (!left) a = clone(a), left = operand(a);
  if (!right) b = clone(b), right = operand(b);
  const int r = c.rank();
  const int64_t n = c.shape()[r - 2], m = c.shape()[r - 1], k = a.shape()[r - 1];
  if (std::max({n, m, k, left->ld, right->ld}) > INT_MAX) fail("matmul: a dimension exceeds 2^31 — got a=", a, ", b=", b);
  const Shape dims(std::span(c.shape().begin(), r - 2));
  int64_t batch = 1;
  for (int d = 0; d < r - 2; ++d) batch *= dims[d];
  dispatch_float("matmul", c.dtype(), [&]<class T>() {
    const Matmul<T> product{a, b, *left, *right, a.data<T>(), b.data<T>(), c.mutable_data<T>(), batch, n, m, k,
                            bias.defined() ? bias.data<T>() : nullptr, dims, precision()};
    // One matrix alone should be work for all threads.
    if (n >= 112 && m >= 32 && n * m * k >= (batch == 1 ? 1 << 21 : 1 << 25)) product.shared();
    else product.separate();
  });
}

}  // namespace

constinit decltype(kernel::matmul) kernel::matmul{
    "matmul", &matmul_cpu, [](const Tensor& a, const Tensor&, const Tensor&, Tensor& c) {
      return Work{.flops = 2 * checked_mul("matmul", c.numel(), a.dim(-1))};
    }};

}  // namespace sluice
