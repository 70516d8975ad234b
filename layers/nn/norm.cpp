#include <sluice/layers/nn/norm.h>

#include <sluice/layers/nn/init.h>

namespace sluice {

Norm::Norm(NormOptions o) : options(o) {
  check_options("norm", o);
  const bool per_channel = o.kind == NormKind::layer || o.kind == NormKind::rms;
  const bool scalar = o.kind == NormKind::scale || o.kind == NormKind::scale_l2;
  if (per_channel || scalar) weight = init_vector(per_channel ? o.dim : 1, 1, o.dtype);
  if (o.kind == NormKind::layer) bias = init_vector(o.dim, 0, o.dtype);
}

Tensor Norm::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  const double eps = options.eps;
  switch (options.kind) {
    case NormKind::none: return x;
    case NormKind::layer: return layer_norm(x, weight, bias, eps);
    case NormKind::rms: return rms_norm(x, weight, eps);
    case NormKind::rms_plain: return rms_norm(x, {}, eps);
    case NormKind::scale: return scale_norm(x, weight, eps);
    case NormKind::scale_l2: return scale_norm(x, weight, eps, ScaleNormForm::l2_max);
  }
  fail<ValueError>("norm: unknown kind");
}

}  // namespace sluice
