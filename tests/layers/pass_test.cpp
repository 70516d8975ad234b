// What a call brings besides x: a field that nothing reads is an error, in every layer and in models of layers.
#include <sluice/layers/nn/pass.h>

#include "support/catch.h"
#include "support/table_samples.h"

#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kTokens = 6;

struct Field {
  const char* name;
  bool taken;
  std::function<void(LayerInputs&)> give;
};

/// Every field, whether a sample takes it, and values that fit; `in` brings what the sample needs.
std::vector<Field> fields_of(const LayerSample& s, const LayerInputs& in) {
  const LayerRow& r = s.row;
  const auto set = [](Tensor LayerInputs::*field, const Tensor& value) {
    return [=](LayerInputs& to) { to.*field = value; };
  };
  const auto yes = [](const Shape& shape) { return ones(shape, {f32, test_device()}) > 0.0; };
  const Tensor tokens = yes({2, kTokens}), ids = zeros({2, kTokens}, {i64, test_device()});
  const Tensor context = in.context.defined() ? in.context : zeros({2, kTokens, 4}, {f64, test_device()});
  return {{"key_mask", r.key_mask, set(&LayerInputs::key_mask, tokens)},
          {"context", s.cross() || r.branch, set(&LayerInputs::context, context)},
          {"context_mask", s.cross(), set(&LayerInputs::context_mask, tokens)},
          {"segments", r.segments && (s.cross() || s.documents()), set(&LayerInputs::segments, ids)},
          {"context_segments", r.segments && s.cross(), set(&LayerInputs::context_segments, ids)},
          {"mask", r.scores, set(&LayerInputs::mask, yes({kTokens, kTokens}))},
          {"bias", r.scores, set(&LayerInputs::bias, zeros({kTokens, kTokens}, {f64, test_device()}))},
          {"blocks", r.scores,
           [=](LayerInputs& to) {
             to.blocks = yes({1, 1}), to.block = kTokens;
           }},
          {"positions", r.positions && !s.cross(), [](LayerInputs& to) { to.positions = {1}; }}};
}

/// A layer that reads no mask, then one that does.
struct Model {
  Mlp first;
  Gla second;

  explicit Model(Rng& rng) : first({.dim = 8, .dtype = f64}, rng), second({.dim = 8, .heads = 2, .dtype = f64}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const { return second(first(x, pass), pass); }
  SLUICE_PARTS(first, second);
};

}  // namespace

TEST_CASE("table: a layer reads the fields that its row declares, and refuses every other", "[table][pass]") {
  int taken = 0, refused = 0;
  each_sample([&](LayerSample& s) {
    const LayerInputs in = s.inputs(2, kTokens, 1);
    LayerInputs all = in;
    for (const Field& f : fields_of(s, in)) {
      INFO(f.name);
      if (f.taken) {
        // A block mask and rows with maps of their own do not go together.
        const bool own_rows = s.has("separate_global_projections", true) || s.has("separate_global", true);
        if (f.name == std::string("blocks") && own_rows) continue;
        ++taken, f.give(all);
        continue;
      }
      ++refused;
      LayerInputs more = in;
      f.give(more);
      CHECK_THROWS_WITH(call(*s.layer, more), Contains(f.name));
    }
    Rng rng(1);
    CHECK(call(*s.layer, all).shape() == call(*s.layer, in, &rng).shape());
  });
  CHECK(enough(taken, 200));
  CHECK(enough(refused, 400));
}

TEST_CASE("pass: of a model, a field that one layer reads has been read", "[pass]") {
  Rng rng(1);
  const Model model(rng);
  const Tensor x = normal({2, 5, 8}, 0, 1, rng, {f64}), mask = ones({2, 5}) > 0.0;
  CHECK(same_bits(model(x, {.key_mask = mask, .rng = &rng}), model(x)));
  CHECK_THROWS_WITH(model(x, {.context = x}), "pass: nothing in the model has read context");
  CHECK_THROWS_WITH(model(x, {.key_mask = mask, .positions = {0}}), "pass: nothing in the model has read positions");
  CHECK_THROWS_WITH(model(x, {.segments = zeros({2, 5}, {f64})}), Contains("segments must be i64"));
  CHECK_THROWS_WITH(model.first(x, {.key_mask = mask}), Contains("key_mask"));
  // An error of the call itself is the one that is reported.
  CHECK_THROWS_AS(model(ones({2, 5, 7}, {f64}), {.context = x}), ShapeError);
}

namespace {
/// Builds a pass for each of its layers. `context_dim` 0: the second layer forgets to read the context.
struct TwoPasses {
  MultiHeadAttention own, cross;
  TwoPasses(int64_t context_dim, Rng& rng)
      : own({.heads = {.dim = 8, .causal = true}}, rng), cross({.heads = {.dim = 8, .context_dim = context_dim}}, rng) {
  }
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    const Pass both{.key_mask = pass.key_mask, .context = pass.context, .stream = pass.stream};
    const Tensor y = own(x, {.key_mask = both.key_mask, .context = pass.context, .stream = pass.stream});
    return cross(y, {.context = both.context, .stream = pass.stream});
  }
};
}  // namespace

