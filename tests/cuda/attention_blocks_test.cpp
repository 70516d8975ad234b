// Attention over chosen blocks of keys under Precision::bf16 against double loops: blocks for all heads, of each head,
// of each query; sizes beyond every tile; groups of heads, causality, windows, key masks, sinks; queries that choose
// nothing, keys that nobody chose, NaN in both.
#include "attention_bf16_check.h"

using namespace sluice;
using namespace sluice::testing;
using namespace sluice::testing::bf16_attention;

namespace {

enum class Choice { shared, head, query, group };

/// A mask whose blocks are chosen with probability `part`. The first rows of the blocks choose nothing, the last ones
/// all, and nobody but those the second column. With each_chooses all choose the first column: then no query and no key
/// is without a pair, and so full of NaN.
AttentionMask chosen(const Sample& c, Choice choice, int64_t block, double part, uint64_t seed, AttentionMask mask,
                     bool each_chooses) {
  const bool by_query = choice == Choice::query || choice == Choice::group;
  const int64_t rows = by_query ? c.m : ceil_div(c.m, block), cols = ceil_div(c.n, block);
  const int64_t slabs = choice == Choice::shared  ? 1
                        : choice == Choice::group ? c.kv_heads
                                                  : c.heads,
                batches = choice == Choice::query ? c.batch : 1;
  Rand rand(seed);
  std::vector<double> bits;
  each_index({batches, slabs, rows, cols}, [&](const Dims& i) {
    const bool draw = rand.uniform(0, 1) < part;
    bits.push_back(i[2] + 1 == rows || (each_chooses && i[3] == 0) || (draw && i[2] > 0 && i[3] != 1));
  });
  const Tensor x = tensor_of(bits, {batches, slabs, rows, cols}, boolean, cpu);
  mask.blocks = by_query ? x : choice == Choice::head ? reshape(x, {slabs, rows, cols}) : reshape(x, {rows, cols});
  mask.block = block;
  return mask;
}

void check_blocks(Sample c, Choice choice, int64_t block, AttentionMask mask = {}, double part = 0.4,
                  bool each_chooses = false) {
  static uint64_t seed = 0;
  INFO("choice " << static_cast<int>(choice) << ", block " << block << ", part " << part);
  c.mask = chosen(c, choice, block, part, ++seed, mask, each_chooses);
  check(c, seed);
}

constexpr Choice kChoices[] = {Choice::shared, Choice::head, Choice::query, Choice::group};

}  // namespace

TEST_CASE("cuda attention over chosen blocks: sizes beyond every tile", "[cuda]") {
  for (const Choice choice : kChoices)
    for (const bool causal : {false, true}) {
      if (causal) check_blocks({1, 2, 1, 128, 128, 64}, choice, 64, {.causal = true});
      check_blocks({1, 2, 2, 129, 200, 64}, choice, 64, {.causal = causal});
      check_blocks({1, 4, 2, 200, 129, 64}, choice, 128, {.causal = causal});  // causal: the first queries see nothing
      if (causal == (choice == Choice::shared || choice == Choice::query))
        check_blocks({choice == Choice::query ? 2 : 1, 2, 1, 200, 261, 128}, choice, 64, {.causal = causal});
    }
  check_blocks({1, 1, 1, 333, 333, 64}, Choice::shared, 192, {.causal = true});
  check_blocks({1, 1, 1, 520, 520, 64}, Choice::query, 64, {.causal = true}, 0.1);
  check_blocks({1, 1, 1, 450, 450, 128}, Choice::shared, 64, {.causal = true}, 0.2);
}

TEST_CASE("cuda attention over chosen blocks: more keys than a word of bits", "[cuda]") {
  check_blocks({1, 1, 1, 128, 2200, 64}, Choice::query, 64, {.causal = true}, 0.02);
  check_blocks({1, 1, 1, 2200, 128, 64}, Choice::shared, 64, {}, 0.3);
}

TEST_CASE("cuda attention over chosen blocks: nothing chosen, all chosen", "[cuda]") {
  for (const Choice choice : {Choice::shared, Choice::query})
    for (const double part : {0.0, 1.0}) {
      check_blocks({1, 2, 1, 200, 200, 64}, choice, 64, {.causal = true}, part);
      check_blocks({1, 1, 1, 257, 257, 128}, choice, 128, {}, part);
    }
}

TEST_CASE("cuda attention over chosen blocks: key masks, windows, sinks, widths filled up with zeros", "[cuda]") {
  for (const Choice choice : {Choice::head, Choice::query}) {
    check_blocks({2, 2, 1, 200, 200, 64, Weighting::softmax, {}, true}, choice, 64, {.causal = true});
    check_blocks({2, 2, 1, 129, 260, 128, Weighting::softmax, {}, true, true}, choice, 64);
    check_blocks({1, 2, 2, 200, 260, 64, Weighting::softmax, {}, false, true}, choice, 64,
                 {.causal = true, .window = 100});
    check_blocks({1, 2, 1, 200, 200, 128}, choice, 64, {.window = 70});
    if (choice == Choice::head) continue;
    check_blocks({1, 2, 1, 150, 150, 30}, choice, 64, {.causal = true});
    check_blocks({1, 2, 1, 150, 150, 96, Weighting::softmax, {}, false, false, Poison::none, 62}, choice, 64,
                 {.causal = true});
  }
}

TEST_CASE("cuda attention over chosen blocks: NaN reaches those who chose it, and nobody else", "[cuda]") {
  for (const Poison poison : {Poison::key, Poison::query})
    for (const Choice choice : kChoices)
      for (const int64_t d : {64, 128})
        check_blocks({1, d == 64 ? 2 : 1, 1, 200, 200, d, Weighting::softmax, {}, false, false, poison}, choice, 64,
                     {.causal = d == 64}, 0.5);
  // One operand alone, or none: all else is finite.
  for (const Poison poison : {Poison::none, Poison::k, Poison::v, Poison::q, Poison::g})
    for (const int64_t d : {64, 128}) {
      if (d == 128 && poison != Poison::v && poison != Poison::q) continue;
      check_blocks({1, d == 64 ? 2 : 1, 1, 130, 200, d, Weighting::softmax, {}, false, false, poison}, Choice::query,
                   64, {.causal = d == 64}, 0.5, true);
    }
}

TEST_CASE("cuda attention over chosen blocks: other blocks, and fewer queries or keys than a tile", "[cuda]") {
  for (const Choice choice : {Choice::shared, Choice::query}) {
    check_blocks({1, 2, 1, 64, 64, 64}, choice, 64, {.causal = true});
    check_blocks({1, 2, 1, 65, 200, 64}, choice, 64, {.causal = true});
    check_blocks({1, 2, 1, 200, 200, 64}, choice, 48, {.causal = true});
  }
}
