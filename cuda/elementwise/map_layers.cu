#include <sluice/cuda/kernels.h>
#include <sluice/cuda/elementwise/map.cuh>

namespace sluice::cuda {

void install_layers() {
  install_maps(formula::Layers1());
  install_maps(formula::Layers2());
  install_maps(formula::Layers3());
  install_maps(formula::Layers4());
}

}  // namespace sluice::cuda
