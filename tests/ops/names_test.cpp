// Errors name the op the user called, not one that it is made of.
#include "support/catch.h"

#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/loss.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/rope.h>
#include <sluice/ops/view.h>

#include <functional>

using namespace sluice;

TEST_CASE("errors name the op the user called", "[ops]") {
  const Tensor x = ones({2, 3}), flags = ones({2, 3}, {boolean}), i = arange(4), two = ones({2});
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
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
      {"repeat", [&] { repeat(x, 2, 5); }},
      {"mse_loss", [&] { mse_loss(flags, flags); }},
      {"bce_with_logits", [&] { bce_with_logits(flags, flags); }},
      {"kl_div", [&] { kl_div(flags, flags); }},
      {"activate", [&] { activate(static_cast<Act>(99), x); }},
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
