// The loops of reductions.
#include <sluice/ops/kernels.h>

#include <sluice/core/number/math.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/kernel/transpose.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce_ops.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace sluice {

namespace {

using namespace detail::reduction;

constexpr int kLanes = 64;
/// Lanes of a reduction whose order does not matter. 64 numbers of 8 bytes would take all registers of AVX2.
template <class T> constexpr int lanes_in_registers = sizeof(T) == 8 ? kLanes / 2 : kLanes;
constexpr int64_t kFew = 16;      // rows of fewer numbers are reduced side by side, and fewer columns in lanes
constexpr int64_t kBlock = 1024;  // f32 partial sums are at most this long; their totals are f64

/// Input of a reduction, of any layout. operator() returns n numbers from `at` on: in place, or in thread-local memory.
template <class T> struct Source {
  const T* x;
  const detail::StridedRange* walk = nullptr;  // of bf16, too; null: x is contiguous
  DType dtype = f32;
  const T* operator()(int64_t at, int64_t n) const {
    if (!walk) return x + at;
    if (dtype != bf16)
      if (const detail::StridedRange::Run run = walk->run(at); run.count >= n) return x + run.offset;
    T* to = reinterpret_cast<T*>(detail::row_memory(0, n * static_cast<int64_t>(sizeof(T) / sizeof(float))));
    read(at, n, to);
    return to;
  }
  /// True if rows of `inner` numbers can be read where they lie, in bf16, too. Sets `step` to their distance, and makes
  /// `at` an offset in memory.
  bool rows_in_place(int64_t inner, int64_t& at, int64_t& step) const {
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

/// extreme_of_run() in one pass, which pays for long runs only.
template <class Op, class T> [[gnu::noinline]] T extreme_of_long_run(const T* x, int64_t n) {
  constexpr int lanes = lanes_in_registers<T>;
  const auto better = [](T a, T y) { return Op::better(a, y); };
  T best[lanes], unknown[lanes] = {};  // NaN, or 0
  std::fill_n(best, lanes, Op::template start<T>());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) {
      const T y = x[i + k];
      best[k] = better(best[k], y), unknown[k] = y != y ? y : unknown[k];
    }
  for (int64_t k = i; k < n; ++k) unknown[k - i] = x[k] != x[k] ? x[k] : unknown[k - i];
  const T any = detail::row_sum(unknown, lanes);
  const auto rest = [x](int64_t k) { return x[k]; };
  return any != any ? any : detail::halves_joined<lanes, true>(best, i, n, rest, better);
}
/// The extreme of the numbers; NaN if one is NaN. NaN is looked for apart: a chain of Op::apply() would wait longer.
template <class Op, class T> T extreme_of_run(const T* x, int64_t n) {
  if (std::is_floating_point_v<T> && n >= 8 * kLanes) return extreme_of_long_run<Op>(x, n);
  const T best = detail::row_joined<T, lanes_in_registers<T>>(x, n, Op::template start<T>(),
                                                              [](T a, T y) { return Op::better(a, y); });
  int unknown = 0;
  for (int64_t i = 0; i < n; ++i) unknown |= x[i] != x[i];
  return unknown ? std::numeric_limits<T>::quiet_NaN() : best;
}

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
/// Rows of fewer numbers are reduced as columns. Sums of 16 and more are as fast in lanes.
template <class Op> constexpr int64_t kShortRow = is_extreme<Op> ? kLanes : kFew;
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
      for (int64_t r = 0; r < m; ++r)
        y[first + r] = result<T, Op>(Op::apply(Op::template start<Total<Op, T>>(), static_cast<Total<Op, T>>(part[r])));
    }
  });
}

