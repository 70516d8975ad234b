#include <sluice/cuda/kernels.h>
#include <sluice/cuda/map.cuh>

namespace sluice::cuda {

using namespace formula;

void install_unary() {
  install_maps<1, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Tanh, Sigmoid, Softplus, Erf, NormalCdf>();
  install_maps<1, Sin, Cos, Abs, Sign, Floor, Ceil, Round, Trunc>();
}

}  // namespace sluice::cuda
