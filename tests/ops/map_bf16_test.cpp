// Maps of bf16 whose loops read and write bf16 (ops/elementwise/formula_loops.h), and how an f32 is rounded to bf16:
// all numbers that there are.
#include "support/catch.h"
#include "support/isa_scope.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <bit>
#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Every bf16, `turn` places on.
std::vector<BFloat16> every_bf16(uint32_t turn) {
  std::vector<BFloat16> x;
  for (uint32_t b = 0; b < 1 << 16; ++b) x.push_back(std::bit_cast<BFloat16>(static_cast<uint16_t>(b * 3 + turn)));
  return x;
}
bool is_nan(BFloat16 x) { return (x.bits & 0x7fff) > 0x7f80; }
int64_t differences(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
  int64_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += !(is_nan(a[i]) && is_nan(b[i])) && a[i].bits != b[i].bits;
  return n;
}

}  // namespace

TEST_CASE("bf16: the nearest to each f32, of two as near the even one", "[bf16]") {
  std::vector<float> x;
  for (uint32_t high = 0; high < 1 << 16; ++high)
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(high << 16 | low));
  for_each_isa([&] {
    const std::vector<BFloat16> y = to(Tensor::from(x), bf16).to_vector<BFloat16>();
    int64_t wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const uint32_t u = std::bit_cast<uint32_t>(x[i]), down = u >> 16, rest = u & 0xffff;
      const bool up = rest > 0x8000 || (rest == 0x8000 && down % 2 == 1);
      if (std::isnan(x[i])) wrong += y[i].bits != (down | 0x40);
      else wrong += y[i].bits != down + up;
      wrong += BFloat16(x[i]).bits != y[i].bits;
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("bf16: a short map is that of f32, rounded once, for all numbers", "[bf16]") {
  using Unary = Tensor (*)(const Tensor&);
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const std::pair<const char*, Unary> unary[] = {{"abs", abs},
                                                 {"relu", relu},
                                                 {"floor", floor},
                                                 {"ceil", ceil},
                                                 {"round", round},
                                                 {"trunc", trunc},
                                                 {"square", square},
                                                 {"sqrt", sqrt},
                                                 {"rsqrt", rsqrt},
                                                 {"neg", neg},
                                                 {"scale", [](const Tensor& x) { return x * 1.7; }},
                                                 {"add_scalar", [](const Tensor& x) { return x + 0.3; }},
                                                 {"sub", [](const Tensor& x) { return 0.3 - x; }},
                                                 {"div", [](const Tensor& x) { return x / 3; }},
                                                 {"clamp", [](const Tensor& x) { return clamp(x, -1.1, 1.003); }},
                                                 {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.013); }}};
  const std::pair<const char*, Binary> binary[] = {
      {"add", add},
      {"sub", sub},
      {"mul", mul},
      {"div", div},
      {"maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }},
      {"minimum", [](const Tensor& a, const Tensor& b) { return minimum(a, b); }},
      {"where", [](const Tensor& a, const Tensor& b) { return where(a > 0.5, b, a); }}};
  const std::vector<BFloat16> v = every_bf16(0);
  const bool flush = flush_denormals();
  for (bool flushed : {true, false}) {
    set_flush_denormals(flushed);
    for_each_isa([&] {
      const Tensor x = Tensor::from(v), wide = to(x, f32);
      for (const auto& [name, f] : unary) {
        INFO(name);
        CHECK(differences(f(x).to_vector<BFloat16>(), to(f(wide), bf16).to_vector<BFloat16>()) == 0);
      }
      for (uint32_t turn : {0u, 1u, 77u, 0x8000u, 12345u}) {
        const Tensor y = Tensor::from(every_bf16(turn)), wide_y = to(y, f32);
        for (const auto& [name, f] : binary) {
          INFO(name << " " << turn);
          CHECK(differences(f(x, y).to_vector<BFloat16>(), to(f(wide, wide_y), bf16).to_vector<BFloat16>()) == 0);
        }
      }
      std::vector<BFloat16> negative = neg(x).to_vector<BFloat16>(), magnitude = abs(x).to_vector<BFloat16>();
      int64_t wrong = 0;
      for (std::size_t i = 0; i < v.size(); ++i)
        wrong += negative[i].bits != (v[i].bits ^ 0x8000) || magnitude[i].bits != (v[i].bits & 0x7fff);
      CHECK(wrong == 0);
    });
  }
  set_flush_denormals(flush);
}

TEST_CASE("bf16: short maps of operands that broadcast, are transposed or strided", "[bf16]") {
  Rng rng(4);
  const Tensor a = to(normal({37, 41}, 0, 1, rng), bf16), row = to(normal({41}, 0, 1, rng), bf16);
  const Tensor column = to(normal({37, 1}, 0, 1, rng), bf16), b = to(normal({41, 37}, 0, 1, rng), bf16);
  const auto same = [](const Tensor& x, const Tensor& y) { return allclose(to(x, f32), to(y, f32), 0, 0); };
  const auto check = [&](const Tensor& x, const Tensor& y) {
    CHECK(same(x + y, to(to(x, f32) + to(y, f32), bf16)));
    CHECK(same(maximum(x, y), to(maximum(to(x, f32), to(y, f32)), bf16)));
    CHECK(same(where(x > 0, x, y), to(where(x > 0, to(x, f32), to(y, f32)), bf16)));
  };
  check(a, row), check(a, column), check(a, transpose(b, 0, 1)), check(transpose(b, 0, 1), a);
  check(transpose(a, 0, 1), b), check(flip(a, {1}), narrow(a, 1, 0, 41)), check(row, column);
  check(a, to(full({}, 1.5), bf16));
}
