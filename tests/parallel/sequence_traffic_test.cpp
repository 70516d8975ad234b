// What a cut sequence sends, counted against its formula: for linear-time layers nothing that grows with the length;
// and what a mask takes.
#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/layers/linear_attention/retention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/parallel/sequence_attention.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int kRanks = 4;
constexpr int64_t kPairs = kRanks * (kRanks - 1) / 2;  // of a rank and one before it
constexpr int64_t kBatch = 2;

/// f32 numbers that all ranks together send for a forward and a backward pass over `rows` tokens on each, and the most
/// that one rank sends.
template <class Layer> int64_t sent(const Layer& layer, int64_t rows, int64_t dim) {
  std::vector<int64_t> bytes(kRanks);
  run_ranks(kRanks, [&](const Communicator& c) {
    Rng rng(static_cast<uint64_t>(c.rank()));
    const Tensor x = normal({kBatch, rows, dim}, 0, 1, rng).requires_grad_();
    SequenceScope scope(c);
    Tensor loss = sum(layer(x));
    grad(loss, x);
    bytes[static_cast<std::size_t>(c.rank())] = c.traffic().total().bytes;
  });
  int64_t all = 0;
  for (const int64_t b : bytes) all += b;
  CHECK(all % 4 == 0);
  return all / 4;
}

FlashOptions flash_options() {
  FlashOptions o{.dim = 8};
  o.key_dim = 6, o.expansion = 5, o.chunk = 4, o.causal = true;
  return o;
}

}  // namespace

TEST_CASE("sequence: linear-time layers send states, whatever the length", "[sequence]") {
  Rng rng(1);
  // A state goes from each rank to each after it, its gradient back.
  const LinearAttention linear({.dim = 8, .heads = 2, .direction = LinearDirection::causal}, rng);  // elu + 1: m = 4
  const Retention retention({.dim = 8, .heads = 2}, rng);                                           // dk = 4, dv = 8
  const Gla gla({.dim = 8, .heads = 2, .expand_k = 0.5}, rng);                                      // dk = 2, dv = 4
  const int64_t dk = retention.key_dim(), dv = retention.value_dim();
  const Flash flash(flash_options(), rng);
  for (const int64_t rows : {16, 48}) {
    INFO(rows << " rows on each rank");
    CHECK(sent(linear, rows, 8) == 2 * kPairs * kBatch * 2 * 4 * (4 + 1));       // [v, 1]
    CHECK(sent(retention, rows, 8) == 2 * kPairs * kBatch * 2 * dk * (dv + 1));  // and the decay
    CHECK(sent(gla, rows, 8) == 2 * kPairs * kBatch * 2 * 2 * (gla.value_dim() + 1));
    CHECK(sent(flash, rows, 8) == kPairs * (2 * kBatch * 6 * 5 + 1));  // and how many tokens
  }
  // Chunks that lie across cuts: their rows move, of four operands s wide, v and the output, and their gradients.
  const int64_t moved = (17 % 4 ? 4 - 17 % 4 : 0) + (34 % 4 ? 4 - 34 % 4 : 0) + (51 % 4 ? 4 - 51 % 4 : 0);
  CHECK(sent(flash, 17, 8) == kPairs * (2 * kBatch * 6 * 5 + 1) + 2 * kBatch * moved * (4 * 6 + 5 + 5));
}

TEST_CASE("sequence: attention sends keys and values to those who see them", "[sequence]") {
  Rng rng(1);
  const GatedAttention full({.heads = {.dim = 8, .heads = 2}}, rng),
      causal({.heads = {.dim = 8, .heads = 2, .causal = true}}, rng);
  const MultiHeadAttention window({.heads = {.dim = 8, .heads = 2, .causal = true}, .window = 5}, rng);
  for (const int64_t rows : {8, 24}) {
    const int64_t piece = kBatch * rows * (8 + 8);  // keys and values, and once more backward with their gradients
    // Of the six pairs of ranks one is worked on where the keys are, two in halves: there go q, g, two statistics of
    // the whole, and back come the output with its log-sum-exp, and dq; of 2 heads 4 wide.
    CHECK(sent(causal, rows, 8) == 3 * 5 * piece + 2 * kBatch * rows * 2 * (3 * 4 + 2 * 4 + 3));
    CHECK(sent(full, rows, 8) == 3 * 2 * kPairs * piece);
    CHECK(sent(window, rows, 8) == 2 * (kRanks - 1) * kBatch * 4 * (8 + 8));
  }
}

TEST_CASE("sequence: a mask of m·n bytes takes little more on its way", "[sequence]") {
  const AttentionMask rows_of_window{.window = 8, .global = {0}}, dilated{.dilation = 2};
  for (const AttentionMask& mask : {rows_of_window, dilated}) {
    constexpr int64_t m = 2048;
    const int64_t before = memory_stats().live;
    reset_peak_memory();
    run_ranks(2, [&](const Communicator& all) {
      const SequenceScope scope(all);
      RowRange keys;
      const Tensor seen = detail::fetch_mask(mask, m, cpu, keys).dense;
      expect(seen.shape() == Shape{m, 2 * m}, "each pair");
      for (const int64_t i : {0, 1, 777, 2047}) {  // of these rows the pairs are those of the rules
        const auto row = seen[i].to_vector<double>();
        const int64_t q = i + m * all.rank();
        for (int64_t k = 0; k < 2 * m; ++k) {
          const int64_t apart = std::abs(q - k);
          const bool want = mask.dilation == 2 ? apart % 2 == 0 : apart < 8 || q == 0 || k == 0;
          expect((row[static_cast<std::size_t>(k)] != 0) == want, str("query ", q, ", key ", k));
        }
      }
    });
    CHECK(memory_stats().peak - before < 3 * 2 * m * 2 * m);
  }
}
