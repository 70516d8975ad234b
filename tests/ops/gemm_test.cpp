// Every rung of the ladder, for every instruction set there is, against three loops: whole numbers, so that every order
// of summation gives the same bits, and operands that end where memory ends.
#include <sluice/ops/gemm/gemm.h>

#include "ops/gemm_samples.h"
#include "support/catch.h"
#include "support/child.h"
#include "support/limit.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/openblas.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

using namespace sluice;
using namespace sluice::detail;
using namespace sluice::testing;

namespace {

template <class T> const char* type_name() { return sizeof(T) == 4 ? "f32" : "f64"; }

/// The ways to compute one product that there are with the instruction set in use.
template <class T> std::vector<std::pair<const char*, std::function<void(const Product<T>&)>>> ways() {
  const Micro<T>& u = micro<T>(isa());
  return {{"blocked", [](const Product<T>& p) { gemm_blocked(p); }},
          {"packed", [&u](const Product<T>& p) { gemm_packed(u, p); }},
          {"b packed", [&u](const Product<T>& p) { gemm_packed(u, p, false, true); }},
          {"a packed", [&u](const Product<T>& p) { gemm_packed(u, p, true, false); }},
          {"in place", [&u](const Product<T>& p) { gemm_packed(u, p, false, false); }},
          {"PackedB",
           [](const Product<T>& p) {
             const Tensor memory = empty({PackedB<T>::size(p.k, p.m)}, {dtype_of<T>()});
             PackedB<T> b(p.k, p.m, reinterpret_cast<T*>(memory.raw()));
             b.fill(p.tb, p.b, p.ldb);
             b.multiply(p.ta, p.n, p.alpha, p.a, p.lda, p.beta, p.c, p.ldc);
           }},
          {"PackedA",
           [](const Product<T>& p) {
             const int64_t for_b = (PackedB<T>::size(p.k, p.m) + 15) / 16 * 16;
             const Tensor memory = empty({for_b + PackedA<T>::size(p.n, p.k)}, {dtype_of<T>()});
             PackedB<T> b(p.k, p.m, reinterpret_cast<T*>(memory.raw()));
             PackedA<T> a(p.n, p.k, reinterpret_cast<T*>(memory.raw()) + for_b);
             b.fill(p.tb, p.b, p.ldb);
             for (int64_t row = (p.n - 1) / 32 * 32; row >= 0; row -= 32)
               a.fill(p.ta, p.a, p.lda, row, std::min(row + 32, p.n));
             for (int64_t row = 0; row < p.n; row += 64)
               b.multiply(a, row, std::min<int64_t>(64, p.n - row), p.alpha, p.beta, p.c + row * p.ldc, p.ldc, 0,
                          b.panels());
           }},
          {"OpenBLAS", [](const Product<T>& p) { gemm_blas(p); }},
          {"gemm", [](const Product<T>& p) {
             gemm(p.ta, p.tb, p.n, p.m, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc);
           }}};
}

/// Around the edges of every tile and block, in one dimension at a time; and all small ones.
std::vector<Sizes> edge_sizes() {
  std::vector<Sizes> sizes;
  for (int64_t n : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 23, 24, 25, 27, 28, 29, 57, 83, 84, 85, 169})
    sizes.push_back({n, 37, 9});
  for (int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 129, 1023, 1024, 1025, 2049})
    sizes.push_back({5, m, 6});
  for (int64_t k : {0, 1, 2, 3, 15, 16, 17, 31, 255, 256, 257, 511, 512, 513, 770}) sizes.push_back({5, 35, k});
  for (int64_t n : {1, 2, 3, 4})
    for (int64_t m : {1, 2, 3, 4})
      for (int64_t k : {1, 2, 3}) sizes.push_back({n, m, k});
  sizes.insert(sizes.end(), {{0, 3, 4}, {3, 0, 4}, {0, 0, 0}, {3, 3, 0}, {90, 70, 530}, {61, 1030, 20}, {400, 33, 7}});
  // b is copied by the tile that first meets it, and fetched 16 rows ahead
  for (int64_t k : {15, 16, 17, 32, 33, 511, 512, 513, 1025}) sizes.push_back({29, 67, k});
  sizes.insert(sizes.end(), {{6, 400, 600}, {13, 300, 1000}, {64, 64, 33}, {79, 257, 40}, {84, 96, 32}});
  return sizes;
}

