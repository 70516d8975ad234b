// of_sequences() and crop(): beams, several answers to one prompt, and drafts taken back, of every layer that streams.
#include "support/catch.h"
#include "support/table_samples.h"
#include "support/temp_folder.h"

#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("stream: of every layer, the sequences of an index, kept in a file, go on as they would have alone",
          "[table][streaming]") {
  const Tensor index = Tensor::from<int64_t>({1, 0, 1});
  const TempFolder folder;
  const std::string file = folder / "stream";
  int layers = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams || (!s.causal() && !s.cross()) || s.has("reading", "pooled") || s.has("reading", "literal"))
      return;
    // Without padding and with it: true up to the last token of the mask.
    const Tensor padded = Tensor::from(std::vector<bool>{1, 1, 1, 1, 0, 0, 0, 1, 1,  //
                                                         0, 0, 0, 1, 1, 1, 1, 1, 1},
                                       {2, 9});
    for (const Tensor& mask : {Tensor(), to(padded, test_device())}) {
      if (mask.defined() && (!s.row.key_mask || s.cross())) continue;
      INFO((mask.defined() ? "padded" : "not padded"));
      LayerInputs in = s.inputs(2, 14, 1);
      if (mask.defined()) in.key_mask = cat({mask, ones({2, 5}, mask.options())}, 1);
      LayerInputs chosen = in;
      for (Tensor* t : {&chosen.x, &chosen.context, &chosen.context_mask, &chosen.key_mask})
        if (t->defined()) *t = index_select(*t, 0, index);
      for (const int64_t n : {1, 9}) {
        INFO(n << " tokens");
        const auto begin = [n](LayerInputs inputs) {
          if (inputs.key_mask.defined()) inputs.key_mask = narrow(inputs.key_mask, 1, 0, n);
          return inputs;
        };
        const auto end = [n](const LayerInputs& inputs) {
          const Tensor& real = inputs.key_mask;
          return Pass{.key_mask = real.defined() && n == 1 ? narrow(real, 1, n, 14 - n) : Tensor()};
        };
        Stream stream, alone;
        const auto model = [&](const Tensor& x, const Pass& pass) { return (*s.layer)(x, pass); };
        step(model, narrow(in.x, 1, 0, n), stream, begin(in).pass());
        step(model, narrow(chosen.x, 1, 0, n), alone, begin(chosen).pass());
        save(of_sequences(stream, index), file);
        Stream some = load_stream(file);
        to(some, test_device());
        CHECK(some.length() == n);
        const auto real = [&](const Tensor& y, const LayerInputs& inputs) {
          if (!inputs.key_mask.defined()) return y;
          return masked_fill(y, logical_not(unsqueeze(narrow(inputs.key_mask, 1, n, 14 - n), -1)), 0);
        };
        const Tensor rest = narrow(chosen.x, 1, n, 14 - n);
        CHECK(max_abs_diff(step(model, rest, some, end(chosen)), step(model, rest, alone, end(chosen))) < 1e-11);
        CHECK(max_abs_diff(real(step(model, narrow(in.x, 1, n, 14 - n), stream, end(in)), in),
                           real(narrow((*s.layer)(in.x, in.pass()), 1, n, 14 - n), in)) < 1e-9);  // it is left alone
      }
    }
    ++layers;
  });
  CHECK(enough(layers, 60));
}