TEST_CASE("pass: a field of another pass is read where either is", "[pass]") {
  Rng rng(1);
  const TwoPasses right(6, rng), forgot(0, rng);
  const Tensor x = normal({2, 5, 8}, 0, 1, rng), c = normal({2, 3, 6}, 0, 1, rng), real = ones({2, 5}) > 0.0;
  CHECK(right(x, {.key_mask = real, .context = c}).shape() == x.shape());
  CHECK_THROWS_WITH(forgot(x, {.key_mask = real, .context = c}), "pass: nothing in the model has read context");
  CHECK_THROWS_WITH(right(x, {.context = c, .bias = x}), "pass: nothing in the model has read bias");
  Stream stream;
  const Pass given{.context = c};
  CHECK(step(right, narrow(x, 1, 0, 2), stream, given).dim(1) == 2);
  CHECK(step(right, narrow(x, 1, 2, 3), stream, given).dim(1) == 3);  // each step asks anew
  Stream other;
  CHECK_THROWS_WITH(step(right.own, x, other, given), Contains("nothing in the model has read context"));
  Pass replaced = given;
  replaced.context = Tensor();  // the program has dealt with it
  CHECK(right.own(x, replaced).shape() == x.shape());
  const auto chosen = [&](bool masked) {
    const Pass with{.key_mask = real, .context = c};
    return masked ? with : Pass{};  // a copy, which may still be read when `with` ends
  };
  CHECK(right(x, chosen(true)).shape() == x.shape());
  {
    const Pass unread{.context = c};
    const Pass copy = unread;
    CHECK_THROWS_WITH(unread.check_read(), Contains("context"));
    CHECK(copy.context.get().defined());
    CHECK_NOTHROW(unread.check_read());
  }
}

TEST_CASE("pass: one pass serves many calls, and what is left undefined is not given", "[pass]") {
  Rng rng(2);
  const Model model(rng);
  const Tensor x = normal({2, 5, 8}, 0, 1, rng, {f64}), mask = ones({2, 5}) > 0.0;
  {
    const Pass pass{.key_mask = mask};
    CHECK(same_bits(model(x, pass), model(x, pass)));
  }
  CHECK_NOTHROW(model.first(x, {.key_mask = Tensor(), .positions = {}, .rng = &rng}));
  CHECK_THROWS_WITH([&] { const Pass unread{.key_mask = mask}; }(), Contains("key_mask"));
}

TEST_CASE("pass: segments that do not fit are one error, wherever a layer has read them before", "[pass]") {
  Rng rng(3);
  const MultiHeadAttention layer({.dim = 8, .heads = 2, .causal = true}, rng);
  const Tensor x = normal({2, 4, 8}, 0, 1, rng), three = zeros({2, 3}, {i64}), four = zeros({2, 4}, {i64});
  const auto refuses = [&](const Pass& pass) { CHECK_THROWS_WITH(layer(x, pass), Contains("segments=[2,3]")); };
  CHECK_NOTHROW(refuses({.segments = three}));  // nor one at the end of the pass
  CHECK_NOTHROW([&] {
    const Pass pass{.segments = four};
    layer(x, pass);
    CHECK_THROWS_AS(layer(narrow(x, 1, 0, 3), pass), ShapeError);
  }());
}

TEST_CASE("pass: in a stream a layer keeps the mask that its own pass brings, or none", "[pass][streaming]") {
  Rng rng(3);
  const MultiHeadAttention layer({.dim = 8, .heads = 2, .causal = true, .dtype = f64}, rng);
  const Tensor x = normal({2, 7, 8}, 0, 1, rng, {f64}), real = select(x, 2, 0) > -0.3;
  const auto masked = [&](const Tensor& y, const Pass& pass) {  // part of the step, and not the step's
    return layer(y, {.key_mask = select(y, 2, 0) > -0.3, .rng = pass.rng, .stream = pass.stream});
  };
  const auto unmasked = [&](const Tensor& y, const Pass& pass) {
    pass.key_mask.get();
    return layer(y, {.rng = pass.rng, .stream = pass.stream});
  };
  for (const Tensor& mask : {Tensor(), real}) {
    Stream one, two;
    std::vector<Tensor> with, without;
    int64_t at = 0;
    for (const Tensor& piece : split(x, {3, 1, 2, 1}, 1)) {
      const Tensor now = mask.defined() ? narrow(mask, 1, at, piece.dim(1)) : mask;
      at += piece.dim(1);
      if (!mask.defined()) with.push_back(step(masked, piece, one));
      without.push_back(step(unmasked, piece, two, {.key_mask = now}));
    }
    const Tensor hidden = unsqueeze(logical_not(real), -1);
    if (!mask.defined())
      CHECK(max_abs_diff(masked_fill(cat(with, 1), hidden, 0), masked_fill(masked(x, {}), hidden, 0)) < 1e-12);
    CHECK(max_abs_diff(cat(without, 1), layer(x)) < 1e-12);
  }
}

TEST_CASE("pass: a stream refuses what nothing reads, and stays as it was", "[pass][streaming]") {
  Rng rng(3);
  const Model model(rng);
  const Tensor x = normal({2, 6, 8}, 0, 1, rng, {f64}), want = model(x);
  Stream stream;
  for (const Tensor& piece : split(x, {2, 1, 3}, 1)) {
    const int64_t length = stream.length(), kept = stream.numel();
    CHECK_THROWS_WITH(step(model, piece, stream, {.context = x}), "pass: nothing in the model has read context");
    for (const char* name : {"segments", "mask", "bias", "blocks", "positions"}) {
      INFO(name);
      const Tensor yes = ones({2, piece.dim(1)}) > 0.0;
      const std::string field = name;
      CHECK_THROWS_WITH(step(model, piece, stream,
                             {.segments = field == "segments" ? yes : Tensor(),
                              .mask = field == "mask" ? yes : Tensor(),
                              .bias = field == "bias" ? yes : Tensor(),
                              .blocks = field == "blocks" ? yes : Tensor(),
                              .positions = std::vector<int64_t>(field == "positions" ? 1 : 0)}),
                        Contains(name));
    }
    CHECK((stream.length() == length && stream.numel() == kept));
    CHECK(max_abs_diff(step(model, piece, stream), narrow(want, 1, length, piece.dim(1))) < 1e-12);
  }
}
