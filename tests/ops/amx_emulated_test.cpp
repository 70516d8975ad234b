// Products of bf16, and of f32 in three parts of bf16, with AMX's tile instructions, VDPBF16PS and roundings to bf16
// emulated, so that the sources which use them run on any processor with AVX-512. As in the processor all operands and
// sums that would be denormal are 0, whatever the mode.
#include "support/catch.h"
#include "support/worse.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

namespace sluice::emulated {

using namespace sluice::detail;

struct Register {
  alignas(64) std::byte bytes[16][64];
};
Register registers[8];

void load(int tile, const void* from, int64_t stride) {
  const auto* rows = static_cast<const std::byte*>(from);
  for (int64_t r = 0; r < 16; ++r) std::memcpy(registers[tile].bytes[r], rows + r * stride, 64);
}
void store(int tile, void* to, int64_t stride) {
  for (int64_t r = 0; r < 16; ++r) std::memcpy(static_cast<std::byte*>(to) + r * stride, registers[tile].bytes[r], 64);
}

/// Rounded to f32; what is denormal is 0.
float flushed(double x) { return std::abs(x) < 0x1p-126 ? 0 : static_cast<float>(x); }
float widened(uint16_t x) { return flushed(std::bit_cast<float>(uint32_t{x} << 16)); }

/// Intel's definition of TDPBF16PS: two chains of multiply-adds, over the even and the odd of 32 products, then their
/// sum.
void multiply(int c, int a, int b) {
  for (int i = 0; i < 16; ++i) {
    float sums[16];
    uint16_t left[32];
    std::memcpy(sums, registers[c].bytes[i], 64), std::memcpy(left, registers[a].bytes[i], 64);
    float even[16] = {}, odd[16] = {};
    for (int p = 0; p < 16; ++p) {
      uint16_t right[32];
      std::memcpy(right, registers[b].bytes[p], 64);
      const double x = widened(left[2 * p]), y = widened(left[2 * p + 1]);
      for (int j = 0; j < 16; ++j) {
        even[j] = flushed(even[j] + x * widened(right[2 * j]));
        odd[j] = flushed(odd[j] + y * widened(right[2 * j + 1]));
      }
    }
    for (int j = 0; j < 16; ++j) sums[j] = flushed(double{sums[j]} + flushed(double{even[j]} + odd[j]));
    std::memcpy(registers[c].bytes[i], sums, 64);
  }
}

/// VDPBF16PS: sum + a · b, of each pair first the odd product.
[[gnu::target("avx512f")]] __m512 add_pairs(__m512 sum, __m512i a, __m512i b) {
  float sums[16];
  uint16_t left[32], right[32];
  std::memcpy(sums, &sum, 64), std::memcpy(left, &a, 64), std::memcpy(right, &b, 64);
  for (int j = 0; j < 16; ++j)
    for (const int p : {2 * j + 1, 2 * j})
      sums[j] = flushed(std::fma(double{widened(left[p])}, double{widened(right[p])}, double{sums[j]}));
  std::memcpy(&sum, sums, 64);
  return sum;
}

/// VCVTNEPS2BF16: to the nearest, of two to the even one; what is denormal is 0.
[[gnu::target("avx512f")]] __m256i to_bf16(__m512 x) {
  constexpr __mmask16 all = 0xffff;
  const __m512i bits = _mm512_castps_si512(x), odd = _mm512_maskz_srli_epi32(all, bits, 16);
  const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(odd, _mm512_set1_epi32(1)));
  __m512i y = _mm512_add_epi32(bits, half);
  y = _mm512_mask_or_epi32(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
  const __mmask16 denormal = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
  y = _mm512_mask_and_epi32(y, denormal, bits, _mm512_set1_epi32(INT32_MIN));
  return _mm512_maskz_cvtepi32_epi16(all, _mm512_maskz_srli_epi32(all, y, 16));
}
[[gnu::target("avx512f")]] __m512i to_bf16(__m512 high, __m512 low) {
  return _mm512_maskz_inserti64x4(0xff, _mm512_maskz_inserti64x4(0xff, _mm512_setzero_si512(), to_bf16(low), 0),
                                  to_bf16(high), 1);
}

}  // namespace sluice::emulated

#define _mm512_cvtne2ps_pbh(high, low) sluice::emulated::to_bf16(high, low)
#define _mm512_dpbf16_ps(sum, a, b) sluice::emulated::add_pairs(sum, (__m512i)(a), (__m512i)(b))
#define _mm512_maskz_cvtneps_pbh(mask, x) (static_cast<void>(mask), sluice::emulated::to_bf16(x))
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) static_cast<void>(config)
#define _tile_release() static_cast<void>(0)
#define _tile_loadd(tile, from, stride) sluice::emulated::load(tile, from, stride)
#define _tile_stream_loadd(tile, from, stride) sluice::emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) sluice::emulated::store(tile, to, stride)
#define _tile_zero(tile) static_cast<void>(sluice::emulated::registers[tile] = {})
#define _tile_dpbf16ps(c, a, b) sluice::emulated::multiply(c, a, b)