TEST_CASE("stream: of every layer, tokens that are taken back leave no trace", "[table][streaming]") {
  int cropped = 0, refused = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.streams || (!s.causal() && !s.cross()) || s.has("reading", "pooled") || s.has("reading", "literal"))
      return;
    LayerInputs in = s.inputs(2, 12, 1);
    const auto model = [&](const Tensor& x, const Pass& pass) { return (*s.layer)(x, pass); };
    for (const bool padded : {false, true}) {
      if (padded && (!s.row.key_mask || s.cross())) continue;
      if (padded) in.key_mask = expand(arange(12, {i64, in.x.device()}) >= 2, {2, 12});
      LayerInputs first = in;
      if (padded) first.key_mask = narrow(in.key_mask, 1, 0, 4);
      Stream stream, alone;
      for (Stream* one : {&stream, &alone}) step(model, narrow(in.x, 1, 0, 4), *one, first.pass());
      step(model, narrow(s.inputs(2, 3, 2).x, 1, 0, 3), stream);  // drafts
      const Stream drafted = stream;
      try {
        crop(stream, 4);
        ++cropped;
        CHECK(stream.numel() == alone.numel());
      } catch (const ValueError& error) {
        CHECK_THAT(error.what(), Contains("copy the stream before the step"));
        CHECK(stream.numel() == drafted.numel());
        stream = alone, ++refused;
      }
      CHECK(stream.length() == 4);
      const Tensor rest = narrow(in.x, 1, 4, 8);
      CHECK(max_abs_diff(step(model, rest, stream), step(model, rest, alone)) < 1e-11);
      crop(stream, 0);  // any stream can begin again
      Stream fresh;
      CHECK(same_bits(step(model, narrow(in.x, 1, 0, 4), stream, first.pass()),
                      step(model, narrow(in.x, 1, 0, 4), fresh, first.pass())));
    }
  });
  CHECK(enough(cropped, 20));
  CHECK(enough(refused, 20));
}

TEST_CASE("stream: what crop refuses, and a window that is not full yet", "[streaming]") {
  Rng rng(4);
  const MultiHeadAttention mha({.heads = {.dim = 8, .heads = 2, .causal = true, .dtype = f64}, .window = 6}, rng);
  const Tensor x = normal({1, 9, 8}, 0, 1, rng, {f64}), full = mha(x);
  Stream stream;
  step(mha, narrow(x, 1, 0, 6), stream);
  const Stream copy = stream;
  crop(stream, 2);
  CHECK(max_abs_diff(step(mha, narrow(x, 1, 2, 5), stream), narrow(full, 1, 2, 5)) < 1e-13);
  CHECK_THROWS_WITH(crop(stream, 6), Contains("multi_head_attention of a full window have lost those before it"));
  crop(stream, 7);  // takes nothing back
  CHECK(max_abs_diff(step(mha, narrow(x, 1, 7, 2), stream), narrow(full, 1, 7, 2)) < 1e-13);
  Stream other = copy;  // the rows that the other stream has written over are its own
  CHECK(max_abs_diff(step(mha, narrow(x, 1, 6, 3), other), narrow(full, 1, 6, 3)) < 1e-13);
  CHECK_THROWS_WITH(crop(other, 10), "crop: got length 10 for a stream of 9 tokens");
  CHECK_THROWS_WITH(crop(other, -1), Contains("got length -1"));
  const MultiHeadAttention cross({.heads = {.dim = 8, .context_dim = 8, .dtype = f64}}, rng);
  Stream reads, chunks;
  step(cross, x, reads, {.context = x});
  crop(reads, 3);  // the context stays
  const Tensor last = narrow(x, 1, 3, 6);
  CHECK(max_abs_diff(step(cross, last, reads), narrow(cross(x, {.context = x}), 1, 3, 6)) < 1e-13);
  const Flash flash({.dim = 8, .key_dim = 4, .chunk = 16, .causal = true, .dtype = f64}, rng);
  step(flash, x, chunks);
  CHECK_THROWS_WITH(crop(chunks, 4), Contains("flash cannot go back to fewer tokens; copy the stream before"));
  const auto within = [&](const Tensor& y, const Pass& pass) {
    crop(*pass.stream, 0);
    return mha(y, pass);
  };
  CHECK_THROWS_WITH(step(within, x, other), "crop: a step of the stream runs");
}

