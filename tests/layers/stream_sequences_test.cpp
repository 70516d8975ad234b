// of_sequences(): beams and several answers to one prompt, of every layer that streams.
#include "support/catch.h"
#include "support/table_samples.h"
#include "support/temp_folder.h"

#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/ops/shape/create.h>
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
    const LayerInputs in = s.inputs(2, 14, 1);
    LayerInputs chosen = in;
    for (Tensor* t : {&chosen.x, &chosen.context, &chosen.context_mask})
      if (t->defined()) *t = index_select(*t, 0, index);
    for (const int64_t n : {1, 9}) {
      INFO(n << " tokens");
      Stream stream, alone;
      const auto model = [&](const Tensor& x, const Pass& pass) { return (*s.layer)(x, pass); };
      step(model, narrow(in.x, 1, 0, n), stream, in.pass());
      step(model, narrow(chosen.x, 1, 0, n), alone, chosen.pass());
      save(of_sequences(stream, index), file);
      Stream some = load_stream(file);
      to(some, test_device());
      CHECK(some.length() == n);
      const Tensor rest = narrow(chosen.x, 1, n, 14 - n);
      CHECK(max_abs_diff(step(model, rest, some), step(model, rest, alone)) < 1e-11);
      CHECK(max_abs_diff(step(model, narrow(in.x, 1, n, 14 - n), stream),
                         narrow((*s.layer)(in.x, in.pass()), 1, n, 14 - n)) < 1e-9);  // it is left alone
    }
    ++layers;
  });
  CHECK(enough(layers, 60));
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
