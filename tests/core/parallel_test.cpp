// parallel_for: every index once, whatever the sizes, threads, nesting and exceptions.
#include <sluice/core/parallel.h>

#include "support/catch.h"

#include <sluice/core/error.h>
#include <sluice/core/random.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>

#include <atomic>
#include <mutex>
#include <set>
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
      } catch (const ValueError& e) {
        CHECK(std::string(e.what()) == str("piece ", bad));
      }
      std::atomic<int> sum{0};
      parallel_for(100, 1, [&](int64_t begin, int64_t) { sum += static_cast<int>(begin); });
      CHECK(sum == 4950);
    }
  }
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
