// Attention to a window and to rows of pools: against one softmax over keys and rows side by side, streams, pieces over
// ranks, and what it refuses. The table compares its samples with loops.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/compressed_attention.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/parallel/sequence.h>

#include <vector>

using namespace sluice;
using namespace sluice::testing;

namespace {

CompressedAttentionOptions sized(int64_t pool, bool overlap, int64_t topk) {
  return {.dim = 12,
          .heads = 4,
          .head_dim = 6,
          .q_rank = 7,
          .rope_dim = 4,
          .window = 5,
          .pool = pool,
          .overlap = overlap,
          .topk = topk,
          .index_heads = 3,
          .index_dim = 5,
          .out_groups = 2,
          .out_rank = 3,
          .dtype = f64};
}
/// The three kinds of DeepSeek-V4.
std::vector<CompressedAttentionOptions> kinds() { return {sized(4, true, 3), sized(9, false, 0), sized(0, false, 0)}; }

}  // namespace

TEST_CASE("compressed_attention: a wide window is attention of one key head; far keys count by their pools alone",
          "[layers][compressed]") {
  Rand rand(1);
  Rng rng(2);
  const int64_t n = 40;
  const Tensor x = random_tensor({2, n, 12}, f64, rand);
  CompressedAttentionOptions o = sized(0, false, 0);
  o.rope_dim = 0, o.window = n, o.out_groups = 1;
  CompressedAttention plain(o, rng);
  plain.sink = random_tensor({4}, f64, rand);
  const Tensor q = rms_norm(detail::split_heads(plain.q_up(plain.q_norm(plain.q_down(x))), 4), {}, 1e-6),
               k = unsqueeze(plain.kv_norm(plain.kv(x)), 1);
  const Tensor heads = attention(q, k, k, {.mask = {.causal = true}, .sink = plain.sink});
  CHECK(max_abs_diff(plain(x), plain.out_up(plain.out_down(detail::merge_heads(heads)))) <= 1e-13);

  // What a later query sees of a token beyond the window: its own pool and, with overlap, the one after it.
  for (const bool overlap : {true, false}) {
    const CompressedAttention layer(sized(4, overlap, 0), rng);
    Tensor there = clone(x);
    const Tensor y = layer(x);
    Tensor token = narrow(there, 1, 9, 1);  // of the pool 8 … 11
    fill_(token, 0.7);
    const Tensor far = layer(there);
    CHECK(max_abs_diff(narrow(far, 1, 0, 9), narrow(y, 1, 0, 9)) == 0);
    CHECK(max_abs_diff(narrow(far, 1, 20, 20), narrow(y, 1, 20, 20)) > 1e-4);
    CompressedAttention alone = layer;  // rows of later pools alone
    alone.options.topk = 1;
    const Tensor rows = layer.compressor.rows(x), changed = layer.compressor.rows(there);
    const Tensor differ = max(abs(layer.compressor.pooled(changed) - layer.compressor.pooled(rows)), {0, 2}) > 0.0;
    std::vector<bool> want(10, false);
    want[2] = true, want[3] = overlap;
    CHECK(differ.to_vector<bool>() == want);
  }
}

TEST_CASE("compressed_attention: distances alone count", "[layers][compressed]") {
  Rand rand(3);
  Rng rng(4);
  const int64_t n = 30;
  const Tensor x = random_tensor({2, n, 12}, f64, rand);
  for (CompressedAttentionOptions o : kinds()) {
    INFO(o.pool);
    const CompressedAttention layer(o, rng);
    CompressedAttention later = layer;
    later.options.rope.offset = 1000;
    later.compressor.options.rope.offset = later.index_compressor.options.rope.offset = 1000;
    CHECK(max_abs_diff(later(x), layer(x)) <= 1e-11);
    // Padding before, between pools and behind changes nothing but distances.
    const Tensor padded = cat({full({2, 7, 12}, NAN, {f64}), x, full({2, 3, 12}, NAN, {f64})}, 1);
    const Tensor real = cat({zeros({2, 7}, {boolean}), ones({2, n}, {boolean}), zeros({2, 3}, {boolean})}, 1);
    CHECK(max_abs_diff(narrow(layer(padded, {.key_mask = real}), 1, 7, n), layer(x)) <= 1e-12);
  }
}

