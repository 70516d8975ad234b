// Layers that are converted after they were made: dtypes, blocks around them, pooled heads, files.
#include "support/approx.h"
#include "support/catch.h"
#include "support/table_samples.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/attention/attention_conversion.h>
#include <sluice/layers/attention/transformer_block.h>
#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/port/pytorch.h>
#include <sluice/layers/train/models.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/basic.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("to: a converted layer has the dtypes of one that was made so", "[module][bf16]") {
  int64_t exact = 0;
  for (const LayerRow& row : layer_table())
    for (const Json& sample : row.samples) {
      INFO(row.name << " " << to_text(sample));
      Rng rng(1);
      const auto made = row.make(sample, rng, bf16), converted = row.make(sample, rng, f64);
      converted->convert(bf16);
      const auto want = made->state(), got = converted->state();
      REQUIRE(got.size() == want.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        INFO(got[i].name);
        CHECK(got[i].tensor.dtype() == want[i].tensor.dtype());
        exact += want[i].tensor.dtype() == f32;
      }
    }
  CHECK(exact > 10);
}

TEST_CASE("load: files of a time when converted layers rounded their decays", "[module][bf16]") {
  TempFolder folder;
  Rng rng(2);
  GatedDeltaNet layer(DeltaOptions{.dim = 8, .heads = 2}, rng);
  to(layer, bf16);
  save(layer, folder / "layer");
  SafeTensors file = load_safetensors(folder / "layer");
  for (const char* name : {"a_log", "dt_bias"}) file.tensors[name] = to(file.tensors[name], bf16);
  save_safetensors(folder / "layer", file);
  load(layer, folder / "layer");
  CHECK(layer.a_log.dtype() == f32);
  CHECK(max_abs_diff(layer.a_log.detach(), to(file.tensors["a_log"], f32)) == 0);

  Adam adam(parameters(layer));
  auto state = adam.state();
  state["a_log.master"] = zeros({2});
  CHECK_NOTHROW(adam.load_state(state));
  state["a_logs.master"] = zeros({2});
  CHECK_THROWS_AS(adam.load_state(state), IOError);
}

struct Distances {  // a layer of a user's, with a buffer in f32 before its weights
  struct {
    int64_t dim = 8;
    DType dtype = bf16;
  } options;
  Tensor distances = arange(0.0, 16.0);
  Linear out;
  SLUICE_PARTS(distances, out);
  Tensor operator()(const Tensor& x, const Pass& = {}) const { return out(x); }
};

TEST_CASE("transformer block: its norms have the dtype of what it holds", "[transformer_block]") {
  Rng rng(1);
  const HeadsOptions heads{.dim = 8, .heads = 2, .causal = true};
  MultiHeadAttention attention(heads, rng);
  Glu feed({.dim = 8}, rng);
  to(attention, bf16), to(feed, bf16);
  const TransformerBlock block(attention, feed);
  CHECK(block(zeros({1, 4, 8}, {bf16})).dtype() == bf16);
  TempFolder folder;
  save(attention, folder / "attention");
  const TransformerBlock reloaded(load_model<MultiHeadAttention>(folder / "attention"), feed);
  CHECK(reloaded(zeros({1, 4, 8}, {bf16})).dtype() == bf16);
  const Distances mine{.options = {}, .out = Linear({.in = 8, .out = 8, .dtype = bf16}, rng)};
  CHECK(TransformerBlock(mine, feed)(zeros({1, 4, 8}, {bf16})).dtype() == bf16);
}

TEST_CASE("pool_kv_heads: the gates of a shift are pooled with the keys", "[attention]") {
  for (const int64_t head_dim : {2, 3, 4}) {
    Rng rng(4);
    MultiHeadAttention layer(
        {.heads = {.dim = 6, .heads = 4, .kv_heads = 4, .head_dim = head_dim, .causal = true, .dtype = f64},
         .kv_shift = true},
        rng);
    const auto averaged = [](Tensor& x, int64_t width) {  // each pair of heads alike: pooling then changes nothing
      const Tensor pair = mean(unflatten(x.detach(), -1, {2, 2, width}), {2}, keep);
      copy_(x, flatten(expand(pair, unflatten(x.detach(), -1, {2, 2, width}).shape()), -3, -1));
    };
    NoGrad guard;
    for (Linear* map : {&layer.heads.k, &layer.heads.v}) averaged(map->weight, head_dim);
    for (Linear* map : {&layer.k_shift, &layer.v_shift}) averaged(map->weight, 1);
    const MultiHeadAttention pooled = pool_kv_heads(layer, 2);
    CHECK(pooled.k_shift.weight.dim(1) == 2);
    const Tensor x = normal({2, 5, 6}, 0, 1, rng, {f64});
    CHECK(max_abs_diff(pooled(x), layer(x)) < 1e-13);
    Rng other(5);
    MultiHeadAttention again(pooled.options, other);
    CHECK_NOTHROW(copy_state(pooled, again));
  }
}

