// Streams of models: a step runs the forward pass of a model for its next tokens, and changes nothing if it fails.
// tests/layers/table_masks_test.cpp has every layer.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/table_samples.h"
#include "support/temp_folder.h"

#include <sluice/core/text/safetensors.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/attention/fused_attention.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/linear_attention/retention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

#include <functional>
#include <stdexcept>
#include <string>

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
  SLUICE_PARTS(first, second);
};

/// Three mixers of different kinds, each with a residual.
struct Mixers {
  Gau first;
  Gla second;
  MultiHeadAttention third;

  explicit Mixers(Rng& rng)
      : first({.dim = 8, .expansion = 12, .key_dim = 6, .causal = true, .dtype = f64}, rng),
        second({.dim = 8, .heads = 2, .dtype = f64}, rng),
        third({.heads = {.dim = 8, .heads = 2, .causal = true, .use_rope = true, .dtype = f64}, .window = 3}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    const Tensor y = first(x, pass), z = y + second(y, pass);
    return z + third(z, pass);
  }
  SLUICE_PARTS(first, second, third);
};

struct Broken : std::runtime_error {
  Broken() : std::runtime_error("broken") {}
};

/// Two layers, of which the pass fails after the first or the second when it is told to.
template <class Mixer> struct Fragile {
  Mixer first, second;
  int fails_after = 0;  // 0: never

  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    const Tensor y = first(x, pass);
    if (fails_after == 1) throw Broken();
    const Tensor z = second(y, pass);
    if (fails_after == 2) throw Broken();
    return z;
  }
};

/// Such models whose streams keep everything, a window, chunks, sums, the last rows.
template <class F> void each_fragile(F check) {
  const auto with = [&](const char* name, const auto& make) {
    INFO(name);
    Rng rng(4);
    const auto first = make(rng);
    check(Fragile<std::remove_const_t<decltype(first)>>{first, make(rng)});
  };
  const HeadsOptions heads{.dim = 8, .heads = 2, .causal = true, .use_rope = true, .dtype = f64};
  const auto attention = [&](int64_t window, int64_t dilation, PositionBias bias) {
    return [=](Rng& rng) {
      return MultiHeadAttention(
          {.heads = heads, .window = window, .dilation = dilation, .position_bias = bias, .max_length = 50}, rng);
    };
  };
  with("everything", attention(0, 1, PositionBias::none));
  with("a window", attention(3, 1, PositionBias::none));
  with("a window, in order", attention(3, 1, PositionBias::toeplitz));
  with("a window with holes", attention(3, 2, PositionBias::none));
  with("GAU", [](Rng& rng) { return Gau({.dim = 8, .key_dim = 6, .causal = true, .dtype = f64}, rng); });
  with("GAU with a window",
       [](Rng& rng) { return Gau({.dim = 8, .key_dim = 6, .causal = true, .window = 3, .dtype = f64}, rng); });
  with("FLASH", [](Rng& rng) {
    return Flash({.dim = 8, .key_dim = 6, .chunk = 4, .causal = true, .token_shift = true, .dtype = f64}, rng);
  });
  with("rows and sums", [&](Rng& rng) { return FusedAttention({.heads = heads}, rng); });
  with("sums and last rows", [](Rng& rng) { return Gla({.dim = 8, .heads = 2, .short_conv = 3, .dtype = f64}, rng); });
}

/// The outputs of the next `sizes` tokens of x.
template <class M>
std::vector<Tensor> next_of(const M& model, const Tensor& x, const std::vector<int64_t>& sizes, Stream& stream) {
  std::vector<Tensor> rows;
  for (int64_t size : sizes) rows.push_back(step(model, narrow(x, 1, stream.length(), size), stream));
  return rows;
}

/// A stream that has read n tokens of x, three by three.
template <class M> Stream stream_after(const M& model, const Tensor& x, int64_t n) {
  Stream stream;
  for (int64_t at = 0; at < n; at += 3) step(model, narrow(x, 1, at, std::min<int64_t>(3, n - at)), stream);
  return stream;
}

/// Both streams go on with the same tokens, to the same bits.
template <class M> void check_same(const M& model, const Tensor& x, Stream& a, Stream& b) {
  CHECK(a.length() == b.length());
  CHECK(a.numel() == b.numel());
  const std::vector<Tensor> got = next_of(model, x, {1, 4, 1}, a), want = next_of(model, x, {1, 4, 1}, b);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], want[i]));
}