TEST_CASE("compressed_attention: enough rows are all rows; the choice has no gradient; streams in any pieces",
          "[layers][compressed]") {
  Rand rand(5);
  Rng rng(6);
  const int64_t n = 130;
  const Tensor x = random_tensor({2, n, 12}, f64, rand), real = random_tensor({2, n}, f64, rand) > -0.8;
  for (const CompressedAttentionOptions& o : kinds()) {
    INFO(o.pool);
    const CompressedAttention layer(o, rng);
    CompressedAttention all = layer, enough = layer;
    all.options.topk = 0, enough.options.topk = n;
    for (const Tensor& mask : {Tensor(), real}) {
      const Tensor want = all(x, {.key_mask = mask});
      if (o.topk == 0) continue;
      CHECK(max_abs_diff(enough(x, {.key_mask = mask}), want) <= 1e-13);
      CHECK(max_abs_diff(layer(x, {.key_mask = mask}), want) > 1e-3);
    }
    const Tensor y = layer(x);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{1}, {99, 1, 1, 3}, {64, 5, 61}})
      CHECK(max_abs_diff(streamed(layer, x, pieces), y) <= 1e-12 * max_abs(y));
    // Padding may come late, into a stream that has rows of whole pools.
    Tensor late = clone(real), early = narrow(late, 1, 0, 70);
    fill_(early, true);
    Stream padded;
    const Tensor head = step(layer, narrow(x, 1, 0, 70), padded),
                 tail = step(layer, narrow(x, 1, 70, 60), padded, {.key_mask = narrow(late, 1, 70, 60)}),
                 hidden = unsqueeze(logical_not(late), -1);
    CHECK(max_abs_diff(masked_fill(cat({head, tail}, 1), hidden, 0),
                       masked_fill(layer(x, {.key_mask = late}), hidden, 0)) <= 1e-12);
    for (const NamedTensor& p : parameters(layer)) {
      INFO(p.name);
      const Tensor g = grad({sum(square(layer(x)))}, {p.tensor}, {.allow_unused = true})[0];
      CHECK(g.defined() != p.name.starts_with("index_"));
    }
    Stream stream;
    step(layer, x, stream);
    const int64_t of_key = (o.overlap ? 4 : 2) * (6 + (o.topk > 0 ? 5 : 0)),
                  keys = o.pool == 0 ? 0 : n % o.pool + (o.overlap ? o.pool : 0);  // that later pools read
    const int64_t rows = o.pool == 0 ? 0 : n / o.pool * (6 + (o.topk > 0 ? 5 : 0));
    CHECK(stream.numel() == 2 * (5 * 6 + keys * of_key + rows));
  }
}

TEST_CASE("compressed_attention: of a sequence cut over ranks, beside padding", "[layers][compressed][sequence]") {
  Rand rand(7);
  Rng rng(8);
  const int64_t n = 90;
  const Tensor x = random_tensor({2, n, 12}, f64, rand), real = random_tensor({2, n}, f64, rand) > -0.8;
  const std::vector<int64_t> first{0, 37, 40}, lengths{37, 3, 50};
  for (const CompressedAttentionOptions& o : kinds())
    for (const Tensor& key_mask : {Tensor(), real}) {
      INFO(o.pool);
      const CompressedAttention layer(o, rng);
      std::vector<Tensor> cut(3);
      run_ranks(3, [&](const Communicator& c) {
        const auto r = static_cast<std::size_t>(c.rank());
        const auto piece = [&](const Tensor& t) { return t.defined() ? narrow(t, 1, first[r], lengths[r]) : t; };
        SequenceScope scope(c);
        NoGrad guard;
        cut[r] = layer(piece(x), {.key_mask = piece(key_mask)});
      });
      const auto shown = [&](const Tensor& t) {
        return key_mask.defined() ? masked_fill(t, unsqueeze(logical_not(key_mask), -1), 0) : t;
      };
      CHECK(max_abs_diff(shown(cat(cut, 1)), shown(layer(x, {.key_mask = key_mask}))) < 1e-13);
    }
}

TEST_CASE("compressed_attention: what stays f32 in bf16, and what is refused", "[layers][compressed]") {
  Rng rng(9);
  CompressedAttentionOptions o = sized(4, true, 3);
  CompressedAttention layer(o, rng);
  to(layer, bf16);
  for (const NamedTensor& t : state_dict(layer)) CHECK(t.tensor.dtype() == (t.name.ends_with("position") ? f32 : bf16));
  const Tensor x = normal({1, 9, 12}, 0, 1, rng, {bf16});
  CHECK(layer(x).dtype() == bf16);
  CHECK_THROWS_WITH(layer(x, {.segments = zeros({1, 9}, {i64})}),
                    Contains("compressed_attention") && Contains("documents"));
  const auto refused = [&](auto change, const char* why) {
    CompressedAttentionOptions wrong = o;
    change(wrong);
    CHECK_THROWS_WITH(CompressedAttention(wrong, rng), Contains("compressed_attention") && Contains(why));
  };
  refused([](auto& w) { w.out_groups = 3; }, "out_groups=3 must divide heads=4");
  refused([](auto& w) { w.rope_dim = 8; }, "rope_dim=8 is more than head_dim=6");
  refused([](auto& w) { w.rope_dim = 6; }, "index_dim=5");
  refused([](auto& w) { w.rope_dim = 3; }, "rope_dim=3");
  refused([](auto& w) { w.rope.xpos = 8; }, "rope_xpos=8");
  refused([](auto& w) { w.pool = -1; }, "pool=-1");
  CHECK_THROWS_WITH(PoolCompression({.dim = 4, .width = 4, .rope_dim = 6}, rng),
                    Contains("pool_compression: rope_dim=6"));
  const PoolCompression rows({.dim = 4, .width = 4, .rope_dim = 2}, rng);
  CHECK_THROWS_WITH(rows.pooled(zeros({1, 8, 9})), Contains("pool_compression: got rows=[1,8,9]"));
}
