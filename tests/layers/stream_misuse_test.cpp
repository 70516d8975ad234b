// Models that hand a stream other tokens than their own, layers with several places, and what fails in between.
#include "support/approx.h"
#include "support/catch.h"
#include "support/table_samples.h"
#include "support/temp_folder.h"

#include <sluice/core/kernel/backend.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/nn/generate.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/train/models.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <functional>

using namespace sluice;
using namespace sluice::testing;

namespace {

MultiHeadAttention attention_layer(bool rope = true) {
  Rng rng(1);
  return MultiHeadAttention({.dim = 8, .heads = 2, .causal = true, .use_rope = rope, .dtype = f64}, rng);
}
Tensor rows_of_tokens(int64_t n) {
  Rng rng(2);
  return normal({2, n, 8}, 0, 1, rng, {f64});
}

/// A layer that keeps two things of its own, and asks for both before it writes either.
struct TwoPlaces {
  static constexpr const char* type = "TwoPlaces";
  static void visit(auto&, auto&&) {}
  Tensor operator()(const Tensor& given, const Pass& pass = {}) const {
    Call call(*this, "two_places", given, 8, pass);
    Tensor sum = cumsum(call.x, 1);
    if (!call.streams()) return sum + call.shift(call.x);
    Stream::Kept& total = call.kept("total");
    Stream::Kept& last = call.kept("last row");
    Tensor before = zeros({call.x.dim(0), 1, 8}, call.x.options());
    if (!total.tensors.empty()) sum = sum + total.tensors[0], before = last.tensors[0];
    total.tensors = {clone(narrow(sum, 1, call.x.dim(1) - 1, 1))};
    last.tensors = {clone(narrow(call.x, 1, call.x.dim(1) - 1, 1))};
    return sum + cat({before, narrow(call.x, 1, 0, call.x.dim(1) - 1)}, 1);
  }
};

/// A model that gives its logits in two parts, as Decoder does.
struct Lm {
  static constexpr bool logits_of_hidden = true;
  Embedding embed;
  MultiHeadAttention attention;
  Linear head;
  std::function<void(int64_t)> rows = [](int64_t) {};
  Tensor hidden(const Tensor& tokens, const Pass& pass = {}) const { return attention(embed(tokens), pass); }
  Tensor logits(const Tensor& h) const { return rows(h.dim(1)), head(h); }
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const { return logits(hidden(tokens, pass)); }
  SLUICE_PARTS(embed, attention, head);
};

}  // namespace

TEST_CASE("stream: a layer may hold several of its places at a time", "[stream]") {
  const Tensor x = rows_of_tokens(7);
  const TwoPlaces layer;
  Stream stream;
  const Tensor head = step(layer, narrow(x, 1, 0, 3), stream), tail = step(layer, narrow(x, 1, 3, 4), stream);
  CHECK(max_abs_diff(cat({head, tail}, 1), layer(x)) < 1e-14);
}

TEST_CASE("stream: a layer that reads positions must see every token", "[stream]") {
  const MultiHeadAttention layer = attention_layer();
  const Tensor x = rows_of_tokens(6);
  const auto with_prefix = [&](const Tensor& y, const Pass& pass) {
    return layer(cat({zeros({2, 3, 8}, y.options()), y}, 1), pass);
  };
  Stream stream;
  CHECK_THROWS_WITH(step(with_prefix, x, stream), Contains("called with 9 tokens in a step of 6"));
  const auto strided = [&](const Tensor& y, const Pass& pass) { return layer(slice(y, 1, {}, {}, 2), pass); };
  CHECK_THROWS_WITH(step(strided, x, stream), Contains("called with 3 tokens in a step of 6"));
  CHECK(stream.length() == 0);
  CHECK(max_abs_diff(step(layer, x, stream), layer(x)) == 0);

  // Without positions a layer may have tokens of its own: means of two.
  const MultiHeadAttention plain = attention_layer(false);
  const auto patched = [&](const Tensor& y, const Pass& pass) {
    return plain(mean(unflatten(y, 1, {y.dim(1) / 2, 2}), {2}), pass);
  };
  Stream patches;
  const Tensor head = step(patched, narrow(x, 1, 0, 4), patches), tail = step(patched, narrow(x, 1, 4, 2), patches);
  CHECK(max_abs_diff(cat({head, tail}, 1), patched(x, {})) < 1e-14);
}

TEST_CASE("table: a layer that reads no positions may have tokens of its own in a stream", "[table][streaming]") {
  int streamed = 0;
  each_sample([&](LayerSample& s) {
    const Json* rope = s.options.find("use_rope");
    const bool turns = rope && !(*rope == Json(false)) && !(*rope == Json("none"));
    const Json* growth = s.options.find("growth_beta");  // of queries with their positions
    const bool grows = growth && *growth->as<double>() > 0;
    const Json* chunk = s.options.find("chunk_size");
    const bool chunks = chunk && *chunk->as<int64_t>() > 0;
    if (!s.row.streams || !s.causal() || turns || grows || chunks || s.options.find("scaling"))
      return;  // chunks have places, too
    ++streamed;
    const auto every_other = [&](const Tensor& x, const Pass& pass) {
      return (*s.layer)(slice(x, 1, {}, {}, 2), pass);
    };
    const Tensor x = s.inputs(2, 14, 1).x, full = every_other(x, {});
    Stream stream;
    std::vector<Tensor> rows;
    for (const Tensor& piece : split(x, {2, 6, 4, 2}, 1)) rows.push_back(step(every_other, piece, stream));
    CHECK(max_abs_diff(cat(rows, 1), full) <= 1e-11 * (1 + max_abs(full)));
  });
  CHECK(enough(streamed, 40));
}

