// The kernel of matmul, for f32, f64 and bf16; gemm/plan.h says which way a product takes. c is cut into tiles
// according to the number of threads; its bits do not depend on that number (gemm.h). Products of bf16 are packed
// directly from bf16; a piece of c is computed in f32, over all of k, and rounded while it is in cache.
#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/matmul/skinny.h>
#include <sluice/ops/matmul/tiling.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/gemm/operand.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace sluice {

namespace {

using detail::Operand;
using detail::operand;
using detail::PackedA;
using detail::PackedB;
using detail::Packing;
using detail::kRounded;
using detail::Plan;
using detail::Tiling;
using detail::Trans;

constexpr int64_t kFew = 32;                    // products of at most so many multiply-adds are faster without gemm
constexpr int64_t kGroup = 32;                  // rows of a that are packed at a time
constexpr int64_t kRoundedRow = kRounded + 16;  // padded: no two rows lie in the same sets of the cache

/// A product of matrices of X, computed in T: X itself, or f32 for bf16.
template <class T, class X> struct Matmul {
  static constexpr bool kRounds = !std::is_same_v<T, X>;
  const Plan plan;
  const Tensor &a, &b;
  const Operand left, right;
  const X *pa, *pb;
  X* pc;
  int64_t batch, n, m, k;
  Precision precision;
  const T* bias;

  void run() const {
    if (plan.way == Plan::shared) shared();
    else if (plan.way == Plan::passing) passing();
    else if (plan.way == Plan::separate || plan.way == Plan::own) separate();
    else skinny_matmul(plan.way == Plan::column);
  }

  /// Where matrix i of an operand begins.
  static int64_t offset(const Tensor& x, int64_t i) { return x.layout().step_to(i, 0, x.rank() - 2); }

  /// A product few [rows, k] · many [k, cols] of few rows. One column is computed as one row of the transposed product.
  struct Skinny {
    int64_t rows, cols, ld, ld_many;
    Trans trans;  // of many
  };
  Skinny skinny(bool column) const {
    Skinny s = column ? Skinny{1, n, k, left.ld, left.trans == Trans::no ? Trans::yes : Trans::no}
                      : Skinny{n, m, left.ld, right.ld, right.trans};
    // A vector counts as a row or as a column. Dots run along k, sums along columns: each needs more than one of these.
    if (s.ld_many == 1 && s.cols == 1) s.trans = Trans::yes, s.ld_many = k;
    else if (s.ld_many == 1 && k == 1) s.trans = Trans::no, s.ld_many = s.cols;
    return s;
  }
  /// True for many dots of few numbers each: OpenBLAS adds up their lanes faster.
  bool short_dots() const {
    const Skinny s = skinny(n > 1);
    return s.trans == Trans::yes && s.cols > 16 && k < 64;
  }
  void skinny_matmul(bool column) const {
    const auto [rows, cols, ld, ld_many, trans] = skinny(column);
    const X *few = column ? pb : pa, *many = column ? pa : pb;
    if constexpr (kRounds) {
      const Tensor& x = column ? b : a;
      const Tensor wide = to(alias(x, Layout({rows, k}, {ld, 1}, x.layout().offset)), f32), sums = empty({rows, cols});
      T* const y = reinterpret_cast<T*>(sums.raw());
      detail::skinny_matmul(trans, rows, cols, k, wide.data<T>(), k, many, ld_many, bias, y, cols);
      detail::round_rows(y, cols, rows, cols, pc, cols);
    } else {
      detail::skinny_matmul(trans, rows, cols, k, few, ld, many, ld_many, bias, pc, cols);
    }
  }

  /// Computes a tile of c for one block of k: `rows` rows of a times panels [first, last) of b, which have `cols`
  /// columns. The rows of a are read at from_a, or packed in `copy` from `row` on. sums: memory for a piece before it
  /// is rounded. Returns false if a split product has results that are not finite.
  bool tile(const PackedA<T>* copy, int64_t row, const X* from_a, int64_t rows, const PackedB<T>& panels, int64_t first,
            int64_t last, [[maybe_unused]] int64_t cols, T beta, const T* add, X* to, [[maybe_unused]] T* sums) const {
    if constexpr (kRounds) {
      const int64_t step = kRounded / panels.panel_columns();
      for (int64_t p = first; p < last; p += step) {
        const int64_t col = (p - first) * panels.panel_columns();
        panels.multiply(*copy, row, rows, sums, kRoundedRow, to + col, m, p, std::min(p + step, last), add);
      }
      return true;
    } else if (copy) {
      return panels.multiply(*copy, row, rows, T(1), beta, to, m, first, last, add);
    } else {
      return panels.multiply(left.trans, rows, T(1), from_a, left.ld, beta, to, m, first, last, add);
    }
  }

  /// Products of a few numbers, each a chain of multiply-adds as in gemm.
  void few() const {
    const int64_t row = left.at(1, 0), a_k = left.at(0, 1), b_k = right.at(1, 0), col = right.at(0, 1);
    const auto one = [=, this](int64_t matrix) {
      const X* const x = pa + offset(a, matrix);
      const X* const y = pb + offset(b, matrix);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j) {
          T sum = 0;
          for (int64_t l = 0; l < k; ++l) sum = std::fma(x[i * row + l * a_k], y[l * b_k + j * col], sum);
          pc[(matrix * n + i) * m + j] = bias ? sum + bias[j] : sum;
        }
    };
    parallel_for(batch, int64_t{1} << 12, [&](int64_t begin, int64_t end) {
      detail::vectorised([=, &one] {  // compiled for processors with an instruction for std::fma()
        for (int64_t matrix = begin; matrix < end; ++matrix) one(matrix);
      });
    });
  }

