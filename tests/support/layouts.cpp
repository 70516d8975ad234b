#include "support/layouts.h"

#include "support/approx.h"

#include <sluice/ops/shape/create.h>

#include <cmath>

namespace sluice::testing {

std::string_view name_of(Storing how) {
  constexpr std::string_view names[] = {"plain", "permuted", "gapped", "reversed", "offset"};
  return names[static_cast<int>(how)];
}

Tensor stored(const Tensor& x, Storing how) {
  if (how == Storing::plain) return x;
  const int rank = x.rank();
  Layout l = x.layout();
  const int64_t n = x.numel(), gap = how == Storing::gapped ? 2 : 1;
  int64_t step = gap;
  for (int k = 0; k < rank; ++k) {
    const int d = how == Storing::permuted ? k : rank - 1 - k;
    l.strides[d] = step;
    step *= x.shape()[d];
  }
  constexpr int64_t margin = 5;
  l.offset = margin;
  if (how == Storing::reversed && n > 0)
    for (int d = 0; d < rank; ++d) {
      l.offset += (x.shape()[d] - 1) * l.strides[d];
      l.strides[d] = -l.strides[d];
    }
  const double canary = is_float(x.dtype()) ? NAN : x.dtype() == boolean ? 1 : 1e9;
  const int64_t size = n * gap + 2 * margin;
  std::vector<double> memory(static_cast<std::size_t>(size), canary);
  const auto values = x.to_vector<double>();
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = l.offset, rest = i;
    for (int d = rank - 1; d >= 0; --d) {
      at += rest % x.shape()[d] * l.strides[d];
      rest /= x.shape()[d];
    }
    memory[static_cast<std::size_t>(at)] = values[static_cast<std::size_t>(i)];
  }
  Tensor y = alias(tensor_of(memory, {size}, x.dtype()), l);
  if (x.requires_grad()) y.requires_grad_();
  return y;
}

Tensor repeated(const Tensor& x, int dim) {
  Layout l(x.shape());
  Tensor copy = tensor_of(x.to_vector<double>(), x.shape(), x.dtype());
  l.strides[dim] = 0;
  Tensor y = alias(copy, l);
  if (x.requires_grad()) y.requires_grad_();
  return y;
}

std::vector<std::byte> storage_bytes(const Tensor& x) {
  const Storage& s = *x.impl().storage;
  const Tensor all =
      to(alias(Tensor(x).detach(), Layout(Shape{static_cast<int64_t>(s.bytes()) / size_of(x.dtype())})), cpu);
  return {all.raw(), all.raw() + all.numel() * size_of(x.dtype())};
}

}  // namespace sluice::testing
