// What dropout draws, beside its rows in support/cases_loss.cpp.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/number/philox.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("dropout: no two calls share a block of random words", "[ops][dropout]") {
  for (int64_t n : {0, 1, 3, 4, 5, 8, 63, 65}) {
    Rng rng(3);
    dropout(ones({n}), 0.5, rng);
    CHECK(rng.offset() == static_cast<uint64_t>((n + 3) / 4));
  }
  Rng idle(3);
  dropout(ones({9}), 0, idle);
  CHECK(idle.offset() == 0);
}

TEST_CASE("words of a stream: any run of them, from any place in a block", "[ops][dropout]") {
  const uint64_t seed = 0x123456789abcdef0, block = 0xfffffff8;  // the blocks' numbers get a second word
  int64_t wrong = 0;
  for (int64_t skip : {0, 1, 2, 3, 4, 7, 30})
    for (int64_t n : {0, 1, 2, 3, 4, 5, 28, 29, 33, 254, 255, 256, 257, 511, 700}) {
      int64_t next = 0;
      detail::for_philox_words(seed, block, skip, n, [&](int64_t i, const uint32_t* words, int64_t count) {
        wrong += i != next;
        next = i + count;
        for (int64_t k = 0; k < count; ++k) {
          const int64_t at = skip + i + k;
          wrong += words[k] != detail::philox_block(seed, block + static_cast<uint64_t>(at / 4)).word[at % 4];
        }
      });
      wrong += next != n;
    }
  CHECK(wrong == 0);
}
