// Precision: which products it changes, where it is in force, and that every instruction set means the same by it.
#include <sluice/ops/gemm/precision.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/isa_scope.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/bf16.h>
#include <sluice/ops/gemm/ladder.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/view.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

using namespace sluice;
using namespace sluice::testing;
using sluice::testing::for_each_isa;
using detail::Trans;

namespace {

float rounded(float x) {
  detail::round_to_bf16(&x, 1);
  return x;
}

double largest_difference(const Tensor& x, const Tensor& y) { return max(abs(x - y)).item(); }
/// Of a·b the largest |x − y| in units of 2⁻⁸ |a|·|b|: rounding a and b to bf16 changes each term by at most one.
double in_roundings(const Tensor& x, const Tensor& y, const Tensor& a, const Tensor& b) {
  return max(abs(x - y) / matmul(abs(a), abs(b))).item() * 0x1p8;
}

}  // namespace

TEST_CASE("bf16: to the nearest, ties to even", "[gemm][precision]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float step = 0x1p-7f;  // between numbers from 1 to 2
  for (auto [x, y] : {std::pair{1.0f, 1.0f},
                      {1 + step / 2, 1.0f},
                      {1 + 1.5f * step, 1 + 2 * step},
                      {1 + 0.51f * step, 1 + step},
                      {1 + 0.49f * step, 1.0f},
                      {-1 - 0.51f * step, -1 - step},
                      {0.0f, 0.0f},
                      {inf, inf},
                      {-inf, -inf},
                      {256.0f, 256.0f},
                      {257.0f, 256.0f},
                      {259.0f, 260.0f},
                      {1e-40f, 0.0f},
                      {3.4e38f, inf},
                      {0x1p-126f, 0x1p-126f}})
    CHECK(rounded(x) == y);
  CHECK(std::signbit(rounded(-0.0f)));
  CHECK(std::isnan(rounded(nan)));
  CHECK(std::isnan(rounded(std::bit_cast<float>(0x7f800001u))));  // whose mantissa would be cut to that of infinity
  CHECK(std::isnan(rounded(std::bit_cast<float>(0xffffffffu))));  // and this one would overflow
}

TEST_CASE("bf16 products: the rounded operands, summed in f32, on every instruction set", "[gemm][precision]") {
  struct Sizes {
    int64_t n, m, k;
  };
  Rng rng(5);
  for_each_isa([&](Isa i) {
    for (const Sizes& s : {Sizes{2, 2, 1},
                           {7, 8, 3},
                           {8, 9, 4},
                           {9, 7, 5},
                           {25, 24, 29},
                           {24, 25, 30},
                           {2, 33, 31},
                           {15, 16, 32},
                           {16, 17, 33},
                           {17, 15, 64},
                           {31, 32, 65},
                           {32, 31, 2},
                           {33, 48, 40},
                           {18, 24, 1023},
                           {9, 40, 1025},
                           {5, 6, 2100},
                           {383, 3, 20},
                           {385, 4, 33},
                           {3, 1100, 40}})
      for (Trans ta : {Trans::no, Trans::yes})
        for (Trans tb : {Trans::no, Trans::yes})
          for (auto [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {0.5f, 2.0f}}) {
            const int64_t lda = (ta == Trans::no ? s.k : s.n) + 3, ldb = (tb == Trans::no ? s.m : s.k) + 1,
                          ldc = s.m + 5;
            const Tensor a = normal({(ta == Trans::no ? s.n : s.k) * lda}, 0, 1, rng);
            const Tensor b = normal({(tb == Trans::no ? s.k : s.m) * ldb}, 0, 1, rng);
            std::vector<float> c(static_cast<std::size_t>(s.n * ldc), beta == 0 ? std::nanf("") : 3.0f), before = c;
            detail::gemm(ta, tb, s.n, s.m, s.k, alpha, a.data<float>(), lda, b.data<float>(), ldb, beta, c.data(), ldc,
                         Precision::bf16);
            std::vector<float> left(a.data<float>(), a.data<float>() + a.numel()),
                right(b.data<float>(), b.data<float>() + b.numel());
            detail::round_to_bf16(left.data(), a.numel()), detail::round_to_bf16(right.data(), b.numel());
            double worst = 0;
            bool outside = true;
            for (int64_t r = 0; r < s.n; ++r)
              for (int64_t j = 0; j < ldc; ++j) {
                const float was = before[std::size_t(r * ldc + j)], is = c[std::size_t(r * ldc + j)];
                if (j >= s.m) {
                  outside = outside && (is == was || (std::isnan(is) && std::isnan(was)));
                  continue;
                }
                double sum = 0, size = 0;
                for (int64_t p = 0; p < s.k; ++p) {
                  const double term = double(left[std::size_t(ta == Trans::no ? r * lda + p : p * lda + r)]) *
                                      double(right[std::size_t(tb == Trans::no ? p * ldb + j : j * ldb + p)]);
                  sum += term, size += std::abs(term);
                }
                if (beta != 0) sum = alpha * sum + beta * was, size = alpha * size + std::abs(beta * was);
                const double error = std::abs(is - sum) / size;
                worst = error < worst ? worst : error;  // keeps NaN
              }
            INFO(isa_name(i) << ' ' << s.n << " × " << s.m << " × " << s.k << (ta == Trans::no ? " n" : " t")
                             << (tb == Trans::no ? "n" : "t") << " alpha " << alpha << " beta " << beta);
            CHECK(worst < 1e-6);  // operands left as they are would be off by 10⁻³
            CHECK(outside);
          }
  });
}

