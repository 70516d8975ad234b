// The kernel of matmul. c is cut into tiles according to the number of threads; its bits do not depend on that number
// (gemm.h). Where many tiles use the same columns of b, all threads pack these columns once, before the tiles.
#include <sluice/core/cpu.h>
#include <sluice/core/parallel.h>
#include <sluice/core/vectorise.h>
#include <sluice/ops/create.h>
#include <sluice/ops/few_rows.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/gemm/operand.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/matmul_bf16.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <vector>

namespace sluice {

namespace {

using detail::Operand;
using detail::operand;
using detail::PackedA;
using detail::PackedB;
using detail::Read;

/// Tiles of c. There are several tasks per thread for balance, each of at least some 20 µs. A task reads rows of a and
/// columns of b from memory: the traffic is least for square tasks, unless b's panels are in cache. More than 336 rows
/// gain nothing; with fewer than 56, loading b's panels limits the speed.
struct Tiling {
  int64_t rows, cols, row_tiles, col_tiles;

  /// Equal blocks of whole rows, at most `block` (packed at a time); the number of blocks is a multiple of the threads.
  Tiling(int64_t n, int64_t m, int64_t block, int64_t columns, int threads) : rows(block), cols((m + columns - 1) / columns * columns) {
    row_tiles = ((n + rows - 1) / rows + threads - 1) / threads * threads, col_tiles = 1;
    rows = (n + row_tiles - 1) / row_tiles, row_tiles = (n + rows - 1) / rows;
  }

  /// For AMX. A task takes as many columns as stay in L2. It takes at least 256 rows, because it first fetches its
  /// columns; fewer, down to 64, only if there are not two tasks per thread.
  static Tiling near(int64_t n, int64_t m, int64_t k, int64_t near_columns, int threads) {
    const int64_t wanted = std::clamp<int64_t>(n * m * k >> 22, 1, 6 * threads), enough = std::min<int64_t>(wanted, 2 * threads);
    Tiling t(n, m, n, 32, 1);
    t.col_tiles = std::clamp<int64_t>((m + near_columns - 1) / near_columns, 1, wanted);
    t.cols = ((m + t.col_tiles - 1) / t.col_tiles + 31) / 32 * 32, t.col_tiles = (m + t.cols - 1) / t.cols;
    t.row_tiles = std::clamp<int64_t>((wanted + t.col_tiles - 1) / t.col_tiles, 1, std::max<int64_t>(1, n / 256));
    t.row_tiles = std::max(t.row_tiles, std::min((enough + t.col_tiles - 1) / t.col_tiles, n / 64));
    t.rows = ((n + t.row_tiles - 1) / t.row_tiles + 31) / 32 * 32, t.row_tiles = (n + t.rows - 1) / t.rows;
    return t;
  }

  /// rows is a multiple of `height`, cols of `columns`. whole_rows: columns are not cut.
  Tiling(int64_t batch, int64_t n, int64_t m, int64_t k, int64_t height, int64_t columns, int threads, bool whole_rows = false) {
    const int64_t wanted = (std::clamp<int64_t>(batch * n * m * k >> 21, 1, 8 * threads) + batch - 1) / batch;
    const bool near = m * k <= 3 << 17;  // b in L2
    const double square = whole_rows || near ? 1e9 : std::sqrt(static_cast<double>(wanted) * static_cast<double>(n) / static_cast<double>(m));
    const int64_t least = (n + 335) / 336;
    row_tiles = std::clamp(static_cast<int64_t>(square), least, std::max(least, n / 56));
    row_tiles = std::min(row_tiles, std::max(least, wanted));
    rows = ((n + row_tiles - 1) / row_tiles + height - 1) / height * height, row_tiles = (n + rows - 1) / rows;
    const int64_t panels = (m + columns - 1) / columns;
    col_tiles = whole_rows ? 1 : std::clamp<int64_t>((wanted + row_tiles - 1) / row_tiles, 1, (panels + 3) / 4);
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

  /// Rows of a task are a multiple of this.
  static int64_t height() { return 32; }

  /// Each task packs its own operands, where packing pays. split: f32 in three parts, on AMX.
  void separate(bool split) const {
    // The bits of OpenBLAS's results depend on the tiling, so it is for 8 threads, whatever their number.
    const Tiling t(batch, n, m, k, height(), 32, isa() == Isa::base ? 8 : num_threads());
    const int64_t tiles = t.row_tiles * t.col_tiles;
    const int64_t memory = split ? PackedB<T>::size(k, std::min(t.cols, m), detail::Packing::split) : 0;
    parallel_for(batch * tiles, std::max<int64_t>(1, (int64_t{1} << 16) / (n * m * k)), [&](int64_t begin, int64_t end) {
      const Tensor packed = empty({memory}, {.dtype = dtype_of<T>()});
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % tiles / t.col_tiles * t.rows, col = i % t.col_tiles * t.cols, matrix = i / tiles;
        T* const to = pc + (matrix * n + row) * m + col;
        const int64_t rows = std::min(t.rows, n - row), cols = std::min(t.cols, m - col);
        const T *from_a = pa + offset(a, matrix) + left.at(row, 0), *from_b = pb + offset(b, matrix) + right.at(0, col);
        if (split) {
          PackedB<T> panels(k, cols, reinterpret_cast<T*>(packed.raw()), detail::Packing::split);
          panels.fill(right.read, from_b, right.ld);
          const bool finite = panels.multiply(left.read, rows, T(1), from_a, left.ld, T(0), to, m, 0, panels.panels(), bias ? bias + col : nullptr);
          if (!finite) again_where_not_finite(matrix, row, rows, col, cols, to);
        } else {
          detail::gemm(left.read, right.read, rows, cols, k, T(1), from_a, left.ld, from_b, right.ld, T(0), to, m, precision);
          if (bias) detail::add_bias(to, rows, cols, m, bias + col);
        }
      }
    });
  }