/// Nothing but a scan, with decays of heads, keys or values.
struct Scan {
  static constexpr const char* type = "Scan";
  int64_t key_width, value_width;
  Tensor decay;  // log decays, of heads, keys or values
  bool on_values;
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    Call call(*this, "scan", x, x.dim(2), pass);
    const auto part = [&](int64_t from, int64_t width) { return unsqueeze(narrow(call.x, 2, from, width), 1); };
    const Tensor k = part(0, key_width), v = part(key_width, value_width), g = expand(decay, [&] {
                                                                             Shape shape{x.dim(0), 1, x.dim(1)};
                                                                             if (decay.rank() == 4)
                                                                               shape.push_back(decay.dim(3));
                                                                             return shape;
                                                                           }());
    return squeeze(call.scan(k * 0.5, k, v, g, {.decay_on_values = on_values}), 1);
  }
  static void visit(auto&, auto&&) {}
};

constexpr int64_t kLengths[] = {0, 1, 3, 4, 8, 10}, kPieces[] = {1, 2, 4, 9};

}  // namespace

TEST_CASE("stream: a model of layers streams without a line for it", "[streaming]") {
  Rng rng(1);
  const Model model(rng);
  const Tensor x = normal({2, 12, 8}, 0, 1, rng, {f64}), want = model(x).detach();
  Stream stream;
  CHECK(max_abs_diff(cat(next_of(model, x, {1, 1, 3, 0, 1, 6}, stream), 1), want) < 1e-12);
  CHECK(stream.length() == 12);
  // Two rows of q, k and v; a state of 2 heads for each layer.
  CHECK(stream.numel() == 2 * (2 * (4 + 4 + 8) + 2 * 2 * 4 + 2 * 4 * 8));
  CHECK(stream.bytes() == 8 * stream.numel());
}

TEST_CASE("stream: a model of three kinds of mixers", "[streaming]") {
  Rng rng(2);
  const Mixers model(rng);
  const Tensor x = normal({2, 40, 8}, 0, 1, rng, {f64}), want = model(x);
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 3, 7}, {1}, {7, 1, 1}, {5}, {40}})
    CHECK(max_abs_diff(streamed(model, x, sizes), want) < 1e-12);
  const Stream stream = stream_of(model, x);
  CHECK(stream.numel() == 2 * (40 * (6 + 12) + 2 * 2 * 4 + 3 * 2 * 8));  // GAU: s + e a token; GLA; a window of K and V
}

TEST_CASE("stream: a scan with each kind of decay", "[streaming]") {
  Rng rng(4);
  const Tensor x = normal({2, 20, 8}, 0, 1, rng, {f64});
  for (const int64_t keys : {3, 4})
    for (const bool on_values : {false, true}) {
      const int64_t values = 8 - keys, channels = on_values ? values : keys;
      for (const Tensor& decay : {full({1, 1, 1}, -0.3, {f64}), uniform({1, 1, 1, channels}, -1, 0, rng, {f64})}) {
        const Scan scan{keys, values, decay, on_values};
        for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {3, 1, 4}, {20}})
          CHECK(max_abs_diff(streamed(scan, x, sizes), scan(x)) < 1e-12);
      }
    }
}

TEST_CASE("stream: copies go on by themselves", "[streaming]") {
  Rng rng(3);
  const Tensor x = normal({2, 24, 8}, 0, 1, rng, {f64}), other = normal({2, 24, 8}, 0, 1, rng, {f64});
  each_fragile([&](const auto& model) {
    const Tensor want = model(x);
    for (int64_t n : kLengths)
      for (int64_t piece : kPieces) {
        INFO(n << " tokens, then " << piece);
        Stream stream = stream_after(model, x, n), copy = stream, fresh = stream_after(model, x, n);
        step(model, narrow(other, 1, n, piece), stream);
        step(model, narrow(other, 1, n, 1), stream);
        CHECK(copy.length() == n);
        Stream third = copy;
        const std::vector<Tensor> rows = next_of(model, x, {1, 4, 1}, copy);  // after the original
        CHECK(max_abs_diff(cat(rows, 1), narrow(want, 1, n, 6)) < 1e-12);
        check_same(model, x, third, fresh);  // after its copy
        // The original has gone where the others have not.
        const Tensor mixed = cat({narrow(x, 1, 0, n), narrow(other, 1, n, piece), narrow(other, 1, n, 1), x}, 1);
        CHECK(max_abs_diff(step(model, narrow(x, 1, 0, 2), stream), narrow(model(mixed), 1, n + piece + 1, 2)) < 1e-12);
      }
  });
}