TEST_CASE("bf16 products: matmul's bits are those of one product, for any number of threads",
          "[matmul][precision][bits]") {
  const int threads = num_threads();
  Rng rng(6);
  PrecisionScope scope(Precision::bf16);
  for_each_isa([&](Isa i) {
    for (const Shape& s : {Shape{130, 700, 2100}, Shape{2300, 65, 40}, Shape{401, 333, 257}, Shape{40, 50, 60}})
      for (bool left : {false, true})
        for (bool right : {false, true}) {
          const int64_t n = s[0], m = s[1], k = s[2];
          const Tensor a = normal(left ? Shape{k, n} : Shape{n, k}, 0, 1, rng),
                       b = normal(right ? Shape{m, k} : Shape{k, m}, 0, 1, rng);
          std::vector<float> c(static_cast<std::size_t>(n * m));
          detail::gemm(left ? Trans::yes : Trans::no, right ? Trans::yes : Trans::no, n, m, k, 1.0f, a.data<float>(),
                       left ? n : k, b.data<float>(), right ? k : m, 0.0f, c.data(), m, Precision::bf16);
          INFO(isa_name(i) << ' ' << n << " × " << m << " × " << k << (left ? " t" : " n") << (right ? "t" : "n"));
          for (int count : {1, 3}) {
            set_num_threads(count);
            CHECK(matmul(left ? transpose(a, 0, 1) : a, right ? transpose(b, 0, 1) : b).to_vector<float>() == c);
          }
        }
  });
  set_num_threads(threads);
}

TEST_CASE("bf16 products: both operands packed as a whole", "[gemm][precision]") {
  const int64_t n = 41, m = 70, k = 2100;
  Rng rng(7);
  const Tensor a = normal({n, k}, 0, 1, rng), b = normal({k, m}, 0, 1, rng);
  for_each_isa([&](Isa i) {
    INFO(isa_name(i));
    Tensor for_a = empty({detail::PackedA<float>::size(n, k)}), for_b = empty({detail::PackedB<float>::size(k, m)});
    detail::PackedA<float> left(n, k, for_a.mutable_data<float>(), Precision::bf16);
    detail::PackedB<float> right(k, m, for_b.mutable_data<float>(), Precision::bf16);
    left.fill(Trans::no, a.data<float>(), k), right.fill(Trans::no, b.data<float>(), m);
    std::vector<float> whole(static_cast<std::size_t>(n * m)), pieces = whole;
    detail::gemm(Trans::no, Trans::no, n, m, k, 1.0f, a.data<float>(), k, b.data<float>(), m, 0.0f, whole.data(), m,
                 Precision::bf16);
    for (int64_t row : {32, 0})
      right.multiply(left, row, row ? 9 : 32, 1.0f, 0.0f, pieces.data() + row * m, m, 0, right.panels());
    CHECK(pieces == whole);
  });
}

TEST_CASE("bf16 products: NaN and infinities stay what they are", "[gemm][precision]") {
  for_each_isa([](Isa i) {
    INFO(isa_name(i));
    std::vector<float> a(20 * 40, 1.0f), b(40 * 20, 1.0f), c(400);
    a[3 * 40 + 7] = std::nanf("");
    b[9 * 20 + 11] = std::numeric_limits<float>::infinity();
    detail::gemm(Trans::no, Trans::no, 20, 20, 40, 1.0f, a.data(), 40, b.data(), 20, 0.0f, c.data(), 20,
                 Precision::bf16);
    for (int64_t r = 0; r < 20; ++r)
      for (int64_t j = 0; j < 20; ++j) {
        const float x = c[std::size_t(r * 20 + j)];
        CHECK((r == 3 ? std::isnan(x) : j == 11 ? std::isinf(x) && x > 0 : x == 40.0f));
      }
  });
}