struct OpenDeltaNet : DeltaNet {
  using DeltaMixer::unit_rows;
  using DeltaNet::DeltaNet;
};

TEST_CASE("delta net: keys of bf16 have length 1 on average", "[delta][bf16]") {
  for (const int64_t width : {3, 48, 64, 112, 192}) {
    CAPTURE(width);
    Rng rng(6);
    const OpenDeltaNet layer(DeltaOptions{.dim = width, .heads = 1, .key_dim = width, .value_dim = 4, .dtype = bf16},
                             rng);
    const Tensor x = to(normal({1, 2000, width}, 0, 1, rng), bf16);
    const Pass pass;
    Call call(layer, "delta_net", x, width, pass);
    const Tensor k = to(layer.unit_rows(layer.options.heads, call, Act::identity).k, f64);
    CHECK(std::abs(mean(sum(square(k), {-1})).item() - 1) < 4e-4);
  }
}

TEST_CASE("linear attention: large padding leaves gradients finite", "[linear_attention]") {
  for (const double padding : {0.0, 300.0, 1e4}) {
    Rng rng(7);
    LinearAttentionOptions o{.dim = 4, .heads = 2};
    o.feature_map.kind = FeatureMapKind::exp;
    const LinearAttention layer(o, rng);
    Tensor x = normal({1, 6, 4}, 0, 1, rng), tail = narrow(x, 1, 4, 2);
    fill_(tail, padding);
    const Tensor real = Tensor::from<double>({1, 1, 1, 1, 0, 0}, {1, 6}) > 0.0;
    backward(sum(square(narrow(layer(x, {.key_mask = real}), 1, 0, 4))));
    for (const NamedTensor& p : parameters(layer))
      for (const double g : p.tensor.grad().to_vector<double>()) CHECK(std::isfinite(g));
  }
}

struct BareNet {
  Linear a;
  SLUICE_PARTS(a);
};

TEST_CASE("load_pytorch: what save() wrote is refused, and a header of any length is none of a pickle", "[pytorch]") {
  TempFolder folder;
  Rng rng(8);
  const BareNet net{Linear({.in = 3, .out = 3}, rng)};
  save(net, folder / "own");
  CHECK_THROWS_WITH(load_pytorch(net, folder / "own"), Contains("written by save()"));
  CHECK(load(net, folder / "own").empty());  // the mark is not metadata of the user's

  const Linear map({.in = 4, .out = 3}, rng);
  SafeTensors file;
  file.tensors["weight"] = ones({3, 4}), file.tensors["bias"] = ones({3});
  for (const std::size_t more : {480, 488, 496, 504, 19'000 + 112, 19'000 + 120, 19'000 + 128}) {
    file.metadata["note"] = std::string(more, 'x');
    save_safetensors(folder / "file", file);
    CHECK_NOTHROW(load_pytorch(map, folder / "file"));
  }
}

TEST_CASE("load_pytorch: axes of size 1 that the model lacks are dropped, whichever they are", "[pytorch]") {
  TempFolder folder;
  Rng rng(9);
  const Linear map({.in = 5, .out = 1, .bias = false}, rng);
  SafeTensors file;
  file.tensors["weight"] = arange(0.0, 5.0);
  for (const Shape& shape : {Shape{1, 5, 1, 1}, Shape{1, 1, 5}, Shape{1, 5, 1}}) {
    file.tensors["weight"] = reshape(file.tensors["weight"], shape);
    save_safetensors(folder / "file", file);
    load_pytorch(map, folder / "file");
    CHECK(flatten(map.weight.detach()).to_vector<double>() == std::vector<double>{0, 1, 2, 3, 4});
  }
}
