// What holds for every layer of the table about what its tokens see: streams, later tokens, documents, padding,
// nothing.
#include "support/table_samples.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

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
                                           1, 0, 1, 1, 1, 1, 0, 1, 1},
                         {2, kTokens}),
            test_device());
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

/// Layers of which a row reads other queries, too.
bool mixes_queries(const LayerSample& s) { return s.has("reading", "pooled") || s.has("reading", "literal"); }

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
    Stream stream;
    if (!s.causal()) {
      CHECK_THROWS_AS(step(*s.layer, x, stream), ValueError);
      return;
    }
    ++streamed;
    const Tensor full = (*s.layer)(x);
    auto check = [&](const std::vector<Tensor>& rows, int64_t from, int64_t to) {
      for (const Tensor& r : rows) CHECK_FALSE(r.requires_grad());
      check_rows(s, cat(rows, 1), narrow(full, 1, from, to - from), 1e-11, "GAU: cache step = full row, 5 kinds",
                 "FLASH: stream = chunked, 6");
    };
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>(n, 1), {0, 2, 2, 2, 3, 0, 12}, {5, 1, 3, 11, 1}, {n}}) {
      stream = {};
      std::vector<Tensor> rows;
      for (const Tensor& piece : split(x, pieces, 1)) rows.push_back(step(*s.layer, piece, stream));
      check(rows, 0, n);
      CHECK(stream.length() == n);
    }
    // What one copy of a stream goes on to read is nothing to another, wherever it was copied.
    const Tensor other = s.inputs(2, n, 2).x;
    for (int64_t shared : {0, 1, 2, 3, 4, 5, 9, 16}) {
      stream = {};
      for (int64_t i = 0; i < shared; ++i) step(*s.layer, narrow(x, 1, i, 1), stream);
      Stream copy = stream;
      std::vector<Tensor> rows{step(*s.layer, narrow(x, 1, shared, 1), stream)};
      for (int64_t size : {1, 3}) {
        Stream third = copy;
        step(*s.layer, narrow(other, 1, shared, size), third);
      }
      rows.push_back(step(*s.layer, narrow(x, 1, shared + 1, 3), stream));
      check(rows, shared, shared + 4);
      check({step(*s.layer, narrow(x, 1, shared, 2), copy)}, shared, shared + 2);
    }
    CHECK_THROWS_AS(step(*s.layer, narrow(x, 0, 0, 1), stream), Error);  // another batch
    if (is_float(x.dtype())) CHECK_THROWS_AS(step(*s.layer, narrow(x, 2, 0, x.dim(2) - 1), stream), ShapeError);
    stream = {};
    CHECK(step(*s.layer, narrow(x, 0, 0, 0), stream).shape()[0] == 0);  // no sequences
  });
  CHECK(enough(streamed, 40));
}

TEST_CASE("table: drawn layers stream as they run", "[table][streaming]") {
  int streamed = 0, tied = 0;
  for (const LayerRow& row : layer_table())
    for (const Json& sample : drawn_samples(row, row.streams ? 2 * std::ssize(row.draft().options.all) : 0, 78)) {
      const LayerSample s = make_sample(row, sample);
      if (!s.causal()) continue;
      INFO(s.text);
      const Tensor x = s.inputs(2, 23, 1).x, full = (*s.layer)(x);
      for (const std::vector<int64_t>& pieces : {std::vector<int64_t>(23, 1), {5, 1, 1, 9, 1, 6}}) {
        Stream stream;
        std::vector<Tensor> rows;
        for (const Tensor& piece : split(x, pieces, 1)) rows.push_back(step(*s.layer, piece, stream));
        // A drawn layer may divide by little; a row of another position is apart by far more.
        const double allowed = 1e-8 * (1 + max_abs(full)), apart = max_abs_diff(cat(rows, 1), full);
        // Two blocks of keys may have equal scores: then rounding decides which one is chosen, here as in the full
        // pass.
        const auto rounding_decides = [&] {
          for (uint64_t seed = 2; is_float(x.dtype()) && seed < 20; ++seed)
            if (max_abs_diff((*s.layer)(x + s.inputs(2, 23, seed).x * 1e-14), full) > allowed) return true;
          return false;
        };
        if (apart > allowed && rounding_decides()) ++tied;
        else CHECK(apart <= allowed);
      }
      ++streamed;
    }
  CHECK(enough(streamed, 200));
  CHECK(tied <= streamed / 100);
}

