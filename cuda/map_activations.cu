#include <sluice/cuda/kernels.h>
#include <sluice/cuda/map.cuh>

namespace sluice::cuda {

using namespace formula;

void install_activations() {
  install_maps<1, Identity, Relu, Relu2, Elu, Elu1, Silu, Gelu, GeluTanh, Laplace, LeakyRelu, NsSigmoid>();
  install_maps<2, formula::Glu, ReGlu, GeGlu, GeGluTanh, SwiGlu, Bilinear, SiluGlu>();
  install_maps<2, SquaredError, AbsoluteError, Huber, BceWithLogits, KlTerm>();
  install_maps<3, WeightedBceWithLogits>();
}

}  // namespace sluice::cuda