TEST_CASE("stream: of a window, the mask ends with the rows", "[streaming]") {
  Rng rng(4);
  const MultiHeadAttention mha({.heads = {.dim = 8, .heads = 2, .causal = true, .dtype = f64}, .window = 4}, rng);
  const Tensor x = normal({1, 40, 8}, 0, 1, rng, {f64}), at = unsqueeze(arange(40), 0);
  const Tensor mask = logical_or(remainder(at, 3) != 1.0, at >= 12.0), full = mha(x, {.key_mask = mask});
  Stream stream;
  const auto agrees = [&](int64_t from, int64_t to, bool masked) {
    const Tensor now = masked ? narrow(mask, 1, from, to - from) : Tensor(), piece = narrow(x, 1, from, to - from);
    const Tensor difference = step(mha, piece, stream, {.key_mask = now}) - narrow(full, 1, from, to - from);
    const Tensor padding = logical_not(narrow(mask, 1, from, to - from));
    return max(abs(masked_fill(difference, unsqueeze(padding, -1), 0))).item() < 1e-13;
  };
  CHECK(agrees(0, 9, true));
  const int64_t kept = stream.numel();
  for (int64_t i = 9; i < 12; ++i) CHECK(agrees(i, i + 1, true));
  for (int64_t i = 12; i < 40; ++i) CHECK(agrees(i, i + 1, i % 2 == 0));
  CHECK(stream.numel() == kept);
}

TEST_CASE("stream: of Flash, chosen sequences and those of a file keep the rows of one chunk at most", "[streaming]") {
  Rng rng(2);
  const Flash flash({.dim = 4, .expansion = 5, .key_dim = 6, .chunk = 4, .causal = true, .dtype = f64}, rng);
  const Tensor x = normal({1, 8, 4}, 0, 1, rng, {f64});
  constexpr int64_t most = 6 * 5 + 4 * (2 * 6 + 5);
  const TempFolder folder;
  Stream stream;
  step(flash, narrow(x, 1, 0, 3), stream);
  CHECK(stream.numel() == most);
  save(stream, folder / "stream");
  for (Stream next : {of_sequences(stream, Tensor::from<int64_t>({0})), load_stream(folder / "stream")})
    for (int64_t i = 3; i < 8; ++i) {
      step(flash, narrow(x, 1, i, 1), next);
      CHECK(next.numel() == most);
    }
}

TEST_CASE("stream: what of_sequences refuses", "[streaming]") {
  Rng rng(1);
  const MultiHeadAttention layer({.dim = 8, .heads = 2, .causal = true}, rng);
  const Tensor x = normal({2, 4, 8}, 0, 1, rng);
  Stream stream;
  step(layer, x, stream);
  CHECK_THROWS_AS(of_sequences(stream, Tensor::from<int64_t>({0, 2})), ValueError);
  CHECK_THROWS_AS(of_sequences(stream, Tensor::from<int64_t>({0, 1}, {1, 2})), ShapeError);
  CHECK_THROWS_AS(of_sequences(stream, Tensor({0, 1})), DTypeError);
  const auto within = [&](const Tensor& y, const Pass& pass) {
    of_sequences(*pass.stream, Tensor::from<int64_t>({0}));
    return layer(y, pass);
  };
  CHECK_THROWS_AS(step(within, x, stream), ValueError);
  const auto saves = [&](const Tensor& y, const Pass& pass) {
    save(*pass.stream, "never.safetensors");
    return layer(y, pass);
  };
  CHECK_THROWS_WITH(step(saves, x, stream), Contains("save: a step of the stream runs"));
  const auto moves = [&](const Tensor& y, const Pass& pass) {
    to(*pass.stream, meta);
    return layer(y, pass);
  };
  CHECK_THROWS_WITH(step(moves, x, stream), Contains("to: a step of the stream runs"));
  CHECK_THROWS_WITH(of_sequences(stream, Tensor()), Contains("of_sequences") && Contains("index is undefined"));
  CHECK_THROWS_WITH(stream.reserve(int64_t{1} << 62), Contains("cannot reserve"));
  Stream empty = of_sequences(Stream(), Tensor::from<int64_t>({0}));
  CHECK(empty.length() == 0);
}
