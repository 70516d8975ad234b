// causal_conv1d and its gradients on the device against the CPU: sequences of one row to several walks, of 8 rows, 24
// and 64 on the emulated device, whose last ones are shorter.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The result and the gradients of x, weight, bias and the rows before, as far as there are any, in f64 on the CPU.
std::vector<Tensor> run(const std::vector<Tensor>& operands, const Tensor& g, Act act, DType dtype, Device device) {
  std::vector<Tensor> x, leaves, results;
  for (const Tensor& t : operands) {
    x.push_back(t.defined() ? to(to(t, dtype), device).detach() : Tensor());
    if (t.defined()) x.back().requires_grad_(), leaves.push_back(x.back());
  }
  const Tensor y = causal_conv1d(x[0], x[1], x[2], x[3], act);
  results = grad({y}, leaves, {.grad_outputs = {to(to(g, dtype), device)}});
  results.push_back(y.detach());
  for (Tensor& t : results) {
    CHECK(t.dtype() == dtype);
    t = to(to(contiguous(t), cpu), f64);
  }
  return results;
}

}  // namespace

TEST_CASE("cuda: causal_conv1d in walks of all lengths", "[cuda]") {
  Rand rand(61);
  struct Sizes {
    int64_t batch, n, channels;
  };
  int i = 0;
  for (const auto& [batch, n, channels] : {Sizes{1, 1, 1},
                                           {2, 3, 5},
                                           {1, 8, 3},
                                           {2, 9, 7},
                                           {1, 50, 13},
                                           {1, 205, 12},
                                           {3, 130, 17},
                                           {1, 67, 100},
                                           {2, 1, 2},
                                           {3, 9, 6}})
    for (int64_t width : {1, 2, 3, 4, 5}) {  // 5: without a kernel
      const bool biased = ++i % 2, continued = i % 3 && width > 1;
      const Act act = i / 4 % 2 ? Act::silu : Act::identity;
      INFO(batch << " x " << n << " x " << channels << ", width " << width << (biased ? ", bias" : "")
                 << (continued ? ", continued" : "") << (act == Act::silu ? ", silu" : ""));
      const auto random = [&](const Shape& shape) {  // numbers that bf16 has
        return to(to(random_tensor(shape, f64, rand), bf16), f64);
      };
      const std::vector<Tensor> operands{random({batch, n, channels}), random({width, channels}),
                                         biased ? random({channels}) : Tensor(),
                                         continued ? random({batch, width - 1, channels}) : Tensor()};
      const Tensor g = random({batch, n, channels});
      const auto want = run(operands, g, act, f64, cpu), wide = run(operands, g, act, f64, Device::cuda()),
                 got = run(operands, g, act, f32, Device::cuda()),
                 rounded = run(operands, g, act, bf16, Device::cuda());
      for (std::size_t k = 0; k < want.size(); ++k) {
        INFO("result " << k);
        CHECK(max_abs_diff(wide[k], want[k]) <= 1e-13 * max_abs(want[k]));
        CHECK(max_abs_diff(got[k], want[k]) <= 1e-5 * max_abs(want[k]));
        // Rounded once: compilers may join other products and sums for each dtype.
        const Tensor beyond = abs(rounded[k] - got[k]) - abs(got[k]) * 0x1p-8;
        CHECK(max(beyond).item() <= 1e-5 * max_abs(want[k]));
      }
    }
}

TEST_CASE("cuda: causal_conv1d keeps numbers that are not finite where they belong", "[cuda]") {
  Rand rand(62);
  Tensor x = random_tensor({1, 205, 12}, f32, rand);
  const Tensor w = to(random_tensor({4, 12}, f32, rand), Device::cuda());
  const auto result = [&] { return to(causal_conv1d(to(x, Device::cuda()), w, {}, {}, Act::silu), cpu); };
  const Tensor want = result();
  x.mutable_data<float>()[23 * 12] = NAN;  // the last row of a walk, of channel 0
  const Tensor got = result();
  for (int64_t t = 0; t < 205; ++t) {
    INFO("row " << t);
    CHECK(std::isnan(narrow(got, 1, t, 1).to_vector<float>()[0]) == (t >= 23 && t < 27));
    CHECK(same_bits(narrow(narrow(got, 1, t, 1), 2, 1, 11), narrow(narrow(want, 1, t, 1), 2, 1, 11)));
  }
}

TEST_CASE("cuda: causal_conv1d of bf16, channels one by one and in pairs", "[cuda]") {
  Rand rand(63);
  const int64_t n = 21, channels = 6;
  // With `skipped` numbers before it, an odd number of which no pair of channels can be read at once.
  const auto operand = [&](const Tensor& x, int64_t skipped) {
    const Tensor all = to(cat({zeros({skipped}, {bf16}), reshape(x, {x.numel()})}, 0), Device::cuda());
    Tensor y = reshape(narrow(all, 0, skipped, x.numel()), x.shape()).detach();
    return y.requires_grad_(), y;
  };
  const auto random = [&](const Shape& shape) { return to(random_tensor(shape, f32, rand), bf16); };
  const Tensor g = random({2, n, channels});
  const std::vector<Tensor> x{random({2, n, channels}), random({4, channels}), random({channels}),
                              random({2, 3, channels})};
  std::vector<Tensor> want;
  for (std::size_t odd = 0; odd <= x.size() + 1; ++odd) {  // 0: none
    std::vector<Tensor> leaves;
    for (std::size_t k = 0; k < x.size(); ++k) leaves.push_back(operand(x[k], k + 1 == odd ? 3 : 2));
    const Tensor y = causal_conv1d(leaves[0], leaves[1], leaves[2], leaves[3], Act::silu);
    std::vector<Tensor> got = grad({y}, leaves, {.grad_outputs = {operand(g, odd == x.size() + 1 ? 1 : 2).detach()}});
    got.push_back(y.detach());
    if (odd == 0) want = got;
    for (std::size_t k = 0; k < got.size(); ++k) {
      INFO("odd " << odd << ", result " << k);
      CHECK(same_bits(to(got[k], cpu), to(want[k], cpu)));
    }
  }
}
