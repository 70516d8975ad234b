// The cache of keys and values against a plain list of rows: what is kept, what a call returns,
// in what memory, and that copies never disturb each other.
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/core/node.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/nn/kv_cache.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Rows [from, to) of a long stream.
Tensor rows(const Tensor& stream, int64_t from, int64_t to) { return narrow(stream, 2, from, to - from); }

}  // namespace

TEST_CASE("kv_cache: keeps what a list would, for every window and every cut of the stream", "[kv_cache]") {
  Rand rand(1);
  const Tensor k = random_tensor({2, 3, 26, 4}, f64, rand), v = random_tensor({2, 3, 26, 5}, f64, rand);
  for (int64_t window : {0, 1, 2, 3, 4, 7, 13, 26, 40})
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{1}, {2}, {3, 1}, {5, 1, 1, 1}, {4}, {7}, {8, 1, 1}, {1, 1, 13}, {26}, {0, 2}}) {
      KvCache cache;
      for (std::size_t step = 0; cache.length < 26; ++step) {
        const int64_t before = cache.length, m = std::min(sizes[step % sizes.size()], 26 - before);
        const int64_t total = before + m;
        const std::vector<Tensor> seen = cache.append({rows(k, before, total), rows(v, before, total)}, window);
        INFO("window " << window << ", " << m << " rows after " << before);
        const int64_t kept = window > 0 ? std::min(window, total) : total;
        REQUIRE(cache.length == total);
        REQUIRE(cache.stored() == kept);
        CHECK(same_bits(cache.rows()[0], rows(k, total - kept, total)));
        CHECK(same_bits(cache.rows()[1], rows(v, total - kept, total)));
        CHECK(cache.numel() == 2 * 3 * kept * (4 + 5));
        // Query before + i reaches back to before + i − (W − 1).
        if (m == 0) continue;
        const int64_t first = window > 0 ? std::max<int64_t>(0, before - (window - 1)) : 0;
        CHECK(same_bits(seen[0], rows(k, first, total)));
        CHECK(same_bits(seen[1], rows(v, first, total)));
      }
    }
}

TEST_CASE("kv_cache: a window takes memory for 5/4 W rows, or W + 1, and no more; else capacity doubles",
          "[kv_cache]") {
  Rand rand(2);
  for (int64_t window : {0, 1, 6, 16}) {
    KvCache cache;
    const int64_t spare = std::max<int64_t>(1, (window + 2) / 4);
    int64_t moves = 0;
    const std::byte* at = nullptr;
    for (int64_t i = 0; i < 50; ++i) {
      cache.append({random_tensor({1, 2, 1, 4}, f32, rand), random_tensor({1, 2, 1, 4}, f32, rand)}, window);
      const Tensor& keys = cache.buffers[0];
      if (keys.raw() != at) at = keys.raw(), ++moves;
      CHECK(keys.shape() == cache.buffers[1].shape());
      CHECK(keys.dim(2) < std::max<int64_t>(2, window > 0 ? window + spare + 1 : 2 * (i + 1)));
    }
    CHECK(moves <= (window > 0 ? 7 + 50 / spare : 7));
    CHECK(cache.buffers[0].dtype() == f32);
  }
}