TEST_CASE("stream: what is reserved is taken once, and by caches without a window only", "[streaming]") {
  Rng rng(4);
  const MultiHeadAttention all({.heads = {.dim = 8, .heads = 2, .causal = true, .dtype = f64}}, rng);
  const MultiHeadAttention last({.heads = {.dim = 8, .heads = 2, .causal = true, .dtype = f64}, .window = 3}, rng);
  const Tensor x = normal({2, 30, 8}, 0, 1, rng, {f64});
  constexpr int64_t row = 2 * 8 * 2 * 8;  // bytes of keys and values of a token of both sequences
  Stream stream, plain;
  stream.reserve(20);
  for (const int64_t m : {3, 1, 9, 7}) {
    CHECK(same_bits(next_of(all, x, {m}, stream)[0], next_of(all, x, {m}, plain)[0]));
    CHECK(stream.bytes() == 20 * row);
    CHECK(stream.numel() == plain.numel());
  }
  Stream copy = stream;
  check_same(all, x, stream, plain);  // more than is reserved
  CHECK(stream.bytes() == 40 * row);
  copy.reserve(25);
  next_of(all, x, {1}, copy);
  CHECK(copy.bytes() == 40 * row);  // at least twice as many as before

  Stream windowed;
  windowed.reserve(20), next_of(last, x, {2, 5}, windowed);
  CHECK(windowed.bytes() == 3 * row);
  CHECK_THROWS_AS(stream.reserve(-1), ValueError);
  CHECK(stream.reserved() == 20);
  TempFolder folder;
  save(stream, folder / "stream");
  CHECK(load_stream(folder / "stream").reserved() == 20);

  const int64_t tokens = stream.length();
  const Stream moved = std::move(stream);
  CHECK((moved.length() == tokens && moved.reserved() == 20));
  CHECK((stream.length() == 0 && stream.reserved() == 0 && stream.numel() == 0));
  Stream fresh;
  CHECK(same_bits(next_of(last, x, {2}, stream)[0], next_of(last, x, {2}, fresh)[0]));  // of another layer
}

TEST_CASE("stream: a step that fails in the middle of a model leaves it as it was", "[streaming]") {
  Rng rng(4);
  const Tensor x = normal({2, 24, 8}, 0, 1, rng, {f64}), other = normal({2, 24, 8}, 0, 1, rng, {f64});
  each_fragile([&](auto model) {
    for (int64_t n : kLengths)
      for (int64_t piece : kPieces)
        for (bool shared : {false, true}) {  // with a copy, memory that a step may not write into
          INFO(n << " tokens, then " << piece << (shared ? ", of two copies" : ""));
          Stream stream = stream_after(model, x, n), copy, untouched = stream_after(model, x, n);
          if (shared) copy = stream;
          for (int fails_after : {2, 1, 2}) {
            model.fails_after = fails_after;
            CHECK_THROWS_AS(step(model, narrow(other, 1, n, piece), stream), Broken);
          }
          model.fails_after = 0;
          CHECK_THROWS_AS(step(model, narrow(x, 2, 0, 7), stream), ShapeError);
          CHECK(stream.length() == n);
          Stream again = untouched;
          check_same(model, x, stream, untouched);
          if (shared) check_same(model, x, copy, again);
        }
  });
}

TEST_CASE("stream: of every layer, a step that fails leaves it as it was", "[table][streaming]") {
  each_sample([](LayerSample& s) {
    if (!s.row.streams || (!s.causal() && !s.cross()) || s.has("reading", "pooled") || s.has("reading", "literal"))
      return;
    bool fails = false;
    const auto model = [&](const Tensor& x, const Pass& pass) {
      const Tensor y = (*s.layer)(x, pass);
      if (fails) throw Broken();
      return y;
    };
    const LayerInputs in = s.inputs(2, 24, 1), other = s.inputs(2, 24, 2);
    for (int64_t n : {0, 1, 4, 10})
      for (int64_t piece : {1, 4, 9}) {
        INFO(n << " tokens, then " << piece);
        Stream stream, untouched;
        for (Stream* one : {&stream, &untouched}) {
          step(model, narrow(in.x, 1, 0, 0), *one, in.pass());
          for (int64_t at = 0; at < n; ++at) step(model, narrow(in.x, 1, at, 1), *one);
        }
        fails = true;
        CHECK_THROWS_AS(step(model, narrow(other.x, 1, n, piece), stream), Broken);
        fails = false;
        check_same(model, in.x, stream, untouched);
      }
    Stream fresh;
    fails = true;
    CHECK_THROWS_AS(step(model, in.x, fresh, in.pass()), Broken);
    CHECK((fresh.length() == 0 && fresh.numel() == 0 && fresh.bytes() == 0));
  });
}

