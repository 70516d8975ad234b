// Griffin's recurrent block: where a state begins, its range, sizes, defaults, errors. rg_lru_reference.cpp says what
// the layer computes.
#include "support/approx.h"
#include "support/catch.h"
#include "support/mamba_cases.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/linear_attention/rg_lru.h>
#include <sluice/layers/report/cost.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

RgLru small_layer(DType dtype = f64) {
  return drawn_layer(RgLruOptions{.dim = 6, .inner = 8, .heads = 2, .dtype = dtype});
}

}  // namespace

TEST_CASE("RG-LRU: a stream keeps a number for each channel, the convolution's rows and a count", "[rg_lru]") {
  check_stream(small_layer(), numbers({2, 150, 6}, 6), 2 * (8 + 3 * 8 + 1));
}

TEST_CASE("RG-LRU: the first real token enters whole, wherever it stands", "[rg_lru]") {
  const RgLru m = small_layer();
  const Tensor text = numbers({2, 9, 6}, 3), padded = cat({numbers({2, 4, 6}, 4), text}, 1);
  const Tensor real = expand(unsqueeze(arange(13) >= 4.0, 0), {2, 13});
  const Tensor y = m(padded, {.key_mask = real});
  CHECK(max_abs_diff(narrow(y, 1, 4, 9), m(text)) < 1e-14);

  Stream stream;  // the padding may be a step of its own
  CHECK(step(m, narrow(padded, 1, 0, 4), stream, {.key_mask = narrow(real, 1, 0, 4)}).shape() == Shape{2, 4, 6});
  CHECK(max_abs_diff(step(m, text, stream, {.key_mask = narrow(real, 1, 4, 9)}), m(text)) < 1e-14);

  // A document in the middle, by itself.
  const Pass documents{.segments = expand(unsqueeze(to(arange(13) >= 4.0, i64), 0), {2, 13})};
  CHECK(max_abs_diff(narrow(m(padded, documents), 1, 4, 9), m(text)) < 1e-14);
}

TEST_CASE("RG-LRU: gradients stay finite where nothing is forgotten, and where everything is", "[rg_lru]") {
  for (const double shift : {-1e4, -60.0, 60.0, 1e4}) {
    RgLru m = small_layer();
    m.forget_bias = full({2, 4}, shift, {f64}).requires_grad_();
    Tensor x = numbers({1, 12, 6}, 3).requires_grad_();
    const Tensor y = m(x);
    CHECK(all(isfinite(y)).item() == 1);
    backward(sum(square(y)));
    CHECK(all(isfinite(x.grad())).item() == 1);
    for (const NamedTensor& p : parameters(m)) {
      INFO(p.name << " with " << shift);
      CHECK(all(isfinite(p.tensor.grad())).item() == 1);
    }
  }
}

TEST_CASE("RG-LRU: initial decays", "[rg_lru]") {
  Rng rng(1);
  const RgLru m({.dim = 16, .inner = 512, .heads = 4, .dtype = bf16}, rng);
  const Tensor kept = exp(neg(softplus(m.lambda.detach())));
  CHECK(m.lambda.dtype() == f32);
  CHECK((min(kept).item() > 0.8999 && max(kept).item() < 0.9991));
  CHECK(std::abs(mean(square(kept)).item() - (0.81 + 0.998001) / 2) < 0.01);  // standard error 0.0024
  CHECK(m.forget_weight.shape() == Shape{4, 128, 128});
}

TEST_CASE("RG-LRU: costs", "[rg_lru][cost]") {
  const int64_t n = 40, d = 12, i = 20, h = 4;
  const Cost c = cost(RgLruOptions{.dim = d, .inner = i, .heads = h}, n);
  CHECK(c.parameters == 2 * (d * i + i) + 5 * i + 2 * (i * i / h + i) + i + i * d + d);
  CHECK(c.state == i + 3 * i + 1);
  // A recurrent layer of RecurrentGemma 2B, as its file has it.
  CHECK(cost(RgLruOptions{.dim = 2560, .heads = 10}, 1).parameters ==
        3 * 2560 * 2561 + 5 * 2560 + 2 * 2560 * 257 + 2560);
}

TEST_CASE("RG-LRU: errors", "[rg_lru]") {
  Rng rng(1);
  CHECK_THROWS_WITH(RgLru({.dim = 8, .heads = 3}, rng), Contains("rg_lru: heads 3") && Contains("8 channels"));
  CHECK_THROWS_WITH(RgLru({.dim = 8, .heads = 0}, rng), Contains("rg_lru") && Contains("heads"));
  CHECK_THROWS_WITH(RgLru({.dim = int64_t{1} << 62}, rng), Contains("rg_lru"));
  CHECK_THROWS_WITH(small_layer()(ones({2, 5, 7}, {f64})), Contains("rg_lru") && Contains("[2,5,7]"));
}