TEST_CASE("stream: no step within a step", "[stream]") {
  const MultiHeadAttention layer = attention_layer();
  const Tensor x = rows_of_tokens(4);
  const auto nested = [&](const Tensor& y, const Pass& pass) { return step(layer, y, *pass.stream); };
  Stream stream;
  CHECK_THROWS_WITH(step(nested, x, stream), Contains("runs already"));
  CHECK(stream.length() == 0);
  Stream copied;  // within a step
  step([&](const Tensor& y, const Pass& pass) { return copied = *pass.stream, layer(y, pass); }, x, stream);
  CHECK(max_abs_diff(step(layer, x, copied), layer(x)) == 0);
  stream = {};
  CHECK(max_abs_diff(step(layer, x, stream), layer(x)) == 0);
}

TEST_CASE("stream: another dtype, and a mask that is written later", "[stream]") {
  Rng rng(3);
  const Tensor x = rows_of_tokens(4), context = normal({2, 5, 8}, 0, 1, rng, {f64});
  Gla gla({.dim = 8, .heads = 2, .short_conv = 3, .dtype = f64}, rng);
  Stream stream;
  step(gla, x, stream);
  Gla narrow_gla = clone(gla);
  to(narrow_gla, f32);
  CHECK_THROWS_WITH(step(narrow_gla, to(x, f32), stream), Contains("short_convolution") && Contains("f64"));

  MultiHeadAttention cross({.dim = 8, .heads = 2, .context_dim = 8, .dtype = f64}, rng);
  Tensor mask = ones({2, 5}, {boolean});
  fill_(mask, 1);
  const Tensor want = cross(x, {.context = context, .context_mask = mask});
  Stream other;
  step(cross, narrow(x, 1, 0, 2), other, {.context = context, .context_mask = mask});
  Tensor part = narrow(mask, 1, 0, 4);
  fill_(part, 0);
  CHECK(max_abs_diff(step(cross, narrow(x, 1, 2, 2), other), narrow(want, 1, 2, 2)) < 1e-14);
}

TEST_CASE("stream: a file whose counts of chunks are damaged", "[stream]") {
  Rng rng(1);
  const Flash flash({.dim = 8, .key_dim = 4, .chunk = 4, .causal = true, .dtype = f64}, rng);
  const Tensor x = rows_of_tokens(7);
  Stream stream;
  step(flash, narrow(x, 1, 0, 6), stream, {.key_mask = ones({2, 6}, {boolean})});
  const TempFolder folder;
  const std::string path = folder / "stream.safetensors";
  save(stream, path);
  const SafeTensors good = load_safetensors(path);
  const auto goes_on = [&](const std::string& name, const Tensor& value) {
    SafeTensors file = good;
    file.tensors.at(name) = value;
    save_safetensors(path, file);
    Stream loaded = load_stream(path);
    step(flash, narrow(x, 1, 6, 1), loaded);
  };
  CHECK_NOTHROW(goes_on("0.tensor.2", ones({2, 2}, {boolean})));
  const auto refused = Contains("does not continue behind 6 tokens");
  CHECK_THROWS_WITH(goes_on("0.tensor.2", ones({2, 3}, {boolean})), refused);
  CHECK_THROWS_WITH(goes_on("0.tensor.2", ones({2, 2}, {f64})), refused);
  CHECK_THROWS_WITH(goes_on("0.tensor.1", ones({2, 1}, {f32})), refused);
  CHECK_THROWS_WITH(goes_on("0.tensor.1", ones({2, 2}, {f64})), refused);
}

TEST_CASE("generate: prompts of i32, no tokens, and a model with hidden()", "[generate]") {
  Rng rng(1);
  Lm lm{Embedding({.count = 11, .dim = 8, .dtype = f64}, rng), attention_layer(), Linear({8, 11, true, {}, f64}, rng)};
  const Tensor prompt = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor want = prompt;  // the likeliest by full passes
  for (int i = 0; i < 5; ++i) want = cat({want, unsqueeze(argmax(select(lm(want), 1, want.dim(1) - 1), 1), 1)}, 1);
  int64_t most = 0;
  lm.rows = [&](int64_t n) { most = std::max(most, n); };
  CHECK(same_bits(generate(lm, prompt, {.tokens = 5, .temperature = 0}, rng), want));
  CHECK(most == 1);  // a long prompt needs the logits of its last row only
  CHECK(same_bits(generate(lm, to(prompt, i32), {.tokens = 5, .temperature = 0}, rng), want));
  CHECK_THROWS_AS(generate(lm, to(prompt, f32), {}, rng), DTypeError);

  MultiHeadAttention cross({.dim = 8, .heads = 2, .context_dim = 8, .dtype = f64}, rng);
  const auto with_context = [&](const Tensor& tokens, const Pass& pass) {
    return lm.head(cross(lm.embed(tokens), pass));
  };
  CHECK(same_bits(generate(with_context, prompt, {.tokens = 0}, rng, {.context = zeros({2, 4, 8}, {f64})}), prompt));
}