/// How many products are not as they should be; each is told.
template <class T> int wrong(Isa i) {
  const auto all = ways<T>();
  int count = 0;
  for (const Sizes& s : edge_sizes())
    for (Trans ta : kTrans)
      for (Trans tb : kTrans)
        for (int64_t gap : {0, 3}) {
          const bool small = s.n * s.m * s.k < 100000;
          if (!small && gap == 0) continue;
          Sample<T> x(s, ta, tb, gap);
          for (auto [alpha, beta] : {std::pair{T(1), T(0)}, {T(1), T(1)}, {T(2), T(-0.5)}}) {
            if ((!small || gap == 0) && beta != 0) continue;
            std::vector<T> expected = x.c;
            gemm_naive(x.product(alpha, beta, expected));
            for (const auto& [name, run] : all) {
              std::vector<T> c = x.c;
              run(x.product(alpha, beta, c));
              if (same(c, expected)) continue;
              ++count;
              UNSCOPED_INFO(isa_name(i) << ' ' << type_name<T>() << ' ' << name << ": " << s.n << " × " << s.m << " × "
                                        << s.k << (ta == Trans::no ? " n" : " t") << (tb == Trans::no ? "n" : "t")
                                        << " gap " << gap << " alpha " << alpha << " beta " << beta);
            }
          }
        }
  return count;
}

}  // namespace

TEST_CASE("gemm: every rung, instruction set, order and size", "[gemm]") {
  for_each_isa([](Isa i) {
    CHECK(wrong<float>(i) == 0);
    CHECK(wrong<double>(i) == 0);
  });
}

TEST_CASE("gemm: few rows, and a last block of k that is short", "[gemm]") {
  for_each_isa([](Isa i) {
    if (i == Isa::base) return;
    constexpr int64_t n = 20, m = 300, k = 512 * 512 + 1;  // 512 blocks of 512, and one of 1
    std::vector<float> a(static_cast<std::size_t>(n * k)), b(m), c(n * m);
    for (std::size_t at = 0; at < a.size(); ++at) a[at] = at % 7 == 0 ? 1 : 0;
    for (std::size_t j = 0; j < b.size(); ++j) b[j] = static_cast<float>(j % 5);
    gemm_packed(micro<float>(i),
                Product<float>{Trans::no, Trans::no, n, m, k, 1, a.data(), k, b.data(), 0, 0, c.data(), m}, true, true);
    int wrong = 0;
    for (int64_t row = 0; row < n; ++row) {
      float count = 0;
      for (int64_t l = 0; l < k; ++l) count += a[static_cast<std::size_t>(row * k + l)];
      for (int64_t j = 0; j < m; ++j) wrong += c[static_cast<std::size_t>(row * m + j)] != count * float(j % 5);
    }
    INFO(isa_name(i));
    CHECK(wrong == 0);
  });
}

TEST_CASE("gemm: with beta 0, c is not read; NaN and infinities go where they belong", "[gemm]") {
  for_each_isa([](Isa i) {
    auto check = [&]<class T>(T) {
      const T nan = std::numeric_limits<T>::quiet_NaN(), inf = std::numeric_limits<T>::infinity();
      for (const Sizes& s : {Sizes{1, 40, 7}, {40, 1, 7}, {30, 40, 7}, {30, 40, 300}, {80, 300, 20}, {9, 9, 0}})
        for (Trans ta : kTrans)
          for (Trans tb : kTrans) {
            Sample<T> x(s, ta, tb, 0);
            if (s.k > 0) {
              x.a.data()[s.k / 2] = nan;
              x.b.data()[s.m / 2] = inf;
              x.b.data()[s.m - 1] = -inf;
            }
            std::vector<T> clean = x.c, dirty(x.c.size(), nan);
            gemm_naive(x.product(T(1), T(0), clean));
            for (const auto& [name, run] : ways<T>()) {
              // Zero times infinity is NaN in every order, but blocked and BLAS may skip zeros: ours do not.
              std::vector<T> c = dirty;
              run(x.product(T(1), T(0), c));
              INFO(isa_name(i) << ' ' << name << ": " << s.n << " × " << s.m << " × " << s.k);
              CHECK(same(c, clean));
            }
          }
    };
    check(0.0f);
    check(0.0);
  });
}

