// Launches: whom an error is blamed on, and that recording a graph loads no kernel.
#include "support/approx.h"
#include "support/catch.h"
#include "small_model.h"

#include <sluice/cuda/emulator/emulator.h>
#include <sluice/cuda/launch_error.h>
#include <sluice/cuda/tensors.h>
#include <sluice/cuda/warpgroup.h>
#include <sluice/layers/train/graphed_step.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/rows/loss.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;
using cuda::launch_error;

TEST_CASE("cuda launch: an error is blamed on the kernel that made it", "[cuda]") {
  CHECK(launch_error({.kernel = "k (1x1x1 blocks)", .status = "invalid argument"}) ==
        "cuda: cannot launch k (1x1x1 blocks) — invalid argument");
  CHECK(launch_error({.kernel = "k", .status = "misaligned address", .running = true, .blocking = true}) ==
        "cuda: k failed — misaligned address");
  const std::string earlier = launch_error({.kernel = "k", .status = "misaligned address", .running = true});
  CHECK(earlier ==
        "cuda: earlier work on the device failed — misaligned address; seen at the launch of k; "
        "CUDA_LAUNCH_BLOCKING=1 in the environment names the kernel that failed");
  CHECK(launch_error({.kernel = "k", .status = "misaligned address", .before = true, .running = true}) == earlier);
  CHECK(launch_error({.kernel = "k", .status = "no memory", .before = true, .blocking = true}) ==
        "cuda: earlier work on the device failed — no memory; seen at the launch of k");
  CHECK(cuda::source_name("_ZN6sluice4cuda15for_each_kernelIfEEvT_l") ==
        "void sluice::cuda::for_each_kernel<float>(float, long)");
  CHECK(cuda::source_name("a kernel") == "a kernel");
}

TEST_CASE("cuda launch: registers that a warpgroup gives up and others ask for", "[cuda]") {
  CHECK(cuda::registers_suffice(24, 240, 2));
  CHECK(cuda::registers_suffice(40, 232, 2));
  CHECK_FALSE(cuda::registers_suffice(32, 240, 2));
  CHECK_FALSE(cuda::registers_suffice(40, 240, 2));
  CHECK(cuda::registers_suffice(32, 160, 3));
  CHECK_FALSE(cuda::registers_suffice(40, 160, 3));
}

TEST_CASE("cuda launch: work is done when the host waits for it", "[cuda]") {
  const detail::Backend& device = cuda::runtime();
  cuda::emulator::defer_launches(true);
  auto* const p = reinterpret_cast<double*>(device.allocate(8, 0));
  double x = 1;
  cuda::copy_to_device(p, &x, 8);
  x = 2;  // the host may use its memory again
  cuda::for_each(1, [p](int64_t i) { p[i] += 10; });
  CHECK(std::isnan(*p));  // a host that reads too early
  device.synchronize(0);
  CHECK(*p == 11);
  auto* const q = reinterpret_cast<double*>(device.allocate(8, 0));
  cuda::for_each(1, [p, q](int64_t i) { q[i] = p[i] + 1; });
  device.release(reinterpret_cast<std::byte*>(p), 8, 0);  // behind the work that reads it
  cuda::copy_to_host(&x, q, 8);
  CHECK(x == 12);
  device.release(reinterpret_cast<std::byte*>(q), 8, 0);
  cuda::for_each(1, [](int64_t) { throw DeviceError("in a kernel"); });
  CHECK_THROWS_AS(device.synchronize(0), DeviceError);
  cuda::emulator::defer_launches(false);
}

TEST_CASE("cuda launch: a recorded step launches no kernel for the first time", "[cuda][graph]") {
  Model model;
  to(model, Device::cuda());
  Adam adam(parameters(model), {.lr = 1e-2, .weight_decay = 0.1});
  Rng rng(7);
  GraphedStep step(
      adam, [&](const std::vector<Tensor>& in) { return cross_entropy(to(model(in[0], {.rng = &rng}), f32), in[1]); },
      {.max_norm = 0.5});
  const Tensor x = to(randint(0, 13, {2, 20}, rng), Device::cuda());
  for (int i = 0; i < 3; ++i) step({x, x});
  CHECK(step.recorded() == 1);
  CHECK(cuda::emulator::first_loads_recorded() == 0);
}
