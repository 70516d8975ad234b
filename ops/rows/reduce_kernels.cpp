// The loops of reductions.
#include <sluice/ops/kernels.h>

#include <sluice/core/number/math.h>
#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/kernel/transpose.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/extremes.h>
#include <sluice/ops/rows/fold_rows.h>
#include <sluice/ops/rows/reduce_ops.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <limits>

namespace sluice {

namespace {

using namespace detail::reduction;

constexpr int64_t kFew = 16;  // rows of fewer numbers are reduced side by side, and fewer columns in lanes

/// Input of a reduction, of any layout. operator() returns n numbers from `at` on: in place, or in thread-local memory.
template <class T> struct Source {
  const T* x;
  const detail::StridedRange* walk = nullptr;  // of other dtypes, too; null: x is contiguous
  DType dtype = f32;                           // where there is a walk
  bool converts() const { return walk && dtype != dtype_of<T>(); }
  const T* operator()(int64_t at, int64_t n) const {
    if (!walk) return x + at;
    if (!converts())
      if (const detail::StridedRange::Run run = walk->run(at); run.count >= n) return x + run.offset;
    T* to = reinterpret_cast<T*>(detail::row_memory(0, n * static_cast<int64_t>(sizeof(T) / sizeof(float))));
    read(at, n, to);
    return to;
  }
  /// True if rows of `inner` numbers can be read where they lie, in bf16, too. Sets `step` to their distance, and makes
  /// `at` an offset in memory.
  bool rows_in_place(int64_t inner, int64_t& at, int64_t& step) const {
    if (converts() && dtype != bf16) return false;
    if (!walk || walk->contiguous) return true;
    if (walk->rank != 2 || walk->shape[1] != inner || walk->strides[1] != 1) return false;
    step = walk->strides[0], at = at / inner * step + at % inner;
    return true;
  }

 private:
  void read(int64_t at, int64_t n, T* __restrict__ to) const {
    const auto* half = reinterpret_cast<const BFloat16*>(x) + at;
    if constexpr (std::is_same_v<T, float>)
      if (dtype == bf16 && walk->contiguous) {
        for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(half[i]);
        return;
      }
    detail::read_tile(*walk, reinterpret_cast<const std::byte*>(x), dtype, at, n, to);
  }
};

/// Reduces n numbers from `at` on, in blocks.
template <class Op, class T> Total<Op, T> reduce_run(Source<T> x, int64_t at, int64_t n) {
  auto total = Op::template start<Total<Op, T>>();
  for (int64_t b = 0; b < n; b += kBlock) {
    const int64_t m = std::min(kBlock, n - b);
    const T* p = x(at + b, m);
    Part<Op, T> part;
    if constexpr (std::is_same_v<Op, NormOp>)
      part = detail::row_total<double>(m, [p](int64_t i) { return term<Op>(p[i]); });
    else if constexpr (is_extreme<Op>) part = extreme_of_run<Op>(p, m);
    else {
      constexpr int lanes = std::is_integral_v<T> ? lanes_in_registers<T> : kLanes;
      part = detail::row_joined<Part<Op, T>, lanes>(p, m, Op::template start<Part<Op, T>>(),
                                                    [](Part<Op, T> a, Part<Op, T> y) { return Op::apply(a, y); });
    }
    total = Op::apply(total, static_cast<Total<Op, T>>(part));
  }
  return total;
}

/// Number of lanes in which reduce_run() adds up n numbers; here of n rows, so that a sum has the same bits along
/// columns as along rows. Extremes, whose order does not matter, take a single lane where m columns fill a register.
template <class Op> int64_t lanes_of(int64_t n, int64_t m) {
  if constexpr (std::is_same_v<Op, NormOp>) return detail::kRowLanes;
  return (is_extreme<Op> && m >= kFew) || n < 16 ? 1 : n < kLanes ? 16 : kLanes;
}
/// Joins number k of each of 1, 2 or 4 rows to to[k], or, if `fresh`, to Op's start.
template <class Op, class T, bool fresh, class P, class From>
void join_rows(int64_t rows, P* __restrict__ to, int64_t count, const From* a, int64_t apart) {
  const From *b = a + apart, *c = b + apart, *d = c + apart;
  const auto old = [to](int64_t k) { return fresh ? Op::template start<P>() : to[k]; };
  const auto joined = [](P sum, From v) { return Op::apply(sum, term<Op>(static_cast<T>(v))); };
  if (rows == 4)
    for (int64_t k = 0; k < count; ++k) to[k] = joined(joined(joined(joined(old(k), a[k]), b[k]), c[k]), d[k]);
  else if (rows == 2)
    for (int64_t k = 0; k < count; ++k) to[k] = joined(joined(old(k), a[k]), b[k]);
  else
    for (int64_t k = 0; k < count; ++k) to[k] = joined(old(k), a[k]);
}
/// Reduces n rows of m numbers, `step` apart, to the first row of part [lanes, m], in the order of
/// detail::lanes_joined().
template <class Op, class T, class From>
void reduce_rows(const From* x, int64_t step, int64_t n, int64_t m, Part<Op, T>* __restrict__ part) {
  int64_t lanes = lanes_of<Op>(n, m), each = n / lanes;
  for (int64_t i = 0;; each = lanes >= 4 ? i + lanes <= n : lanes == 1 ? n - i : 0) {
    // Adds `each` rows to each lane. Rows without a gap are one long row.
    const int64_t runs = step == m ? 1 : lanes, count = step == m ? lanes * m : m, apart = lanes * step;
    for (int64_t r = 0, rows; r < each; r += rows) {
      rows = each - r >= 4 ? 4 : each - r >= 2 ? 2 : 1;  // each part is loaded and stored once for these
      for (int64_t l = 0; l < runs; ++l) {
        const From* from = x + i * step + r * apart + l * step;
        Part<Op, T>* const to = part + l * m;
        if (i + r > 0) join_rows<Op, T, false>(rows, to, count, from, apart);
        else join_rows<Op, T, true>(rows, to, count, from, apart);
      }
    }
    i += each * lanes;
    if (lanes == 1) return;
    lanes /= 2;
    const int64_t pairs = i > 0 ? lanes * m : 0;
    for (int64_t k = 0; k < pairs; ++k) part[k] = Op::apply(part[k], part[pairs + k]);
  }
}
/// The same for m columns of x [.., inner], whose first number is at `at`.
template <class Op, class T>
void reduce_rows(const Source<T>& x, int64_t at, int64_t n, int64_t inner, int64_t m, Part<Op, T>* part) {
  int64_t step = inner, first = at;
  const T* from = x.x;
  if (!x.rows_in_place(inner, first, step)) {
    T* copy = reinterpret_cast<T*>(detail::row_memory(1, n * m * static_cast<int64_t>(sizeof(T) / sizeof(float))));
    for (int64_t r = 0; r < n; ++r) std::copy_n(x(at + r * inner, m), m, copy + r * m);
    from = copy, first = 0, step = m;
  } else if constexpr (std::is_same_v<T, float>) {
    if (x.dtype == bf16) return reduce_rows<Op, T>(reinterpret_cast<const BFloat16*>(from) + first, step, n, m, part);
  }
  reduce_rows<Op, T>(from + first, step, n, m, part);
}

/// Reduces x [outer, n, inner] to [outer, inner], in tasks of kBlock rows of some columns.
template <class Op, class T> void reduce_columns(Source<T> x, T* y, ReduceShape s) {
  // Few rows have few lanes, and are read in longer pieces.
  constexpr int64_t numbers = kLanes * 64, most = 512;
  const int64_t width = std::min(numbers / lanes_of<Op>(std::min(s.n, kBlock), s.inner), most);
  const int64_t blocks = ceil_div(s.n, kBlock), strips = ceil_div(s.inner, width);
  const int64_t work = std::min(s.n, kBlock) * std::min(s.inner, width);
  Tensor memory = empty({blocks > 1 ? s.outer * blocks * s.inner : 0}, {dtype_of<Part<Op, T>>()}, "reduce");
  auto* const parts = memory.mutable_data<Part<Op, T>>();
  const auto total = [](Total<Op, T> sum, Part<Op, T> part) { return Op::apply(sum, static_cast<Total<Op, T>>(part)); };
  parallel_for(s.outer * blocks * strips, std::max<int64_t>(1, (1 << 15) / work), [&](int64_t begin, int64_t end) {
    alignas(64) Part<Op, T> part[numbers];
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % strips * width, block = task / strips, m = std::min(width, s.inner - column);
      const int64_t first = block % blocks * kBlock, n = std::min(kBlock, s.n - first);
      const int64_t at = (block / blocks * s.n + first) * s.inner + column;
      reduce_rows<Op>(x, at, n, s.inner, m, part);
      if (blocks > 1) std::copy_n(part, m, parts + block * s.inner + column);
      else
        for (int64_t k = 0; k < m; ++k)
          y[block * s.inner + column + k] = result<T, Op>(total(Op::template start<Total<Op, T>>(), part[k]));
    }
  });
  if (blocks == 1) return;
  parallel_for(s.outer * s.inner, ceil_div(1 << 15, blocks), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part<Op, T>* part = parts + i / s.inner * blocks * s.inner + i % s.inner;
      auto sum = Op::template start<Total<Op, T>>();
      for (int64_t b = 0; b < blocks; ++b) sum = total(sum, part[b * s.inner]);
      y[i] = result<T, Op>(sum);
    }
  });
}

