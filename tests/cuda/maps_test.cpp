// Every formula of the library has kernels on the device: without one it would run as a composition of ops.
#include "support/catch.h"

#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

using namespace sluice;

TEST_CASE("cuda: every formula has kernels") {
  formula::each_list([]<std::size_t N, class... F>(formula::Formulas<N, F...>) {
    const auto check = []<class G>() {
      using Kernels = detail::MapKernels<G, std::make_index_sequence<N>>;
      INFO(G::name << " of " << N);
      CHECK(Kernels::forward.installed({DeviceKind::cuda, 0}));
      CHECK(Kernels::backward.installed({DeviceKind::cuda, 0}));
    };
    (check.template operator()<F>(), ...);
  });
}
