// What holds for every layer of the table about what its tokens see: streams, later tokens, documents, padding, nothing.
#include "support/table_samples.h"
#include "support/catch.h"
#include "support/identities.h"

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
  return to(Tensor::from(rows, {2, n}), test_device());
}

/// bool [2, kTokens]: padding before, between and behind real tokens.
Tensor mask_with_holes() {
  return to(Tensor::from(std::vector<bool>{0, 1, 1, 0, 1, 0, 0, 1, 0,  //
                                           1, 0, 1, 1, 1, 1, 0, 1, 1}, {2, kTokens}), test_device());
}

/// Rows of padding set to a value.
Tensor with_padding(const Tensor& x, const Tensor& mask, double value) {
  return masked_fill(x, unsqueeze(logical_not(mask), -1), value).detach().requires_grad_();
}

/// a = b, to so much of b; noted where it is an identity of the list, `gau` or `flash`.
void check_rows(const LayerSample& s, const Tensor& a, const Tensor& b, double tolerance, const char* gau,
                const char* flash) {
  REQUIRE(a.shape() == b.shape());
  const double off = max_abs_diff(a, b) / (1 + max_abs(b));
  if (s.row.name == "gau" && gau) check_identity(gau, off, tolerance);
  else if (s.row.name == "flash" && flash) check_identity(flash, off, tolerance);
  else CHECK(off <= tolerance);
}

/// Layers whose outputs at real tokens change when padding is cut off, and why that is meant.
bool counts_padding(const LayerSample& s) {
  // Chunks count as whole, however few of their tokens are real; or the option says so.
  return (s.has("scaling", "paper_code") && s.has("causal", false)) || s.has("count_padding", true);
}

/// Whether so many tokens are chunks without a rest.
bool whole_chunks(const LayerSample& s, int64_t tokens) {
  const Json* chunk = s.options.find("chunk");
  return !chunk || tokens % *chunk->as<int64_t>() == 0;
}

}  // namespace

TEST_CASE("table: a stream gives the rows of the full pass, whatever its pieces", "[table][streaming]") {
  constexpr int64_t n = 21;  // beyond chunks, twice the windows, and the 16 of softmax_plus
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams || s.cross()) return;
    const Tensor x = s.inputs(2, n, 1, true).x;
    if (!s.causal()) {
      CHECK_THROWS_AS(s.layer->step(x), ValueError);
      return;
    }
    ++streamed;
    const Tensor full = (*s.layer)({.x = x});
    auto check = [&](const std::vector<Tensor>& rows, int64_t from, int64_t to) {
      for (const Tensor& r : rows) CHECK_FALSE(r.requires_grad());
      check_rows(s, cat(rows, 1), narrow(full, 1, from, to - from), 1e-11, "GAU: cache step = full row, 5 kinds",
                 "FLASH: stream = chunked, 6");
    };
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>(n, 1), {2, 2, 2, 3, 0, 12}, {5, 1, 3, 11, 1}, {n}}) {
      s.layer->restart();
      std::vector<Tensor> rows;
      for (const Tensor& piece : split(x, pieces, 1)) rows.push_back(s.layer->step(piece));
      check(rows, 0, n);
    }
    // What one copy of a stream goes on to read is nothing to another, wherever it was copied.
    const Tensor other = s.inputs(2, n, 2).x;
    for (int64_t shared : {0, 1, 2, 3, 4, 5, 9, 16}) {
      s.layer->restart();
      for (int64_t i = 0; i < shared; ++i) s.layer->step(narrow(x, 1, i, 1));
      const std::unique_ptr<AnyLayer> copy = s.layer->copy();
      std::vector<Tensor> rows{s.layer->step(narrow(x, 1, shared, 1))};
      for (int64_t size : {1, 3}) copy->copy()->step(narrow(other, 1, shared, size));
      rows.push_back(s.layer->step(narrow(x, 1, shared + 1, 3)));
      check(rows, shared, shared + 4);
      check({copy->step(narrow(x, 1, shared, 2))}, shared, shared + 2);
    }
    CHECK_THROWS_AS(s.layer->step(narrow(x, 0, 0, 1)), Error);  // another batch
    if (is_float(x.dtype())) CHECK_THROWS_AS(s.layer->step(narrow(x, 2, 0, x.dim(2) - 1)), ShapeError);
    s.layer->restart();
    CHECK(s.layer->step(narrow(x, 0, 0, 0)).shape()[0] == 0);  // no sequences
  });
  CHECK(enough(streamed, 40));
}

