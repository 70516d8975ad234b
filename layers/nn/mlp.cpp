#include <sluice/layers/nn/mlp.h>

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/reduce.h>

#include <cmath>
#include <numbers>

namespace sluice {

Mlp::Mlp(MlpOptions o, Rng& rng) : options(o) {
  check_options("mlp", o);
  if (o.hidden == 0) o.hidden = options.hidden = 4 * o.dim;
  in = Linear({o.dim, o.hidden, o.bias, o.init, o.dtype}, rng);
  out = Linear({o.hidden, o.dim, o.bias, o.init, o.dtype}, rng);
  if (!o.xielu) return;
  xielu_positive = init_vector(1, std::log(std::expm1(0.8)), o.dtype);
  xielu_negative = init_vector(1, std::log(std::expm1(0.3)), o.dtype);
}

/// xIELU of x with the learned numbers a and b. The bound of e^x − 1 is that of the authors' code.
static Tensor xielu(const Tensor& x, const Tensor& a, const Tensor& b) {
  const Tensor curved = where(x > 0, softplus(a) * square(x), (softplus(b) + 0.5) * (expm1(clamp(x, {}, -1e-6)) - x));
  return curved + x * 0.5;
}

static void check_input(const char* layer, const Tensor& x, int64_t dim) {
  detail::check_made(layer, dim);
  if (!x.defined() || x.rank() < 1 || x.dim(-1) != dim) fail(layer, ": got x=", x, "; need [..., ", dim, "]");
}

Tensor Mlp::operator()(const Tensor& x, const Pass& pass) const {
  ModuleScope scope(this, type);
  check_input("mlp", x, options.dim);
  const Tensor u = in(x);
  const Tensor y = options.xielu ? xielu(u, xielu_positive, xielu_negative) : activate(options.activation, u);
  return out(Dropout{options.dropout}(y, pass.rng));
}

Tensor apply_glu(GluKind kind, const Tensor& value, const Tensor& gate) {
  switch (kind) {
    case GluKind::glu: return glu(value, gate);
    case GluKind::reglu: return reglu(value, gate);
    case GluKind::geglu: return geglu(value, gate);
    case GluKind::swiglu: return swiglu(value, gate);
    case GluKind::bilinear: return bilinear(value, gate);
    case GluKind::silu_glu: return silu_glu(value, gate);
    case GluKind::geglu_tanh: return geglu_tanh(value, gate);
    case GluKind::swiglu_oai: return swiglu_oai(value, gate, 1.702);
  }
  fail<ValueError>("glu: unknown kind");
}

Tensor swiglu_oai(const Tensor& x, const Tensor& g, double alpha) { return glu((x + 1) * g, g * alpha); }

Tensor gated_by(Act act, const Tensor& x, const Tensor& g) {
  switch (act) {
    case Act::identity: return x * g;
    case Act::relu: return reglu(x, g);
    case Act::silu: return swiglu(x, g);
    case Act::gelu: return geglu(x, g);
    case Act::gelu_tanh: return geglu_tanh(x, g);
    case Act::sigmoid: return glu(x, g);
    case Act::ns_sigmoid: return map(formula::NsGlu{}, x, g);
    default: return x * activate(act, g);
  }
}

Glu::Glu(GluOptions o, Rng& rng) : options(o) {
  check_options("glu", o);
  if (o.hidden == 0) o.hidden = options.hidden = round_up(o.dim * 8 / 3, 8);
  value = Linear({o.dim, o.hidden, o.bias, o.init, o.dtype}, rng);
  gate = Linear({o.dim, o.hidden, o.bias, o.init, o.dtype}, rng);
  out = Linear({o.hidden, o.dim, o.bias, o.init, o.dtype}, rng);
}

/// Φ⁻¹(p), by bisection: Φ is monotonous.
static double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle * std::numbers::sqrt2 / 2) / 2 < p ? low : high) = middle;
  }
  return high;
}

Tensor Glu::operator()(const Tensor& x, const Pass& pass) const {
  ModuleScope scope(this, type);
  check_input("glu", x, options.dim);
  Tensor g = gate(x);
  if (options.gate_scale != 1) g = g * options.gate_scale;
  Tensor v = value(x);
  if (const double l = options.limit; l > 0) v = clamp(v, -l, l), g = clamp(g, {}, l);
  if (options.sparsity > 0)
    g = relu(g - (mean(g, {-1}, keep) + std_dev(g, {-1}, keep, 0) * normal_quantile(options.sparsity)));
  return out(Dropout{options.dropout}(apply_glu(options.kind, v, g), pass.rng));
}

}  // namespace sluice