TEST_CASE("kv_cache: copies never disturb each other", "[kv_cache]") {
  Rand rand(3);
  const Tensor k = random_tensor({1, 1, 12, 2}, f64, rand), v = random_tensor({1, 1, 12, 2}, f64, rand);
  const Tensor other = random_tensor({1, 1, 12, 2}, f64, rand);
  for (int64_t window : {0, 3, 5, 20})
    for (int64_t shared = 0; shared < 9; ++shared)
      for (int64_t m : {1, 2, 3}) {
        KvCache cache;
        for (int64_t i = 0; i < shared; ++i) cache.append({rows(k, i, i + 1), rows(v, i, i + 1)}, window);
        KvCache copy = cache;
        cache.append({rows(k, shared, shared + m), rows(v, shared, shared + m)}, window);
        copy.append({rows(other, shared, shared + m), rows(other, shared, shared + m)}, window);
        const KvCache third = copy;
        copy.append({rows(other, 0, 1), rows(other, 0, 1)}, window);
        INFO("window " << window << ", " << shared << " shared rows, " << m << " more");
        const int64_t kept = cache.stored(), total = shared + m;
        CHECK(same_bits(cache.rows()[0], rows(k, total - kept, total)));
        CHECK(same_bits(cache.rows()[1], rows(v, total - kept, total)));
        CHECK(same_bits(rows(third.rows()[0], third.stored() - std::min(third.stored(), m), third.stored()),
                        rows(other, total - std::min(third.stored(), m), total)));
      }
  // Rows that a caller still holds are not overwritten either.
  KvCache kept;
  kept.append({rows(k, 0, 2), rows(v, 0, 2)}, 2);
  const std::vector<Tensor> held = kept.append({rows(k, 2, 3), rows(v, 2, 3)}, 2);
  const Tensor before = clone(held[0]);
  kept.append({rows(k, 3, 4), rows(v, 3, 4)}, 2);
  CHECK(same_bits(held[0], before));
}

TEST_CASE("kv_cache: the rows of the last call can be taken back", "[kv_cache]") {
  Rand rand(6);
  const Tensor k = random_tensor({2, 2, 24, 3}, f64, rand), v = random_tensor({2, 2, 24, 4}, f64, rand);
  const Tensor other = random_tensor({2, 2, 24, 3}, f64, rand), values = random_tensor({2, 2, 24, 4}, f64, rand);
  for (int64_t window : {0, 1, 3, 5, 20})
    for (int64_t before = 0; before < 12; ++before)
      for (int64_t m : {0, 1, 2, 3, 7})
        for (bool shared : {false, true}) {
          INFO("window " << window << ", " << m << " rows after " << before << (shared ? ", of two copies" : ""));
          KvCache cache, copy;
          for (int64_t i = 0; i < before; ++i) cache.append({rows(k, i, i + 1), rows(v, i, i + 1)}, window);
          if (shared) copy = cache;
          for (int trial = 0; trial < 2; ++trial) {
            cache.append({rows(other, 0, m), rows(values, 0, m)}, window);
            if (window == 0) cache.append({rows(other, 0, m), rows(values, 0, m)});
            cache.take_back(before);
          }
          for (KvCache* c : {&cache, &copy}) {
            if (c == &copy && !shared) continue;
            CHECK(c->length == before);
            for (int64_t total : {before, before + 1, before + 5}) {
              if (total > before) c->append({rows(k, c->length, total), rows(v, c->length, total)}, window);
              if (total == 0) continue;
              const int64_t from = window > 0 ? std::max<int64_t>(0, total - window) : 0;
              CHECK(same_bits(c->rows()[0], rows(k, from, total)));
              CHECK(same_bits(c->rows()[1], rows(v, from, total)));
            }
          }
        }
}

TEST_CASE("kv_cache: many rows at once are kept no longer than until the next, or until trim()", "[kv_cache]") {
  Rand rand(7);
  const Tensor k = random_tensor({1, 1, 300, 2}, f32, rand);
  KvCache cache;
  CHECK(same_bits(cache.append({rows(k, 0, 200)}, 8)[0], rows(k, 0, 200)));
  CHECK(same_bits(cache.append({rows(k, 200, 201)}, 8, 1000)[0], rows(k, 193, 201)));
  CHECK(cache.buffers[0].dim(2) == 8 + 2);
  CHECK(same_bits(cache.append({rows(k, 201, 300)}, 8)[0], rows(k, 194, 300)));
  CHECK(same_bits(cache.rows()[0], rows(k, 292, 300)));
  cache.trim();
  CHECK(cache.buffers[0].dim(2) == 8);
  CHECK(same_bits(cache.rows()[0], rows(k, 292, 300)));
  CHECK(same_bits(cache.append({rows(k, 0, 1)}, 8)[0], cat({rows(k, 293, 300), rows(k, 0, 1)}, 2)));
}

