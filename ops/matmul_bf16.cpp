// Products of bf16. Operands are packed directly from bf16. A piece of c is computed in f32, over all of k, and
// rounded while it is in cache.
#include <sluice/ops/matmul_bf16.h>

#include <sluice/core/parallel.h>
#include <sluice/core/vectorise.h>
#include <sluice/ops/create.h>
#include <sluice/ops/few_rows.h>

#include <algorithm>

namespace sluice::detail {

namespace {

constexpr int64_t kGroup = 32;                 // rows that are packed at a time
constexpr int64_t kPiece = 256;                // columns of a piece of c
constexpr int64_t kPieceRow = kPiece + 16;     // padded: no two rows lie in the same sets of the cache
constexpr int64_t kMemory = int64_t{1} << 21;  // numbers of a, and of b, packed at a time: both stay in the last cache

int64_t up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

void round_rows(const float* from, int64_t ld, int64_t rows, int64_t cols, BFloat16* to, int64_t ldc) {
  vectorised([=] {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) to[i * ldc + j] = BFloat16(from[i * ld + j]);
  });
}

class Product {
 public:
  Product(const Tensor& a, Operand left, const Tensor& b, Operand right, const Tensor& bias, Tensor& c)
      : a_(a), b_(b), left_(left), right_(right), c_(c.mutable_data<BFloat16>()), n_(c.dim(-2)), m_(c.dim(-1)), k_(a.dim(-1)),
        batch_(c.numel() / (n_ * m_)), bias_(bias.defined() ? widened(bias) : bias) {
    for (int d = 0; d + 2 < c.rank(); ++d) dims_.push_back(c.shape()[d]);
  }

  void run() const {
    // All threads share a single matrix from 2^21 multiply-adds on, one of a batch only from 2^28 on.
    if (n_ * m_ * k_ < (batch_ == 1 ? int64_t{1} << 21 : int64_t{1} << 28)) return separate();
    for (int64_t i = 0; i < batch_; ++i) shared(i);
  }

 private:
  using A = PackedA<float>;
  using B = PackedB<float>;

  const BFloat16* matrix(const Tensor& x, int64_t i) const {
    const BFloat16* at = x.data<BFloat16>();
    for (int d = dims_.rank() - 1; d >= 0; --d) at += i % dims_[d] * x.strides()[d], i /= dims_[d];
    return at;
  }

  /// c = rows [row, row + rows) of packed a by panels [first, last) of b, which are `cols` columns, + bias. c begins at
  /// the first row and column.
  void multiply(const A& a, int64_t row, int64_t rows, const B& b, int64_t first, int64_t last, int64_t cols, const float* bias,
                float* sums, BFloat16* c) const {
    const int64_t step = kPiece / b.panel_columns();
    for (int64_t p = first; p < last; p += step) {
      const int64_t col = (p - first) * b.panel_columns();
      b.multiply(a, row, rows, 1, 0, sums, kPieceRow, p, std::min(p + step, last), bias);
      round_rows(sums, kPieceRow, rows, std::min(kPiece, cols - col), c + col, m_);
    }
  }

  /// Each task packs its own operands.
  void separate() const {
    const int64_t rows = std::min(up(n_, kGroup), kPiece), cols = std::min(m_, 2 * kPiece);
    const int64_t row_tiles = (n_ + rows - 1) / rows, col_tiles = (m_ + cols - 1) / cols, tiles = row_tiles * col_tiles;
    const float* const bias = bias_.defined() ? bias_.data<float>() : nullptr;
    const int64_t for_a = up(A::size(rows, k_), 16), for_b = up(B::size(k_, cols), 16);
    parallel_for(batch_ * tiles, std::max<int64_t>(1, (int64_t{1} << 16) / (n_ * m_ * k_)), [&](int64_t begin, int64_t end) {
      const Tensor memory = empty({for_a + for_b + rows * kPieceRow});
      float* const place = reinterpret_cast<float*>(memory.raw());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % tiles / col_tiles * rows, col = i % col_tiles * cols, of = i / tiles;
        const int64_t n = std::min(rows, n_ - row), m = std::min(cols, m_ - col);
        A a(n, k_, place, Precision::bf16);
        B b(k_, m, place + for_a, Precision::bf16);
        a.fill(left_.read, matrix(a_, of) + left_.at(row, 0), left_.ld, 0, n);
        b.fill(right_.read, matrix(b_, of) + right_.at(0, col), right_.ld, 0, b.panels());
        multiply(a, 0, n, b, 0, b.panels(), m, bias ? bias + col : bias, place + for_a + for_b, c_ + (of * n_ + row) * m_ + col);
      }
    });
  }

