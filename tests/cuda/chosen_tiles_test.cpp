// The tiles that rung 4 visits of chosen blocks: those with a pair that is seen and no others, with a mark where a pair
// is not seen; against all pairs.
#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/cuda/attention/chosen_blocks.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Sizes {
  int64_t batch, heads, kv_heads, m, n;
};

template <bool by_keys, int cols>
void check_lists(const Sizes& z, const detail::AttentionCall& call, const NaiveMask& naive, cuda::Window span) {
  constexpr int64_t rows = 128;
  cuda::ChosenTiles tiles(call, span);
  const cuda::ChosenBlocks mask = tiles.lists<by_keys, cols>();
  const int64_t heads = by_keys ? z.kv_heads : z.heads, own = by_keys ? z.n : z.m, others = by_keys ? z.m : z.n;
  each_index({z.batch, heads, ceil_div(own, rows)}, [&](const Dims& i) {
    std::vector<int> want;
    for (int64_t member = 0; member < (by_keys ? z.heads / z.kv_heads : 1); ++member)
      for (int64_t at = 0; at < others; at += cols) {
        bool seen = false, cut = at + cols > others;
        for (int64_t x = i[2] * rows; x < std::min(own, (i[2] + 1) * rows); ++x)
          for (int64_t y = at; y < std::min(others, at + cols); ++y) {
            const int64_t head = by_keys ? i[1] * (z.heads / z.kv_heads) + member : i[1];
            const bool sees = by_keys ? naive.sees(i[0], head, y, x) : naive.sees(i[0], head, x, y);
            seen |= sees, cut |= !sees;
          }
        if (seen) want.push_back(static_cast<int>(at + 2 * member + cut));
      }
    std::vector<int> got(static_cast<std::size_t>(mask.length));
    const int begin = mask.list_of(static_cast<int>(i[0]), static_cast<int>(i[1]), static_cast<int>(i[2]));
    cuda::copy_to_host(got.data(), mask.lists + begin, got.size() * sizeof(int));
    got.resize(static_cast<std::size_t>(1 + got[0])), got.erase(got.begin());
    INFO("by_keys " << by_keys << ", cols " << cols << ", batch " << i[0] << ", head " << i[1] << ", block " << i[2]);
    CHECK(got == want);
  });
}

}  // namespace

TEST_CASE("cuda attention: the tiles of chosen blocks that are visited", "[cuda]") {
  Rand rand(3);
  for (const Sizes& z : {Sizes{1, 2, 1, 200, 333}, {2, 4, 2, 333, 200}, {1, 2, 2, 128, 2200}, {1, 2, 1, 2200, 128}})
    for (const int64_t block : {64, 192})
      for (const int rank : {2, 3, 4})
        for (const bool causal : {false, true}) {
          const int64_t rows = rank == 4 ? z.m : ceil_div(z.m, block), cols = ceil_div(z.n, block);
          const Shape shape = rank == 2   ? Shape{rows, cols}
                              : rank == 3 ? Shape{z.heads, rows, cols}
                                          : Shape{z.batch, z.kv_heads, rows, cols};
          std::vector<double> chosen;
          for (int64_t i = 0; i < shape.numel(); ++i)  // of each query: few, so that neighbours miss a tile together
            chosen.push_back(rand.uniform(0, 1) < (rank == 4 ? 0.01 : 0.4));
          AttentionMask here{.causal = causal, .blocks = tensor_of(chosen, shape, boolean, cpu), .block = block};
          const NaiveMask naive(here, z.m, z.n, z.heads);
          const Tensor q = zeros({z.batch, z.heads, z.m, 64}, {bf16, Device::cuda()}),
                       k = zeros({z.batch, z.kv_heads, z.n, 64}, {bf16, Device::cuda()});
          AttentionOptions o{.scale = 1.0, .mask = to(here, Device::cuda())};
          const detail::AttentionCall call{q, k, k, o};
          INFO("m " << z.m << ", n " << z.n << ", block " << block << ", rank " << rank << ", causal " << causal);
          const cuda::Window span{1 << 30, causal};
          check_lists<false, 128>(z, call, naive, span), check_lists<false, 64>(z, call, naive, span);
          check_lists<true, 64>(z, call, naive, span);
        }
}