TEST_CASE("gemm: an element's bits depend on its row, its column and k alone", "[gemm][bits]") {
  std::vector<float> first_f32;
  for_each_isa([&](Isa i) {
    if (i == Isa::base) return;
    auto check = [&]<class T>(T) {
      for (const Sizes& s : {Sizes{45, 70, 40}, {200, 150, 700}})
        for (Trans tb : kTrans) {
          Sample<T> x(s, Trans::no, tb, 1, false);
          std::vector<T> whole = x.c;
          gemm_packed(micro<T>(i), x.product(T(0.3), T(1), whole));
          for (const auto& [name, run] : ways<T>()) {
            if (!std::strcmp(name, "blocked") || !std::strcmp(name, "OpenBLAS")) continue;
            INFO(isa_name(i) << ' ' << type_name<T>() << ' ' << name);
            std::vector<T> c = x.c;
            run(x.product(T(0.3), T(1), c));
            CHECK(same_bits(c, whole));
            // Rows 11 … 27 and columns 19 … 59 alone.
            std::vector<T> part = x.c;
            Product<T> p = x.product(T(0.3), T(1), part);
            p.n = 17, p.m = 41, p.a += 11 * p.lda, p.b += 19 * (tb == Trans::no ? 1 : p.ldb), p.c += 11 * p.ldc + 19;
            run(p);
            bool equal = true;
            for (int64_t r = 11; r < 28; ++r)
              equal = equal && !std::memcmp(&part[std::size_t(r * x.ldc + 19)], &whole[std::size_t(r * x.ldc + 19)],
                                            41 * sizeof(T));
            CHECK(equal);
          }
          if constexpr (sizeof(T) == 4) {  // fused multiply-adds in the same order, whatever the width
            if (first_f32.empty()) first_f32 = whole;
            if (s.n == 45 && tb == Trans::no) CHECK(same_bits(first_f32, whole));
          }
        }
    };
    check(0.0f);
    check(0.0);
  });
}

TEST_CASE("gemm: rounding errors are those of one chain", "[gemm]") {
  for_each_isa([](Isa i) {
    Sample<float> x({33, 65, 1000}, Trans::no, Trans::yes, 0, false);
    std::vector<float> c = x.c;
    gemm(x.ta, x.tb, 33, 65, 1000, 1.0f, x.a.data(), x.lda, x.b.data(), x.ldb, 0.0f, c.data(), x.ldc);
    for (int64_t r = 0; r < 33; ++r)
      for (int64_t j = 0; j < 65; ++j) {
        double sum = 0, size = 0;
        for (int64_t p = 0; p < 1000; ++p) {
          const double term = double(x.a.data()[r * x.lda + p]) * double(x.b.data()[j * x.ldb + p]);
          sum += term, size += std::abs(term);
        }
        INFO(isa_name(i) << " row " << r << " column " << j);
        REQUIRE(std::abs(double(c[std::size_t(r * x.ldc + j)]) - sum) < 1e-6 * size);
      }
  });
}

