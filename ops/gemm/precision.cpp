#include <sluice/ops/gemm/precision.h>

#include <sluice/core/kernel/vectorise.h>
#include <sluice/ops/gemm/bf16.h>

#include <atomic>
#include <bit>

namespace sluice {

namespace {
std::atomic<Precision> of_process{Precision::f32};
thread_local int of_thread = -1;  // -1: that of the process
}  // namespace

Precision precision() {
  return of_thread < 0 ? of_process.load(std::memory_order_relaxed) : static_cast<Precision>(of_thread);
}
void set_precision(Precision p) { of_process = p; }

PrecisionScope::PrecisionScope(Precision p) : Restored(of_thread, static_cast<int>(p)) {}

void detail::round_rows(const float* from, int64_t ld, int64_t rows, int64_t cols, BFloat16* to, int64_t ld_to) {
  vectorised([=] {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) to[i * ld_to + j] = BFloat16(from[i * ld + j]);
  });
}

void detail::widen_rows(const BFloat16* from, int64_t ld, int64_t rows, int64_t cols, float* to, int64_t ld_to) {
  vectorised([=] {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) to[i * ld_to + j] = static_cast<float>(from[i * ld + j]);
  });
}

void detail::round_to_bf16(float* x, int64_t n) {
  vectorised(
      [](float* p, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          const auto bits = std::bit_cast<uint32_t>(p[i]);
          const uint32_t size = bits & 0x7fffffff, nearest = bits + 0x7fff + (bits >> 16 & 1);
          const uint32_t finite = size < 0x00800000 ? bits & 0x80000000 : nearest;
          p[i] = std::bit_cast<float>((size > 0x7f800000 ? bits | 0x00400000 : finite) & 0xffff0000);
        }
      },
      x, n);
}

}  // namespace sluice