  /// Recomputes by multiply-adds the results of a split product (ops/gemm/amx_f32.cpp) that are not finite.
  void again_where_not_finite(int64_t matrix, int64_t row, int64_t rows, int64_t col, int64_t cols, T* c) const {
    std::vector<T> right_ones(static_cast<std::size_t>(rows * cols));
    T* const to = right_ones.data();
    detail::gemm(left.read, right.read, rows, cols, k, T(1), pa + offset(a, matrix) + left.at(row, 0), left.ld,
                 pb + offset(b, matrix) + right.at(0, col), right.ld, T(0), to, cols);
    if (bias) detail::add_bias(to, rows, cols, cols, bias + col);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        if (!std::isfinite(c[i * m + j])) c[i * m + j] = to[i * cols + j];
  }

  /// All threads first pack b: one block of k at a time, by as many columns as stay in the shared cache. They pack a,
  /// too, if several tasks use the same rows: on AMX, or if n is too small for whole rows to give every thread a task.
  void shared() const {
    const detail::Packing packing = detail::large_packing<T>(precision, k);
    const PackedB<T> all(k, m, nullptr, packing);
    const bool tiles = all.near_panels() > 0;
    const int64_t columns = all.panel_columns(), depth = all.block_rows();
    const int64_t most = (int64_t{tiles ? 24 : 8} << 20) / sizeof(T);  // numbers of packed a, and of packed b
    const int64_t fitting = std::max<int64_t>(4, most / PackedB<T>::size(depth, columns, packing));
    const int64_t width = std::min(fitting, (m + columns - 1) / columns) * columns;
    const int64_t blocks = tiles ? n / std::max<int64_t>(32, most / PackedA<T>::size(32, depth, packing) * 32) + 1 : 1;
    const int64_t tall = ((n + blocks - 1) / blocks + 31) / 32 * 32;
    const int64_t for_a = PackedA<T>::size(std::min(tall, n), depth, packing), for_b = PackedB<T>::size(depth, std::min(width, m), packing);
    const bool few_rows = !tiles && for_a <= most && n < all.row_block() * num_threads();
    const int64_t second = (for_b + 15) / 16 * 16;
    const Tensor memory = empty({second + (few_rows || tiles ? for_a : 0)}, {.dtype = dtype_of<T>()});
    T* const place = reinterpret_cast<T*>(memory.raw());
    const bool keep = depth >= k && width >= m;
    int64_t there = -1;  // offset of the matrix of b that is packed as a whole
    for (int64_t matrix = 0; matrix < batch; ++matrix)
      for (int64_t first = 0; first < m; first += width)
        for (int64_t l = 0; l < k; l += depth)
          for (int64_t top = 0; top < n; top += tall) {
            const int64_t height = std::min(tall, n - top), count = std::min(width, m - first), rows = std::min(depth, k - l);
            const T *from_a = pa + offset(a, matrix) + left.at(top, l), *from_b = pb + offset(b, matrix) + right.at(l, first);
            const Tiling t = tiles      ? Tiling::near(height, count, rows, all.near_panels() * columns, num_threads())
                             : few_rows ? Tiling(1, height, count, rows, this->height(), columns, num_threads())
                                        : Tiling(height, count, all.row_block(), columns, num_threads());
            PackedB<T> panels(rows, count, place, packing);
            PackedA<T> copy(height, rows, place + second, packing);
            const bool copied = t.col_tiles > 1;
            const int64_t fills = top > 0 || (keep && there == offset(b, matrix)) ? 0 : panels.panels();
            const int64_t groups = copied ? (height + 31) / 32 : 0;
            there = offset(b, matrix);
            // Rows are read in longer pieces if several panels are filled at a time.
            const int64_t several = tiles ? std::min<int64_t>(16, (fills + groups) / (6 * num_threads())) : 1;
            parallel_for(fills + groups, std::max({int64_t{1}, several, (int64_t{1} << 15) / (columns * rows)}), [&](int64_t begin, int64_t end) {
              if (begin < fills) panels.fill(right.read, from_b, right.ld, begin, std::min(end, fills));
              if (end > fills)
                copy.fill(left.read, from_a, left.ld, 32 * (std::max(begin, fills) - fills), std::min(32 * (end - fills), height));
            });
            const T* const add = bias && l + rows == k ? bias + first : nullptr;
            parallel_for(t.row_tiles * t.col_tiles, 1, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                const int64_t row = i / t.col_tiles * t.rows, col = i % t.col_tiles * t.cols;
                const int64_t count_a = std::min(t.rows, height - row), last = std::min((col + t.cols) / columns, panels.panels());
                T* const to = pc + (matrix * n + top + row) * m + first + col;
                const bool finite = copied ? panels.multiply(copy, row, count_a, T(1), T(l > 0), to, m, col / columns, last, add)
                                           : panels.multiply(left.read, count_a, T(1), from_a + left.at(row, 0), left.ld, T(l > 0), to, m,
                                                             col / columns, last, add);
                if constexpr (sizeof(T) == 4)
                  if (!finite && packing == detail::Packing::split && l + rows == k)
                    again_where_not_finite(matrix, top + row, count_a, first + col, std::min(t.cols, count - col), to);
              }
            });
          }
  }
};

