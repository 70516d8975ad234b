// parallel_for: every index once, whatever the sizes, threads, nesting and exceptions.
#include <sluice/core/kernel/parallel.h>

#include "support/catch.h"

#include "support/limit.h"

#include <sluice/core/error.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <latch>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

using namespace sluice;

namespace {
/// Restores the default when a test ends, even by a failure.
struct Threads {
  explicit Threads(int n) { set_num_threads(n); }
  ~Threads() { set_num_threads(0); }
};
}  // namespace

TEST_CASE("parallel_for: covers each index once, in pieces of the grain", "[parallel]") {
  for (int threads : {1, 2, 4}) {
    Threads t(threads);
    for (int64_t n : {0, 1, 2, 7, 100, 1000, 4097})
      for (int64_t grain : {-1, 0, 1, 3, 64, 5000}) {
        INFO(threads << " threads, n " << n << ", grain " << grain);
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
        std::mutex mutex;
        std::set<std::pair<int64_t, int64_t>> pieces;
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
          std::lock_guard lock(mutex);
          pieces.emplace(begin, end);
        });
        for (auto& s : seen) REQUIRE(s == 1);
        // The cut depends on the shape alone.
        const int64_t g = std::max<int64_t>(grain, 1);
        REQUIRE(static_cast<int64_t>(pieces.size()) == (n + g - 1) / g);
        for (auto [begin, end] : pieces) REQUIRE((begin % g == 0 && end == std::min(begin + g, n)));
      }
  }
}

TEST_CASE("parallel_for: a negative count does nothing", "[parallel]") {
  int calls = 0;
  parallel_for(-5, 2, [&](int64_t, int64_t) { ++calls; });
  CHECK(calls == 0);
}

TEST_CASE("parallel_for: an exception reaches the caller with its type, and the next loop works", "[parallel]") {
  for (int threads : {1, 2}) {
    Threads t(threads);
    for (int64_t bad : {0, 50, 99}) {
      try {
        parallel_for(100, 1, [&](int64_t begin, int64_t) {
          if (begin == bad) fail<ValueError>("piece ", begin);
        });
        FAIL("nothing was thrown");
      } catch (const ValueError& e) { CHECK(std::string(e.what()) == str("piece ", bad)); }
      std::atomic<int> sum{0};
      parallel_for(100, 1, [&](int64_t begin, int64_t) { sum += static_cast<int>(begin); });
      CHECK(sum == 4950);
    }
  }
}

TEST_CASE("parallel_for: a thread that the system refuses is a MemoryError, and the next loop works", "[parallel]") {
  if (!testing::MemoryLimit::works()) {
    WARN("not tested: memory has no limits here");
    return;
  }
  constexpr int kCallers = 12;  // each asks for threads, together for more than earlier cases had
  Threads many(64);
  std::latch limited(1), begun(kCallers);
  std::atomic<int> refused{0}, done{0};
  const auto loop = [] {
    std::atomic<int64_t> sum{0};
    parallel_for(1000, 1, [&](int64_t begin, int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      sum += begin;
    });
    return sum.load();
  };
  std::vector<std::thread> callers;
  for (int t = 0; t < kCallers; ++t)
    callers.emplace_back([&] {
      limited.wait();
      try {
        done += loop() == 499500;
      } catch (const MemoryError& e) {
        ++refused;
        if (std::string_view(e.what()).find("set_num_threads(1)") != std::string_view::npos) ++done;
      }
      begun.count_down();
    });
  {
    const testing::MemoryLimit limit(1 << 20);  // less than a thread's stack
    limited.count_down();
    begun.wait();
  }
  for (std::thread& t : callers) t.join();
  CHECK(done == kCallers);
  CHECK(refused > 0);
  CHECK(loop() == 499500);
}

TEST_CASE("parallel_for: loops nest", "[parallel]") {
  for (int threads : {1, 2, 3}) {
    Threads t(threads);
    std::vector<std::atomic<int>> seen(20 * 30 * 10);
    parallel_for(20, 1, [&](int64_t a, int64_t) {
      parallel_for(30, 4, [&](int64_t b, int64_t b_end) {
        for (; b < b_end; ++b)
          parallel_for(10, 3, [&](int64_t c, int64_t c_end) {
            for (; c < c_end; ++c) ++seen[static_cast<std::size_t>((a * 30 + b) * 10 + c)];
          });
      });
    });
    for (auto& s : seen) REQUIRE(s == 1);
  }
}

