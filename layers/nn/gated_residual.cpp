#include <sluice/layers/nn/gated_residual.h>

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

namespace sluice {

GatedResidual::GatedResidual(GatedResidualOptions o, Rng& rng) : options(o) {
  check_options("gated_residual", o);
  if (o.kind == ResidualGate::scalar || o.kind == ResidualGate::per_channel) {
    weight = init_vector(o.kind == ResidualGate::scalar ? 1 : o.dim, o.initial, o.dtype);
    return;
  }
  const int64_t width = o.kind == ResidualGate::input ? o.dim : 1;
  map = Linear({o.dim, width, false, o.init, o.dtype}, rng);
  map.bias = init_vector(width, o.bias, o.dtype);
}

Tensor GatedResidual::gate(const Tensor& x) const { return weight.defined() ? weight : sigmoid(map(x)); }

Tensor GatedResidual::operator()(const Tensor& x, const Tensor& f) const {
  ModuleScope scope(this, type);
  if (x.rank() < 1 || x.dim(-1) != options.dim || f.shape() != x.shape())
    fail("gated_residual: got x=", x, ", F(x)=", f, "; need two of shape [..., ", options.dim, "]");
  if (weight.defined()) return sluice::map(formula::AddScaled{}, x, f, weight);
  return sluice::map(formula::AddGated{}, x, f, map(x));
}

}  // namespace sluice
