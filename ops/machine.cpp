#include <sluice/ops/machine.h>

#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/gemm/openblas.h>

namespace sluice {

std::string describe_machine() {
  const int threads = num_threads();
  return cpu_name() + ", " + isa_name(isa()) + ", " + blas_name() + ", " + std::to_string(threads) +
         (threads == 1 ? " thread" : " threads");
}

}  // namespace sluice