TEST_CASE("kv_cache: in the file of a stream the row of position p of a full window W is p mod W", "[kv_cache]") {
  const TempFolder folder;
  const std::string path = folder / "stream";
  Rng rng(8);
  const MultiHeadAttention layer({.heads = {.dim = 4, .heads = 1, .causal = true}, .window = 5}, rng);
  for (int64_t tokens : {3, 5, 7, 10, 12}) {
    Stream stream;
    step(layer, normal({2, tokens, 4}, 0, 1, rng), stream);
    std::vector<Tensor> kept;
    stream.each_tensor([&](const Tensor& x) { kept.push_back(x); });
    save(stream, path);
    const Tensor filed = load_safetensors(path).tensors.at("0.ring.0");
    REQUIRE(filed.shape() == kept[0].shape());
    const int64_t count = std::min<int64_t>(tokens, 5);
    for (int64_t p = tokens - count; p < tokens; ++p)
      CHECK(same_bits(select(filed, 2, p % 5), select(kept[0], 2, p - (tokens - count))));
  }
}

TEST_CASE("kv_cache: rows of different heads and widths, as many kinds as a layer keeps", "[kv_cache]") {
  Rand rand(4);
  const Tensor k = random_tensor({2, 4, 9, 3}, f64, rand), v = random_tensor({2, 2, 9, 5}, f64, rand),
               c = random_tensor({2, 1, 9, 1}, f64, rand);
  for (int64_t window : {0, 4}) {
    KvCache cache;
    for (int64_t at = 0; at < 9; at += 3) {
      const std::vector<Tensor> seen =
          cache.append({rows(k, at, at + 3), rows(v, at, at + 3), rows(c, at, at + 3)}, window);
      const int64_t first = window > 0 ? std::max<int64_t>(0, at - (window - 1)) : 0;
      REQUIRE(seen.size() == 3);
      CHECK(same_bits(seen[0], rows(k, first, at + 3)));
      CHECK(same_bits(seen[1], rows(v, first, at + 3)));
      CHECK(same_bits(seen[2], rows(c, first, at + 3)));
    }
    CHECK(same_bits(cache.rows()[2], rows(c, window > 0 ? 9 - window : 0, 9)));
    CHECK(cache.numel() == 2 * cache.stored() * (4 * 3 + 2 * 5 + 1));
    CHECK_THROWS_AS(cache.append({rows(k, 0, 1), rows(v, 0, 1)}, window), ValueError);  // one kind is missing
    CHECK_THROWS_WITH(cache.append({rows(k, 0, 1), rows(v, 0, 1), rows(c, 0, 1)}, 7), Contains("window"));
    CHECK(cache.length == 9);
  }
}

TEST_CASE("kv_cache: has no history, and says what does not fit", "[kv_cache]") {
  Tensor k = ones({2, 3, 4, 5}).requires_grad_();
  KvCache cache;
  CHECK_THROWS_AS(cache.rows()[0], ValueError);
  CHECK(cache.numel() == 0);
  CHECK_FALSE(cache.append({k, k})[0].requires_grad());
  CHECK_FALSE(cache.buffers[0].requires_grad());
  CHECK_THROWS_AS(cache.append({ones({2, 3, 5}), ones({2, 3, 5})}), ShapeError);
  CHECK_THROWS_WITH(cache.append({ones({2, 3, 1, 5}), ones({2, 3, 2, 5})}),
                    Contains("[2,3,1,5]") && Contains("[2,3,2,5]"));
  CHECK_THROWS_WITH(cache.append({ones({1, 3, 1, 5}), ones({1, 3, 1, 5})}),
                    Contains("[1,3,1,5]") && Contains("kv_cache"));
  CHECK_THROWS_WITH(cache.append({ones({2, 2, 1, 5}), ones({2, 2, 1, 5})}), Contains("[2,2,1,5]"));
  CHECK_THROWS_WITH(cache.append({ones({2, 3, 1, 5}), ones({2, 3, 1, 6})}),
                    Contains("values") && Contains("[2,3,1,6]"));
  CHECK_THROWS_AS(cache.append({ones({2, 3, 1, 5}, {f64}), ones({2, 3, 1, 5}, {f64})}), DTypeError);
  CHECK(cache.length == 4);
  KvCache wrong;
  CHECK_THROWS_AS(wrong.append({k, k}, -1), ValueError);
}
