// What holds for every layer of the table about what its tokens see: streams, later tokens, padding.
#include "support/table_samples.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kTokens = 9;

/// bool [2, n]: the first sequence has `real` tokens, the second all; or both have `real`.
Tensor prefix_mask(int64_t n, int64_t real, bool both) {
  std::vector<bool> rows;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < n; ++i) rows.push_back(i < real || (b == 1 && !both));
  return Tensor::from(rows, {2, n});
}

/// Rows of padding set to a value.
Tensor with_padding(const Tensor& x, const Tensor& mask, double value) {
  return masked_fill(x, unsqueeze(logical_not(mask), -1), value);
}

/// Layers whose outputs at real tokens change when padding is cut off, and why that is meant.
bool counts_padding(const LayerSample& s) {
  return s.has("scaling", "paper_code");  // chunks count as whole, however few of their tokens are real
}

}  // namespace

TEST_CASE("table: a stream gives the rows of the full pass, whatever its pieces", "[table][streaming]") {
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams || s.cross()) return;
    const Tensor x = s.inputs(2, kTokens, 1).x;
    if (!s.causal()) {
      CHECK_THROWS_AS(s.layer->step(x), ValueError);
      return;
    }
    ++streamed;
    const Tensor full = (*s.layer)({.x = x});
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>{1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 3}, {5, 1, 3}, {9}}) {
      s.layer->restart();
      std::vector<Tensor> rows;
      for (const Tensor& piece : split(x, pieces, 1)) rows.push_back(s.layer->step(piece));
      CHECK_FALSE(rows[0].requires_grad());
      CHECK(max_abs_diff(cat(rows, 1), full) < 1e-11 * (1 + max_abs(full)));
    }
    CHECK_THROWS_AS(s.layer->step(narrow(x, 0, 0, 1)), Error);  // another batch
  });
  CHECK(streamed >= 20);
}

TEST_CASE("table: a later token changes no bit of an earlier row", "[table]") {
  int causal = 0;
  each_sample([&](LayerSample& s) {
    if (!s.causal() && !(s.row.key_mask || s.cross())) {  // token by token: no row sees another
      if (s.row.name == "pair_score") return;
    } else if (!s.causal()) {
      return;
    }
    ++causal;
    LayerInputs in = s.inputs(2, kTokens, 1);
    const Tensor before = (*s.layer)(in);
    const LayerInputs other = s.inputs(2, kTokens, 2);
    for (int64_t changed : {4, 8}) {
      const LayerInputs now{.x = cat({narrow(in.x, 1, 0, changed), narrow(other.x, 1, changed, kTokens - changed)}, 1),
                            .branch = in.branch};
      const Tensor after = (*s.layer)(now);
      CHECK(same_bits(narrow(after, 1, 0, changed), narrow(before, 1, 0, changed)));
      if (s.options.find("kind") == nullptr || max_abs(before) > 0)
        CHECK_FALSE(same_bits(narrow(after, 1, changed, 1), narrow(before, 1, changed, 1)));
    }
  });
  CHECK(causal >= 30);
}

TEST_CASE("table: padding is as if it were cut off", "[table]") {
  int masked = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.key_mask || counts_padding(s)) return;
    ++masked;
    for (int64_t real : {5, 8}) {
      LayerInputs in = s.inputs(2, kTokens, 1);
      in.key_mask = prefix_mask(kTokens, real, true);
      const Tensor y = (*s.layer)(in);
      LayerInputs cut = in;
      cut.key_mask = {};
      if (s.cross()) cut.context = narrow(in.context, 1, 0, real);
      else cut.x = narrow(in.x, 1, 0, real);
      const Tensor want = (*s.layer)(cut);
      CHECK(max_abs_diff(narrow(y, 1, 0, want.dim(1)), want) < 1e-12 * (1 + max_abs(want)));
      in.key_mask = ones({2, kTokens}) > 0.0;
      LayerInputs without = in;
      without.key_mask = {};
      CHECK(max_abs_diff((*s.layer)(in), (*s.layer)(without)) < 1e-12 * (1 + max_abs(want)));
    }
  });
  CHECK(masked >= 50);
}

TEST_CASE("table: NaN in padding reaches nobody", "[table]") {
  each_sample([](LayerSample& s) {
    if (!s.row.key_mask || layer_width(s.options).vocabulary > 0) return;
    const Tensor mask = prefix_mask(kTokens, 5, false);
    std::vector<std::vector<Tensor>> results;
    for (double padding : {0.0, std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
      LayerInputs in = s.inputs(2, kTokens, 1);
      in.key_mask = mask;
      Tensor& padded = s.cross() ? in.context : in.x;
      padded = with_padding(padded, mask, padding);
      Tensor y = (*s.layer)(in);
      if (!s.cross()) y = masked_fill(y, unsqueeze(logical_not(mask), -1), 0);
      std::vector<Tensor> leaves;
      for (const NamedTensor& t : s.layer->state())
        if (t.tensor.requires_grad()) leaves.push_back(t.tensor);
      results.push_back(grad({sum(square(y))}, leaves, {.allow_unused = true}));
      results.back().push_back(y);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      for (std::size_t k : {1, 2})
        CHECK((!results[0][i].defined() || same_bits(results[0][i], results[k][i])));
  });
}