  /// Computes a piece of a product of one row or one column on one thread. memory: for k numbers and, if results are
  /// rounded, for the piece.
  void vector(const X* from_a, const X* from_b, int64_t rows, int64_t cols, const T* add, X* to, T* memory) const {
    const bool column = n > 1;
    const Skinny s = skinny(column);
    const X *vector = column ? from_b : from_a, *many = column ? from_a : from_b;
    const int64_t count = column ? rows : cols, step = column ? right.at(1, 0) : left.at(0, 1);
    const bool copied = kRounds || step != 1;
    for (int64_t l = 0; copied && l < k; ++l) memory[l] = T(vector[l * step]);
    const T* few = memory;
    T* sums = memory + k;
    if constexpr (!kRounds) {
      if (!copied) few = vector;
      sums = to;
    }
    detail::vectorised([=, this] {
      if (s.trans == Trans::yes) {
        detail::skinny_dots(1, count, k, T(1), few, k, many, s.ld_many, sums, count);
      } else {
        std::fill_n(sums, count, T(0));
        detail::skinny_sums(1, count, k, few, k, many, s.ld_many, sums, count);
      }
    });
    if (add) detail::add_bias(sums, rows, cols, cols, add);
    if constexpr (kRounds) detail::round_rows(sums, cols, rows, cols, to, m);
  }