/// A single product with few rows is memory-bound; so is one with one column, whose transpose has one row. In a
/// precision below f32 only a single row counts as few: rounding to bf16 would not make it faster.
enum class Way { rows, column, gemm };
Way way(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c) {
  const Shape& s = c.shape();
  const int64_t n = s[s.rank() - 2], m = s[s.rank() - 1];
  const int64_t most = c.dtype() != f32 || precision() == Precision::f32 ? detail::kFewRows : 1;
  const auto left = operand(a), right = operand(b);  // no value: the operand is copied and then plain
  if (!std::all_of(s.begin(), s.end() - 2, [](int64_t d) { return d == 1; })) return Way::gemm;
  if (n <= most && (!left || left->read == Read::plain)) return Way::rows;
  if (m == 1 && !bias.defined() && (!right || (right->read == Read::plain && right->ld == 1))) return Way::column;
  return Way::gemm;
}

/// Whether there are enough rows and columns for packing to pay.
bool is_wide(int64_t n, int64_t m, int64_t k) { return isa() > Isa::base && n >= 112 && m >= 32 && n * m * k >= 1 << 21; }

/// Whether all threads share one matrix: a single one if it is wide, one of a batch only if it is large. OpenBLAS packs
/// by itself.
bool is_large(DType dtype, int64_t batch, int64_t n, int64_t m, int64_t k) {
  const int64_t several =
      dtype != f64 && detail::usual_packing<float>(precision()) == detail::Packing::tiles ? 1 << 28 : 1 << 25;
  return is_wide(n, m, k) && (batch == 1 || n * m * k >= several);
}

bool is_split(const Tensor& a, const Tensor& c) {
  const int64_t k = a.dim(-1);
  return c.dtype() == f32 && is_wide(c.dim(-2), c.dim(-1), k) &&
         detail::large_packing<float>(precision(), k) == detail::Packing::split;
}

/// a and b already have c's batch dims, stride 0 where they repeat.
void matmul_cpu(const Tensor& a_in, const Tensor& b_in, const Tensor& bias_in, Tensor& c) {
  if (c.numel() == 0) return;
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
  if (c.dtype() == bf16) {
    const Way w = way(a, b, bias, c);
    if (w == Way::gemm) detail::matmul_bf16(a, *left, b, *right, bias, c);
    else detail::few_rows_bf16(a, *left, b, *right, bias, c, w == Way::column);
    return;
  }
  dispatch_float("matmul", c.dtype(), [&]<class T>() {
    const Matmul<T> product{a, b, *left, *right, a.data<T>(), b.data<T>(), c.mutable_data<T>(), batch, n, m, k,
                            bias.defined() ? bias.data<T>() : nullptr, dims, precision()};
    const Way w = way(a, b, bias, c);
    if (w == Way::rows)
      detail::few_rows(right->read, n, m, k, product.pa, left->ld, product.pb, right->ld, product.bias, product.pc, m);
    else if (w == Way::column)
      detail::few_rows(left->read == Read::plain ? Read::transposed : Read::plain, 1, n, k, product.pb, k, product.pa, left->ld,
                       product.bias, product.pc, n);
    else if (is_large(c.dtype(), batch, n, m, k)) product.shared();
    else product.separate(is_split(a, c));
  });
}

}  // namespace

constinit decltype(kernel::matmul) kernel::matmul{
    "matmul", &matmul_cpu, [](const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
      return Work{.flops = 2 * checked_mul("matmul", c.numel(), a.dim(-1)),
                  .means = way(a, b, bias, c) != Way::gemm
                               ? "few rows"
                           : is_split(a, c) ? "AMX, f32 in three parts"
                                            : detail::gemm_means(c.dtype() == f64, c.dim(-2), c.dim(-1), precision_of(c.dtype()))};
    },
    Bf16::native};

}  // namespace sluice