/// to [n, rows] = x [rows, n], transposed. Not inlined: one loop serves all reductions of a dtype.
template <class T> [[gnu::noinline]] void turn(const T* x, int64_t rows, int64_t n, T* to) {
  detail::vectorised([=] { detail::transpose_rows(x, rows, n, to); });
}
/// y [m] = the results of reductions of one block each.
template <class Op, class T> void write_results(const Part<Op, T>* part, int64_t m, T* y) {
  const auto start = Op::template start<Total<Op, T>>();
  for (int64_t r = 0; r < m; ++r) y[r] = result<T, Op>(Op::apply(start, static_cast<Total<Op, T>>(part[r])));
}
/// Rows of fewer numbers are reduced as columns, longer ones of floats are folded first. Of i64 fewer columns fit in a
/// register.
template <class Op, class T>
constexpr int64_t kShortRow = std::is_same_v<T, int64_t> ? kFew
                              : is_extreme<Op>           ? kLanes
                                                         : 2 * kFew;
/// Reduces short rows, x [outer, n], as columns of a transposed copy, some rows at a time.
template <class Op, class T> void reduce_short_rows(Source<T> x, T* y, ReduceShape s) {
  constexpr int64_t numbers = 256 * kFew;
  const int64_t most = std::min<int64_t>(256, numbers / s.n / kFew * kFew);  // rows at a time
  parallel_for(ceil_div(s.outer, most), ceil_div(8 * numbers, most * s.n), [&](int64_t begin, int64_t end) {
    alignas(64) T columns[numbers];
    alignas(64) Part<Op, T> part[numbers];
    for (int64_t first = begin * most; first < std::min(end * most, s.outer); first += most) {
      const int64_t m = std::min(most, s.outer - first);
      turn(x(first * s.n, m * s.n), m, s.n, columns);
      reduce_rows<Op, T>(columns, m, s.n, m, part);
      write_results<Op>(part, m, y + first);
    }
  });
}
/// Squares of f64 are rounded, or not, as the compiler joins them: they keep one loop.
template <class Op, class T>
constexpr bool kFolds =
    std::is_same_v<Op, NormOp> ? std::is_same_v<T, float> : std::is_floating_point_v<T> && !std::is_same_v<Op, ProdOp>;
