// Files that rebuild their model.
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/train/training.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

#include <fstream>

using namespace sluice;
using namespace sluice::testing;

namespace {

Gau sample(uint64_t seed) {
  Rng rng(seed);
  return Gau({.dim = 6,
              .expansion = 10,
              .key_dim = 4,
              .kind = GauKind::softmax,
              .causal = true,
              .bias = GauBias::toeplitz,
              .max_length = 9,
              .norm = NormKind::rms,
              .gamma_std = 0.5},
             rng);
}

/// What load_model<Gau> says about the sample's file after `change`.
template <class F> std::string refusal(F change) {
  TempFolder folder;
  const std::string path = folder / "model";
  save(sample(1), path);
  SafeTensors file = load_safetensors(path);
  change(file);
  save_safetensors(path, file);
  try {
    load_model<Gau>(path);
  } catch (const IOError& e) {
    CHECK_THAT(e.what(), Contains("load_model: '" + path + "': "));
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("load_model: a file rebuilds its model", "[module]") {
  TempFolder folder;
  const std::string path = folder / "model";
  const Gau a = sample(1);
  save(a, path, {{"note", "x"}});
  const Gau b = load_model<Gau>(path);
  CHECK(to_json(a.options) == to_json(b.options));
  CHECK(same_bits(a(ones({2, 5, 6})), b(ones({2, 5, 6}))));
  for (const NamedTensor& p : parameters(b)) CHECK((p.tensor.is_leaf() && p.tensor.requires_grad()));
  Gau c = sample(2);  // as before: into a model that exists
  CHECK(load(c, path).at("note") == "x");
  CHECK(same_bits(a.in.weight, c.in.weight));
  save(a, path, {{"layer", "Gau"}, {"options", "of an earlier file"}});
  CHECK(to_json(load_model<Gau>(path).options) == to_json(a.options));
  CHECK_THROWS_WITH(save(a, path, {{"layer", "12"}}), Contains("the type of the model, Gau — got 12"));
}

TEST_CASE("load_model: parts, stacks and converted models", "[module]") {
  TempFolder folder;
  const std::string path = folder / "model";
  Rng rng(1);
  FlashModel a(
      {.layers = 2, .layer = {.dim = 4, .key_dim = 4, .chunk = 2, .causal = true}, .vocabulary = 5, .outputs = 5}, rng);
  to(a, f64);  // the options still say f32
  save(a, path);
  const FlashModel b = load_model<FlashModel>(path);
  const Tensor tokens = Tensor::from<int64_t>({1, 4, 0, 2, 2}, {1, 5});
  CHECK(same_bits(a(tokens), b(tokens)));
  save(Mlp({.dim = 3}, rng), path);
  CHECK(load_model<Mlp>(path).options.hidden == 12);
  save(LayerNorm(3, 1e-3), path);
  CHECK(load_model<LayerNorm>(path).options.eps == 1e-3);
}

TEST_CASE("load_model: training checkpoints", "[module]") {
  TempFolder folder;
  const std::string path = folder / "checkpoint";
  Gau a = sample(1);
  Rng rng(3);
  Adam adam(parameters(a));
  backward(sum(square(a(ones({1, 3, 6})))));
  adam.step();
  save_checkpoint(a, path, adam, rng, {.step = 1, .config = {}});
  const Gau b = load_model<Gau>(path);
  CHECK(same_bits(a(ones({2, 5, 6})), b(ones({2, 5, 6}))));
  CHECK(read_checkpoint_state(path).step == 1);
  CHECK_THROWS_AS(load_model<Flash>(path), IOError);
}

namespace {
/// The names that files had before attention layers had their maps from Heads.
void rename_in_file(const std::string& path) {
  SafeTensors file = load_safetensors(path);
  std::map<std::string, Tensor> former;
  for (const auto& [name, x] : file.tensors) {
    std::string then = name;
    for (const auto& [now, before] : {std::pair("q.", "query."), {"k.", "key."}, {"v.", "value."}})
      if (const auto at = then.find(now); at != then.npos && (at == 0 || then[at - 1] == '.'))
        then.replace(at, 2, before);
    former[then] = x;
  }
  file.tensors = former;
  save_safetensors(path, file);
}
struct Blocks {
  std::vector<GatedAttention> blocks;
  SLUICE_PARTS(blocks);
};
struct BothNames {
  Linear q, query;
  SLUICE_PARTS(q, query);
};
}  // namespace

TEST_CASE("load: files with query, key and value are those of q, k and v", "[module]") {
  TempFolder folder;
  const std::string path = folder / "old";
  const Tensor x = ones({1, 3, 8});
  Rng rng(1), other(2);
  GatedAttention a(GatedAttentionOptions{.heads = {.dim = 8, .heads = 2}}, rng), b(a.options, other);
  save(a, path);
  rename_in_file(path);
  CHECK(load_safetensors(path).tensors.contains("query.weight"));
  load(b, path);
  CHECK(same_bits(a(x), b(x)));
  CHECK(same_bits(a(x), load_model<GatedAttention>(path)(x)));

  // A part of a checkpoint, and all of it, moments included.
  Blocks trained{{a}}, resumed{{b}};
  Adam adam(parameters(trained)), again(parameters(resumed));
  backward(sum(square(a(x))));
  adam.step();
  save_checkpoint(trained, path, adam, rng, {.step = 1, .config = {}});
  rename_in_file(path);
  CHECK(load_safetensors(path).tensors.contains("optimizer.blocks.0.query.weight.m"));
  load_checkpoint(resumed, path, again, other);
  CHECK(same_bits(a(x), b(x)));
  CHECK(same_bits(adam.state().at("blocks.0.q.weight.m"), again.state().at("blocks.0.q.weight.m")));
  GatedAttention part(a.options, other);
  load(part, path, {.prefix = "blocks.0."});
  CHECK(same_bits(a(x), part(x)));

  // A file that has both is neither old nor new; a model that has both means both.
  save(a, path);
  SafeTensors file = load_safetensors(path);
  file.tensors["query.weight"] = file.tensors.at("q.weight");
  save_safetensors(path, file);
  CHECK_THROWS_WITH(load(b, path), Contains("\"query.weight\" is not part of the model"));
  BothNames both{Linear({2, 2}, rng), Linear({2, 2}, rng)};
  const Tensor before = clone(both.query.weight.detach());
  save(both, path);
  load(both, path);
  CHECK(same_bits(both.query.weight.detach(), before));
  CHECK_FALSE(same_bits(both.q.weight.detach(), before));
}

TEST_CASE("load_model: files that do not fit are named, with the reason", "[module]") {
  CHECK(refusal([](SafeTensors&) {}).empty());
  auto options = [](const std::string& text) { return [=](SafeTensors& f) { f.metadata["options"] = text; }; };
  CHECK_THAT(refusal([](auto& f) { f.metadata.erase("options"); }), Contains("\"options\" is missing"));
  CHECK_THAT(refusal([](auto& f) { f.metadata.erase("layer"); }), Contains("\"layer\" is missing"));
  CHECK_THAT(refusal([](auto& f) { f.metadata["layer"] = "Flash"; }), Contains("of type Flash; need Gau"));
  CHECK_THAT(refusal(options("{\"dim\": 6,")), Contains("is not JSON at byte"));
  CHECK_THAT(refusal(options("{}")), Contains("option \"dim\"") && Contains("is required"));
  CHECK_THAT(refusal(options(R"({"dim": 6, "keydim": 4})")), Contains("did you mean \"key_dim\"?"));
  CHECK_THAT(refusal(options(R"({"dim": 6, "dim": 6})")), Contains("\"dim\" appears twice"));
  CHECK_THAT(refusal(options(R"({"dim": 6, "kind": "relu"})")), Contains("got \"relu\""));
  CHECK_THAT(refusal(options(R"({"dim": 6, "dropout": 2})")), Contains("dropout must be in [0, 1)"));
  CHECK_THAT(refusal(options(R"({"dim": 6, "expansion": 10, "key_dim": 4, "heads": 3})")), Contains("heads=3"));
  CHECK_THAT(refusal(options(R"({"dim": 7, "expansion": 10, "key_dim": 4})")), Contains("has shape"));
  CHECK_THAT(refusal(options(R"({"dim": 1000000})")), Contains("has shape"));  // 24 TB, were it built
  CHECK_THAT(refusal([](auto& f) { f.tensors.erase("gamma"); }), Contains("\"gamma\" is missing"));
  CHECK_THAT(refusal([](auto& f) { f.tensors["delta"] = Tensor(1); }), Contains("\"delta\" is not part of the model"));
}

TEST_CASE("load_model: a damaged file is an IOError wherever a byte changes", "[module]") {
  TempFolder folder;
  const std::string path = folder / "model";
  save(sample(1), path);
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const std::size_t header = whole.find("toeplitz_bias") + 80;
  int refused = 0;
  for (std::size_t i = 0; i < header; i += i < 64 ? 1 : 7) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 2);
    std::ofstream(path, std::ios::binary) << damaged;
    try {
      load_model<Gau>(path);
    } catch (const IOError&) { ++refused; }
  }
  CHECK(refused > static_cast<int>(header) / 14);  // the rest changes a value into another that fits
}
