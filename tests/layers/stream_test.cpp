// Streams: a step runs the forward pass of a model for its next tokens. tests/layers/table_masks_test.cpp has every
// layer.
#include <sluice/layers/nn/pass.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/linear_time/gla.h>
#include <sluice/layers/linear_time/retention.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// A model of layers that knows nothing of streams.
struct Model {
  Gla first;
  Retention second;

  explicit Model(Rng& rng)
      : first({.dim = 8, .heads = 2, .short_conv = 3, .dtype = f64}, rng),
        second({.dim = 8, .heads = 2, .dtype = f64}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const { return second(first(x, pass), pass); }
  static void visit(auto& self, auto&& f) {
    f("first", self.first);
    f("second", self.second);
  }
};

}  // namespace

TEST_CASE("stream: a model of layers streams without a line for it", "[streaming]") {
  Rng rng(1);
  const Model model(rng);
  const Tensor x = normal({2, 12, 8}, 0, 1, rng, {f64}), want = model(x).detach();
  Stream stream;
  std::vector<Tensor> rows;
  for (const Tensor& piece : split(x, {1, 1, 3, 0, 1, 6}, 1)) rows.push_back(step(model, piece, stream));
  CHECK(max_abs_diff(cat(rows, 1), want) < 1e-12);
  CHECK_FALSE(rows[0].requires_grad());
  CHECK(stream.length() == 12);
  // Two rows of q, k and v; a state of 2 heads for each layer.
  CHECK(stream.numel() == 2 * (2 * (4 + 4 + 8) + 2 * 2 * 4 + 2 * 4 * 8));
}

TEST_CASE("stream: copies go on by themselves", "[streaming]") {
  Rng rng(2);
  const Model model(rng);
  const Tensor x = normal({1, 6, 8}, 0, 1, rng, {f64}), want = model(x);
  Stream stream;
  step(model, narrow(x, 1, 0, 3), stream);
  Stream copy = stream;
  step(model, ones({1, 2, 8}, {f64}), copy);
  CHECK(max_abs_diff(step(model, narrow(x, 1, 3, 3), stream), narrow(want, 1, 3, 3)) < 1e-12);
}

TEST_CASE("stream: an error leaves it as it was", "[streaming]") {
  Rng rng(3);
  const Model model(rng);
  const Tensor x = normal({2, 6, 8}, 0, 1, rng, {f64}), want = model(x);
  Stream stream;
  CHECK_THROWS_AS(step(model, narrow(x, 2, 0, 7), stream), ShapeError);
  step(model, narrow(x, 1, 0, 3), stream);
  const auto refused = [&](const auto& other, const Tensor& next, const char* text) {
    CHECK_THROWS_WITH(step(other, next, stream), Contains(text));
  };
  refused(model, narrow(x, 0, 0, 1), "does not continue");                                      // another batch
  refused(model.first, narrow(x, 1, 3, 1), "a stream of another model: this one ends before");  // a part of the model
  refused(model.second, narrow(x, 1, 3, 1), "not the state of a layer retention");              // in another place
  CHECK_THROWS_WITH(step(model, narrow(x, 1, 3, 1), stream, {.key_mask = ones({2, 1}) > 0.0}), Contains("key_mask"));
  CHECK(stream.length() == 3);
  CHECK(max_abs_diff(step(model, narrow(x, 1, 3, 3), stream), narrow(want, 1, 3, 3)) < 1e-12);
}