TEST_CASE("table: a stream against an encoded context gives the rows of the full pass", "[table][streaming]") {
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams || !s.cross()) return;
    ++streamed;
    const bool mixed = s.has("reading", "pooled") || s.has("reading", "literal");  // rows see each other
    LayerInputs in = s.inputs(2, kTokens, 1, true);
    for (const Tensor& mask : {Tensor(), prefix_mask(kTokens, 4, false)}) {
      in.key_mask = mask;
      const Tensor full = (*s.layer)(in);
      for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{kTokens}, std::vector<int64_t>(kTokens, 1), {4, 0, 5}}) {
        if (mixed && pieces.size() > 1) continue;
        s.layer->restart(in);
        std::vector<Tensor> rows;
        for (const Tensor& piece : split(in.x, pieces, 1)) rows.push_back(s.layer->step(piece));
        for (const Tensor& r : rows) CHECK_FALSE(r.requires_grad());
        check_rows(s, cat(rows, 1), full, 1e-12, nullptr, nullptr);
      }
    }
    CHECK_THROWS_AS(s.layer->step(narrow(in.x, 0, 0, 1)), ShapeError);  // another batch
  });
  CHECK(enough(streamed, 4));
}

TEST_CASE("table: the state of a stream holds the bytes that cost() counts", "[table][streaming]") {
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams) return;
    auto counted = [&](int64_t n) { return 2 * 8 * s.layer->cost(n, s.cross() ? n : 0).state; };  // two sequences in f64
    const bool mixed = s.has("reading", "pooled") || s.has("reading", "literal");
    if (!s.causal() && (!s.cross() || mixed)) {
      CHECK(counted(7) == 0);
      return;
    }
    ++streamed;
    for (int64_t n : {1, 4, 7, 21}) {  // n at once, then n in turn, when memory may have room for as many again
      const LayerInputs in = s.inputs(2, n, 1);
      s.layer->restart(in);
      s.layer->step(in.x);
      CHECK(counted(n) > 0);
      CHECK(s.layer->held() == counted(n));
      s.layer->restart(in);
      for (const Tensor& token : split(in.x, std::vector<int64_t>(static_cast<std::size_t>(n), 1), 1)) s.layer->step(token);
      CHECK((s.layer->held() >= counted(n) && s.layer->held() < 2 * counted(n)));
    }
  });
  CHECK(enough(streamed, 40));
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
    for (int64_t changed : {0, 4, 8}) {
      const LayerInputs now{.x = cat({narrow(in.x, 1, 0, changed), narrow(other.x, 1, changed, kTokens - changed)}, 1),
                            .branch = in.branch};
      const Tensor after = (*s.layer)(now);
      CHECK(same_bits(narrow(after, 1, 0, changed), narrow(before, 1, 0, changed)));
      check_rows(s, narrow(after, 1, 0, changed), narrow(before, 1, 0, changed), 0, nullptr,
                 "FLASH: no leakage from later tokens");
      if (drawn_layers() == 0 && (s.options.find("kind") == nullptr || max_abs(before) > 0))
        CHECK_FALSE(same_bits(narrow(after, 1, changed, 1), narrow(before, 1, changed, 1)));
    }
  });
  CHECK(enough(causal, 40));
}

TEST_CASE("table: documents of whole chunks see nothing of each other", "[table]") {
  const int64_t first = 4;  // tokens of the first document
  const Tensor segments = expand(tensor_of({3, 3, 3, 3, 4, 4, 4, 4, 4}, {1, kTokens}, i64), {2, kTokens});
  int packed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.segments || s.cross() || !whole_chunks(s, first)) return;
    ++packed;
    const LayerInputs a = s.inputs(2, kTokens, 1), b = s.inputs(2, kTokens, 2);
    auto parts = [&](const Tensor& t) { return split(t, {first, kTokens - first}, 1); };
    const std::vector<Tensor> one = parts(a.x), two = parts(b.x);
    auto rows = [&](const Tensor& x) { return parts((*s.layer)({.x = x, .segments = segments})); };
    const std::vector<Tensor> want = rows(a.x);
    CHECK(max_abs_diff(rows(cat({one[0], two[1]}, 1))[0], want[0]) < 1e-13 * (1 + max_abs(want[0])));
    CHECK(max_abs_diff(rows(cat({two[0], one[1]}, 1))[1], want[1]) < 1e-13 * (1 + max_abs(want[1])));
    if (drawn_layers() == 0)
      CHECK(max_abs_diff(rows(cat({two[0], one[1]}, 1))[0], want[0]) > 1e-6);  // else it may be constant
  });
  CHECK(enough(packed, 20));
}