TEST_CASE("Precision: scope, thread and process", "[precision]") {
  CHECK(precision() == Precision::f32);
  {
    PrecisionScope outer(Precision::bf16);
    CHECK(precision() == Precision::bf16);
    {
      PrecisionScope inner(Precision::f32);
      CHECK(precision() == Precision::f32);
    }
    CHECK(precision() == Precision::bf16);
    Precision elsewhere = Precision::bf16;
    std::thread([&] { elsewhere = precision(); }).join();
    CHECK(elsewhere == Precision::f32);
  }
  set_precision(Precision::bf16);
  Precision elsewhere = Precision::f32;
  std::thread([&] { elsewhere = precision(); }).join();
  CHECK(elsewhere == Precision::bf16);
  {
    PrecisionScope inner(Precision::f32);
    CHECK(precision() == Precision::f32);
  }
  set_precision(Precision::f32);
  CHECK(precision() == Precision::f32);
}

TEST_CASE("Precision: matmul takes it on the calling thread, backward when it runs", "[precision][matmul]") {
  Rng rng(1);
  const int threads = num_threads();
  Tensor x = normal({300, 130}, 0, 1, rng), w = normal({130, 200}, 0, 1, rng), g = normal({300, 200}, 0, 1, rng);
  // Numbers that are bf16 already have the same products, up to the rounding of sums.
  const Tensor exact = matmul(x, w), exact64 = matmul(to(x, f64), to(w, f64));
  set_num_threads(1);
  Tensor one, many;
  {
    PrecisionScope scope(Precision::bf16);
    one = matmul(x, w);
    set_num_threads(3);
    many = matmul(x, w);
    const Tensor now64 = matmul(to(x, f64), to(w, f64));
    CHECK(!std::memcmp(now64.raw(), exact64.raw(), static_cast<std::size_t>(now64.numel()) * 8));
    CHECK(same_bits(matmul(slice(x, 0, 0, 1), w), [&] {
      PrecisionScope inner(Precision::f32);
      return matmul(slice(x, 0, 0, 1), w);
    }()));
  }
  set_num_threads(threads);
  CHECK(same_bits(one, many));
  CHECK(largest_difference(one, exact) > 1e-3);
  CHECK(in_roundings(one, exact, x, w) < 1.01);
  CHECK(largest_difference(one, matmul(to(to(x, bf16), f32), to(to(w, bf16), f32))) < 3e-5);

  x.requires_grad_(), w.requires_grad_();
  const auto gradients = [&](Precision forward, Precision walk) {
    PrecisionScope outer(forward);
    const Tensor y = matmul(x, w);
    PrecisionScope inner(walk);
    return grad(std::vector{sum(y * g)}, {x, w});
  };
  const auto plain = gradients(Precision::f32, Precision::f32), mixed = gradients(Precision::bf16, Precision::f32);
  const auto coarse = gradients(Precision::f32, Precision::bf16);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(same_bits(plain[i], mixed[i]));
    CHECK(largest_difference(plain[i], coarse[i]) > 1e-3);
  }
  CHECK(in_roundings(plain[0], coarse[0], g, transpose(w, 0, 1)) < 1.01);
  CHECK(in_roundings(plain[1], coarse[1], transpose(x, 0, 1), g) < 1.01);
}

TEST_CASE("Precision: attention's products", "[precision][attention]") {
  Rng rng(2);
  const Tensor q = normal({2, 2, 150, 32}, 0, 1, rng), k = normal({2, 2, 150, 32}, 0, 1, rng),
               v = normal({2, 2, 150, 32}, 0, 1, rng);
  for (Tensor x : {q, k, v}) x.requires_grad_();
  const auto run = [&](Precision p) {
    PrecisionScope scope(p);
    const Tensor y = attention(q, k, v, {.mask = {.causal = true}});
    auto all = grad(std::vector{sum(y * y)}, {q, k, v});
    all.push_back(y.detach());
    return all;
  };
  const auto fine = run(Precision::f32), coarse = run(Precision::bf16);
  for (std::size_t i = 0; i < fine.size(); ++i) {
    CHECK(largest_difference(fine[i], coarse[i]) > 1e-4);
    CHECK(largest_difference(fine[i], coarse[i]) < 0.1);
  }
}