template <class Op, class T> void reduce(Source<T> x, T* y, ReduceShape s) {
  constexpr int64_t piece = 1 << 15;
  if (s.inner > 1) return reduce_columns<Op>(x, y, s);
  if (s.n < kShortRow<Op> && s.outer >= kFew) return reduce_short_rows<Op>(x, y, s);
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
  parallel_for(s.outer, std::max<int64_t>(1, piece / std::max<int64_t>(1, s.n)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = result<T, Op>(reduce_run<Op>(x, i * s.n, s.n));
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

void reduce_cpu(ReduceKind kind, const Tensor& x, Tensor& y, ReduceShape s) {
  const detail::StridedRange walk(x.layout());
  const auto reduced = [&]<class T>(Tensor& to) {
    const auto* at = reinterpret_cast<const T*>(x.raw());
    const bool in_place = walk.contiguous && x.dtype() != bf16;
    const Source<T> from{at, in_place ? nullptr : &walk, x.dtype()};
    reduce_as<T>(kind, from, to.mutable_data<T>(), s);
    if constexpr (std::is_same_v<T, double>)
      if (kind == ReduceKind::norm) scale_norms(from, to.mutable_data<T>(), s);
  };
  if (x.dtype() == i64) return reduced.operator()<int64_t>(y);
  if (x.dtype() == i32) return reduced.operator()<int32_t>(y);
  if (x.dtype() == bf16) {
    Tensor wide = empty(y.shape());
    reduced.operator()<float>(wide);
    return detail::copy_elements(wide, y);
  }
  dispatch_float("reduce", x.dtype(), [&]<class T>() { reduced.template operator()<T>(y); });
}

void prod_cpu(const Tensor& x, Tensor& y, ReduceShape s) {
  dispatch_float("prod", x.dtype(), [&]<class T>() { reduce<ProdOp, T>({x.data<T>()}, y.mutable_data<T>(), s); });
}

/// True if a comes before b: NaN before numbers, then the larger (or smaller) number. False if they are equal.
template <bool largest, class T> bool before(T a, T b) { return ((largest ? a > b : a < b) | (a != a)) & (b == b); }
template <class T> T pick(bool first, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return math::select(first, a, b);
  else return first ? a : b;
}

/// Place of the first best of n numbers: the best of each block, then its place in the best block.
template <bool largest, class T> int64_t best_of_run(const T* p, int64_t n) {
  if (n < kLanes) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i) best = before<largest>(p[i], p[best]) ? i : best;
    return best;
  }
  int64_t at = 0;
  T best = p[0];
  for (int64_t b = 0; b < n && best == best; b += kBlock) {
    const T of_block = extreme_of_run<ExtremeOp<largest>>(p + b, std::min(kBlock, n - b));
    if (before<largest>(of_block, best)) best = of_block, at = b;
  }
  if (best != best) {
    while (p[at] == p[at]) ++at;
    return at;
  }
  for (; at + kLanes <= n; at += kLanes) {
    int found = 0;
    for (int k = 0; k < kLanes; ++k) found += p[at + k] == best;
    if (found > 0) break;
  }
  while (p[at] != best) ++at;
  return at;
}

/// Places of the first best of each of m columns, at most kLanes, of x [n, inner].
template <bool largest, class T>
void best_of_columns(const T* x, int64_t n, int64_t inner, int64_t m, int64_t first, int64_t* out) {
  using Place = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;  // as wide as T, for the vectoriser
  T best[kLanes];
  Place place[kLanes] = {};
  std::copy_n(x, m, best);
  for (int64_t r = 1; r < n; ++r) {
    const T* row = x + r * inner;
    for (int64_t k = 0; k < m; ++k) {
      const bool better = before<largest>(row[k], best[k]);
      best[k] = pick(better, row[k], best[k]);
      place[k] = better ? static_cast<Place>(r) : place[k];
    }
  }
  for (int64_t k = 0; k < m; ++k) out[k] = first + place[k];
}

/// Finds the places in pieces of x, in parallel, and then the best of these.
template <bool largest, class T> void arg_extreme(const T* x, int64_t* out, ReduceShape s) {
  constexpr int64_t task = 1 << 15;
  const int64_t strip = std::min<int64_t>(s.inner, kLanes), strips = ceil_div(s.inner, strip);
  const int64_t length = s.n * strip > 2 * task ? task / strip : s.n, pieces = ceil_div(s.n, length);
  if (s.inner == 1 && pieces == 1)
    return parallel_for(s.outer, ceil_div(task, s.n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = best_of_run<largest>(x + i * s.n, s.n);
    });
  std::vector<int64_t> part(static_cast<std::size_t>(pieces > 1 ? s.outer * pieces * s.inner : 0));
  int64_t* places = pieces > 1 ? part.data() : out;  // [outer, pieces, inner]
  parallel_for(s.outer * pieces * strips, ceil_div(task, length * strip), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / strips, column = i % strips * strip, first = block % pieces * length;
      const int64_t n = std::min(length, s.n - first);
      const T* from = x + (block / pieces * s.n + first) * s.inner + column;
      int64_t* to = places + block * s.inner + column;
      if (s.inner == 1) *to = first + best_of_run<largest>(from, n);
      else best_of_columns<largest>(from, n, s.inner, std::min(strip, s.inner - column), first, to);
    }
  });
  for (int64_t i = 0; pieces > 1 && i < s.outer * s.inner; ++i) {
    const int64_t o = i / s.inner, column = i % s.inner;
    const T* from = x + o * s.n * s.inner + column;
    int64_t best = places[o * pieces * s.inner + column];
    for (int64_t piece = 1; piece < pieces; ++piece) {
      const int64_t other = places[(o * pieces + piece) * s.inner + column];
      if (before<largest>(from[other * s.inner], from[best * s.inner])) best = other;
    }
    out[i] = best;
  }
}

void arg_extreme_cpu(bool largest, const Tensor& x, Tensor& index, ReduceShape s) {
  int64_t* out = index.mutable_data<int64_t>();
  dispatch_all(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, BFloat16>) {  // bf16 comes widened (core/kernel/kernel.h)
      using Number = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
      const auto* in = reinterpret_cast<const Number*>(x.data<T>());
      if (largest) arg_extreme<true>(in, out, s);
      else arg_extreme<false>(in, out, s);
    }
  });
}

}  // namespace

constinit decltype(kernel::reduce) kernel::reduce{"reduce", &reduce_cpu, Bf16::native};
constinit decltype(kernel::prod) kernel::prod{"prod", &prod_cpu};
constinit decltype(kernel::arg_extreme) kernel::arg_extreme{"arg_extreme", &arg_extreme_cpu};

}  // namespace sluice
