// The machine's own limits, by loops that do nothing else.
#include "bench.h"

#include <sluice/core/kernel/cpu.h>

#include <barrier>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sluice::bench {

namespace {

using Loop = double (*)(int64_t steps);  // its FLOPs

/// Multiply-adds in more chains than two pipes of latency four need, in registers alone. Nobody reads the sums, which
/// the compiler must not know.
template <class T, int kBytes> [[gnu::always_inline]] inline double chains(int64_t steps) {
  typedef T Vector __attribute__((vector_size(kBytes)));
  constexpr int kChains = kBytes == 64 ? 24 : 12;
  Vector sum[kChains] = {}, factor = Vector{} + T(0.5);
  asm volatile("" : "+m"(factor) : : "memory");
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (Vector& s : sum) s = s * factor + factor;
  }
  asm volatile("" : "+m"(sum) : : "memory");
  return 2.0 * (kBytes / sizeof(T)) * kChains * static_cast<double>(steps);
}
template <class T> double base_loop(int64_t steps) { return chains<T, 16>(steps); }
#if defined(__x86_64__)
template <class T> [[gnu::target("avx2,fma")]] double avx2_loop(int64_t steps) { return chains<T, 32>(steps); }
template <class T> [[gnu::target("avx512f")]] double avx512_loop(int64_t steps) { return chains<T, 64>(steps); }

/// Four tiles of 16×16 sums from two tiles of rows and two of columns, each 32 deep, as a product would use them.
[[gnu::target("amx-tile,amx-bf16")]] double amx_bf16(int64_t steps) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } shape;
  for (int i = 0; i < 8; ++i) shape.bytes[i] = 64, shape.rows[i] = 16;
  alignas(64) static const uint8_t zeros[1024] = {};
  asm volatile("" : "+m"(shape));  // the intrinsic of g++ 12 does not say that it reads all of it
  _tile_loadconfig(&shape);
  // Each of these is a statement: compilers make them macros.
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4 * 2.0 * 16 * 16 * 32 * static_cast<double>(steps);
}

/// 16 chains of sums, each of 16 pairs of products.
[[gnu::target("avx512f,avx512bf16")]] double avx512_bf16(int64_t steps) {
  __m512 sum[16];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  __m512i x = _mm512_set1_epi32(0x3f803f80);
  for (int64_t i = 0; i < steps; ++i) {
    asm volatile("" : "+v"(x));  // else the compiler computes the loop
#pragma GCC unroll 16
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, (__m512bh)x, (__m512bh)x);
  }
  for (__m512& s : sum) asm volatile("" : : "v"(s));
  return 16 * 2.0 * 32 * static_cast<double>(steps);
}
#endif

template <class T> Loop fma_loop() {
#if defined(__x86_64__)
  if (isa() >= Isa::avx512) return avx512_loop<T>;
  if (isa() >= Isa::avx2) return avx2_loop<T>;
#endif
  return base_loop<T>;
}

/// Units of work a second on so many threads together, the best of some rounds; work(thread) gives its units.
double rate(int threads, const std::function<double(int)>& work, int rounds = 5) {
  double best = 0, start = 0;
  std::vector<double> units(static_cast<std::size_t>(threads));
  std::barrier ready(threads, [&]() noexcept { start = now(); });
  std::barrier done(threads, [&]() noexcept {
    double sum = 0;
    for (double u : units) sum += u;
    best = std::max(best, sum / (now() - start));
  });
  std::vector<std::jthread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&, t] {
      for (int round = 0; round < rounds; ++round) {
        ready.arrive_and_wait();
        units[static_cast<std::size_t>(t)] = work(t);
        done.arrive_and_wait();
      }
    });
  all.clear();
  return best;
}

/// Many rounds of 2 ms: in a longer one some thread loses its processor, or the clock.
double flops(int threads, Loop loop, int rounds) {
  const double once = now();
  loop(100000);
  const auto steps = static_cast<int64_t>(1e5 * 0.002 / std::max(1e-6, now() - once));
  return rate(
      threads, [&](int) { return loop(steps); }, rounds);
}

}  // namespace

double thread_seconds() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double multiply_adds(DType dtype) {
  const Loop loop = dtype == f64 ? fma_loop<double>() : fma_loop<float>();
  const double start = thread_seconds(), flops = loop(20000);
  return flops / (thread_seconds() - start);
}

void measure_flops(Limits& m, DType dtype, int rounds) {
  Loop loop = dtype == f64 ? fma_loop<double>() : fma_loop<float>();
  if (dtype == bf16) loop = nullptr;
#if defined(__x86_64__)
  if (dtype == bf16 && isa() >= Isa::avx512_bf16) loop = isa() == Isa::amx ? amx_bf16 : avx512_bf16;
#endif
  if (!loop) return;
  double& one = dtype == f64 ? m.f64_one : dtype == bf16 ? m.bf16_one : m.f32_one;
  double& all = dtype == f64 ? m.f64 : dtype == bf16 ? m.bf16 : m.f32;
  one = std::max(one, flops(1, loop, rounds)), all = std::max(all, flops(m.threads, loop, rounds));
}

Limits measure_limits() {
  Limits m;
  m.threads = num_threads();
  for (DType dtype : {f32, f64, bf16}) measure_flops(m, dtype, 50);
  constexpr std::size_t n = std::size_t{64} << 20;  // floats of an array
  std::vector<std::unique_ptr<float[]>> array;
  for (int i = 0; i < 3; ++i) array.emplace_back(new float[n]());
  float *a = array[0].get(), *b = array[1].get(), *c = array[2].get();
  auto copy = [&](std::size_t length) {
    const std::size_t part = length / static_cast<std::size_t>(m.threads);
    return rate(m.threads, [=](int t) {
      for (int i = 0; i < 4; ++i) std::memcpy(a + t * part, b + t * part, part * sizeof(float));
      return 4 * 2.0 * static_cast<double>(part * sizeof(float));
    });
  };
  m.copy = copy(n / 16), m.large_copy = copy(n);
  m.triad = rate(m.threads, [&](int t) {
    const std::size_t part = n / static_cast<std::size_t>(m.threads);
    for (std::size_t i = t * part; i < (t + 1) * part; ++i) a[i] = b[i] + 3.0f * c[i];
    asm volatile("" : : : "memory");
    return 3.0 * static_cast<double>(part * sizeof(float));
  });
  return m;
}

Limits measure_device(Device where) {
  const auto seconds = [&](const std::function<Tensor()>& f) {
    NoGrad guard;
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
      const double start = now();
      const Tensor y = f();
      synchronize(where);
      times.push_back(now() - start);
    }
    return median(times);
  };
  const auto flops = [&](DType dtype, Precision precision, int64_t n) {
    const PrecisionScope scope(precision);
    const Tensor a = full({n, n}, 0.5, {dtype, where});
    return 2.0 * static_cast<double>(n * n * n) / seconds([&] { return matmul(a, a); });
  };
  const auto copied = [&](int64_t bytes) {
    const Tensor a = full({bytes / 4}, 0.5, {f32, where});
    return 2.0 * static_cast<double>(bytes) / seconds([&] { return clone(a); });
  };
  Limits m;
  m.f32 = m.f32_one = flops(f32, Precision::f32, 4096);
  m.f64 = m.f64_one = flops(f64, Precision::f32, 4096);
  m.bf16 = m.bf16_one = flops(f32, Precision::bf16, 4096);
  m.copy = copied(int64_t{16} << 20), m.large_copy = m.triad = copied(int64_t{256} << 20);
  return m;
}

}  // namespace sluice::bench
