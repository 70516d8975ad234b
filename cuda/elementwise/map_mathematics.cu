#include <sluice/cuda/kernels.h>
#include <sluice/cuda/elementwise/map.cuh>

namespace sluice::cuda {

void install_mathematics() { install_maps(formula::Mathematics()); }

}  // namespace sluice::cuda
