// What a Call gives layers of one's own in a stream.
#include <sluice/layers/nn/pass.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/kernel/observer.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <functional>
#include <new>
#include <stdexcept>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// A layer that is a function of its call.
struct Own {
  static constexpr const char* type = "Own";
  std::function<Tensor(Call&)> f;
  Tensor weight = zeros({1}, {f64}).requires_grad_();
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    Call call(*this, "own", x, 4, pass);
    return f(call);
  }
  SLUICE_PARTS(weight);
};

}  // namespace

TEST_CASE("call: what it gives a layer of one's own in a stream is that of the full pass", "[streaming]") {
  Rng rng(1);
  const auto attending = [](const AttentionMask& mask) {
    return [=](Call& call) {
      const Tensor h = unsqueeze(call.x, 1);
      return squeeze(call.attend(h, h * 2.0, h + 1.0, {.mask = mask}), 1);
    };
  };
  const auto check = [&](const Own& layer, const Tensor& x, double tolerance) {
    const Tensor y = layer(x);
    for (int64_t piece : {1, 3}) {
      Stream stream;
      std::vector<Tensor> rows;
      for (int64_t at = 0; at < x.dim(1); at += piece)
        rows.push_back(step(layer, narrow(x, 1, at, std::min(piece, x.dim(1) - at)), stream));
      CHECK(max_abs_diff(cat(rows, 1), y) <= tolerance);
    }
  };
  const Tensor x = normal({2, 13, 4}, 0, 1, rng, {f64});
  check({attending({.causal = true})}, x, 1e-13);
  check({attending({.causal = true, .window = 3})}, x, 1e-13);
  check({attending({.causal = true, .window = 3, .dilation = 2})}, x, 1e-13);
  check({attending({.causal = true, .window = 2, .global = {0, 5}})}, x, 1e-13);
  check({[](Call& call) { return call.running_sum(call.x, 1); }}, x, 1e-13);
  check({[](Call& call) { return call.running_sum(call.x, -2); }}, x, 1e-13);
  check({[](Call& call) { return call.running_sum(call.x, 1); }}, ones({1, 700, 4}, {bf16}), 0);
  check({[](Call& call) { return call.running_sum(call.x, 1); }}, full({1, 5000, 4}, 0.1, {f32}), 1e-4);
  check({[](Call& call) { return call.running_max(call.x, call.x * 0.5 - 1.0); }}, x, 1e-13);
  const auto scanning = [](const LinearScanOptions& o) {
    return [=](Call& call) {
      const Tensor h = unsqueeze(call.x, 1);
      return squeeze(call.scan(h, h, h, {}, o), 1);
    };
  };
  check({scanning({})}, x, 1e-12);
  check({scanning({.exclusive = true})}, x, 1e-12);
  Stream stream;
  CHECK_THROWS_WITH(step(Own{scanning({.reverse = true})}, x, stream), Contains("only a causal layer can be streamed"));
}

TEST_CASE("call: a sum of other channels does not go on", "[streaming]") {
  const Tensor x = ones({2, 3, 4});
  const Own one{[](Call&call) { return call.running_sum(narrow(call.x, 2, 0, 1), 1); }},
      all{[](Call&call) { return call.running_sum(call.x, 1); }};
  for (const auto& [first, then] : {std::pair(&one, &all), {&all, &one}}) {
    Stream stream;
    step(*first, x, stream);
    CHECK_THROWS_WITH(step(*then, x, stream), Contains("own: a stream that keeps the sum [2,1,"));
  }
}

TEST_CASE("call: a step that fails is taken back without memory", "[streaming]") {
  struct Full final : detail::Observer {  // memory ends
    Full() : Observer(Of::this_thread) {}
    void on_call(const detail::KernelCall&) override {
      if (now) throw std::bad_alloc();
    }
    bool now = false;
  } full;
  Rng rng(6);
  const Tensor x = normal({2, 9, 8}, 0, 1, rng, {f64});
  const MultiHeadAttention attention({.heads = {.dim = 8, .heads = 2, .causal = true, .dtype = f64}, .window = 4}, rng);
  const auto model = [&](const Tensor& part, const Pass& pass) {
    const Tensor y = attention(part, pass);
    if (full.now = part.dim(1) == 2; full.now) throw std::runtime_error("broken");
    return y;
  };
  Stream stream;
  step(model, narrow(x, 1, 0, 6), stream);
  Stream untouched = stream;
  CHECK_THROWS_AS(step(model, narrow(x, 1, 6, 2), stream), std::runtime_error);
  full.now = false;
  CHECK(same_bits(step(model, narrow(x, 1, 6, 1), stream), step(model, narrow(x, 1, 6, 1), untouched)));
}

TEST_CASE("call: the mask of rows() is that behind it; one asked for before is an error, not a mask of x",
          "[streaming]") {
  Rng rng(2);
  const auto own = [](bool early, bool attends) {
    return Own{[=](Call& call) {
      const Tensor h = unsqueeze(call.x, 1);
      AttentionMask mask = early ? call.mask() : AttentionMask{};
      mask.causal = true;
      if (attends) return squeeze(call.attend(h, h, h, {.mask = mask}), 1);
      const std::vector<Tensor> rows = call.rows({h});
      if (!early) mask = call.mask();
      mask.causal = true;
      return squeeze(attention(h, rows[0], rows[0], {.mask = mask}), 1);
    }};
  };
  const Tensor x = normal({2, 4, 4}, 0, 1, rng, {f64});
  const Tensor real = to(Tensor::from<int64_t>({0, 0, 1, 1, 0, 1, 1, 1}, {2, 4}), boolean);
  const auto last = [&](const Own& layer) {  // two tokens with a mask, two without
    Stream stream;
    step(layer, narrow(x, 1, 0, 2), stream, {.key_mask = narrow(real, 1, 0, 2)});
    return step(layer, narrow(x, 1, 2, 2), stream);
  };
  const Tensor want = narrow(own(false, false)(x, {.key_mask = real}), 1, 2, 2);
  CHECK(max_abs_diff(last(own(false, false)), want) < 1e-12);
  CHECK(max_abs_diff(last(own(true, true)), want) < 1e-12);
  CHECK_THROWS_WITH(last(own(true, false)), Contains("own: asks for its mask before rows()"));
  CHECK(same_bits(own(true, false)(x, {.key_mask = real}), own(false, false)(x, {.key_mask = real})));
  Stream stream;  // without a mask there is none to ask for
  const Tensor first = step(own(true, false), narrow(x, 1, 0, 2), stream);
  CHECK(same_bits(first, own(false, false)(narrow(x, 1, 0, 2))));
}
