// What kernels of the device compute, against those of the CPU.
#pragma once

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/cuda/device.h>
#include <sluice/ops/shape/create.h>

#include <limits>

namespace sluice::testing {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

/// f(device) gives tensors of that device; their values must be the CPU's, those of integers and of tolerance 0 to the
/// bit. The tolerance is in units of the dtype's rounding.
template <class F> void check(F f, double ulps = 0) {
  const std::vector<Tensor> want = f(cpu);
  std::vector<Tensor> first;
  for (uint64_t seed : {0, 1}) {
    INFO("schedule " << seed);
    cuda::emulator::set_schedule(seed);
    std::vector<Tensor> got;
    for (const Tensor& y : f(Device::cuda())) got.push_back(to(y, cpu));
    cuda::emulator::set_schedule(0);
    if (seed == 0) first = got;
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO("output " << i << " " << str(want[i].shape()));
      CHECK(same_bits(got[i], first[i]));
      const double tolerance = ulps * (want[i].dtype() == f32 ? 0x1p-24 : 0x1p-53);
      const Closeness c = all_close(got[i], want[i], is_float(want[i].dtype()) ? tolerance : 0);
      INFO(c.text);
      CHECK(c);
    }
  }
}

/// Uniform values, with others at some places.
inline Tensor values(const Shape& shape, DType dtype, Device device, uint64_t seed,
                     const std::vector<std::pair<int64_t, double>>& others = {}) {
  Rand rand(seed);
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  const bool whole = !is_float(dtype);
  for (double& x : v) x = whole ? static_cast<double>(rand.below(7) - 3) : rand.uniform(-1, 1);
  for (const auto& [at, value] : others) v[static_cast<std::size_t>(at)] = value;
  return tensor_of(v, shape, dtype, device);
}

}  // namespace sluice::testing
