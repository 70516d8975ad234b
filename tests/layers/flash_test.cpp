// Mixed-chunk attention of many heads against loops. units_reference.cpp says what the layer computes.
#include "layers/flash_reference.h"
#include "support/catch.h"
#include "support/worse.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("mixed_chunk_attention: heads, their biases and their masks equal loops", "[flash]") {
  Rand rand(3);
  const int64_t batch = 2, heads = 3, n = 8, s = 4, e = 2, c = 3;
  for (bool causal : {false, true})
    for (int which = 0; which < 4; ++which)
      for (int64_t bias_heads : {int64_t{0}, int64_t{1}, heads}) {
        auto input = [&](int64_t width) { return random_tensor({batch, heads, n, width}, f64, rand); };
        const Tensor q = input(s), k = input(s), ql = input(s), kl = input(s), v = input(e);
        const Tensor table = bias_heads ? random_tensor({bias_heads, 2 * 5 - 1}, f64, rand) : Tensor();  // T = 5 > C
        const Masks m = masks(which, n);
        const MixedChunkOptions o{.chunk = c, .causal = causal, .kind = GauKind::softmax};
        const Tensor got = mixed_chunk_attention(q, k, ql, kl, v, o, table, m.keys, m.segments);
        REQUIRE(got.shape() == Shape{batch, heads, n, e});
        for (int64_t b = 0; b < batch; ++b)
          for (int64_t h = 0; h < heads; ++h) {
            auto one = [&](const Tensor& t) { return matrix_of(select(select(t, 0, b), 0, h)); };
            Matrix bias;
            if (bias_heads) {
              const std::vector<double> w = select(table, 0, bias_heads == 1 ? 0 : h).to_vector<double>();
              bias = matrix(c, c);
              for (std::size_t i = 0; i < 3; ++i)
                for (std::size_t j = 0; j < 3; ++j) bias[i][j] = w[4 + j - i];
            }
            const Matrix want = mixed_chunk_reference({one(q), one(k), one(ql), one(kl), one(v)}, o, bias,
                                                      tokens_of(n, b, m.keys, m.segments));
            const Matrix have = one(got);
            double worst = 0;
            for (std::size_t i = 0; i < want.size(); ++i)
              for (std::size_t a = 0; a < want[i].size(); ++a) worst = worse(worst, std::abs(want[i][a] - have[i][a]));
            CHECK(worst < 1e-12);
          }
      }
}
