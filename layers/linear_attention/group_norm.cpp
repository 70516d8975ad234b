#include <sluice/layers/linear_attention/group_norm.h>

#include <sluice/ops/shape/view.h>

namespace sluice {

GroupNorm::GroupNorm(GroupNormOptions o) : options(o) {
  check_options("group_norm", o);
  if (o.kind != NormKind::layer && o.kind != NormKind::rms && o.kind != NormKind::rms_plain)
    fail<ValueError>("group_norm: the kind is layer, rms or rms_plain — got ", name_of(o.kind));
  const int64_t width = o.shared ? o.dim : o.groups * o.dim;
  if (o.kind != NormKind::rms_plain) weight = init_vector(width, 1, o.dtype);
  if (o.kind == NormKind::layer && o.bias) bias = init_vector(width, 0, o.dtype);
}

Tensor GroupNorm::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  const GroupNormOptions& o = options;
  if (x.rank() < 1 || x.dim(-1) != o.groups * o.dim)
    fail("group_norm: got x=", x, "; need [..., ", o.groups * o.dim, "] for groups=", o.groups, " of dim=", o.dim);
  return detail::group_norm(x, o.groups, o.kind, weight, bias, o.eps);
}

}  // namespace sluice
