// Shared by kernels over [batch, heads, rows, width] tensors: attention and the scan.
#pragma once

#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/rows/rows.h>

#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/tensor.h>

#include <algorithm>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace sluice::detail {

/// Uninitialised memory [batch, rows, heads, width] viewed as `shape` = [batch, heads, rows, width]: merging heads
/// afterwards is a view. Throws as empty() does, naming `op`.
Tensor empty_heads(const Shape& shape, TensorOptions options, const char* op = "empty");
/// Returns x, or a copy if its rows are not contiguous or overlap: kernels and BLAS cannot read such rows. No history.
Tensor readable_rows(const Tensor& x);

/// Repeats each of the g heads that x has along `dim`: head i of the result, of `heads`, is head ⌊i/(heads/g)⌋ of x.
Tensor spread_heads(const Tensor& x, int64_t heads, int64_t dim = 1);
/// The adjoint along dim 1: x [batch, heads, …] → [batch, groups, …], the sums over the heads of each group. Undefined
/// for undefined.
Tensor gather_heads(const Tensor& x, int64_t groups);

/// Into how many equal parts kernels cut the `group` heads that read one head of k, of which there are `heads`: into as
/// few as give `tasks`, so that threads have work.
inline int64_t parts_of_group(int64_t heads, int64_t group, int64_t tasks = 16) {
  int64_t parts = 1;
  while (parts < group && (group % parts != 0 || heads * parts < tasks)) ++parts;
  return parts;
}

/// A [batch, heads, rows, width] tensor as the kernels read it.
template <class T> struct HeadView {
  T* base = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides
  HeadView() = default;
  explicit HeadView(const Tensor& x)
      : base(reinterpret_cast<T*>(x.raw())), batch(x.strides()[0]), head(x.strides()[1]),
        row(x.shape()[2] > 1 ? x.strides()[2] : std::max<int64_t>(1, x.shape()[3])) {}
  T* at(int64_t b, int64_t h, int64_t r) const { return base + b * batch + h * head + r * row; }
};

/// Scratch memory of a task, from the caching allocator.
template <class T> class Scratch {
 public:
  /// An array in the memory.
  struct Part {
    T*& start;  // set to the array's first element
    int64_t count;
  };
  explicit Scratch(int64_t n) : memory_(n > 0 ? empty({n}, {.dtype = dtype_of<T>()}) : Tensor()) {}
  /// Memory of several arrays, one behind the other.
  explicit Scratch(std::initializer_list<Part> parts) : Scratch(count(parts)) {
    T* at = data();
    for (const Part& p : parts) p.start = std::exchange(at, at + p.count);
  }
  T* data() { return memory_.defined() ? reinterpret_cast<T*>(memory_.raw()) : nullptr; }
  T* end() { return memory_.defined() ? data() + memory_.numel() : nullptr; }

 private:
  static int64_t count(std::initializer_list<Part> parts) {
    int64_t n = 0;
    for (const Part& p : parts) n += p.count;
    return n;
  }

  Tensor memory_;
};

/// True if all of rows × width values are finite.
template <class T> bool all_finite(const T* x, int64_t rows, int64_t width, int64_t stride) {
  using Wide = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  Wide sum = 0;
  vectorised([=, &sum] {
    constexpr int lanes = 32;
    Wide lane[lanes] = {};  // x·0 is 0 for finite x, else NaN
    for (int64_t r = 0; r < rows; ++r) {
      const T* const row = x + r * stride;
      int64_t i = 0;
      for (; i + lanes <= width; i += lanes)
        for (int k = 0; k < lanes; ++k) lane[k] += Wide(row[i + k]) * Wide(0);
      for (int k = 0; k < lanes && i < width; ++i, ++k) lane[k] += Wide(row[i]) * Wide(0);
    }
    sum = row_sum(lane, lanes);
  });
  return sum == Wide(0);
}

/// c [n, m] += alpha · a · b, or alpha · aᵀ · b. Skips the zeros of a, because 0·NaN must add nothing. For tiles whose
/// operands hold NaN or infinities behind the mask.
template <class T, class B>
void sparse_product(Trans ta, int64_t n, int64_t m, int64_t k, T alpha, const T* a, int64_t lda, const B* b,
                    int64_t ldb, T* c, int64_t ldc) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t l = 0; l < k; ++l) {
      const T weight = ta == Trans::no ? a[i * lda + l] : a[l * lda + i];
      if (weight == T(0)) continue;
      for (int64_t j = 0; j < m; ++j) c[i * ldc + j] += alpha * weight * T(b[l * ldb + j]);
    }
}

}  // namespace sluice::detail
