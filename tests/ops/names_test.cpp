// Errors name the op the user called, not one that it is made of.
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/scan/delta_scan.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <functional>

using namespace sluice;

// clang-format off
TEST_CASE("errors name the op the user called", "[ops]") {
  const Tensor x = ones({2, 3}), flags = ones({2, 3}, {boolean}), i = arange(4), two = ones({2});
  const int64_t n = 1 << 21;
  const Tensor vast = expand(ones({1, 1}), {n, n});  // a copy has 16 TiB
  const Tensor q = ones({1, 1, 64, 1}), keys = q, values = expand(ones({1, 1, 1, 1}), {1, 1, 64, int64_t{1} << 41});
  Rng rng(1);
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"clone", [&] { clone(vast); }},
      {"to", [&] { to(vast, bf16); }},
      {"softmax", [&] { softmax(vast); }},
      {"log_softmax", [&] { log_softmax(vast); }},
      {"layer_norm", [&] { layer_norm(vast); }},
      {"cumsum", [&] { cumsum(vast, 0); }},
      {"cumprod", [&] { cumprod(vast, 0); }},
      {"tril", [&] { tril(vast); }},
      {"dropout", [&] { dropout(vast, 0.5, rng); }},
      {"causal_conv1d", [&] { causal_conv1d(vast, ones({1, n})); }},
      {"glu", [&] { glu(x, two); }},
      {"reglu", [&] { reglu(x, two); }},
      {"geglu", [&] { geglu(x, two); }},
      {"swiglu", [&] { swiglu(x, to(x, bf16)); }},
      {"bilinear", [&] { bilinear(x, two); }},
      {"scale", [&] { scale(flags, 2); }},
      {"scale", [&] { i * 0.5; }},
      {"add_scalar", [&] { flags + 1; }},
      {"add_scalar", [&] { i + 0.5; }},
      {"sub", [&] { 1 - flags; }},
      {"masked_fill", [&] { masked_fill(x, ones({2}, {boolean}), 0); }},
      {"masked_fill", [&] { masked_fill(flags, ones({2, 3}, {boolean}), 2); }},
      {"masked_fill", [&] { masked_fill(i, ones({2}, {boolean}), 2); }},
      {"where", [&] { where(i > 1, 0.5, i); }},
      {"clamp", [&] { clamp(i, 0.5); }},
      {"masked_select", [&] { masked_select(x, ones({2}, {boolean})); }},
      {"scale_", [&] { Tensor y = i; scale_(y, 0.5); }},
      {"scale_", [&] { Tensor y = flags; scale_(y, 2); }},
      {"add_", [&] { Tensor y = flags; add_(y, flags); }},
      {"add_", [&] { Tensor y = transpose(flags, 0, 1); add_(y, transpose(flags, 0, 1)); }},
      {"mean", [&] { mean(x, {5}); }},
      {"var", [&] { var(x, {5}); }},
      {"std_dev", [&] { std_dev(x, {5}); }},
      {"std_dev", [&] { std_dev(i); }},
      {"norm", [&] { norm(x, {5}); }},
      {"prod", [&] { prod(x, {5}); }},
      {"any", [&] { any(ones({2}, {boolean}), {5}); }},
      {"all", [&] { all(ones({2}, {boolean}), {5}); }},
      {"unflatten", [&] { unflatten(x, 0, {3, 3}); }},
      {"chunk", [&] { chunk(x, 2, 5); }},
      {"chunk", [&] { chunk(ones({}), 2); }},
      {"roll", [&] { roll(x, 1, 5); }},
      {"rope_at", [&] { rope_at(flags, i); }},
      {"stack", [&] { stack({x, i}); }},
      {"stack", [&] { stack({x}, 7); }},
      {"stack", [&] { stack({x, to(x, meta)}); }},
      {"repeat", [&] { repeat(x, 2, 5); }},
      {"mse_loss", [&] { mse_loss(flags, flags); }},
      {"bce_with_logits", [&] { bce_with_logits(flags, flags); }},
      {"kl_div", [&] { kl_div(flags, flags); }},
      {"activate", [&] { activate(static_cast<Act>(99), x); }},
      {"attention", [&] { attention(q, keys, values); }},
      {"attention_with_lse", [&] { attention_with_lse(q, keys, values); }},
      {"linear_scan", [&] { linear_scan(keys, keys, values, {}); }},
      {"delta_scan", [&] { delta_scan(keys, keys, keys, values); }},
  };
  for (std::size_t k = 0; k < calls.size(); ++k) {
    INFO("call " << k << ", " << calls[k].first);
    std::string said = "nothing";
    try {
      calls[k].second();
    } catch (const Error& e) {
      said = e.what();
    }
    CHECK(said.substr(0, said.find(':')) == calls[k].first);
  }
}

