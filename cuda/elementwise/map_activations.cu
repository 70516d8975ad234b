#include <sluice/cuda/kernels.h>
#include <sluice/cuda/elementwise/map.cuh>

namespace sluice::cuda {

void install_activations() {
  install_maps(formula::Activations());
  install_maps(formula::Gates());
  install_maps(formula::Losses2());
  install_maps(formula::Losses3());
}

}  // namespace sluice::cuda