TEST_CASE("table: a padded stream gives the rows of the full pass", "[table][streaming]") {
  constexpr int64_t n = 21;
  // In front, as prompts are padded; and anywhere.
  const auto mask_of = [](const auto& real) {
    std::vector<bool> rows;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t i = 0; i < n; ++i) rows.push_back(real(b, i));
    return to(Tensor::from(rows, {2, n}), test_device());
  };
  const std::vector<Tensor> masks{mask_of([](int64_t b, int64_t i) { return i >= 7 * b; }),
                                  mask_of([](int64_t b, int64_t i) { return (5 * i + b) % 7 > 2; })};
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams || !s.row.key_mask || s.cross() || !s.causal()) return;
    const LayerInputs in = s.inputs(2, n, 1, true);
    for (const Tensor& mask : masks) {
      const auto real = [&](const Tensor& y) { return masked_fill(y, logical_not(unsqueeze(mask, -1)), 0); };
      const Tensor x =
          is_float(in.x.dtype()) ? with_padding(in.x, mask, std::numeric_limits<double>::quiet_NaN()) : in.x;
      const Tensor full = real((*s.layer)(x, {.key_mask = mask}));
      for (const std::vector<int64_t>& pieces :
           {std::vector<int64_t>(n, 1), {0, 8, 2, 2, 3, 0, 6}, {5, 1, 3, 11, 1}, {n}}) {
        Stream stream;
        std::vector<Tensor> rows;
        int64_t at = 0;
        for (const Tensor& piece : split(x, pieces, 1)) {
          const Tensor now = narrow(mask, 1, at, piece.dim(1));
          rows.push_back(step(*s.layer, piece, stream, {.key_mask = now})), at += piece.dim(1);
        }
        CHECK(max_abs_diff(real(cat(rows, 1)), full) <= 1e-11 * (1 + max_abs(full)));
      }
    }
    ++streamed;
  });
  CHECK(enough(streamed, 40));
}

TEST_CASE("table: a stream that brought a context gives the rows of the full pass", "[table][streaming]") {
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams || !s.cross()) return;
    LayerInputs in = s.inputs(2, kTokens, 1, true);
    Stream stream;
    if (mixes_queries(s)) {
      CHECK_THROWS_AS(step(*s.layer, in.x, stream, in.pass()), ValueError);
      return;
    }
    ++streamed;
    for (const Tensor& mask : {Tensor(), prefix_mask(kTokens, 4, false)}) {
      in.context_mask = mask;
      const Tensor full = call(*s.layer, in);
      for (const std::vector<int64_t>& pieces :
           {std::vector<int64_t>{kTokens}, std::vector<int64_t>(kTokens, 1), {4, 0, 5}}) {
        stream = {};
        CHECK_THROWS_AS(step(*s.layer, in.x, stream), ValueError);  // which brings no context
        std::vector<Tensor> rows;
        for (const Tensor& piece : split(in.x, pieces, 1))
          rows.push_back(step(*s.layer, piece, stream, stream.length() == 0 ? in.pass() : Pass{}));
        for (const Tensor& r : rows) CHECK_FALSE(r.requires_grad());
        check_rows(s, cat(rows, 1), full, 1e-12, nullptr, nullptr);
      }
    }
    CHECK_THROWS_AS(step(*s.layer, narrow(in.x, 0, 0, 1), stream), ShapeError);  // another batch
  });
  CHECK(enough(streamed, 7));
}

