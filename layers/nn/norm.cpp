#include <sluice/layers/nn/norm.h>

#include <sluice/layers/nn/init.h>

namespace sluice {

Norm::Norm(NormOptions o) : kind(o.kind), eps(o.eps) {
  if (o.dim < 1) fail("norm: needs a positive dim — got ", o.dim);
  const bool per_channel = kind == NormKind::layer || kind == NormKind::rms;
  const bool scalar = kind == NormKind::scale || kind == NormKind::scale_l2;
  if (per_channel || scalar) weight = init_vector(per_channel ? o.dim : 1, 1, o.dtype);
  if (kind == NormKind::layer) bias = init_vector(o.dim, 0, o.dtype);
}

Tensor Norm::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  switch (kind) {
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
