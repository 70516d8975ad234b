// Blocks of keys for each query: the engine visits only the tiles that some query has, with the rows that have them
// gathered. Against the same pairs as a dense mask, at sizes beyond every tile.
#include "support/attention_samples.h"
#include "support/catch.h"

#include <sluice/core/kernel/cpu.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

Tensor engine(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o, Rng* rng) {
  return attention(q, k, v, o, rng);
}

/// The blocks as pairs, bool [batch, heads, m, n], without the library's rules.
Tensor as_pairs(const Tensor& blocks, int64_t block, int64_t heads, int64_t n) {
  const Tensor columns = narrow(repeat_interleave(blocks, block, -1), -1, 0, n);
  return repeat_interleave(columns, heads / blocks.dim(1), 1);
}

}  // namespace

TEST_CASE("attention: blocks of each query = the dense mask, beyond every tile", "[attention][blocks]") {
  Rand rand(7);
  struct Case {
    int64_t m, n, heads, kv_heads, groups, batches, block;
    double share;
    DType dtype;
  };
  for (const Case& c : {Case{1100, 1203, 2, 1, 2, 2, 64, 0.1, f64}, Case{1100, 1203, 2, 1, 1, 1, 100, 0.1, f64},
                        Case{700, 700, 4, 2, 2, 2, 16, 0.03, f64}, Case{600, 900, 2, 2, 1, 2, 300, 0.4, f64},
                        Case{530, 530, 2, 2, 2, 1, 5, 0.02, f64}, Case{1100, 1203, 2, 1, 2, 2, 64, 0.1, f32},
                        Case{3, 900, 4, 2, 2, 2, 64, 0.3, f64}, Case{520, 520, 2, 1, 1, 2, 32, 0, f64}}) {
    AttentionSample s = plain_attention(rand, {2, c.heads, c.m, 24}, c.kv_heads, c.n, 27).in(c.dtype);
    s.options.mask.causal = c.share != 0.03;
    s.options.mask.block = c.block;
    s.options.mask.blocks =
        random_tensor({c.batches, c.groups, c.m, (c.n + c.block - 1) / c.block}, f64, rand, 0, 1) < c.share;
    for (int variant = 0; variant < 4; ++variant) {
      if (variant == 1) s.options.mask.keys = random_tensor({2, c.n}, f64, rand) > -0.7;
      if (variant == 2) s.options.sink = random_tensor({c.heads}, c.dtype, rand), s.options.dropout = 0.2;
      if (variant == 3) {
        s.options.mask.window = 400, s.options.dropout = 0, s.options.sink = Tensor();
        s.options.weighting = Weighting::relu2, s.options.softcap = 3;
        s.options.row_scale = random_tensor({2, 1, c.m}, c.dtype, rand);
        s.options.relative_bias = random_tensor({1, c.n + c.m - 1}, c.dtype, rand);
      }
      AttentionSample dense = s;
      dense.options.mask.blocks = Tensor(), dense.options.mask.block = 0;
      dense.options.mask.dense = as_pairs(s.options.mask.blocks, c.block, c.heads, c.n);
      const double tolerance = c.dtype == f64 ? 1e-13 : 1e-5;
      check_all_close(run_attention(engine, s), run_attention(engine, dense), tolerance, 10 * tolerance,
                      str("m=", c.m, " n=", c.n, " block=", c.block, " variant ", variant));
    }
  }
}

TEST_CASE("attention: what no query has a block of may hold NaN", "[attention][blocks]") {
  Rand rand(8);
  const int64_t n = 1100, block = 50;
  AttentionSample s = plain_attention(rand, {1, 2, n, 8}, 1, n, 8);
  Tensor blocks = random_tensor({1, 2, n, n / block}, f64, rand, 0, 1) < 0.2;
  const Tensor hidden = arange(n / block) == 7.0;
  blocks = logical_and(blocks, logical_not(hidden));
  s.options.mask = {.causal = true, .blocks = blocks, .block = block};
  const std::vector<Tensor> want = run_attention(engine, s);
  const Tensor rows = unsqueeze(repeat_interleave(hidden, block, 0), -1);
  s.k = filled(s.k, rows, std::numeric_limits<double>::quiet_NaN());
  s.v = filled(s.v, rows, std::numeric_limits<double>::infinity());
  check_all_close(run_attention(engine, s), want, 1e-13, 1e-13, "NaN behind the blocks");
}

TEST_CASE("attention: gathered or not, a query's bits depend on nothing later", "[attention][blocks]") {
  const int64_t n = 1000, block = 32;
  for (const DType dtype : {f32, f64}) {
    Rand rand(9);
    const auto drawn = [&](int64_t heads) { return random_tensor({1, heads, n, 40}, dtype, rand); };
    const Tensor q = drawn(4), k = drawn(2), v = drawn(2), q2 = drawn(4), k2 = drawn(2), v2 = drawn(2);
    const auto drawn_blocks = [&] { return random_tensor({1, 2, n, (n + block - 1) / block}, f64, rand, 0, 1) < 0.2; };
    const Tensor blocks = drawn_blocks(), blocks2 = drawn_blocks();
    const auto run = [&](int64_t same) {  // rows `same` and later are others
      const auto cut = [&](const Tensor& x, const Tensor& y) {
        return cat({narrow(x, 2, 0, same), narrow(y, 2, same, n - same)}, 2);
      };
      const AttentionMask mask{.causal = true,
                               .blocks = cat({narrow(blocks, 2, 0, same), narrow(blocks2, 2, same, n - same)}, 2),
                               .block = block};
      return attention(cut(q, q2), cut(k, k2), cut(v, v2), {.mask = mask});
    };
    const Tensor all = run(n);
    // Where OpenBLAS computes all products, the number of rows decides the order of their sums.
    const bool exact = isa() > Isa::base;
    for (const int64_t same : {999, 700, 520, 40}) {
      const Tensor got = narrow(run(same), 2, 0, same), want = narrow(all, 2, 0, same);
      CHECK((exact ? same_bits(got, want) : max_abs_diff(got, want) <= (dtype == f32 ? 1e-5 : 1e-14)));
    }
  }
}