  /// All threads pack the operands first: as many columns of b and rows of a at a time as stay in the shared cache.
  void shared(int64_t i) const {
    const int64_t columns = B(k_, m_, nullptr, Precision::bf16).panel_columns();
    const int64_t width = std::min(up(m_, columns), std::max<int64_t>(8, kMemory / B::size(k_, columns)) * columns);
    const int64_t height = std::min(up(n_, kGroup), std::max<int64_t>(8, kMemory / A::size(kGroup, k_)) * kGroup);
    const int64_t for_a = up(A::size(height, k_), 16);
    const Tensor memory = empty({for_a + B::size(k_, width)});
    float* const place = reinterpret_cast<float*>(memory.raw());
    for (int64_t row = 0; row < n_; row += height)
      for (int64_t col = 0; col < m_; col += width) {
        const int64_t n = std::min(height, n_ - row), m = std::min(width, m_ - col);
        A a(n, k_, place, Precision::bf16);
        B b(k_, m, place + for_a, Precision::bf16);
        const int64_t groups = col == 0 ? (n + kGroup - 1) / kGroup : 0, fills = row == 0 || width < m_ ? b.panels() : 0;
        const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / (kGroup * k_));
        parallel_for(fills + groups, grain, [&](int64_t begin, int64_t end) {
          if (begin < fills) b.fill(right_.read, matrix(b_, i) + right_.at(0, col), right_.ld, begin, std::min(end, fills));
          if (end > fills)
            a.fill(left_.read, matrix(a_, i) + left_.at(row, 0), left_.ld, kGroup * (std::max(begin, fills) - fills),
                   std::min(kGroup * (end - fills), n));
        });
        const int64_t step = kPiece / columns, col_tiles = (b.panels() + step - 1) / step;
        int64_t rows = kPiece;  // of a tile; halved while there are fewer than four tiles per thread
        while (rows > 2 * kGroup && (n + rows - 1) / rows * col_tiles < 4 * num_threads()) rows /= 2;
        const float* const bias = bias_.defined() ? bias_.data<float>() + col : nullptr;
        parallel_for((n + rows - 1) / rows * col_tiles, 1, [&](int64_t begin, int64_t end) {
          const Tensor sums = empty({rows * kPieceRow});
          for (int64_t tile = begin; tile < end; ++tile) {
            const int64_t from = tile / col_tiles * rows, panel = tile % col_tiles * step, at = panel * columns;
            multiply(a, from, std::min(rows, n - from), b, panel, std::min(panel + step, b.panels()), m - at, bias,
                     reinterpret_cast<float*>(sums.raw()), c_ + (i * n_ + row + from) * m_ + col + at);
          }
        });
      }
  }

  const Tensor &a_, &b_;
  const Operand left_, right_;
  BFloat16* const c_;
  const int64_t n_, m_, k_, batch_;
  const Tensor bias_;
  Shape dims_;  // of the batch
};

}  // namespace

void matmul_bf16(const Tensor& a, Operand left, const Tensor& b, Operand right, const Tensor& bias, Tensor& c) {
  Product(a, left, b, right, bias, c).run();
}

void few_rows_bf16(const Tensor& a, Operand left, const Tensor& b, Operand right, const Tensor& bias, Tensor& c, bool column) {
  const int64_t n = column ? 1 : c.dim(-2), m = column ? c.dim(-2) : c.dim(-1), k = a.dim(-1);
  const Tensor &few = column ? b : a, &many = column ? a : b;
  const int64_t ld_few = column ? k : left.ld, ld_many = column ? left.ld : right.ld;
  const Read read = column ? (left.read == Read::plain ? Read::transposed : Read::plain) : right.read;
  const Tensor wide = to(alias(few, Layout({n, k}, {ld_few, 1}, few.layout().offset)), f32), sums = empty({n, m});
  const Tensor add = bias.defined() ? widened(bias) : bias;
  few_rows(read, n, m, k, wide.data<float>(), k, many.data<BFloat16>(), ld_many, add.defined() ? add.data<float>() : nullptr,
           reinterpret_cast<float*>(sums.raw()), m);
  round_rows(sums.data<float>(), m, n, m, c.mutable_data<BFloat16>(), m);
}

}  // namespace sluice::detail
