#include <sluice/ops/elementwise/activation.h>

#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

namespace sluice {

namespace fm = formula;

// The slots of the one formula of the lists that no op maps: a backend's library finds all slots in this one.
template struct detail::MapKernels<fm::Identity, std::index_sequence<0>>;

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
Tensor geglu_tanh(const Tensor& x, const Tensor& g) { return map(fm::GeGluTanh{}, x, g); }
Tensor swiglu(const Tensor& x, const Tensor& g) { return map(fm::SwiGlu{}, x, g); }
Tensor bilinear(const Tensor& x, const Tensor& g) { return map(fm::Bilinear{}, x, g); }
Tensor silu_glu(const Tensor& x, const Tensor& g) { return map(fm::SiluGlu{}, x, g); }

Tensor activate(Act act, const Tensor& x) {
  switch (act) {
    case Act::identity: return x;
    case Act::relu: return relu(x);
    case Act::relu2: return relu2(x);
    case Act::leaky_relu: return leaky_relu(x);
    case Act::elu: return elu(x);
    case Act::elu1: return elu1(x);
    case Act::silu: return silu(x);
    case Act::gelu: return gelu(x);
    case Act::gelu_tanh: return gelu_tanh(x);
    case Act::tanh: return tanh(x);
    case Act::sigmoid: return sigmoid(x);
    case Act::ns_sigmoid: return ns_sigmoid(x);
    case Act::softplus: return softplus(x);
    case Act::laplace: return laplace(x);
  }
  fail<ValueError>("activate: unknown activation number ", static_cast<int>(act));
}

}  // namespace sluice