/// Reduces rows of kShortRow<Op, T> to kBlock numbers as columns of folded rows.
template <class Op, class T> void reduce_folded_rows(Source<T> x, T* y, ReduceShape s) {
  using P = Part<Op, T>;
  constexpr int64_t most = 4 * kFew;  // rows at a time
  const int64_t count = folded_count<Op>(s.n), width = ceil_div(count, 4) * 4;
  parallel_for(ceil_div(s.outer, most), ceil_div(1 << 15, most * s.n), [&](int64_t begin, int64_t end) {
    alignas(64) P folded[most * 2 * kFoldLanes] = {};  // turn() reads the columns between count and width, too
    alignas(64) P columns[most * 2 * kFoldLanes], part[most * kFoldLanes];
    for (int64_t first = begin * most; first < std::min(end * most, s.outer); first += most) {
      const int64_t m = std::min(most, s.outer - first);
      const auto fold = [&](const auto* from, int64_t step) {
        if (s.n < kLanes || std::is_same_v<Op, NormOp>) fold_rows<Op, kFoldLanes>(from, step, m, s.n, folded, width);
        else fold_rows<Op, kLanes>(from, step, m, s.n, folded, width);
      };
      int64_t at = first * s.n, step = s.n;
      if (!x.rows_in_place(s.n, at, step)) fold(x(at, m * s.n), s.n);
      else if (x.dtype == bf16) fold(reinterpret_cast<const BFloat16*>(x.x) + at, step);
      else fold(x.x + at, step);
      turn(folded, m, width, columns);
      reduce_rows<Join<Op>, P>(columns, m, count, m, part);
      write_results<Op>(part, m, y + first);
    }
  });
}

