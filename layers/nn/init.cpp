#include <sluice/layers/nn/init.h>

#include <sluice/layers/nn/meta_init.h>
#include <sluice/ops/basic.h>

#include <cmath>
#include <vector>

namespace sluice {

namespace {
thread_local bool on_meta = false;
}  // namespace

TensorOptions detail::initial(DType dtype) { return {dtype, on_meta ? meta : cpu}; }
using detail::initial;

MetaInit::MetaInit() : Restored(on_meta, true) {}

Init Init::deepnorm(int64_t layers) {
  if (layers < 1) fail<ValueError>("init: deepnorm needs at least one layer — got ", layers);
  return {InitKind::xavier, 1 / std::sqrt(2.0 * static_cast<double>(layers))};
}

/// A weight [rows, columns], whose every output is a sum of fan_in inputs.
static Tensor drawn(int64_t rows, int64_t columns, double fan_in, double fan_out, Init init, Rng& rng, DType dtype) {
  if (rows < 1 || columns < 1) fail("init: a weight needs positive sizes — got [", rows, ",", columns, "]");
  double std = 0;
  switch (init.kind) {
    case InitKind::normal: std = 1; break;
    case InitKind::lecun: std = std::sqrt(1 / fan_in); break;
    case InitKind::xavier: std = std::sqrt(2 / (fan_in + fan_out)); break;
    case InitKind::he: std = std::sqrt(2 / fan_in); break;
    case InitKind::zeros: return zeros({rows, columns}, initial(dtype)).requires_grad_();
  }
  return init_normal({rows, columns}, std * init.scale, rng, dtype);
}

Tensor init_weight(int64_t in, int64_t out, Init init, Rng& rng, DType dtype) {
  return drawn(in, out, static_cast<double>(in), static_cast<double>(out), init, rng, dtype);
}

Tensor init_depthwise(int64_t width, int64_t channels, Init init, Rng& rng, DType dtype) {
  const auto fan = static_cast<double>(width);
  return drawn(width, channels, fan, fan, init, rng, dtype);
}

Tensor init_weights(int64_t count, int64_t in, int64_t out, Init init, Rng& rng, DType dtype) {
  if (const TensorOptions o = initial(dtype); o.device.kind == DeviceKind::meta)
    return empty({count, in, out}, o).requires_grad_();
  std::vector<Tensor> each;
  for (int64_t i = 0; i < count; ++i) each.push_back(init_weight(in, out, init, rng, dtype).detach());
  return stack(each).requires_grad_();
}

Tensor init_vector(int64_t n, double value, DType dtype) { return full({n}, value, initial(dtype)).requires_grad_(); }

Tensor init_a_log(int64_t n, double low, double high, Rng& rng, DType dtype) {
  return to(log(uniform({n}, low, high, rng, initial(f64))), exact(dtype)).requires_grad_();
}

Tensor init_dt_bias(int64_t n, Rng& rng, DType dtype) {
  const Tensor dt = exp(uniform({n}, std::log(0.001), std::log(0.1), rng, initial(f64)));
  return to(log(expm1(dt)), exact(dtype)).requires_grad_();  // the inverse of softplus
}

Tensor init_normal(const Shape& shape, double std, Rng& rng, DType dtype) {
  return normal(shape, 0, std, rng, initial(dtype)).requires_grad_();
}

}  // namespace sluice
