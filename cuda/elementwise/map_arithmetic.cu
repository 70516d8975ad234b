#include <sluice/cuda/kernels.h>
#include <sluice/cuda/elementwise/map.cuh>

namespace sluice::cuda {

void install_arithmetic() {
  install_maps(formula::Arithmetic1());
  install_maps(formula::Arithmetic2());
  install_maps(formula::Arithmetic3());
}

}  // namespace sluice::cuda