TEST_CASE("table: padding is as if it were cut off", "[table]") {
  int masked = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.key_mask || counts_padding(s)) return;
    ++masked;
    for (int64_t real : {4, 5, 8}) {  // padding that ends on a chunk, cuts one, is one token
      LayerInputs in = s.inputs(2, kTokens, 1);
      in.key_mask = prefix_mask(kTokens, real, true);
      const Tensor y = (*s.layer)(in);
      LayerInputs cut = in;
      cut.key_mask = Tensor();
      if (s.cross()) cut.context = narrow(in.context, 1, 0, real);
      else cut.x = narrow(in.x, 1, 0, real);
      if (s.row.query_mask && s.has("reading", "literal")) cut.x = narrow(in.x, 1, 0, real);  // m = n
      const Tensor want = (*s.layer)(cut);
      check_rows(s, narrow(y, 1, 0, want.dim(1)), want, 1e-12, "GAU: padded = truncated, 5 kinds",
                 "FLASH: padded = truncated");
      in.key_mask = ones({2, kTokens}, {f32, test_device()}) > 0.0;
      LayerInputs without = in;
      without.key_mask = Tensor();
      CHECK(max_abs_diff((*s.layer)(in), (*s.layer)(without)) < 1e-12 * (1 + max_abs(want)));
      if (!s.row.query_mask) continue;
      in.query_mask = prefix_mask(kTokens, real, true);
      cut = in;
      cut.query_mask = Tensor(), cut.x = narrow(in.x, 1, 0, real);
      if (s.has("reading", "literal")) {
        in.key_mask = in.query_mask, cut.key_mask = Tensor();
        cut.context = narrow(in.context, 1, 0, real);
      }
      CHECK(max_abs_diff(narrow((*s.layer)(in), 1, 0, real), (*s.layer)(cut)) < 1e-12 * (1 + max_abs(want)));
    }
  });
  CHECK(enough(masked, 70));
}

TEST_CASE("table: NaN in padding reaches nobody, forward or backward", "[table]") {
  const auto same = [](const Tensor& a, const Tensor& b) {  // of drawn layers but for the sign of a padded row's zeros
    return drawn_layers() > 0 ? max_abs_diff(a, b) == 0 : same_bits(a, b);
  };
  each_sample([&](LayerSample& s) {
    if (!s.row.key_mask || layer_width(s.options).vocabulary > 0) return;
    for (const Tensor& mask : {prefix_mask(kTokens, 5, false), prefix_mask(kTokens, 0, false), mask_with_holes()}) {
      const Tensor hidden = unsqueeze(logical_not(mask), -1);
      std::vector<std::vector<Tensor>> results;
      for (double padding : {0.0, std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
        LayerInputs in = s.inputs(2, kTokens, 1, true);
        in.key_mask = mask;
        const bool queries = s.row.query_mask || !s.cross();
        if (s.cross()) in.context = with_padding(in.context, mask, padding);
        if (queries) in.x = with_padding(in.x, mask, padding);
        if (s.row.query_mask) in.query_mask = mask;
        Tensor y = (*s.layer)(in);
        if (queries) y = masked_fill(y, hidden, 0);
        std::vector<Tensor> leaves{in.x};
        if (in.context.defined()) leaves.push_back(in.context);
        for (const NamedTensor& t : s.layer->state())
          if (t.tensor.requires_grad()) leaves.push_back(t.tensor);
        results.push_back(grad({sum(square(y))}, leaves, {.allow_unused = true}));
        CHECK(max_abs(masked_fill(results.back()[s.cross() ? 1 : 0], logical_not(hidden), 0)) == 0);
        results.back().push_back(y);
      }
      for (std::size_t i = 0; i < results[0].size(); ++i)
        for (std::size_t k : {1, 2})
          CHECK((!results[0][i].defined() || same(results[0][i], results[k][i])));
    }
  });
}

TEST_CASE("table: no sequences, no tokens, one token", "[table]") {
  each_sample([](LayerSample& s) {
    for (const auto& [batch, n] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}, {2, 1}}) {
      LayerInputs in = s.inputs(batch, n, 1, true);
      if (n < 2) in.positions.resize(static_cast<std::size_t>(n));
      const Tensor y = (*s.layer)(in);
      CHECK(y.dim(0) == batch);
      CHECK(y.dim(1) == n);
      CHECK(all(isfinite(y)).item());
      if (!y.requires_grad()) continue;
      std::vector<Tensor> leaves;
      for (const NamedTensor& t : s.layer->state())
        if (t.tensor.requires_grad()) leaves.push_back(t.tensor);
      if (is_float(in.x.dtype())) leaves.push_back(in.x);
      for (const Tensor& g : grad({sum(y)}, leaves, {.allow_unused = true}))
        CHECK((!g.defined() || all(isfinite(g)).item()));
    }
  });
}
