// logsumexp of the lines of x [outer, n, inner] on the CPU: m + log Σ e^(x−m), m = max x. Blocks are summed in T, their
// sums in f64. Long lines are cut into pieces, in parallel; the result is the logsumexp of the results of the pieces.
#include <sluice/core/number/math.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/column_exp.h>
#include <sluice/ops/rows/rows.h>

namespace sluice {

namespace {

/// Destination of logarithms, in f32, f64 or bf16. store() is apart from the loops of the sums, which would otherwise
/// be compiled for each dtype.
struct Logs {
  std::byte* y;
  DType dtype;
  /// y_k = log total_k + shift_k for m elements from `first` on, in the wider of both types.
  template <class T> [[gnu::noinline]] void store(int64_t first, const T* shift, const double* total, int64_t m) const {
    const auto as = [&]<class Y>() {
      using Wide = std::conditional_t<std::is_same_v<Y, double>, double, T>;
      detail::vectorised([=, to = reinterpret_cast<Y*>(y) + first] {
        for (int64_t k = 0; k < m; ++k)
          to[k] = static_cast<Y>(math::log(static_cast<Wide>(total[k])) + static_cast<Wide>(shift[k]));
      });
    };
    if (dtype == f32) as.template operator()<float>();
    else if (dtype == f64) as.template operator()<double>();
    else as.template operator()<BFloat16>();
  }
};

/// y [outer, pieces, inner]: log Σ e^x over each piece of the lines of x [outer, n, inner]. A piece has `length`
/// entries, the last one perhaps fewer.
template <class T> void logsumexp_of_pieces(const Tensor& x, Logs y, ReduceShape s, int64_t length) {
  const int64_t pieces = ceil_div(s.n, length), lines = s.outer * pieces, blocks = ceil_div(s.inner, detail::kColumns);
  const auto first = [=](int64_t line) { return line / pieces * s.n + line % pieces * length; };
  const auto size = [=](int64_t line) { return std::min(length, s.n - line % pieces * length); };
  if (s.inner > 1)
    return detail::for_each_row(
        lines * blocks, length * std::min(s.inner, detail::kColumns), [=, x0 = x.data<T>()](int64_t i) {
          const int64_t line = i / blocks, column = i % blocks * detail::kColumns,
                        m = std::min(detail::kColumns, s.inner - column);
          T shift[detail::kColumns];
          double total[detail::kColumns];
          detail::column_exp_totals<false>(x0 + first(line) * s.inner + column, {1, size(line), s.inner}, m, shift,
                                           total, [](int64_t, T e) { return e; });
          y.store(line * s.inner + column, shift, total, m);
        });
  if (detail::are_short_rows<T>(lines, s.n))
    return detail::for_each_short_block<T>(x, s.n, [=](const T* columns, int64_t row, int64_t m) {
      T shift[detail::kColumns];
      double total[detail::kColumns];
      detail::column_exp_totals<true>(columns, {1, s.n, m}, m, shift, total, [](int64_t, T e) { return e; });
      y.store(row, shift, total, m);
    });
  const detail::RowsIn<T> in(x, s.n, 0);
  const int64_t group =
      std::clamp<int64_t>((1 << 14) / length, 1, detail::kColumns);  // so that logarithms are vectors, too
  detail::for_each_row(ceil_div(lines, group), group * length, [=](int64_t i) {
    const int64_t begin = i * group, m = std::min(group, lines - begin);
    T shift[detail::kColumns];
    double total[detail::kColumns];
    for (int64_t k = 0; k < m; ++k) {
      const int64_t n = size(begin + k);
      const T* p = in.part(first(begin + k), n);
      total[k] =
          detail::row_exp_total<T, double>(p, n, detail::row_max(p, n), shift[k], [](int64_t, T e) { return e; });
    }
    y.store(begin, shift, total, m);
  });
}

/// Cuts long lines into pieces, in parallel, and joins their results.
void logsumexp_cpu(const Tensor& x, Tensor& y, ReduceShape s) {
  constexpr int64_t task = 1 << 15;
  const int64_t width = std::min(s.inner, detail::kColumns);
  const Logs out{y.raw(), y.dtype()};
  detail::dispatch_rows("logsumexp", x.dtype(), [&]<class T>() {
    if (s.n * width <= 2 * task) return logsumexp_of_pieces<T>(x, out, s, s.n);
    const int64_t length = task / width, pieces = ceil_div(s.n, length);
    Tensor part = empty({s.outer, pieces, s.inner}, {f64});
    logsumexp_of_pieces<T>(x, {part.raw(), f64}, s, length);
    logsumexp_of_pieces<double>(part, out, {s.outer, pieces, s.inner}, pieces);
  });
}

}  // namespace

constinit decltype(kernel::logsumexp) kernel::logsumexp{"logsumexp", &logsumexp_cpu, Bf16::native};

}  // namespace sluice