TEST_CASE("table: the state of a stream holds the bytes that cost() counts", "[table][streaming]") {
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams) return;
    auto counted = [&](int64_t n) {
      return 2 * 8 * s.layer->cost(n, s.cross() ? n : 0).state;
    };  // two sequences in f64
    if (!s.causal() && (!s.cross() || mixes_queries(s))) {
      CHECK(counted(7) == 0);
      return;
    }
    ++streamed;
    for (int64_t n : {1, 4, 7, 21}) {  // n at once, then n in turn, when memory may have room for as many again
      const LayerInputs in = s.inputs(2, n, 1);
      Stream at_once, in_turn;
      step(*s.layer, in.x, at_once, in.pass());
      CHECK(counted(n) > 0);
      CHECK(at_once.bytes() == counted(n));
      CHECK(8 * at_once.numel() == counted(n));
      for (int64_t i = 0; i < n; ++i) step(*s.layer, narrow(in.x, 1, i, 1), in_turn, i == 0 ? in.pass() : Pass{});
      CHECK((in_turn.bytes() >= counted(n) && in_turn.bytes() <= 2 * counted(n)));
      CHECK(in_turn.numel() == at_once.numel());
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
    const Tensor before = call(*s.layer, in);
    const LayerInputs other = s.inputs(2, kTokens, 2);
    for (int64_t changed : {0, 4, 8}) {
      const LayerInputs now{.x = cat({narrow(in.x, 1, 0, changed), narrow(other.x, 1, changed, kTokens - changed)}, 1),
                            .context = in.context};
      const Tensor after = call(*s.layer, now);
      const bool gathers = s.row.name == "moe";  // a product's order of sums follows how many tokens its expert has
      if (!gathers) CHECK(same_bits(narrow(after, 1, 0, changed), narrow(before, 1, 0, changed)));
      check_rows(s, narrow(after, 1, 0, changed), narrow(before, 1, 0, changed), gathers ? 1e-14 : 0, nullptr,
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
    if (!s.documents() || !whole_chunks(s, first)) return;
    ++packed;
    const LayerInputs a = s.inputs(2, kTokens, 1), b = s.inputs(2, kTokens, 2);
    auto parts = [&](const Tensor& t) { return split(t, {first, kTokens - first}, 1); };
    const std::vector<Tensor> one = parts(a.x), two = parts(b.x);
    auto rows = [&](const Tensor& x) { return parts((*s.layer)(x, {.segments = segments})); };
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
    if (!s.masks_keys() || counts_padding(s)) return;
    ++masked;
    for (int64_t real : {4, 5, 8}) {  // padding that ends on a chunk, cuts one, is one token
      const Tensor mask = prefix_mask(kTokens, real, true);
      LayerInputs in = s.inputs(2, kTokens, 1), cut = in;
      s.mask_of_keys(in) = mask;
      const Tensor y = call(*s.layer, in);
      if (s.cross()) cut.context = narrow(in.context, 1, 0, real);
      if (!s.cross() || s.has("reading", "literal")) cut.x = narrow(in.x, 1, 0, real);  // literal: m = n
      const Tensor want = call(*s.layer, cut);
      check_rows(s, narrow(y, 1, 0, want.dim(1)), want, 1e-12, "GAU: padded = truncated, 5 kinds",
                 "FLASH: padded = truncated");
      LayerInputs all = s.inputs(2, kTokens, 1);
      const Tensor without = call(*s.layer, all);
      s.mask_of_keys(all) = ones({2, kTokens}, {f32, test_device()}) > 0.0;
      CHECK(max_abs_diff(call(*s.layer, all), without) < 1e-12 * (1 + max_abs(want)));
      if (!s.cross() || !s.row.key_mask) continue;
      in.key_mask = mask, cut.x = narrow(in.x, 1, 0, real);  // of both
      const Tensor both = call(*s.layer, cut);
      CHECK(max_abs_diff(narrow(call(*s.layer, in), 1, 0, real), both) < 1e-12 * (1 + max_abs(want)));
      if (s.has("reading", "literal")) continue;
      in.context_mask = Tensor(), cut.context = in.context;  // of x alone
      CHECK(max_abs_diff(narrow(call(*s.layer, in), 1, 0, real), call(*s.layer, cut)) < 1e-12 * (1 + max_abs(want)));
    }
  });
  CHECK(enough(masked, 70));
}

TEST_CASE("table: NaN and huge numbers in padding reach nobody, forward or backward", "[table]") {
  // But for the sign of zeros: that of a padded row's gradient depends on whether the row had to be filled.
  const auto same = [](const Tensor& a, const Tensor& b) { return max_abs_diff(a, b) == 0; };
  each_sample([&](LayerSample& s) {
    if (!s.masks_keys() || layer_width(s.options).vocabulary > 0) return;
    const bool queries = s.row.key_mask;
    for (const Tensor& mask : {prefix_mask(kTokens, 5, false), prefix_mask(kTokens, 0, false), mask_with_holes()}) {
      const Tensor hidden = unsqueeze(logical_not(mask), -1);
      std::vector<std::vector<Tensor>> results;
      for (double padding :
           {0.0, std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity(), 1e300}) {
        LayerInputs in = s.inputs(2, kTokens, 1, true);
        if (s.cross()) in.context = with_padding(in.context, mask, padding), in.context_mask = mask;
        if (queries) in.x = with_padding(in.x, mask, padding), in.key_mask = mask;
        Tensor y = call(*s.layer, in);
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
        for (std::size_t k : {1, 2, 3}) {
          if (!results[0][i].defined()) continue;
          INFO("result " << i << " with padding " << k << ": off by " << max_abs_diff(results[0][i], results[k][i]));
          CHECK(same(results[0][i], results[k][i]));
        }
    }
  });
}

TEST_CASE("table: no sequences, no tokens, one token", "[table]") {
  each_sample([](LayerSample& s) {
    for (const auto& [batch, n] : {std::pair<int64_t, int64_t>{0, 5}, {2, 0}, {2, 1}}) {
      LayerInputs in = s.inputs(batch, n, 1, true);
      if (n < 2 && !in.positions.empty()) in.positions.resize(static_cast<std::size_t>(n));
      const Tensor y = call(*s.layer, in);
      CHECK(y.dim(0) == batch);
      CHECK(y.dim(1) == n);
      CHECK(all(isfinite(y)).item());
      if (!y.requires_grad()) continue;
      for (const Tensor& g : grad({sum(y)}, s.leaves(in), {.allow_unused = true}))
        CHECK((!g.defined() || all(isfinite(g)).item()));
    }
  });
}
