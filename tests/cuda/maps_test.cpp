// Every formula of the library has kernels on the device: without one it would run as a composition of ops.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;

TEST_CASE("cuda: every formula has kernels") {
  formula::each_list([]<std::size_t N, class... F>(formula::Formulas<N, F...>) {
    const auto check = []<class G>() {
      using Kernels = detail::MapKernels<G, std::make_index_sequence<N>>;
      INFO(G::name << " of " << N);
      CHECK(Kernels::forward.installed({DeviceKind::cuda, 0}));
      if constexpr (!detail::is_affine<G>) CHECK(Kernels::backward.installed({DeviceKind::cuda, 0}));
    };
    (check.template operator()<F>(), ...);
  });
}

TEST_CASE("cuda: a formula of the user's gives what it gives on the CPU", "[map]") {
  const Device gpu = Device::cuda();
  // The result has memory of its own.
  const Tensor x = to(Tensor({1, 2, 3}), gpu), table = zeros({3, 2}, {f32, gpu}), pair = to(Tensor({1, 2}), gpu);
  Tensor same = map([](auto v) { return v; }, x);
  fill_(same, 9);
  CHECK(testing::same_bits(x, to(Tensor({1, 2, 3}), gpu)));
  Tensor rows = map([](auto v, auto) { return v * 2.0; }, pair, table), row = select(rows, 0, 0);
  fill_(row, 7);
  CHECK(testing::same_bits(to(rows, cpu), Tensor({{7, 7}, {2, 4}, {2, 4}})));
  CHECK(map([](auto v) { return like(v, 2.0); }, x).is_contiguous());
  // What a select does not choose gives no NaN to the gradient.
  const auto root = [](auto v) { return select(v > 0.0, sqrt(v), v * v); };
  for (const DType dtype : {f32, f64}) {
    std::vector<Tensor> gradients;
    for (const Device device : {cpu, gpu}) {
      Tensor at = to(to(Tensor({-1, 0, 4}), dtype), device);
      at.requires_grad_();
      const Tensor g = grad(sum(map(root, at)), at, {.create_graph = true});
      CHECK(testing::same_bits(grad(sum(map(root, at)), at), g.detach()));
      gradients.push_back(to(g.detach(), cpu));
    }
    CHECK(testing::max_abs_diff(gradients[0], gradients[1]) < 1e-6);
  }
}
