// The order in which attention on tensor cores takes its blocks: each once, the longest of a set of heads first, and
// what that does to the time at which the last multiprocessor ends.
#include "support/catch.h"

#include <sluice/cuda/attention/policies.h>
#include <sluice/cuda/attention/work_order.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <tuple>
#include <vector>

using namespace sluice::cuda;

namespace {

struct Sizes {
  int batch, heads, kv_heads, m, n;
  int64_t cache = kCacheOfKeys;
};

/// The end of the last work on 132 multiprocessors, which take the works of causal attention in order, over the end if
/// nothing ever waited. A work takes a unit for each tile of 128 keys, and 0.8 for what has no products beside it.
double end(const WorkOrder& order) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free(std::greater<>(), std::vector<double>(132));
  double sum = 0, last = 0;
  for (int i = 0; i < order.works(); ++i) {
    const double time = order.blocks - order(i).block + 0.8, now = free.top() + time;
    free.pop(), free.push(now);
    sum += time, last = std::max(last, now);
  }
  return last / (sum / 132);
}

}  // namespace

TEST_CASE("cuda attention: an order of work has each block of each head once", "[cuda]") {
  for (int blocks : {1, 2, 7})
    for (int heads : {1, 2, 3, 8})
      for (int batch : {1, 2, 5})
        for (int most : {0, 1, 2, 3, 4, 7, 39, 1000}) {
          INFO(blocks << " blocks, " << heads << " heads, " << batch << " batches, sets of " << most);
          const WorkOrder order(blocks, heads, batch, most);
          const int slabs = heads * batch, size = std::clamp(most, 1, slabs);
          REQUIRE(order.works() == blocks * slabs);
          std::set<std::tuple<int, int, int>> seen;
          int next = 0, first = 0;  // the next set's first work, and this set's first head
          for (int i = 0, before = 0, in_set = 0; i < order.works(); ++i) {
            const WorkPlace at = order(i);
            if (i == next) {  // only the first set may be smaller
              first += in_set, in_set = first == 0 && slabs % size ? slabs % size : size;
              next += in_set * blocks, before = 0;
            }
            const int slab = at.batch * heads + at.head;
            const bool inside = at.block >= before && at.block < blocks && at.head >= 0 && at.head < heads &&
                                slab >= first && slab < first + in_set;
            REQUIRE(inside);
            before = at.block;
            seen.emplace(at.block, at.head, at.batch);
          }
          CHECK(seen.size() == static_cast<std::size_t>(order.works()));
        }
}

TEST_CASE("cuda attention: sets are as large as the cache, and one head without causality", "[cuda]") {
  const auto together = []<bool by_keys>(const Sizes& z, const auto& mask) {
    return work_order<by_keys, 128, 64>(z, mask).together;
  };
  const Sizes z{3, 12, 4, 4096, 8192};  // 2 MiB of keys and values a head, 1 MiB of queries and their gradients
  CHECK(together.operator()<false>(z, Causal{}) == 36);  // 32 MiB are 16 heads of keys, which 48 of queries read
  CHECK(together.operator()<false>({12, 12, 4, 4096, 8192}, Window{5000, true}) == 48);
  CHECK(together.operator()<true>({12, 12, 4, 4096, 8192}, Causal{}) == 10);  // 3 MiB of queries for one of keys
  CHECK(together.operator()<false>({3, 12, 4, 4096, 8192, 1}, Causal{}) == 1);
  CHECK(together.operator()<false>({3, 12, 4, 16, 0}, Causal{}) == 36);
  CHECK(together.operator()<false>(z, Full{}) == 1);
  CHECK(together.operator()<false>(z, Window{5000, false}) == 1);
  CHECK(work_order<true, 128, 64>(z, Causal{}).blocks == 64);
  CHECK(work_order<true, 128, 64>(z, Causal{}).works() == 64 * 12);
  CHECK(work_order<false, 128, 64>(z, Causal{}).works() == 32 * 36);
}

TEST_CASE("cuda attention: causal work ends everywhere at about one time", "[cuda]") {
  for (int n : {1024, 2048, 4096, 8192}) {
    INFO("n " << n);
    const Sizes z{1, 131072 / n, 131072 / n, n, n};
    CHECK(end(work_order<false, 128, 128>(z, Causal{})) < 1.02);
    CHECK(end(WorkOrder(n / 128, 131072 / n, 1, 1)) > 1.1);  // head after head
  }
}
