#include <sluice/ops/attention/exact_parts.h>

#include <sluice/ops/basic.h>
#include <sluice/ops/gemm/precision.h>

namespace sluice {

std::vector<Tensor> detail::exact_parts(const Tensor& w, DType dtype) {
  const bool rounds = dtype != f64 && precision_of(dtype) == Precision::bf16;
  const DType part = rounds ? bf16 : dtype;
  const int before = rounds ? 2 : w.dtype() != dtype ? 1 : 0;
  std::vector<Tensor> parts;
  Tensor rest = w;
  for (int i = 0; i < before; ++i) {
    const Tensor high = to(rest.detach(), part);
    parts.push_back(to(high, dtype)), rest = rest - to(high, rest.dtype());
  }
  parts.push_back(to(rest, dtype));
  return parts;
}

}  // namespace sluice
