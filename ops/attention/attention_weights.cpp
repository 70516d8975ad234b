#include <sluice/ops/attention/attention_weights.h>

#include <sluice/ops/map.h>

namespace sluice {

Tensor relu2_weight(const Tensor& t, const Tensor& bias, const Tensor& weight, double scale) {
  const formula::Relu2Weight f{scale};
  return bias.defined() ? map(f, t, bias, weight) : map(f, t, weight);
}

Tensor laplace_weight(const Tensor& t, const Tensor& bias, const Tensor& weight, double scale) {
  const formula::LaplaceWeight f{scale};
  return bias.defined() ? map(f, t, bias, weight) : map(f, t, weight);
}

}  // namespace sluice