// A namespace of their own: the library has the same functions.
#define detail emulated
#include <sluice/ops/gemm/rungs/amx.cpp>
#include <sluice/ops/gemm/rungs/amx_f32.cpp>
#include <sluice/ops/gemm/rungs/avx512_bf16.cpp>
#include <sluice/ops/gemm/rungs/bf16x3.cpp>
#undef detail

using namespace sluice;

namespace {

constexpr int64_t kRowsOf = 32, kColumnsOf = 48;
constexpr double kRelative = 4e-7;  // of Σ|ab|: six products, their sums

struct Operands {
  int64_t k;
  std::vector<float> a, b;  // [32, k], [k, 48]
};

/// Numbers of random digits, ± 2^e with e drawn from a range; some are 0.
Operands draw(int64_t k, int from_a, int to_a, int from_b, int to_b, uint64_t seed) {
  Rng rng(seed);
  const auto numbers = [&](int64_t count, int from, int to) {
    const auto digits = uniform({count}, 1, 2, rng).to_vector();
    const auto range = uniform({count}, from, to + 1, rng).to_vector();
    std::vector<float> x;
    for (std::size_t i = 0; i < digits.size(); ++i) {
      const double size = std::ldexp(digits[i], static_cast<int>(std::floor(range[i])));
      x.push_back(i % 11 == 5 ? 0 : static_cast<float>(i % 3 == 1 ? -size : size));
    }
    return x;
  };
  return {k, numbers(kRowsOf * k, from_a, to_a), numbers(k * kColumnsOf, from_b, to_b)};
}

/// a · b as large products compute it (amx_f32.cpp), and as attention does (bf16x3.cpp).
std::vector<float> product(const Operands& x, bool attention) {
  const detail::DenormalMode mode;
  std::vector<float> c(kRowsOf * kColumnsOf);
  const Tensor for_a = empty({emulated::Bf16x3::size(kRowsOf, x.k)});
  const Tensor for_b = empty({emulated::Bf16x3::size(kColumnsOf + 16, x.k)});
  auto *const a = reinterpret_cast<float*>(for_a.raw()), *const b = reinterpret_cast<float*>(for_b.raw());
  const auto plain = detail::Trans::no;
  if (attention) {
    const emulated::Bf16x3 left(kRowsOf, x.k, a), right(kColumnsOf, x.k, b);
    const bool small = std::all_of(x.a.begin(), x.a.end(), [](float v) { return std::abs(v) < 0x1p56f; });
    CHECK(left.fill_a(plain, x.a.data(), x.k) == small);
    right.fill_b(plain, x.b.data(), kColumnsOf);
    right.multiply(left, 0, 0, kColumnsOf, 1.f, 0.f, c.data(), kColumnsOf);
  } else {
    emulated::amx_split(x.a.data(), x.k, true, false, kRowsOf, x.k, a);
    emulated::amx_split(x.b.data(), kColumnsOf, false, false, kColumnsOf, x.k, b);
    CHECK(emulated::amx_multiply_split(a, b, {kRowsOf, kColumnsOf, x.k, 1, 0, c.data(), kColumnsOf}));
  }
  return c;
}

/// The largest part of the bound of precision.h that an element's error uses; relative: of what is relative to Σ|ab|
/// alone.
double used(const Operands& x, const std::vector<float>& c, bool relative) {
  const auto small = [](double v) { return v != 0 && std::abs(v) < 0x1p-103; };
  double most = 0;
  for (int64_t i = 0; i < kRowsOf; ++i)
    for (int64_t j = 0; j < kColumnsOf; ++j) {
      double sum = 0, size = 0, lost = std::ldexp(static_cast<double>(x.k), -123);
      for (int64_t p = 0; p < x.k; ++p) {
        const double a = x.a[static_cast<std::size_t>(i * x.k + p)];
        const double b = x.b[static_cast<std::size_t>(p * kColumnsOf + j)];
        sum += a * b, size += std::abs(a * b);
        lost += 0x1p-126 * ((small(a) ? std::abs(b) : 0) + (small(b) ? std::abs(a) : 0));
      }
      const double error = std::abs(c[static_cast<std::size_t>(i * kColumnsOf + j)] - sum);
      most = testing::worse(most, error / (kRelative * size + (relative ? 0 : lost)));
    }
  return most;
}

bool has_avx512() {
  const bool all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (!all) WARN("not run: the processor has no AVX-512");
  return all;
}

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

TEST_CASE("amx, emulated: f32 in three parts is as near as precision.h says", "[gemm][amx]") {
  if (!has_avx512()) return;
  struct Range {
    int from_a, to_a, from_b, to_b;
    bool as_chain;  // nothing is lost to denormals
  };
  uint64_t seed = 1;
  for (const int64_t k : {64, 75, 200})
    for (const Range& r : {Range{-3, 3, -3, 3, true},
                           {-103, -103, 30, 100, true},
                           {50, 55, -103, -90, true},
                           {-130, 0, -3, 3, false},
                           {-110, -104, 90, 110, false},
                           {90, 110, -126, -120, false},
                           {-140, -120, 60, 100, false},
                           {-62, -58, -66, -62, false},
                           {-120, -100, -20, 20, false},
                           {-80, -40, -80, -40, false}})
      for (const bool attention : {false, true}) {
        const Operands x = draw(k, r.from_a, r.to_a, r.from_b, r.to_b, ++seed);
        const std::vector<float> c = product(x, attention);
        INFO((attention ? "attention, " : "")
             << "k " << k << ", a 2^" << r.from_a << " … " << r.to_a << ", b 2^" << r.from_b << " … " << r.to_b);
        CHECK(used(x, c, r.as_chain) <= 1);
      }
}

TEST_CASE("amx, emulated: numbers below 2^-103 lose what precision.h says they may, and denormals all", "[gemm][amx]") {
  if (!has_avx512()) return;
  for (const bool attention : {false, true}) {
    // The bound's terms are there because they are needed.
    const Operands small = draw(64, -120, -118, 100, 100, 7), products = draw(64, -62, -62, -63, -63, 8);
    CHECK(used(small, product(small, attention), true) > 20);
    CHECK(used(products, product(products, attention), true) > 20);
    // 128 · 1e-40 · 1e38 is 1.28, and AMX gives 0. That is why set_flush_denormals(false) avoids AMX.
    const Operands denormal{128, std::vector<float>(kRowsOf * 128, 1e-40f),
                            std::vector<float>(128 * kColumnsOf, 1e38f)};
    for (const float c : product(denormal, attention)) CHECK(c == 0);
  }
}

TEST_CASE("amx and VDPBF16PS, emulated: products of bf16 are those of the rounded numbers", "[gemm][amx]") {
  if (!has_avx512()) return;
  using detail::Trans;
  const detail::DenormalMode mode;
  Rng rng(1);
  for (const auto& [n, m, k] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {16, 32, 32}, {17, 33, 33}, {33, 31, 64}, {15, 70, 75}, {65, 97, 31}, {32, 16, 1024}})
    for (const Trans ta : {Trans::no, Trans::yes})
      for (const Trans tb : {Trans::no, Trans::yes})
        for (const float beta : {0.f, 0.5f}) {
          INFO(n << " x " << m << " x " << k << ", transposed " << (ta == Trans::yes) << (tb == Trans::yes));
          const Tensor a = normal(ta == Trans::no ? Shape{n, k} : Shape{k, n}, 0, 1, rng),
                       b = normal(tb == Trans::no ? Shape{k, m} : Shape{m, k}, 0, 1, rng),
                       c = normal({n, m}, 0, 1, rng), bias = normal({m}, 0, 1, rng);
          const int64_t lda = a.dim(1), ldb = b.dim(1);
          const Tensor a16 = to(a, bf16), b16 = to(b, bf16);
          const Tensor x = to(ta == Trans::no ? a16 : transpose(a16, 0, 1), f64),
                       y = to(tb == Trans::no ? b16 : transpose(b16, 0, 1), f64);
          const Tensor want = matmul(x, y) * 1.5 + to(c, f64) * double{beta} + to(bias, f64),
                       size = matmul(abs(x), abs(y)) + 4.0;
          const Tensor packed_a = empty({up(n, 16) * up(k, 32) / 2 + 256}),
                       packed_b = empty({up(m, 32) * up(k, 32) / 2});
          auto *const pa = reinterpret_cast<float*>(packed_a.raw()), *const pb =
                                                                         reinterpret_cast<float*>(packed_b.raw());
          for (int way = 0; way < 2; ++way) {  // from f32, from bf16
            const bool turns_a = ta == Trans::yes, turns_b = tb == Trans::yes;
            if (way == 1) emulated::bf16_pack(b16.data<BFloat16>(), ldb, turns_b, turns_b, m, k, pb);
            else emulated::bf16_pack(b.data<float>(), ldb, turns_b, turns_b, m, k, pb);
            if (way == 0) emulated::bf16_pack(a.data<float>(), lda, !turns_a, turns_a, n, k, pa);
            if (way == 1) emulated::bf16_pack(a16.data<BFloat16>(), lda, !turns_a, turns_a, n, k, pa);
            for (const auto multiply : {&emulated::amx_multiply, &emulated::avx512_bf16_multiply}) {
              Tensor got = clone(c);
              multiply(pa, pb, {n, m, k, 1.5f, beta, got.mutable_data<float>(), m, bias.data<float>()});
              CHECK(max(abs(to(got, f64) - want) / size).item() < 1e-6);
            }
          }
        }
}

#endif