TEST_CASE("stream: a file keeps it", "[streaming]") {
  TempFolder folder;
  const std::string path = folder / "stream";
  Rng rng(6);
  const Tensor x = normal({2, 24, 8}, 0, 1, rng, {f64});
  each_fragile([&](const auto& model) {
    for (int64_t n : kLengths) {
      INFO(n << " tokens");
      Stream stream = stream_after(model, x, n);
      save(stream, path);
      Stream back = load_stream(path);
      CHECK(back.length() == n);
      const std::vector<Tensor> got = next_of(model, x, {1, 4, 1}, back), want = next_of(model, x, {1, 4, 1}, stream);
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], want[i]));
    }
  });
  save(Model(rng), path);
  CHECK_THROWS_AS(load_stream(path), IOError);
  CHECK_THROWS_AS(load_stream(folder / "none"), IOError);
  const MultiHeadAttention attends({.heads = {.dim = 8, .heads = 2, .causal = true}}, rng);
  save(stream_after(attends, to(x, f32), 5), path);
  const SafeTensors good = load_safetensors(path);
  const auto refusal = [&](const std::string& from, const std::string& to, const std::function<void(Tensor&)>& damage) {
    SafeTensors file = good;
    std::string& text = file.metadata["stream"];
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    for (auto& [name, t] : file.tensors)
      if (name.find("ring") != std::string::npos) damage(t);
    save_safetensors(path, file);
    try {
      load_stream(path);
    } catch (const IOError& e) { return std::string(e.what()); }
    return std::string();
  };
  const auto nothing = [](Tensor&) {};
  CHECK(refusal("\"reserved\":0,\"places", "\"places", nothing).empty());  // of an older file
  CHECK_THAT(refusal("\"length\":5", "\"length\":-5", nothing), Contains(path + "': length is -5"));
  CHECK_THAT(refusal("\"length\":5", "\"length\":\"5\"", nothing), Contains("load_stream: '" + path));
  CHECK_THAT(refusal("places", "place", nothing), Contains("places"));
  CHECK_THAT(refusal("length", "length", [](Tensor& t) { t = contiguous(select(t, 0, 0)); }),
             Contains("needs rows [batch, heads, "));

  // A file that keeps less of a context than the layer reads.
  const MultiHeadAttention cross({.heads = {.dim = 8, .heads = 2, .context_dim = 8}}, rng);
  const Tensor half = to(x, f32);
  Stream stream;
  step(cross, narrow(half, 1, 0, 2), stream, {.context = half});
  save(stream, path);
  SafeTensors file = load_safetensors(path);
  std::string& text = file.metadata["stream"];
  const std::size_t at = text.find("\"tensors\":3");
  REQUIRE(at != std::string::npos);
  text.replace(at, 11, "\"tensors\":1");
  save_safetensors(path, file);
  Stream damaged = load_stream(path);
  CHECK_THROWS_WITH(step(cross, narrow(half, 1, 2, 1), damaged), Contains("keeps 1 tensors of its context"));
}

TEST_CASE("stream: another batch, another model, a mask", "[streaming]") {
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
  refused([&](const Tensor& y, const Pass& pass) { return model(model(y, pass), pass); }, narrow(x, 1, 3, 1),
          "another model");  // and more of it
  const Tensor two = ones({2, 2}) > 0.0;
  CHECK_THROWS_WITH(step(model, narrow(x, 1, 3, 1), stream, {.key_mask = two}), Contains("key_mask=[2,2]"));
  CHECK_THROWS_WITH(step(model, narrow(x, 1, 3, 2), stream, {.key_mask = ones({2, 2})}), Contains("must be bool"));
  CHECK(stream.length() == 3);
  CHECK(max_abs_diff(step(model, narrow(x, 1, 3, 3), stream), narrow(want, 1, 3, 3)) < 1e-12);
}

TEST_CASE("stream: batches of no sequence, one token, and another batch in every model", "[streaming]") {
  Rng rng(5);
  const Tensor x = normal({3, 12, 8}, 0, 1, rng, {f64});
  each_fragile([&](const auto& model) {
    Stream none;
    CHECK(step(model, narrow(x, 0, 0, 0), none).shape() == Shape{0, 12, 8});
    for (int64_t batch : {1, 2}) {  // what is kept of one sequence would broadcast
      Stream stream = stream_after(model, narrow(x, 0, 0, batch), 5);
      const std::string text = "a stream of batch " + std::to_string(batch) + " does not continue with x=";
      for (int64_t other : {1, 2, 3}) {
        const Tensor next = narrow(narrow(x, 0, 0, other), 1, 5, 1);
        if (other != batch) CHECK_THROWS_WITH(step(model, next, stream), Contains(text));
      }
      const Tensor mine = narrow(x, 0, 0, batch);
      CHECK(max_abs_diff(step(model, narrow(mine, 1, 5, 2), stream), narrow(model(mine), 1, 5, 2)) < 1e-12);
    }
  });
}
