#include <sluice/ops/attention/heads.h>

#include <sluice/ops/basic.h>

#include <climits>
#include <utility>

namespace sluice::detail {

Tensor empty_heads(const Shape& shape, TensorOptions options, const char* op) {
  Tensor x = empty({shape[0], shape[2], shape[1], shape[3]}, options, op);
  Layout l = x.layout();
  std::swap(l.shape[1], l.shape[2]), std::swap(l.strides[1], l.strides[2]);
  return alias(x, l);
}

Tensor readable_rows(const Tensor& x) {
  const int64_t width = x.dim(3), step = x.strides()[2];
  const bool apart = x.dim(2) <= 1 || (step >= std::max<int64_t>(1, width) && step <= INT_MAX);  // as GEMM takes it
  return apart && (width <= 1 || x.strides()[3] == 1) ? x.detach() : clone(x.detach());
}

Tensor spread_heads(const Tensor& x, int64_t heads, int64_t dim) {
  return x.dim(dim) == heads ? x : repeat_interleave(x, heads / x.dim(dim), dim);
}

Tensor gather_heads(const Tensor& x, int64_t groups) {
  if (!x.defined() || x.dim(1) == groups) return x;
  return sum(unflatten(x, 1, {groups, x.dim(1) / groups}), {2});
}

}  // namespace sluice::detail