TEST_CASE("PackedB and PackedA: in pieces, with a bias", "[gemm]") {
  for_each_isa([](Isa i) {
    auto check = [&]<class T>(T) {
      const Sizes s{100, 101, 1030};
      for (Trans ta : kTrans) {
        INFO(isa_name(i) << ' ' << type_name<T>() << (ta == Trans::no ? " plain" : " transposed"));
        Sample<T> x(s, ta, Trans::yes, 2);
        std::vector<T> bias(101), expected = x.c;
        const int64_t for_b = (PackedB<T>::size(s.k, s.m) + 15) / 16 * 16;
        const Tensor memory = empty({for_b + PackedA<T>::size(s.n, s.k)}, {dtype_of<T>()});
        PackedB<T> b(s.k, s.m, reinterpret_cast<T*>(memory.raw()));
        PackedA<T> a(s.n, s.k, reinterpret_cast<T*>(memory.raw()) + for_b);
        for (int64_t j = b.panels(); j-- > 0;) b.fill(x.tb, x.b.data(), x.ldb, j, j + 1);
        a.fill(ta, x.a.data(), x.lda, 64, 100), a.fill(ta, x.a.data(), x.lda, 0, 64);
        for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = T(j + 1);
        gemm_naive(x.product(T(1), T(1), expected));
        for (int64_t r = 0; r < s.n; ++r)
          for (int64_t j = 0; j < s.m; ++j) expected[std::size_t(r * x.ldc + j)] += bias[std::size_t(j)];
        for (bool packed : {false, true}) {
          std::vector<T> c = x.c;
          for (int64_t row : {0, 64})
            for (int64_t j = 0; j < b.panels(); j += 2) {
              T* const to = c.data() + row * x.ldc + j * b.panel_columns();
              const int64_t n = row ? 36 : 64, last = std::min(j + 2, b.panels());
              if (packed) b.multiply(a, row, n, T(1), T(1), to, x.ldc, j, last, bias.data());
              else
                b.multiply(ta, n, T(1), x.a.data() + row * (ta == Trans::no ? x.lda : 1), x.lda, T(1), to, x.ldc, j,
                           last, bias.data());
            }
          CHECK(same(c, expected));
        }
      }
    };
    check(0.0f);
    check(0.0);
  });
}

TEST_CASE("matmul: any number of threads, the same bits; any instruction set, the same product",
          "[gemm][matmul][bits]") {
  const int threads = num_threads();
  Rng rng(3);
  for (const Sizes& s : {Sizes{300, 130, 129},
                         {120, 33, 1100},
                         {64, 900, 100},
                         {33, 40, 50},
                         {130, 700, 1030},
                         {2300, 65, 40},
                         {1031, 70, 1030},  // shared, in several blocks of k
                         {531, 290, 70}})   // a thread's own columns, in several tiles each way
    for (DType type : {f32, f64})
      for (bool left : {false, true})
        for (bool right : {false, true}) {
          Tensor a = normal(left ? Shape{s.k, s.n} : Shape{s.n, s.k}, 0, 1, rng, {type});
          Tensor b = normal(right ? Shape{s.m, s.k} : Shape{s.k, s.m}, 0, 1, rng, {type});
          if (left) a = transpose(a, 0, 1);
          if (right) b = transpose(b, 0, 1);
          Tensor expected;
          for_each_isa([&](Isa i) {
            INFO(s.n << " × " << s.m << " × " << s.k << ' ' << isa_name(i) << (left ? " t" : " n")
                     << (right ? "t" : "n"));
            set_num_threads(1);
            const Tensor one = matmul(a, b);
            set_num_threads(3);
            const Tensor many = matmul(a, b);
            const std::size_t bytes = static_cast<std::size_t>(one.numel()) * (type == f32 ? 4 : 8);
            CHECK(!std::memcmp(one.raw(), many.raw(), bytes));
            if (!expected.defined()) expected = one;
            double difference = 0;
            for (int64_t j = 0; j < one.numel(); ++j)
              difference = std::max(
                  difference, type == f32 ? std::abs(double(one.data<float>()[j]) - double(expected.data<float>()[j]))
                                          : std::abs(one.data<double>()[j] - expected.data<double>()[j]));
            CHECK(difference < (type == f32 ? 2e-6 : 4e-15) * double(s.k));
          });
        }
  set_num_threads(threads);
}