TEST_CASE("observers are told the op the user called", "[ops]") {
  struct Log final : detail::Observer {
    void on_op(const char* op, const Tensor&, Node* node) override {
      ops.push_back(op);
      if (node) CHECK(std::string(node->name()) == op);
    }
    std::vector<std::string> ops;
  };
  for (bool differentiated : {false, true}) {
    const Tensor x = ones({2, 3}).requires_grad_(differentiated), one = ones({});
    const std::vector<std::pair<const char*, std::function<void()>>> calls = {
        {"max", [&] { max(x, 1); }},
        {"min", [&] { min(x, 1); }},
        {"layer_norm", [&] { layer_norm(x); }},
        {"rms_norm", [&] { rms_norm(x); }},
        {"scale_norm", [&] { scale_norm(x, one); }},
        {"softmax", [&] { softmax(x); }},
        {"log_softmax", [&] { log_softmax(x); }},
    };
    for (const auto& [op, call] : calls) {
      Log log;
      call();
      REQUIRE(!log.ops.empty());
      INFO(op << " is called " << log.ops[0]);
      CHECK(std::count(log.ops.begin(), log.ops.end(), op) == 1);
    }
  }
}

TEST_CASE("errors show what was given, and what to do", "[ops]") {
  const Tensor x = ones({2, 3}), i = arange(4), u, q = ones({1, 2, 3, 4});
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"add: operand 1 is undefined", [&] { x + u; }},
      {"exp: operand 0 is undefined", [&] { exp(u); }},
      {"matmul: b is undefined", [&] { matmul(x, u); }},
      {"linear: x is undefined", [&] { linear(u, x); }},
      {"fill_: x is undefined", [&] { Tensor y; fill_(y, 1); }},
      {"copy_: x is undefined", [&] { Tensor y; copy_(y, x); }},
      {"copy_: y is undefined", [&] { Tensor y = clone(x); copy_(y, u); }},
      {"add_: x is undefined", [&] { Tensor y; add_(y, x); }},
      {"add_: y is undefined", [&] { Tensor y = clone(x); add_(y, u); }},
      {"scale_: x is undefined", [&] { Tensor y; scale_(y, 2); }},
      {"scale: an i64 tensor [4] and the fraction 0.5; convert with to(x, f32)", [&] { i * 0.5; }},
      {"div: an i64 tensor [4] cannot be divided by 2; convert with to(x, f32)", [&] { i / 2; }},
      {"div: an i64 tensor [4] cannot be divided by 0; convert with to(x, f32)", [&] { i / 0; }},
      {"div: an i32 tensor [4] cannot be divided by -3; convert with to(x, f32)", [&] { to(i, i32) / -3; }},
      {"a=[2,3], b=[4]; need a.dim(-1)==b.dim(-1)", [&] { matmul(x, ones({4})); }},
      {"a=[4], b=[2,3]; need a.dim(-1)==b.dim(-2)", [&] { matmul(ones({4}), x); }},
      {"got a=[2,3,4], b=[3,4,5]; sizes at dim -3 differ", [&] { matmul(ones({2, 3, 4}), ones({3, 4, 5})); }},
      {"got a=[2,1,3,4], b=[3,7,4,5]; sizes at dim -4 differ", [&] { matmul(ones({2, 1, 3, 4}), ones({3, 7, 4, 5})); }},
      {"got x=f32[2,3], weight=f64[3,4]; convert with to(x, dtype)", [&] { linear(x, ones({3, 4}, {f64})); }},
      {"got [-1,-1] for x=[2,3]; one size may be -1", [&] { reshape(x, {-1, -1}); }},
      {"got n=-1, x=[2,3]; need n >= 0", [&] { repeat(x, -1, 0); }},
      {"got n=-1, x=[2,3]; need n >= 0", [&] { repeat_interleave(x, -1, 0); }},
      {"copy_: a source of shape [4,5] does not fit into [2,3]", [&] { Tensor y = clone(x); copy_(y, ones({4, 5})); }},
      {"copy_: a source of shape [1,2,3] does not fit into [2,3]", [&] { Tensor y = clone(x); copy_(y, ones({1, 2, 3})); }},
      {"attention: bias=[2,3] does not broadcast to the scores [1,2,3,3]", [&] { attention(q, q, q, {.bias = x}); }},
      {"attention: mask.dense=[2,2] does not broadcast to [1,2,3,3]",
       [&] { attention(q, q, q, {.mask = {.dense = ones({2, 2}, {boolean})}}); }},
      {"attention: scale must be finite", [&] { attention(q, q, q, {.scale = std::nan("")}); }},
      {"bce_with_logits: pos_weight=[2] does not fit x=[2,3]", [&] { bce_with_logits(x, x, Reduction::mean, ones({2})); }},
      {"layer_norm: got x=f64[2,3], a parameter f32[3]; convert", [&] { layer_norm(to(x, f64), ones({3})); }},
      {"backward: the output is undefined", [&] { backward(u); }},
  };
  for (const auto& [words, call] : calls) CHECK_THROWS_WITH(call(), Contains(words));
}