TEST_CASE("Precision: of one attention, forward and backward", "[precision][attention]") {
  Rng rng(6);
  const Tensor q = normal({1, 2, 70, 20}, 0, 1, rng).requires_grad_(), k = normal({1, 2, 70, 20}, 0, 1, rng),
               v = normal({1, 2, 70, 9}, 0, 1, rng);
  const auto value_and_gradient = [&](std::optional<Precision> own, Precision in_force) {
    PrecisionScope scope(in_force);
    const Tensor y = attention(q, k, v, {.mask = {.causal = true}, .precision = own});
    const Tensor recorded = grad(sum(square(y)), q, {.create_graph = true});
    return std::vector<Tensor>{y.detach(), recorded.detach(), grad({sum(square(y))}, {q})[0]};
  };
  for (const Precision p : {Precision::f32, Precision::bf16}) {
    const Precision other = p == Precision::f32 ? Precision::bf16 : Precision::f32;
    const std::vector<Tensor> want = value_and_gradient({}, p), got = value_and_gradient(p, other);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(got[i], want[i]));
  }
}

TEST_CASE("Precision: linear_scan's products", "[precision][linear_scan]") {
  Rng rng(3);
  const Tensor q = normal({2, 2, 150, 24}, 0, 1, rng), k = normal({2, 2, 150, 24}, 0, 1, rng),
               v = normal({2, 2, 150, 40}, 0, 1, rng);
  for (Tensor x : {q, k, v}) x.requires_grad_();
  const auto decay = [&](const Shape& shape) { return neg(uniform(shape, 0, 0.1, rng)); };
  for (const Tensor& g : {Tensor(), decay({2, 2, 150}), decay({2, 2, 150, 24}), decay({2, 2, 150, 40})})
    for (bool reverse : {false, true}) {
      const LinearScanOptions o{.reverse = reverse, .decay_on_values = g.defined() && g.rank() == 4 && g.dim(3) == 40};
      const auto run = [&](Precision p) {
        PrecisionScope scope(p);
        const Tensor y = linear_scan(q, k, v, g, o);
        auto all = grad(std::vector{sum(y * y)}, {q, k, v});
        all.push_back(y.detach());
        return all;
      };
      const auto fine = run(Precision::f32), coarse = run(Precision::bf16);
      for (std::size_t i = 0; i < fine.size(); ++i) {
        INFO((g.defined() ? g.dim(-1) : 0) << (reverse ? " reverse " : " ") << i);
        if (g.defined() && g.rank() == 4) {  // decays per channel: as exact as ever
          CHECK(same_bits(fine[i], coarse[i]));
          continue;
        }
        const double largest = max(abs(fine[i])).item();
        CHECK(largest_difference(fine[i], coarse[i]) > 1e-4 * largest);
        CHECK(largest_difference(fine[i], coarse[i]) < 2e-2 * largest);  // three products, each off by 2⁻⁹
      }
    }
  // A decay that learns: its own gradient and those it is made of stay exact.
  Tensor g = decay({2, 2, 150});
  g.requires_grad_();
  const auto gradients = [&](Precision walk) {
    const Tensor y = linear_scan(q, k, v, g);
    PrecisionScope scope(walk);
    return grad(std::vector{sum(y * v)}, {q, k, g});
  };
  const auto fine = gradients(Precision::f32), same = gradients(Precision::bf16);
  for (std::size_t i = 0; i < fine.size(); ++i) CHECK(same_bits(fine[i], same[i]));
}

TEST_CASE("products of every size count denormals where they are not flushed", "[gemm][precision][amx]") {
  struct Off {
    Off() { set_flush_denormals(false); }
    ~Off() { set_flush_denormals(true); }
  };
  for_each_isa([](Isa i) {
    const Off off;
    for (const int64_t n : {16, 256}) {
      INFO(isa_name(i) << ", " << n << " rows");
      for (const DType dtype : {f32, bf16}) {
        const Tensor tiny = full({n, 128}, 1e-40, {dtype}), huge = full({128, n}, 1e38, {dtype});
        const Tensor right = matmul(to(tiny, f64), to(huge, f64));  // 1.28
        CHECK(min(right).item() > 1.1);
        CHECK(largest_difference(to(matmul(tiny, huge), f64), right) < (dtype == bf16 ? 0.01 : 1e-5));
      }
      // Scores of 0 and 1 from denormal queries, and denormal values.
      const Tensor odd = reshape(to(remainder(arange(n), 2), f32), {1, 1, n, 1});
      const Tensor k = contiguous(expand(odd * 1e38, {1, 1, n, 128}));
      const Tensor q = full({1, 1, n, 128}, 1e-40), v = contiguous(expand((odd + 1.0) * 1e-39, {1, 1, n, 32}));
      AttentionOptions o;
      o.scale = 1 / 1.28;
      const Tensor got = attention(q, k, v, o), right = attention(to(q, f64), to(k, f64), to(v, f64), o);
      CHECK(min(right).item() > 1.7e-39);
      CHECK(largest_difference(to(got, f64), right) < 1e-42);
    }
  });
}