  /// Each task has a tile of c and packs its own operands, where packing pays.
  void separate() const {
    if constexpr (!kRounds)
      if (plan.packing == Packing::panels && n * m * k <= kFew) return few();
    // The bits of OpenBLAS's results depend on the tiling. So it tiles for 8 threads, whatever their number.
    const int64_t most_cols = plan.packing == Packing::panels ? 512 : 256;
    const Tiling t = plan.way == Plan::own ? Tiling::own(n, m, most_cols, 32, ceil_div(num_threads(), batch))
                     : kRounds             ? Tiling::pieces(n, m, 2 * kRounded, 1)
                                           : Tiling(batch, n, m, k, kGroup, 32, isa() == Isa::base ? 8 : num_threads());
    const bool vectors = plan.packing == Packing::plain && (kRounds || (isa() != Isa::base && !short_dots()));
    const bool packed = plan.packing == Packing::split || (kRounds && !vectors);
    const int64_t tiles = t.row_tiles * t.col_tiles, most_rows = std::min(t.rows, round_up(n, kGroup));
    const int64_t for_b = packed ? round_up(PackedB<T>::size(k, std::min(t.cols, m), plan.packing), 16) : 0;
    const int64_t for_a = kRounds && packed ? round_up(PackedA<T>::size(most_rows, k), 16) : 0;
    const int64_t for_sums = !kRounds ? 0 : vectors ? t.rows * t.cols : most_rows * kRoundedRow;
    const int64_t memory = for_b + for_a + for_sums + (vectors ? k : 0);
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 16) / (n * m * k));
    parallel_for(batch * tiles, grain, [&](int64_t begin, int64_t end) {
      const Tensor all = empty({memory}, {.dtype = dtype_of<T>()});
      T* const place = reinterpret_cast<T*>(all.raw());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % tiles / t.col_tiles * t.rows, col = i % t.col_tiles * t.cols, matrix = i / tiles;
        X* const to = pc + (matrix * n + row) * m + col;
        const int64_t rows = std::min(t.rows, n - row), cols = std::min(t.cols, m - col);
        const X* const from_a = pa + offset(a, matrix) + left.at(row, 0);
        const X* const from_b = pb + offset(b, matrix) + right.at(0, col);
        const T* const add = bias ? bias + col : nullptr;
        if (packed) {
          PackedB<T> panels(k, cols, place, plan.packing);
          PackedA<T> copy(rows, k, place + for_b, plan.packing);
          panels.fill(right.trans, from_b, right.ld, 0, panels.panels());
          if (kRounds) copy.fill(left.trans, from_a, left.ld, 0, rows);
          if (!tile(kRounds ? &copy : nullptr, 0, from_a, rows, panels, 0, panels.panels(), cols, T(0), add, to,
                    place + for_b + for_a))
            again_where_not_finite(from_a, from_b, rows, cols, add, to);
        } else if (vectors) {
          vector(from_a, from_b, rows, cols, add, to, place);
        } else if constexpr (!kRounds) {
          detail::gemm(left.trans, right.trans, rows, cols, k, T(1), from_a, left.ld, from_b, right.ld, T(0), to, m,
                       precision);
          if (add) detail::add_bias(to, rows, cols, m, add);
        }
      }
    });
  }

  /// Recomputes by multiply-adds the results of a split product (ops/gemm/rungs/amx_f32.cpp) that are not finite.
  void again_where_not_finite(const X* from_a, const X* from_b, int64_t rows, int64_t cols, const T* add, X* c) const {
    if constexpr (!kRounds) {
      std::vector<T> right_ones(static_cast<std::size_t>(rows * cols));
      T* const to = right_ones.data();
      detail::gemm(left.trans, right.trans, rows, cols, k, T(1), from_a, left.ld, from_b, right.ld, T(0), to, cols);
      if (add) detail::add_bias(to, rows, cols, cols, add);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j)
          if (!std::isfinite(c[i * m + j])) c[i * m + j] = to[i * cols + j];
    }
  }

  /// Few rows of bf16, past which b goes. A task has some columns of c.
  void passing() const {
    if constexpr (kRounds) {
      const int64_t least = right.trans == Trans::yes ? 64 : 128;
      const int64_t cols = std::clamp<int64_t>(round_up(ceil_div(m, 16), 64), least, 512), ld = cols + 16;
      parallel_for(ceil_div(m, cols), 1, [&](int64_t begin, int64_t end) {
        const Tensor memory = empty({n, ld});
        T* const sums = reinterpret_cast<T*>(memory.raw());
        for (int64_t col = begin * cols; col < std::min(end * cols, m); col += cols) {
          const int64_t count = std::min(cols, m - col);
          detail::pass_by(n, count, k, pa, left.ld, right.trans, pb + right.at(0, col), right.ld, sums, ld);
          if (bias) detail::add_bias(sums, n, count, ld, bias + col);
          detail::round_rows(sums, ld, n, count, pc + col, m);
        }
      });
    }
  }
  /// A block of a product: rows [top, top + height) of a, columns [first, first + count) of b, and [l, l + rows) of k.
  struct Part {
    int64_t matrix, first, l, top, height, count, rows;
  };
  const X* a_from(const Part& p) const { return pa + offset(a, p.matrix) + left.at(p.top, p.l); }
  const X* b_from(const Part& p) const { return pb + offset(b, p.matrix) + right.at(p.l, p.first); }

  /// All threads first pack b: one block of k at a time (for bf16 all of k), and as many columns as stay in the shared
  /// cache. They pack a, too, if several tasks use the same rows: for tiles of bf16, for tensors of bf16, or if n is
  /// too small to give every thread a task of whole rows. Operands that are packed already are not packed again.
  void shared() const {
    const Packing packing = plan.packing;
    const PackedB<T> all(k, m, nullptr, packing);
    const bool tiles = all.near_panels() > 0, pack_a = tiles || kRounds;
    const int64_t columns = all.panel_columns(), depth = kRounds ? k : all.block_rows();
    const int64_t most = (int64_t{tiles && !kRounds ? 24 : 8} << 20) / sizeof(T);  // numbers of packed a, and of b
    const int64_t fitting = std::max<int64_t>(kRounds ? 8 : 4, most / PackedB<T>::size(depth, columns, packing));
    const int64_t width = std::min(fitting, ceil_div(m, columns)) * columns;
    const int64_t groups_fitting = std::max<int64_t>(kRounds ? 8 : 1, most / PackedA<T>::size(kGroup, depth, packing));
    const int64_t blocks = pack_a ? n / (groups_fitting * kGroup) + 1 : 1, tall = round_up(ceil_div(n, blocks), kGroup);
    const int64_t for_a = PackedA<T>::size(std::min(tall, n), depth, packing);
    const int64_t for_b = round_up(PackedB<T>::size(depth, std::min(width, m), packing), 16);
    const bool short_a = !pack_a && for_a <= most && n < all.row_block() * num_threads();
    const Tensor memory = empty({for_b + (short_a || pack_a ? for_a : 0)}, {.dtype = dtype_of<T>()});
    T* const place = reinterpret_cast<T*>(memory.raw());
    std::tuple<const X*, int64_t, int64_t> there_a, there_b;  // address and sizes of operands that are packed already
    for (int64_t matrix = 0; matrix < batch; ++matrix)
      for (int64_t first = 0; first < m; first += width)
        for (int64_t l = 0; l < k; l += depth)
          for (int64_t top = 0; top < n; top += tall) {
            const Part p{
                matrix, first, l, top, std::min(tall, n - top), std::min(width, m - first), std::min(depth, k - l)};
            const int threads = num_threads();
            const Tiling t = kRounds   ? Tiling::pieces(p.height, p.count, kRounded / columns * columns, 4 * threads)
                             : tiles   ? Tiling::near(p.height, p.count, p.rows, all.near_panels() * columns, threads)
                             : short_a ? Tiling(1, p.height, p.count, p.rows, kGroup, columns, threads)
                                       : Tiling(p.height, p.count, all.row_block(), all.tile_rows(), columns, threads);
            PackedB<T> panels(p.rows, p.count, place, packing);
            PackedA<T> copy(p.height, p.rows, place + for_b, packing);
            const bool copied = kRounds || t.col_tiles > 1;
            const std::tuple here_a(a_from(p), p.height, p.rows), here_b(b_from(p), p.rows, p.count);
            pack(p, panels, here_b == there_b ? 0 : panels.panels(), copy,
                 !copied || here_a == there_a ? 0 : ceil_div(p.height, kGroup));
            there_b = here_b;
            if (copied) there_a = here_a;
            multiply(p, t, panels, copied ? &copy : nullptr);
          }
  }

  /// Packs `fills` panels of b and `groups` groups of rows of a.
  void pack(const Part& p, PackedB<T>& panels, int64_t fills, PackedA<T>& copy, int64_t groups) const {
    // Rows are read in longer pieces if several panels are filled at a time.
    const int64_t several =
        panels.near_panels() > 0 ? std::min<int64_t>(16, (fills + groups) / (6 * num_threads())) : 1;
    const int64_t grain = std::max({int64_t{1}, several, (int64_t{1} << 15) / (panels.panel_columns() * p.rows)});
    parallel_for(fills + groups, grain, [&](int64_t begin, int64_t end) {
      if (begin < fills) panels.fill(right.trans, b_from(p), right.ld, begin, std::min(end, fills));
      if (end > fills)
        copy.fill(left.trans, a_from(p), left.ld, kGroup * (std::max(begin, fills) - fills),
                  std::min(kGroup * (end - fills), p.height));
    });
  }

  /// Multiplies a block, in tiles t. copy: the packed rows of a; null if they are not packed.
  void multiply(const Part& p, const Tiling& t, const PackedB<T>& panels, const PackedA<T>* copy) const {
    const bool complete = p.l + p.rows == k;
    parallel_for(t.row_tiles * t.col_tiles, 1, [&](int64_t begin, int64_t end) {
      const Tensor sums = empty({kRounds ? t.rows * kRoundedRow : 0}, {.dtype = dtype_of<T>()});
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / t.col_tiles * t.rows, col = i % t.col_tiles * t.cols, columns = panels.panel_columns();
        const int64_t count_a = std::min(t.rows, p.height - row), count_b = std::min(t.cols, p.count - col);
        const int64_t last = std::min((col + t.cols) / columns, panels.panels());
        X* const to = pc + (p.matrix * n + p.top + row) * m + p.first + col;
        const bool finite =
            tile(copy, row, a_from(p) + left.at(row, 0), count_a, panels, col / columns, last, count_b, T(p.l > 0),
                 bias && complete ? bias + p.first : nullptr, to, reinterpret_cast<T*>(sums.raw()));
        if (!finite && complete)
          again_where_not_finite(pa + offset(a, p.matrix) + left.at(p.top + row, 0),
                                 pb + offset(b, p.matrix) + right.at(0, p.first + col), count_a, count_b,
                                 bias ? bias + p.first + col : nullptr, to);
      }
    });
  }
};

