#include <sluice/layers/data/loader.h>

#include <sluice/core/error.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/index/gather.h>
#include "support/catch.h"
#include "support/child.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

using namespace sluice;

namespace {

using Rows = std::vector<int64_t>;

/// What a batch is here: its rows, and a number it drew.
struct Seen {
  Rows rows;
  double drawn;
  bool operator==(const Seen&) const = default;
};
Seen see(const Tensor& rows, Rng& rng) { return {rows.to_vector<int64_t>(), uniform({}, 0, 1, rng, {f64}).item()}; }

std::vector<Seen> take(LoaderOptions options, int count, int64_t from = 0) {
  Loader loader(options, see);
  loader.seek(from);
  std::vector<Seen> out;
  for (int i = 0; i < count; ++i) out.push_back(loader.next());
  CHECK(loader.position() == from + count);
  return out;
}

Rows joined(const std::vector<Tensor>& batches) {
  Rows all;
  for (const Tensor& b : batches)
    for (const int64_t r : b.to_vector<int64_t>()) all.push_back(r);
  return all;
}

}  // namespace

TEST_CASE("shuffled_batches: every row once, another order for another epoch and seed", "[data]") {
  const auto a = shuffled_batches(103, 10, 7, 0);
  REQUIRE(a.size() == 11);
  CHECK(a.back().numel() == 3);
  Rows rows = joined(a), all(103);
  std::iota(all.begin(), all.end(), 0);
  CHECK(rows == joined(shuffled_batches(103, 10, 7, 0)));
  CHECK(rows != joined(shuffled_batches(103, 10, 7, 1)));
  CHECK(rows != joined(shuffled_batches(103, 10, 8, 0)));
  CHECK(rows != all);
  std::sort(rows.begin(), rows.end());
  CHECK(rows == all);
  CHECK(shuffled_batches(0, 4, 1, 0).empty());
  CHECK_THROWS_AS(shuffled_batches(4, 0, 1, 0), ValueError);
  CHECK_THROWS_AS(shuffled_batches(4, 1, 1, -1), ValueError);
}

TEST_CASE("loader: the same batches for any number of threads, from any position", "[data]") {
  const LoaderOptions options{.rows = 23, .batch = 5, .seed = 3, .threads = 0};
  const std::vector<Seen> once = take(options, 17);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto order = shuffled_batches(23, 5, 3, epoch);
    for (std::size_t b = 0; b < 5; ++b)
      CHECK(once[static_cast<std::size_t>(epoch) * 5 + b].rows == order[b].to_vector<int64_t>());
  }
  std::set<double> drawn;  // other noise for each batch, in each epoch
  for (const Seen& batch : once) drawn.insert(batch.drawn);
  CHECK(drawn.size() == once.size());
  LoaderOptions other = options;
  other.seed = (int64_t{1} << 52) + 3;  // differs in the upper bits alone
  CHECK(take(other, 1)[0].rows ==
        shuffled_batches(23, 5, static_cast<uint64_t>(other.seed), 0)[0].to_vector<int64_t>());
  CHECK(take(other, 1) != take(options, 1));
  for (const int64_t threads : {1, 2, 5})
    for (const int64_t ahead : {1, 3}) {
      LoaderOptions o = options;
      o.threads = threads, o.ahead = ahead;
      CHECK(take(o, 17) == once);
      CHECK(take(o, 6, 11) == std::vector<Seen>(once.begin() + 11, once.end()));
    }
}

TEST_CASE("loader: epochs as ranges, resumed in the middle", "[data]") {
  Loader loader({.rows = 7, .batch = 2, .shuffle = false, .threads = 2},
                [](const Tensor& rows) { return rows.to_vector<int64_t>(); });
  static_assert(std::is_same_v<decltype(loader.next()), Rows>);
  REQUIRE(loader.batches() == 4);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<Rows> got;
    for (Rows& rows : loader) got.push_back(rows);
    CHECK(got == std::vector<Rows>{{0, 1}, {2, 3}, {4, 5}, {6}});
    CHECK(loader.position() == 4 * (epoch + 1));
  }
  loader.seek(2);
  std::vector<Rows> rest;
  for (Rows& rows : loader) rest.push_back(rows);
  CHECK(rest == std::vector<Rows>{{4, 5}, {6}});
  for (Rows& rows : loader) {
    CHECK(rows == Rows{0, 1});
    CHECK(loader.position() == 5);
    break;
  }
  CHECK(loader.next() == Rows{2, 3});
  loader.seek(1);  // back, while threads are ahead
  CHECK(loader.next() == Rows{2, 3});

  Loader even({.rows = 7, .batch = 2, .shuffle = false, .drop_last = true},
              [](const Tensor& rows) { return rows.to_vector<int64_t>(); });
  REQUIRE(even.batches() == 3);
  for (int i = 0; i < 3; ++i) even.next();
  CHECK(even.next() == Rows{0, 1});
}

