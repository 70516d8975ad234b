#include <sluice/cuda/kernels.h>
#include <sluice/cuda/map.cuh>

namespace sluice::cuda {

using namespace formula;

void install_arithmetic() {
  install_maps<1, Neg, Scale, AddScalar, SubFrom, DivBy, DivInto, PowScalar, Square, Clamp>();
  install_maps<2, Add, Sub, Mul, Div, Pow, Remainder, Maximum, Minimum, MaskedFill>();
  install_maps<3, Where, Lerp, ScaleOffset>();
}

}  // namespace sluice::cuda
