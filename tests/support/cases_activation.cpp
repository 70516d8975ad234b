// Rows: ops/elementwise/activation.h. The references spell each definition out.
#include "support/op_cases.h"

#include <sluice/ops/elementwise/activation.h>

#include <cmath>
#include <list>

// clang-format off
namespace sluice::testing {

namespace {

double ref_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double ref_relu(double x) { return x > 0 ? x : 0; }
double ref_relu2(double x) { return x > 0 ? x * x : 0; }
double ref_leaky(double x) { return x > 0 ? x : 0.01 * x; }
double ref_elu(double x) { return x > 0 ? x : std::exp(x) - 1; }
double ref_elu1(double x) { return x > 0 ? x + 1 : std::exp(x); }
double ref_silu(double x) { return x / (1 + std::exp(-x)); }
double ref_normal_cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
double ref_gelu(double x) { return x * ref_normal_cdf(x); }
double ref_gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3))));
}
// ½(1 + erf((x − μ)/(σ√2))), μ = √½, σ = √(1/4π): a normal distribution function
double ref_laplace(double x) { return ref_normal_cdf((x - std::sqrt(0.5)) / std::sqrt(1 / (4 * M_PI))); }
double ref_ns_sigmoid(double x) { return 0.5 + 0.5 * ref_sigmoid(x); }

}  // namespace

void add_activation_cases(Cases& c) {
  const Input smooth = real({2, 5}, -4, 4), kinked = away({2, 5}, {0}, -4, 4);
  auto unary = [&](const char* op, const char* variant, Input x, Tensor (*f)(const Tensor&), double (*reference)(double), double ulps = 4) {
    c.push_back({.op = op, .variant = variant, .inputs = {x}, .call = [f](const In& v) { return f(v[0]); },
                 .reference = elementwise1(reference), .ulps = ulps, .any_shape = true, .large = {{33'283}}});
  };
  unary("relu", "", kinked, relu, ref_relu);
  unary("relu2", "", kinked, relu2, ref_relu2);
  unary("leaky_relu", "", kinked, [](const Tensor& x) { return leaky_relu(x); }, ref_leaky);
  unary("leaky_relu", "slope 0.3", kinked, [](const Tensor& x) { return leaky_relu(x, 0.3); },
        [](double x) { return x > 0 ? x : 0.3 * x; });
  unary("elu", "", kinked, [](const Tensor& x) { return elu(x); }, ref_elu);
  unary("elu", "alpha 0.5", kinked, [](const Tensor& x) { return elu(x, 0.5); },
        [](double x) { return x > 0 ? x : 0.5 * (std::exp(x) - 1); });
  unary("elu1", "", kinked, elu1, ref_elu1);
  unary("silu", "", smooth, silu, ref_silu);
  unary("gelu", "", smooth, gelu, ref_gelu, 8);
  unary("gelu_tanh", "", smooth, gelu_tanh, ref_gelu_tanh, 4);
  unary("laplace", "", real({2, 5}, -0.5, 2), laplace, ref_laplace, 8);
  unary("ns_sigmoid", "", smooth, ns_sigmoid, ref_ns_sigmoid);

  auto gate = [&](const char* op, Tensor (*f)(const Tensor&, const Tensor&), double (*reference)(double, double), Input g, double ulps = 4) {
    Input x = real({2, 5}, -3, 3);
    c.push_back({.op = op, .inputs = {x, g}, .call = [f](const In& v) { return f(v[0], v[1]); },
                 .reference = elementwise2(reference), .ulps = ulps, .any_shape = true, .large = {{33'283}, {33'283}}});
    g.shape = {5};
    c.push_back({.op = op, .variant = "gate by row", .inputs = {x, g},
                 .call = [f](const In& v) { return f(v[0], v[1]); }, .reference = elementwise2(reference)});
  };
  gate("glu", glu, [](double x, double g) { return x * ref_sigmoid(g); }, smooth);
  gate("reglu", reglu, [](double x, double g) { return x * ref_relu(g); }, kinked);
  gate("geglu", geglu, [](double x, double g) { return x * ref_gelu(g); }, smooth, 8);
  gate("geglu_tanh", geglu_tanh, [](double x, double g) { return x * ref_gelu_tanh(g); }, smooth, 8);
  gate("swiglu", swiglu, [](double x, double g) { return x * ref_silu(g); }, smooth);
  gate("bilinear", bilinear, [](double x, double g) { return x * g; }, smooth);
  gate("silu_glu", silu_glu, [](double x, double g) { return ref_silu(x) * ref_silu(g); }, smooth);

  static std::list<std::string> variants;  // rows point at them
  struct Named {
    Act act;
    double (*reference)(double);
  };
  for (Named n : {Named{Act::identity, [](double x) { return x; }}, {Act::relu, ref_relu}, {Act::relu2, ref_relu2},
                  {Act::leaky_relu, ref_leaky}, {Act::elu, ref_elu}, {Act::elu1, ref_elu1}, {Act::silu, ref_silu},
                  {Act::gelu, ref_gelu}, {Act::gelu_tanh, ref_gelu_tanh},
                  {Act::tanh, [](double x) { return std::tanh(x); }}, {Act::sigmoid, ref_sigmoid},
                  {Act::ns_sigmoid, ref_ns_sigmoid}, {Act::softplus, [](double x) { return std::log1p(std::exp(x)); }},
                  {Act::laplace, ref_laplace}})
    c.push_back({.op = "activate", .variant = variants.emplace_back(name_of(n.act)).c_str(),
                 .inputs = {away({2, 3}, {0}, n.act == Act::laplace ? -0.5 : -3, n.act == Act::laplace ? 2 : 3)},
                 .call = [act = n.act](const In& x) { return activate(act, x[0]); },
                 .reference = elementwise1(n.reference)});
}

}  // namespace sluice::testing