TEST_CASE("loader: an exception reaches the caller in its place, and the loader goes on", "[data]") {
  for (const int64_t threads : {0, 1, 4}) {
    Loader loader({.rows = 12, .batch = 2, .shuffle = false, .threads = threads}, [](const Tensor& rows) {
      const int64_t first = rows.to_vector<int64_t>()[0];
      if (first == 4) throw std::runtime_error("row 4 is broken");
      return first;
    });
    CHECK(loader.next() == 0);
    CHECK(loader.next() == 2);
    CHECK_THROWS_WITH(loader.next(), "row 4 is broken");
    CHECK(loader.position() == 3);
    CHECK(loader.next() == 6);
  }
}

TEST_CASE("loader: threads work ahead, but not further than they may, and end with it", "[data]") {
  std::atomic<int> begun = 0, running = 0;
  {
    Loader loader({.rows = 100, .batch = 1, .threads = 2, .ahead = 2}, [&](const Tensor& rows) {
      ++begun, ++running;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      --running;
      return rows.numel();
    });
    CHECK(begun == 0);
    loader.next();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (begun < 5 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(begun == 5);  // one was taken, two threads may have two each in store
    loader.next();      // now a thread is busy again, and the loader goes
  }
  CHECK(running == 0);
}

TEST_CASE("loader: a child of fork() goes on with threads of its own", "[data]") {
  const LoaderOptions options{.rows = 40, .batch = 3, .seed = 1, .threads = 2};
  std::optional<Loader<Seen>> loader(std::in_place, options, see);
  loader->next();
  const std::vector<Seen> next = take(options, 9, 1);
  const auto rest = [&]() -> std::string {
    for (const Seen& batch : next)
      if (loader->next() != batch) return "another batch";
    loader.reset();
    return "the same";
  };
  CHECK(sluice::testing::in_child(rest) == "the same");
  CHECK(sluice::testing::in_child([&] { return loader.reset(), "ended"; }) == "ended");
  CHECK(rest() == "the same");
}

TEST_CASE("loader: batches have no history; options are checked", "[data]") {
  Tensor table = Tensor({{1, 2}, {3, 4}});
  table.requires_grad_();
  Loader loader({.rows = 2, .batch = 2}, [&](const Tensor& rows) { return index_select(table, 0, rows); });
  CHECK(!loader.next().requires_grad());
  const auto none = [](const Tensor&) { return 0; };
  CHECK(Loader({.rows = 5'000'000'001, .batch = 2}, none).batches() == 2'500'000'001);  // more than i32 counts
  CHECK_THROWS_AS(Loader({.rows = 0}, none), ValueError);
  CHECK_THROWS_AS(Loader({.rows = 4, .batch = 0}, none), ValueError);
  CHECK_THROWS_AS(Loader({.rows = 4, .batch = 5, .drop_last = true}, none), ValueError);
  CHECK_THROWS_AS(Loader({.rows = 4, .threads = -1}, none), ValueError);
  CHECK_THROWS_AS(loader.seek(-1), ValueError);
}

TEST_CASE("loader: a position that no run reaches is refused, the last possible one works", "[data]") {
  for (const int64_t threads : {0, 2}) {
    Loader loader({.rows = 7, .batch = 2, .threads = threads}, [](const Tensor& rows) { return rows.numel(); });
    for (const int64_t position : {INT64_MAX, (int64_t{1} << 62) + 1}) {
      CHECK_THROWS_WITH(loader.seek(position), Contains("between 0 and 2^62") && Contains(std::to_string(position)));
      CHECK(loader.position() == 0);
    }
    loader.seek(int64_t{1} << 62);
    CHECK(loader.next() > 0);
    CHECK(loader.position() == (int64_t{1} << 62) + 1);
  }
}

TEST_CASE("loader: writing to a batch does not change a later one", "[data]") {
  for (const bool shuffle : {true, false}) {
    Loader loader({.rows = 6, .batch = 3, .shuffle = shuffle, .threads = 0}, [](const Tensor& rows) { return rows; });
    const Rows first = loader.next().to_vector<int64_t>();
    loader.seek(0);
    Tensor mine = loader.next();
    fill_(mine, 5);
    loader.seek(0);
    CHECK(loader.next().to_vector<int64_t>() == first);
  }
}