TEST_CASE("matmul, linear: large products in blocks of k, with a bias, of several matrices", "[gemm][matmul]") {
  Rng rng(4);
  auto whole = [&](const Shape& shape) { return to(randint(-3, 4, shape, rng), f32); };  // every order: the same sums
  auto expect = [](const float* a, const float* b, int64_t n, int64_t m, int64_t k) {
    std::vector<float> c(std::size_t(n * m));
    gemm_naive(Product<float>{Trans::no, Trans::no, n, m, k, 1, a, k, b, m, 0, c.data(), m});
    return c;
  };
  for_each_isa([&](Isa i) {
    INFO(isa_name(i));
    const Tensor x = whole({130, 1100}), w = whole({1100, 70}), bias = whole({70});
    std::vector<float> y = expect(x.data<float>(), w.data<float>(), 130, 70, 1100);
    for (std::size_t j = 0; j < y.size(); ++j) y[j] += bias.data<float>()[j % 70];
    CHECK(linear(x, w, bias).to_vector<float>() == y);
    for (int64_t n : {1, 3, 4, 5, 301})  // few rows, one column; operands plain and transposed
      for (int64_t m : {1, 2, 77})
        for (bool left : {false, true})
          for (bool right : {false, true})
            for (bool with_bias : {false, true}) {
              const Tensor p = whole({n, 131}), q = whole({131, m}), add = whole({m});
              std::vector<float> sums = expect(p.data<float>(), q.data<float>(), n, m, 131);
              for (std::size_t j = 0; with_bias && j < sums.size(); ++j) sums[j] += add.data<float>()[int64_t(j) % m];
              const Tensor l = left ? transpose(contiguous(transpose(p, 0, 1)), 0, 1) : p;
              const Tensor r = right ? transpose(contiguous(transpose(q, 0, 1)), 0, 1) : q;
              INFO(n << " × " << m << (left ? " t" : " n") << (right ? 't' : 'n'));
              CHECK(linear(l, r, with_bias ? add : Tensor()).to_vector<float>() == sums);
            }
    const Tensor wide = whole({1100, 3}), column = narrow(wide, 1, 1, 1);
    CHECK(matmul(x, column).to_vector<float>() == matmul(x, contiguous(column)).to_vector<float>());
    // Two matrices each; then one b for both.
    const Tensor a = whole({2, 160, 420}), b = whole({2, 420, 520});
    for (bool one : {false, true}) {
      const std::vector<float> c = matmul(a, one ? expand(narrow(b, 0, 1, 1), {2, 420, 520}) : b).to_vector<float>();
      for (int64_t matrix : {0, 1}) {
        const float* right = b.data<float>() + (one ? 1 : matrix) * 420 * 520;
        const std::vector<float> part = expect(a.data<float>() + matrix * 160 * 420, right, 160, 520, 420);
        CHECK(std::equal(part.begin(), part.end(), c.begin() + matrix * 160 * 520));
      }
    }
  });
}

TEST_CASE("gemm: OpenBLAS without memory for one more call at a time is a MemoryError, and works again later",
          "[gemm]") {
  if (blas_name() == "Accelerate") return;
  if (!testing::MemoryLimit::works()) {
    WARN("not tested: memory has no limits here");
    return;
  }
  CHECK(testing::in_child(
            [] {
              constexpr int64_t n = 1200;
              constexpr int threads = 12;  // more than earlier cases had at a time
              const Tensor a = ones({n, n}, {f64});
              std::vector<Tensor> results;
              for (int t = 0; t < threads; ++t) results.push_back(zeros({n, n}, {f64}));
              const auto product = [&](int t) {
                auto* c = reinterpret_cast<double*>(results[static_cast<std::size_t>(t)].raw());
                gemm_blas({Trans::no, Trans::no, n, n, n, 1.0, a.data<double>(), n, a.data<double>(), n, 0.0, c, n});
              };
              const auto at_a_time = [&] {  // how many were refused
                std::latch start(threads);
                std::atomic<int> refused{0};
                std::vector<std::thread> all;
                for (int t = 0; t < threads; ++t)
                  all.emplace_back([&, t] {
                    start.arrive_and_wait();
                    try {
                      product(t);
                    } catch (const MemoryError&) { ++refused; }
                  });
                for (std::thread& t : all) t.join();
                return refused.load();
              };
              product(0);
              {
                const testing::MemoryLimit limit(int64_t{160} << 20);  // the threads' stacks
                if (at_a_time() == 0) return "nothing was refused";
              }
              if (at_a_time() != 0) return "it is refused with memory, too";
              for (const Tensor& c : results)
                if (c.data<double>()[n * n - 1] != double(n)) return "a result is wrong";
              return "passed";
            },
            60) == "passed");
}