detail::GemmShape shape_of(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c) {
  const auto left = operand(a), right = operand(b);  // no value: the operand is copied, and the copy is plain
  const int64_t n = c.dim(-2), m = c.dim(-1);
  return {.batch = c.numel() / (n * m),
          .n = n,
          .m = m,
          .k = a.dim(-1),
          .dtype = c.dtype(),
          .precision = precision(),
          .plain_rows = !left || left->trans == Trans::no,
          .plain_b = !right || right->trans == Trans::no,
          .plain_column = !bias.defined() && (!right || (right->trans == Trans::no && right->ld == 1))};
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
  const detail::GemmShape s = shape_of(a, b, bias, c);
  const auto run = [&]<class T, class X>(const Tensor& add) {
    Matmul<T, X>{.plan = plan_gemm(s),
                 .a = a,
                 .b = b,
                 .left = *left,
                 .right = *right,
                 .pa = a.data<X>(),
                 .pb = b.data<X>(),
                 .pc = c.mutable_data<X>(),
                 .batch = s.batch,
                 .n = s.n,
                 .m = s.m,
                 .k = s.k,
                 .precision = s.precision,
                 .bias = add.defined() ? add.data<T>() : nullptr}
        .run();
  };
  if (c.dtype() == bf16) run.operator()<float, BFloat16>(detail::widened(bias));
  else dispatch_float("matmul", c.dtype(), [&]<class T>() { run.template operator()<T, T>(bias); });
}

}  // namespace

constinit decltype(kernel::matmul) kernel::matmul{
    "matmul", &matmul_cpu,
    [](const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
      const Work work{.flops = 2 * checked_mul("matmul", c.numel(), a.dim(-1))};
      if (work.flops == 0) return work;
      return Work{.flops = work.flops, .means = plan_gemm(shape_of(a, b, bias, c)).means};
    },
    Bf16::native};

}  // namespace sluice
