#include <sluice/ops/shape/rearrange.h>

#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include "support/catch.h"

using namespace sluice;

namespace {

Tensor counting(const Shape& shape) { return reshape(arange(shape.numel()), shape); }

/// A rearrangement that fails must say `what` and repeat the pattern.
void check_error(const char* pattern, const Tensor& x, const std::string& what,
                 std::initializer_list<std::pair<std::string_view, int64_t>> sizes = {}) {
  INFO(pattern);
  CHECK_THROWS_AS(rearrange(pattern, x, sizes), ShapeError);
  CHECK_THROWS_WITH(rearrange(pattern, x, sizes), Contains("rearrange: ") && Contains(what) &&
                                                      Contains(std::string("\"") + pattern + "\"") &&
                                                      Contains(str("got x=", x)));
}

}  // namespace

TEST_CASE("rearrange: splits, reorders and merges as loops do", "[rearrange]") {
  const int64_t B = 2, H = 3, N = 5, D = 4;
  const Tensor x = counting({B, N, H * D});
  const auto in = x.to_vector<int64_t>();

  const Tensor heads = rearrange("b n (h d) -> b h n d", x, {{"h", H}});
  REQUIRE(heads.shape() == Shape{B, H, N, D});
  CHECK(heads.shares_storage(x));
  const auto y = heads.to_vector<int64_t>();
  std::size_t at = 0;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t n = 0; n < N; ++n)
        for (int64_t d = 0; d < D; ++d, ++at)
          REQUIRE(y[at] == in[static_cast<std::size_t>((b * N + n) * H * D + h * D + d)]);

  CHECK(rearrange("b h n d -> b n (h d)", heads).to_vector<int64_t>() == in);  // of a non-contiguous input
  CHECK(rearrange("b n (d h) -> b n (h d)", x, {{"h", H}}).to_vector<int64_t>() ==
        reshape(transpose(reshape(x, {B, N, D, H}), 2, 3), {B, N, H * D}).to_vector<int64_t>());
  CHECK(rearrange("b (g c) d->b g c d", x, {{"g", 5}, {"c", 1}}).shape() == Shape{B, 5, 1, H * D});
}

TEST_CASE("rearrange: ellipsis, ones and nothing to do", "[rearrange]") {
  const Tensor x = counting({2, 3, 4, 5});
  CHECK(rearrange("b ... c -> b c ...", x).shape() == Shape{2, 5, 3, 4});
  CHECK(rearrange("b ... c -> (b c) ...", x).to_vector<int64_t>() == permute(x, {0, 3, 1, 2}).to_vector<int64_t>());
  CHECK(rearrange("b ... -> b (...)", x).shape() == Shape{2, 60});
  CHECK(rearrange("a ... b -> (... a) b", x).shape() == Shape{24, 5});
  CHECK(rearrange("a b c d ... -> d c b a ...", x).shape() == Shape{5, 4, 3, 2});
  CHECK(rearrange("a b c d ... -> (a ...) b c d", x).shape() == x.shape());
  CHECK(rearrange("... -> 1 ... () 1", x).shape() == Shape{1, 2, 3, 4, 5, 1, 1});
  CHECK(rearrange("a 1 b (1 c) -> c (b a)", counting({2, 1, 3, 4})).shape() == Shape{4, 6});
  CHECK(rearrange("a b c d -> a b c d", x).raw() == x.raw());
  CHECK(rearrange("->", Tensor(3.f)).item() == 3);
  CHECK(rearrange("-> 1 n", Tensor(3.f), {{"n", 2}}).to_vector() == std::vector<float>{3, 3});
}

TEST_CASE("rearrange: new names repeat", "[rearrange]") {
  const Tensor x = counting({2, 3});
  const Tensor y = rearrange("b d -> b h d", x, {{"h", 2}});
  CHECK(y.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5});
  CHECK(y.shares_storage(x));
  CHECK(rearrange("b d -> b (d r)", x, {{"r", 2}}).to_vector<int64_t>() ==
        std::vector<int64_t>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5});
}

TEST_CASE("rearrange: empty tensors", "[rearrange]") {
  const Tensor x = empty({0, 6});
  CHECK(rearrange("b (h d) -> h b d", x, {{"h", 2}}).shape() == Shape{2, 0, 3});
  CHECK(rearrange("(b c) d -> b c d", x, {{"c", 2}}).shape() == Shape{0, 2, 6});
  CHECK(rearrange("b d -> (b d)", x).shape() == Shape{0});
  CHECK(rearrange("b d -> b d h", counting({2, 3}), {{"h", 0}}).shape() == Shape{2, 3, 0});
  check_error("(b c) d -> b c d", x, "not divisible by 0", {{"c", 0}});
}

TEST_CASE("rearrange: errors repeat the pattern and say what is wrong", "[rearrange]") {
  const Tensor x = counting({4, 6});
  check_error("a b", x, "exactly one '->'");
  check_error("a b -> b a -> a b", x, "exactly one '->'");
  check_error("a (b c -> a b c", x, "'(' without ')'");
  check_error("a b) -> a b", x, "')' without '('");
  check_error("(a (b c)) d -> a b c d", x, "parentheses inside parentheses");
  check_error("a a -> a", x, "axis 'a' appears twice on the left");
  check_error("a b -> a b a", x, "axis 'a' appears twice on the right");
  check_error("... ... -> ...", x, "'...' appears twice on the left");
  check_error("a b -> a", x, "axis 'b' is missing on the right");
  check_error("... a -> a", x, "axis '...' is missing on the right");
  check_error("a b -> a b c", x, "axis 'c' is unknown");
  check_error("a b -> a b ...", x, "'...' appears on the right only");
  check_error("a (... b) -> a b ...", x, "'...' in parentheses");
  check_error("a b c -> a b c", x, "the left side names 3 dims but x has rank 2");
  check_error("a b c ... -> a b c ...", x, "the left side names at least 3 dims but x has rank 2");
  check_error("a (b c) -> a b c", x, "'b' and 'c' cannot both be inferred");
  check_error("a (b c) -> a b c", x, "dim 1 of size 6 is not divisible by 4 to give 'c' of (b c)", {{"b", 4}});
  check_error("a (b c) -> a b c", x, "dim 1 has size 6, (b c) asks for 8", {{"b", 4}, {"c", 2}});
  check_error("a b -> a b", x, "dim 0 has size 4, a asks for 5", {{"a", 5}});
  check_error("1 b -> b", x, "dim 0 has size 4, 1 asks for 1");
  check_error("a b -> b a", x, "a size is given for 'h', which is not an axis", {{"h", 5}});
  check_error("a b -> b a", x, "negative size", {{"a", -1}});
  check_error("... a -> a ...", x, "a size is given for '...'", {{"...", 7}});
  check_error("a b -> b a", x, "given two sizes", {{"a", 4}, {"a", 4}});
  check_error("a 2 -> a", x, "'2' is not a name");
  check_error("a, b -> b a", x, "unexpected ','");
  check_error("a b -> 1 1 1 1 1 1 1 a b", x, "more than 8 axes");
}
