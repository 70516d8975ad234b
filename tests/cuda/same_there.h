// The same function of the same numbers on the CPU and on the device.
#pragma once

#include "cuda/against_cpu.h"

#include <sluice/ops/shape/rearrange.h>

#include <functional>

namespace sluice::testing {

inline const Device gpu = Device::cuda();

inline Tensor numbers(const Shape& shape, DType dtype, uint64_t seed) {
  Rand rand(seed);
  return to(random_tensor(shape, f32, rand, -9, 9), dtype);
}

/// f on the CPU and on the device; within `ulps` of the largest number, or the same bits for 0.
inline void same_there(const std::string& what, const std::vector<Tensor>& x,
                       const std::function<Tensor(const std::vector<Tensor>&)>& f, double ulps = 0) {
  INFO(what << ", " << str(x[0]));
  std::vector<Tensor> there;
  for (const Tensor& t : x) there.push_back(to(t, gpu));
  const Tensor want = contiguous(f(x)), got = to(contiguous(f(there)), cpu);
  if (ulps == 0) {
    CHECK(same_numbers(got, want));
    return;
  }
  CHECK(got.dtype() == want.dtype());
  CHECK(max_abs_diff(got, want) <= ulps * (want.dtype() == bf16 ? 0x1p-8 : 0x1p-23) * max_abs(want));
}

}  // namespace sluice::testing