template <class Op, class T> void reduce(Source<T> x, T* y, ReduceShape s) {
  constexpr int64_t piece = 1 << 15;
  if (s.inner > 1) return reduce_columns<Op>(x, y, s);
  if (s.n < kShortRow<Op, T> && s.outer >= kFew) return reduce_short_rows<Op>(x, y, s);
  if constexpr (kFolds<Op, T>) {
    // Long sums of f32 are as fast row by row. Without AVX-512 g++ compares the vectors of extremes number by number.
    const bool pays = is_extreme<Op> ? isa() >= Isa::avx512 : s.n < 2 * kLanes || x.dtype == bf16;
    if (pays && s.n <= kBlock && s.outer >= kFew) return reduce_folded_rows<Op>(x, y, s);
  }
  if (s.outer == 1 && s.n > 2 * piece) {  // one long sum: pieces in parallel
    const int64_t pieces = ceil_div(s.n, piece);
    Tensor memory = empty({pieces}, {dtype_of<Total<Op, T>>()}, "reduce");  // a MemoryError if x is vast
    auto* const part = memory.mutable_data<Total<Op, T>>();
    parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) part[i] = reduce_run<Op>(x, i * piece, std::min(piece, s.n - i * piece));
    });
    y[0] = result<T, Op>(reduce_run<Join<Op>>(Source<Total<Op, T>>{part}, 0, pieces));
    return;
  }
  const auto reduce_each = [y, n = s.n](Source<T> from, int64_t at, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i, at += n) y[i] = result<T, Op>(reduce_run<Op>(from, at, n));
  };
  const int64_t together = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, s.n));  // rows to convert
  parallel_for(s.outer, std::max<int64_t>(1, piece / std::max<int64_t>(1, s.n)), [&](int64_t begin, int64_t end) {
    if (!x.converts() || together == 1) return reduce_each(x, begin * s.n, begin, end);
    for (int64_t i = begin, m; i < end; i += m) {
      m = std::min(together, end - i);
      reduce_each({x(i * s.n, m * s.n)}, 0, i, i + m);
    }
  });
}

template <class T> void reduce_as(ReduceKind kind, Source<T> in, T* out, ReduceShape s) {
  if (kind == ReduceKind::sum) reduce<SumOp>(in, out, s);
  else if (kind == ReduceKind::max) reduce<MaxOp>(in, out, s);
  else if (kind == ReduceKind::min) reduce<MinOp>(in, out, s);
  else if constexpr (std::is_floating_point_v<T>) reduce<NormOp>(in, out, s);
}

/// Computes again, from x / max |x|, norms that are 0, infinite, NaN or inexact because squares left the range of f64.
void scale_norms(Source<double> x, double* y, ReduceShape s) {
  parallel_for(s.outer * s.inner, ceil_div(1 << 15, s.n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (y[i] > 0x1p-450 && y[i] < 0x1p500) continue;
      const int64_t at = i / s.inner * s.n * s.inner + i % s.inner;
      double top = 0, total = 0;
      for (int64_t r = 0; r < s.n; ++r) top = std::max(top, math::abs(*x(at + r * s.inner, 1)));
      const double unit = top > 0 && top < std::numeric_limits<double>::infinity() ? top : 1;
      for (int64_t r = 0; r < s.n; ++r) {
        const double v = *x(at + r * s.inner, 1) / unit;
        total += v * v;
      }
      y[i] = math::sqrt(total) * unit;
    }
  });
}

/// f(source of x, address of y), both of y's dtype; x may have another, and results for a y of bf16 are f32 first.
template <class F> void reduced(const Tensor& x, Tensor& y, F f) {
  const detail::StridedRange walk(x.layout());
  const auto as = [&]<class T>(Tensor& to) {
    const bool in_place = walk.contiguous && x.dtype() == dtype_of<T>();
    f(Source<T>{reinterpret_cast<const T*>(x.raw()), in_place ? nullptr : &walk, x.dtype()}, to.mutable_data<T>());
  };
  if (y.dtype() == i64) return as.template operator()<int64_t>(y);
  if (y.dtype() == i32) return as.template operator()<int32_t>(y);
  if (y.dtype() == bf16) {
    Tensor wide = empty(y.shape());
    as.template operator()<float>(wide);
    return detail::copy_elements(wide, y);
  }
  dispatch_float("reduce", y.dtype(), [&]<class T>() { as.template operator()<T>(y); });
}

void reduce_cpu(ReduceKind kind, const Tensor& x, Tensor& y, ReduceShape s) {
  reduced(x, y, [=]<class T>(Source<T> from, T* to) {
    reduce_as<T>(kind, from, to, s);
    if constexpr (std::is_same_v<T, double>)
      if (kind == ReduceKind::norm) scale_norms(from, to, s);
  });
}

void prod_cpu(const Tensor& x, Tensor& y, ReduceShape s) {
  reduced(x, y, [=]<class T>(Source<T> from, T* to) { reduce<ProdOp, T>(from, to, s); });
}

}  // namespace

constinit decltype(kernel::reduce) kernel::reduce{"reduce", &reduce_cpu, Bf16::native};
constinit decltype(kernel::prod) kernel::prod{"prod", &prod_cpu, Bf16::native};

}  // namespace sluice
