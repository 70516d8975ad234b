#include <sluice/ops/matmul/skinny.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>

namespace sluice::detail {

namespace {
constexpr int64_t kPiece = 1 << 16;  // elements of b per task: enough to stream, few enough to give all threads tasks
}

template <class T, class B>
void skinny_matmul(Trans tb, int64_t n, int64_t m, int64_t k, const T* a, int64_t lda, const B* b, int64_t ldb,
                   const T* bias, T* c, int64_t ldc) {
  const auto finish = [=](int64_t r, int64_t from, int64_t to) {
    for (int64_t j = from; bias && j < to; ++j) c[r * ldc + j] += bias[j];
  };
  if (tb == Trans::yes) {
    const bool far = m * k > (int64_t{4} << 20) / int64_t{sizeof(B)};  // more than caches of a core hold
    const auto dots = far ? &skinny_dots<true, T, B> : &skinny_dots<false, T, B>;
    parallel_for(m, std::max<int64_t>(1, kPiece / std::max<int64_t>(1, k)), [=](int64_t begin, int64_t end) {
      dots(n, end - begin, k, T(1), a, lda, b + begin * ldb, ldb, c + begin, ldc);
      for (int64_t r = 0; r < n; ++r) finish(r, begin, end);
    });
    return;
  }
  // b is cut along k and, where rows are long, into columns, so that sums stay in L1. The partial sums of the same
  // columns are added in the order of k.
  const bool far = m * k > (int64_t{1} << 20) / int64_t{sizeof(B)};  // L2 holds less
  const auto sums = far ? &skinny_sums<true, T, B> : &skinny_sums<false, T, B>;
  const int64_t cols = std::min<int64_t>(m, 512), col_tiles = ceil_div(m, cols);
  const int64_t depth = std::max<int64_t>(4, kPiece / std::max<int64_t>(1, cols) / 4 * 4);
  const int64_t depths = std::max<int64_t>(1, ceil_div(k, depth));
  const Tensor memory = empty({(depths - 1) * n * m}, {.dtype = dtype_of<T>()});
  T* const rest = reinterpret_cast<T*>(memory.raw());
  parallel_for(col_tiles * depths, 1, [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t col = task % col_tiles * cols, l = task / col_tiles * depth, count = std::min(cols, m - col);
      T* const to = l == 0 ? c : rest + (l / depth - 1) * n * m;
      const int64_t ld = l == 0 ? ldc : m;
      for (int64_t r = 0; r < n; ++r) std::fill_n(to + r * ld + col, count, T(0));
      sums(n, count, std::min(depth, k - l), a + l, lda, b + l * ldb + col, ldb, to + col, ld);
    }
  });
  parallel_for(m, 1 << 12, [=](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < n; ++r) {
      T* __restrict__ to = c + r * ldc;
      for (int64_t d = 0; d + 1 < depths; ++d) {
        const T* part = rest + (d * n + r) * m;
        for (int64_t j = begin; j < end; ++j) to[j] += part[j];
      }
      finish(r, begin, end);
    }
  });
}
template void skinny_matmul(Trans, int64_t, int64_t, int64_t, const float*, int64_t, const float*, int64_t,
                            const float*, float*, int64_t);
template void skinny_matmul(Trans, int64_t, int64_t, int64_t, const float*, int64_t, const BFloat16*, int64_t,
                            const float*, float*, int64_t);
template void skinny_matmul(Trans, int64_t, int64_t, int64_t, const double*, int64_t, const double*, int64_t,
                            const double*, double*, int64_t);

}  // namespace sluice::detail