TEST_CASE("parallel_for: takes functions that cannot be copied, and lvalues", "[parallel]") {
  struct Body {
    std::atomic<int64_t> total{0};
    void operator()(int64_t begin, int64_t end) { total += end - begin; }
  } body;
  parallel_for(1000, 7, body);
  CHECK(body.total == 1000);
}

TEST_CASE("threads: the number can be set, and nonsense is refused", "[parallel]") {
  const int standard = num_threads();
  CHECK(standard >= 1);
  {
    Threads t(3);
    CHECK(num_threads() == 3);
    CHECK_THROWS_AS(set_num_threads(-1), ValueError);
    CHECK(num_threads() == 3);
  }
  CHECK(num_threads() == standard);
}

TEST_CASE("threads: ops give the same bits on one, two and three", "[parallel]") {
  Rng rng(1);
  Tensor x = normal({300, 257}, 0, 1, rng), y = normal({257, 190}, 0, 1, rng);
  auto run = [&](int threads) {
    Threads t(threads);
    Tensor z = tanh(matmul(x, y));
    std::vector<float> out = (z - mean(z, {0}, keep)).to_vector();
    out.push_back(static_cast<float>(sum(z * z).item()));
    Rng r(5);
    for (float v : normal({100000}, 0, 1, r).to_vector()) out.push_back(v);
    return out;
  };
  const auto one = run(1);
  CHECK(one == run(2));
  CHECK(one == run(3));
}

TEST_CASE("denormals: flushed alike on every thread, in small ops and large, and honoured on request", "[parallel]") {
  struct Restore {
    ~Restore() { set_flush_denormals(true); }
  } restore;
  CHECK(flush_denormals());
  const volatile float tiny = 1e-39f;
  auto of = [](int64_t n, float x) { return Tensor::from(std::vector<float>(static_cast<std::size_t>(n), x)); };
  auto run = [&](int threads, int64_t n, float x) {
    Threads t(threads);
    std::vector<float> all;
    const Tensor v = of(n, x);
    const Tensor product = full({64, 64}, 1e-20);  // of normal numbers, with denormal results
    for (const Tensor& y :
         {v * 1.0, v + v, v * full({n}, 0.5), exp(full({n}, -95)), sum(v), sum(reshape(v, {1, n}), {0}),
          matmul(reshape(v, {n, 1}), ones({1, 8})), matmul(reshape(v, {1, n}), ones({n, 1})), matmul(product, product)})
      for (float f : y.to_vector()) all.push_back(f);
    return all;
  };
  for (int64_t n : {1, 100, 1 << 19}) {
    INFO("n=" << n);
    const auto flushed = run(1, n, tiny);
    CHECK(std::memcmp(flushed.data(), run(3, n, tiny).data(), flushed.size() * sizeof(float)) == 0);
    int64_t denormal = 0;
    for (float f : flushed) denormal += std::fpclassify(f) == FP_SUBNORMAL;
    CHECK(denormal == 0);
    CHECK(flushed[0] == 0);
    set_flush_denormals(false);
    const auto honoured = run(1, n, tiny);
    CHECK(honoured[0] == tiny);
    CHECK(std::memcmp(honoured.data(), run(3, n, tiny).data(), honoured.size() * sizeof(float)) == 0);
    set_flush_denormals(true);
  }
  CHECK(tiny * 0.5f > 0);  // the caller's own arithmetic is as it was
#if defined(__SSE2__)
  // Also where the caller flushes for itself: who wants denormals has them.
  const Tensor x = of(10, tiny);
  const auto before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040);
  const Tensor flushed = x * 1.0;
  set_flush_denormals(false);
  const Tensor honoured = x * 1.0;
  const bool restored = (__builtin_ia32_stmxcsr() & 0x8040) == 0x8040;
  __builtin_ia32_ldmxcsr(before);
  CHECK(flushed.to_vector()[0] == 0);
  CHECK(honoured.to_vector()[0] == tiny);
  CHECK(restored);
#endif
}

TEST_CASE("denormals: a product of them takes no longer than others", "[parallel]") {
  auto seconds = [](float x) {
    const Tensor a = Tensor::from(std::vector<float>(192 * 192, x), {192, 192}), b = full({192, 192}, 1);
    double best = 1e9;
    for (int i = 0; i < 10; ++i) {
      const auto start = std::chrono::steady_clock::now();
      matmul(a, b);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  const double normal = seconds(1.f), denormal = seconds(1e-39f);
  CHECK(denormal < 20 * normal);  // 230 times before; a busy machine is no reason to fail
}
