#include <sluice/layers/nn/norm.h>

#include <sluice/layers/nn/init.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

namespace sluice {

Norm::Norm(NormOptions o) : options(o) {
  check_options("norm", o);
  const bool per_channel = o.kind == NormKind::layer || o.kind == NormKind::rms;
  if (o.dim % o.parts != 0) fail<ValueError>("norm: parts=", o.parts, " must divide dim=", o.dim);
  const bool scalar = o.kind == NormKind::scale || o.kind == NormKind::scale_l2;
  if (o.parts > 1 && (scalar || o.kind == NormKind::none))
    fail<ValueError>("norm: only layer, rms, layer_plain and rms_plain have parts — got kind ", name_of(o.kind));
  if (per_channel || scalar) weight = init_vector(per_channel ? o.dim : 1, 1, o.dtype);
  if (o.kind == NormKind::layer && o.bias) bias = init_vector(o.dim, 0, o.dtype);
}

NormOptions detail::norm_options(NormOptions o, NormKind kind, NormKind other) {
  if (o.kind != kind && o.kind != other && o.kind != NormOptions{}.kind)
    fail<ValueError>("norm: a layer of kind ", name_of(kind), " does not take the kind ", name_of(o.kind));
  if (o.kind != other) o.kind = kind;
  return o;
}

Tensor Norm::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  return detail::normalised(options, x, weight, bias);
}

Tensor detail::normalised(const NormOptions& o, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const double eps = o.eps;
  if (o.parts > 1) {
    if (x.rank() < 1 || x.dim(-1) != o.dim) fail("norm: got x=", x, "; need [..., ", o.dim, "]");
    return group_norm(x, o.parts, o.kind, weight, bias, eps);
  }
  switch (o.kind) {
    case NormKind::none: return x;
    case NormKind::layer:
    case NormKind::layer_plain: return layer_norm(x, weight, bias, eps);
    case NormKind::rms: return rms_norm(x, weight, eps);
    case NormKind::rms_plain: return rms_norm(x, {}, eps);
    case NormKind::scale: return scale_norm(x, weight, eps);
    case NormKind::scale_l2: return scale_norm(x, weight, eps, ScaleNormForm::l2_max);
  }
  fail<ValueError>("norm: unknown kind");
}

Tensor detail::group_norm(const Tensor& x, int64_t groups, NormKind kind, const Tensor& weight, const Tensor& bias,
                          double eps) {
  const Tensor each = unflatten(x, -1, {groups, x.dim(-1) / groups});
  const bool shared = weight.defined() && weight.dim(0) != x.dim(-1);
  const Tensor w = shared ? weight : Tensor(), b = shared ? bias : Tensor();
  const bool centred = kind == NormKind::layer || kind == NormKind::layer_plain;
  const Tensor y = flatten(centred ? layer_norm(each, w, b, eps) : rms_norm(each, w, eps), -2, -1);
  if (shared) return y;
  if (bias.defined()) return map(formula::ScaleOffset{}, y, weight, bias);
  return weight.defined() ? y * weight : y;
}

}  // namespace sluice
