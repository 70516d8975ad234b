#include <sluice/ops/activation.h>

#include <sluice/ops/map.h>

namespace sluice {

namespace fm = formula;

Tensor relu(const Tensor& x) { return map(fm::Relu{}, x); }
Tensor relu2(const Tensor& x) { return map(fm::Relu2{}, x); }
Tensor leaky_relu(const Tensor& x, double slope) { return map(fm::LeakyRelu{slope}, x); }
Tensor elu(const Tensor& x, double alpha) { return map(fm::Elu{alpha}, x); }
Tensor elu1(const Tensor& x) { return map(fm::Elu1{}, x); }
Tensor silu(const Tensor& x) { return map(fm::Silu{}, x); }
Tensor gelu(const Tensor& x) { return map(fm::Gelu{}, x); }
Tensor gelu_tanh(const Tensor& x) { return map(fm::GeluTanh{}, x); }
Tensor laplace(const Tensor& x) { return map(fm::Laplace{}, x); }
Tensor ns_sigmoid(const Tensor& x) { return map(fm::NsSigmoid{}, x); }

Tensor glu(const Tensor& x, const Tensor& g) { return map(fm::Glu{}, x, g); }
Tensor reglu(const Tensor& x, const Tensor& g) { return map(fm::ReGlu{}, x, g); }
Tensor geglu(const Tensor& x, const Tensor& g) { return map(fm::GeGlu{}, x, g); }
Tensor swiglu(const Tensor& x, const Tensor& g) { return map(fm::SwiGlu{}, x, g); }
Tensor bilinear(const Tensor& x, const Tensor& g) { return map(fm::Bilinear{}, x, g); }
Tensor silu_glu(const Tensor& x, const Tensor& g) { return map(fm::SiluGlu{}, x, g); }

namespace {
struct Entry {
  Act act;
  std::string_view name;
  Tensor (*apply)(const Tensor&);
};
constexpr Entry kActs[] = {
    {Act::identity, "identity", [](const Tensor& x) { return x; }},
    {Act::relu, "relu", relu},
    {Act::relu2, "relu2", relu2},
    {Act::leaky_relu, "leaky_relu", [](const Tensor& x) { return leaky_relu(x); }},
    {Act::elu, "elu", [](const Tensor& x) { return elu(x); }},
    {Act::elu1, "elu1", elu1},
    {Act::silu, "silu", silu},
    {Act::gelu, "gelu", gelu},
    {Act::gelu_tanh, "gelu_tanh", gelu_tanh},
    {Act::tanh, "tanh", tanh},
    {Act::sigmoid, "sigmoid", sigmoid},
    {Act::ns_sigmoid, "ns_sigmoid", ns_sigmoid},
    {Act::softplus, "softplus", softplus},
    {Act::laplace, "laplace", laplace},
};
}  // namespace

Tensor activate(Act act, const Tensor& x) {
  for (const Entry& e : kActs)
    if (e.act == act) return e.apply(x);
  fail<ValueError>("activate: unknown activation number ", static_cast<int>(act));
}

std::string_view name_of(Act act) {
  for (const Entry& e : kActs)
    if (e.act == act) return e.name;
  return "unknown";
}

Act act_from_name(std::string_view name) {
  std::string known;
  for (const Entry& e : kActs) {
    if (e.name == name) return e.act;
    known += known.empty() ? "" : ", ";
    known += e.name;
  }
  fail<ValueError>("activation: unknown name \"", name, "\"; known: ", known);
}

}  // namespace sluice
