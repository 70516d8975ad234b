#include <sluice/layers/nn/mlp.h>

namespace sluice {

Mlp::Mlp(MlpOptions o, Rng& rng)
    : in({o.dim, o.hidden ? o.hidden : 4 * o.dim, o.bias, o.init, o.dtype}, rng),
      out({o.hidden ? o.hidden : 4 * o.dim, o.dim, o.bias, o.init, o.dtype}, rng),
      drop{o.dropout},
      activation(o.activation) {}

Tensor Mlp::operator()(const Tensor& x, Rng* rng) const {
  ModuleScope scope(this, type);
  return out(drop(activate(activation, in(x)), rng));
}

Tensor apply_glu(GluKind kind, const Tensor& value, const Tensor& gate) {
  switch (kind) {
    case GluKind::glu: return glu(value, gate);
    case GluKind::reglu: return reglu(value, gate);
    case GluKind::geglu: return geglu(value, gate);
    case GluKind::swiglu: return swiglu(value, gate);
    case GluKind::bilinear: return bilinear(value, gate);
    case GluKind::silu_glu: return silu_glu(value, gate);
  }
  fail<ValueError>("glu: unknown kind");
}

namespace {
int64_t glu_hidden(const GluOptions& o) { return o.hidden ? o.hidden : (o.dim * 8 / 3 + 7) / 8 * 8; }
}  // namespace

Glu::Glu(GluOptions o, Rng& rng)
    : value({o.dim, glu_hidden(o), o.bias, o.init, o.dtype}, rng),
      gate({o.dim, glu_hidden(o), o.bias, o.init, o.dtype}, rng),
      out({glu_hidden(o), o.dim, o.bias, o.init, o.dtype}, rng),
      drop{o.dropout},
      kind(o.kind) {}

Tensor Glu::operator()(const Tensor& x, Rng* rng) const {
  ModuleScope scope(this, type);
  return out(drop(apply_glu(kind, value(x), gate(x)), rng));
}

}  // namespace sluice
