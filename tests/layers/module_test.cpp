// What visit() gives for free: parameters, state, files, counting, conversion, summaries.
#include <sluice/layers/nn/module.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/report/summary.h>
#include <sluice/layers/train/models.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;
using Names = std::vector<std::string>;

namespace {

struct Inner {
  static constexpr const char* type = "Inner";
  Tensor weight;
  std::optional<Linear> extra;
  SLUICE_PARTS(weight, extra);
};
struct Model {
  static constexpr const char* type = "Model";
  Linear in;
  std::vector<Inner> blocks;
  std::vector<Tensor> scales;
  std::optional<Tensor> maybe;
  Tensor table, absent;
  SLUICE_PARTS(in, blocks, scales, maybe, table, absent);
  explicit Model(uint64_t seed) {
    Rng rng(seed);
    in = Linear({3, 2}, rng);
    for (int i = 0; i < 2; ++i) {
      blocks.push_back({normal({2}, 0, 1, rng).requires_grad_(), std::nullopt});
      if (i == 1) blocks[1].extra = Linear({2, 5, false}, rng);
    }
    scales = {normal({4}, 0, 1, rng).requires_grad_(), normal({1}, 0, 1, rng)};
    table = arange(3);  // a buffer
  }
};

struct Twice {
  Tensor a = zeros({2}).requires_grad_(), b = ones({2}).requires_grad_();
  static void visit(auto& self, auto&& f) {
    f("w", self.a);
    f("w", self.b);
  }
};
struct Tied {
  Tensor in = ones({2, 2}).requires_grad_(), out = in;
  SLUICE_PARTS(in, out);
};

struct Forgetful : Linear {
  Tensor forgotten = ones({100}).requires_grad_();
  explicit Forgetful(Rng& rng) : Linear({3, 4}, rng) {}
};

/// The memory that a module keeps is that of its state, and no more.
template <class Make> bool all_listed(Make make) {
  const int64_t before = memory_stats().live;
  auto m = make();
  const int64_t kept = memory_stats().live - before;
  std::vector<Tensor> copies;
  for (auto& p : state_dict(m)) copies.push_back(clone(p.tensor.detach()));
  return kept > 0 && kept == memory_stats().live - before - kept;
}

template <class Named> Names names_of(const Named& list) {
  Names out;
  for (const auto& p : list) out.push_back(p.name);
  return out;
}
std::map<std::string, Tensor> copy_of(const Model& m) {
  std::map<std::string, Tensor> s;
  for (auto& p : state_dict(m)) s[p.name] = clone(p.tensor.detach());
  return s;
}
bool equals(const Model& m, const std::map<std::string, Tensor>& s) {
  for (auto& p : state_dict(m))
    if (!same_bits(p.tensor.detach(), s.at(p.name))) return false;
  return state_dict(m).size() == s.size();
}

}  // namespace

TEST_CASE("module: parameters and state have dotted names in visiting order", "[module]") {
  Model m(1);
  CHECK(names_of(parameters(m)) ==
        Names{"in.weight", "in.bias", "blocks.0.weight", "blocks.1.weight", "blocks.1.extra.weight", "scales.0"});
  CHECK(names_of(state_dict(m)) == Names{"in.weight", "in.bias", "blocks.0.weight", "blocks.1.weight",
                                         "blocks.1.extra.weight", "scales.0", "scales.1", "table"});
  CHECK(count(m) == 6 + 2 + 2 + 2 + 10 + 4);
  m.maybe = ones({7}).requires_grad_();
  CHECK(count(m) == 6 + 2 + 2 + 2 + 10 + 4 + 7);
  CHECK(names_of(parameters(m)).back() == "maybe");
  CHECK(parameters(m)[0].tensor.ref() == m.in.weight.ref());  // the tensor, not a copy
}

TEST_CASE("module: a frozen parameter is state, but not trained", "[module]") {
  Model m(1);
  m.in.weight.requires_grad_(false);
  CHECK(parameters(m)[0].name == "in.bias");
  CHECK(state_dict(m)[0].name == "in.weight");
  CHECK(count(m) == 20);
  Tensor y = sum(m.in(ones({1, 3})));
  backward(y);
  CHECK(m.in.bias.grad().defined());
  CHECK_FALSE(m.in.weight.grad().defined());
}

TEST_CASE("module: zero_grad forgets every gradient", "[module]") {
  Model m(1);
  backward(sum(m.in(ones({1, 3}))) + sum(m.scales[0]));
  zero_grad(m);
  for (auto& p : parameters(m)) CHECK_FALSE(p.tensor.grad().defined());
}

TEST_CASE("module: save and load give the same bits, metadata and buffers included", "[module]") {
  TempFolder folder;
  const std::string path = folder / "m.safetensors";
  Model a(1), b(2);
  a.table = Tensor::from<int64_t>({7, 8, 9});
  REQUIRE_FALSE(equals(b, copy_of(a)));
  save(a, path, {{"note", "x"}});
  Tensor weight = b.in.weight;
  const uint32_t version = weight.version();
  auto metadata = load(b, path);
  CHECK(metadata == std::map<std::string, std::string>{{"note", "x"}});
  CHECK(equals(b, copy_of(a)));
  CHECK(weight.ref() == b.in.weight.ref());  // filled, not replaced: optimisers stay valid
  CHECK(weight.version() > version);         // and backward notices
  CHECK(b.in.weight.requires_grad());
  CHECK(b.in.weight.is_leaf());
}

TEST_CASE("module: what does not fit is refused and changes nothing", "[module]") {
  const auto good = copy_of(Model(1));
  auto with = [&](const std::string& name, Tensor t) {
    auto s = good;
    s[name] = std::move(t);
    return s;
  };
  auto without = [&](const std::string& name) {
    auto s = good;
    s.erase(name);
    return s;
  };
  // The misfit is last in visiting order or in name order, so everything before it would be written.
  const std::vector<std::pair<std::map<std::string, Tensor>, Names>> cases{
      {with("table", arange(4)), {"table", "[4]", "[3]"}},
      {with("table", to(arange(3), i32)), {"table", "i32", "i64"}},
      {with("scales.0", ones({4}, {f64})), {"scales.0", "f64", "f32"}},
      {with("in.weight", ones({2, 3})), {"in.weight", "[2,3]", "[3,2]"}},
      {with("scales.1", ones({})), {"scales.1", "[]", "[1]"}},
      {without("table"), {"table", "missing"}},
      {without("blocks.1.extra.weight"), {"blocks.1.extra.weight", "missing"}},
      {with("zzz", ones({1})), {"zzz", "not part"}},
      {{}, {"missing"}},
  };
  TempFolder folder;
  for (const auto& one : cases) {
    const auto& state = one.first;
    const auto& parts = one.second;
    Model m(2);
    const auto before = copy_of(m);
    auto expect = [&](auto f) {
      try {
        f();
        FAIL_CHECK("loaded " << parts[0]);
      } catch (const IOError& e) {
        for (const std::string& part : parts) CHECK_THAT(e.what(), Contains(part));
      }
      CHECK(equals(m, before));
    };
    expect([&] { load_state(m, state); });
    save_safetensors(folder / "bad", {state, {}});
    expect([&] { load(m, folder / "bad"); });
  }
  Model m(2);
  CHECK_THROWS_AS(load(m, folder / "absent"), IOError);
  load_state(m, good);
  CHECK(equals(m, good));
}

TEST_CASE("module: a state may be made of the model's own tensors, and has values where the model has", "[module]") {
  Model m(2);
  const auto before = copy_of(m);
  auto swapped = before;
  swapped["blocks.0.weight"] = m.blocks[1].weight, swapped["blocks.1.weight"] = m.blocks[0].weight;
  load_state(m, swapped);
  CHECK(same_bits(m.blocks[0].weight.detach(), before.at("blocks.1.weight")));
  CHECK(same_bits(m.blocks[1].weight.detach(), before.at("blocks.0.weight")));
  load_state(m, before);

  auto empty_table = copy_of(Model(1));
  empty_table["table"] = zeros({3}, {i64, meta});
  CHECK_THROWS_WITH(load_state(m, empty_table), Contains("tensor \"table\" is on meta, the model's on cpu"));
  CHECK(equals(m, before));
  TempFolder folder;
  save(m, folder / "m");
  to(m, meta);
  CHECK_THROWS_WITH(load(m, folder / "m"), Contains("is on cpu, the model's on meta"));
}

TEST_CASE("module: load reads a part of a file, and what there is of it without strict", "[module]") {
  TempFolder folder;
  const std::string path = folder / "m";
  std::map<std::string, Tensor> file;
  for (const auto& [name, x] : copy_of(Model(1))) file["body." + name] = x;
  file["head"] = ones({1});
  save_safetensors(path, {file, {}});
  Model m(2);
  const auto before = copy_of(m);
  CHECK_THROWS_WITH(load(m, path),
                    Contains("\"blocks.0.weight\" is missing — did you mean \"body.blocks.0.weight\"?") &&
                        Contains("\"body.table\" is not part of the model — did you mean \"table\"?"));
  CHECK(equals(m, before));
  StateNames none{{"left of another file"}, {}};
  load(m, path, {.prefix = "body.", .names = &none});
  CHECK((none.missing.empty() && none.unexpected.empty()));
  CHECK(equals(m, copy_of(Model(1))));

  m = Model(2);
  file.erase("body.in.weight"), file["body.more"] = ones({1});
  save_safetensors(path, {file, {}});
  CHECK_THROWS_WITH(load(m, path, {.prefix = "body."}), Contains("\"in.weight\" is missing"));
  CHECK(equals(m, before));
  StateNames apart;
  load(m, path, {.prefix = "body.", .strict = false, .names = &apart});
  CHECK(apart.missing == std::vector<std::string>{"in.weight"});
  CHECK(apart.unexpected == std::vector<std::string>{"more"});
  auto mixed = copy_of(Model(1));
  mixed["in.weight"] = before.at("in.weight");
  CHECK(equals(m, mixed));
  file["body.table"] = arange(4);  // a misfit stays one
  save_safetensors(path, {file, {}});
  CHECK_THROWS_WITH(load(m, path, {.prefix = "body.", .strict = false}), Contains("\"table\" has shape"));
  CHECK(equals(m, mixed));
}

TEST_CASE("module: load lists all that is missing or unexpected, but not a thousand names", "[module]") {
  std::map<std::string, Tensor> state;
  for (int i = 0; i < 20; ++i) state[str("a", i)] = ones({1});
  CHECK_THROWS_WITH(load_state(Model(1), state), Contains("\"in.bias\" is missing") &&
                                                     Contains("\"table\" is missing") &&
                                                     Contains("; 12 more are not part of the model"));
}

TEST_CASE("module: load refuses a file of PyTorch, whose square weights would be transposed", "[module]") {
  TempFolder folder;
  Rng rng(1);
  const Linear square({2, 2}, rng);
  const Tensor before = clone(square.weight.detach());
  save_safetensors(folder / "m", {{{"weight", ones({2, 2})}, {"bias", ones({2})}}, {{"format", "pt"}}});
  CHECK_THROWS_WITH(load(square, folder / "m"), Contains("[out, in]") && Contains("load_pytorch()"));
  CHECK(same_bits(square.weight.detach(), before));
  const RMSNorm norm(2);  // nothing to transpose
  save_safetensors(folder / "m", {{{"weight", zeros({2})}}, {{"format", "pt"}}});
  load(norm, folder / "m");
  CHECK(norm.weight.to_vector() == std::vector<float>{0, 0});
}

TEST_CASE("module: copying a module shares its tensors, which to() converts for all", "[module]") {
  Model a(1), b = a;
  CHECK(b.in.weight.ref() == a.in.weight.ref());
  to(b, f64);
  CHECK(a.in.weight.dtype() == f64);
  CHECK(b.in.weight.ref() == a.in.weight.ref());
  Model c = clone(a);
  to(c, f32);
  CHECK(a.in.weight.dtype() == f64);
  to(b, meta);  // but takes no values from others
  CHECK(a.in.weight.device() == cpu);
}

TEST_CASE("module: to(f64) converts floats and keeps what is trained", "[module]") {
  Model m(1);
  const auto before = copy_of(m);
  const Names names = names_of(parameters(m));
  to(m, f64);
  CHECK(names_of(parameters(m)) == names);
  for (auto& p : state_dict(m)) {
    INFO(p.name);
    CHECK(p.tensor.dtype() == (p.name == "table" ? i64 : f64));
    CHECK(p.tensor.is_leaf());
    CHECK(p.tensor.to_vector<double>() == before.at(p.name).to_vector<double>());
  }
  CHECK(m.in(ones({1, 3}, {f64})).dtype() == f64);
  to(m, f32);
  CHECK(equals(m, before));
  to(m, bf16);
  CHECK(m.in(ones({1, 3}, {bf16})).dtype() == bf16);
  CHECK_THROWS_AS(to(m, i64), DTypeError);
}

TEST_CASE("module: to() the dtype it has changes nothing, so optimisers keep their tensors", "[module]") {
  Model m(1);
  backward(sum(m.in(ones({1, 3}))));
  auto before = parameters(m);
  to(m, f32);
  auto after = parameters(m);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(before[i].tensor.ref() == after[i].tensor.ref());
  CHECK(m.in.weight.grad().defined());
}

TEST_CASE("module: two tensors of one name are refused, not merged", "[module]") {
  Twice m;
  TempFolder folder;
  CHECK_THROWS_WITH(save(m, folder / "m"), Contains("\"w\""));
}

TEST_CASE("module: weights tied by sharing stay tied through to(), and are saved and loaded", "[module]") {
  Tied m, other;
  CHECK(names_of(parameters(m)) == Names{"in"});
  CHECK(count(m) == 4);
  Adam adam(parameters(m));  // refuses a tensor that is listed twice
  CHECK(names_of(state_dict(m)) == Names{"in", "out"});
  TempFolder folder;
  other.in.mutable_data<float>()[0] = 7;
  save(other, folder / "m");
  load(m, folder / "m");
  CHECK(m.out.to_vector()[0] == 7);
  to(m, f64);
  CHECK(m.in.ref() == m.out.ref());
}

TEST_CASE("module: the summary lists every module with its tensors", "[module]") {
  Model m(1);
  std::string text = summary(m);
  INFO(text);
  for (auto& p : detail::members(m).parts)
    if (!p.name.empty()) CHECK_THAT(text, Contains("\n" + p.name + " "));
  for (std::string part : {"(model)", "Model", "Inner", "Linear", "weight[3,2]", "bias[2]", "blocks.1.extra",
                           "weight[2,5]", "scales.0[4]", "table[3]"})
    CHECK_THAT(text, Contains(part));
  CHECK_THAT(text, Contains(std::to_string(count(m))));
  CHECK_THAT(summary(m.blocks[1]), Contains("(model)") && Contains("extra"));
}

TEST_CASE("module: the summary leaves out the layers that options have left out", "[module]") {
  Rng rng(1);
  const MultiHeadAttention attention({.dim = 8, .heads = 2}, rng);  // without norms, forget gate, global maps
  for (const std::string& text : {summary(attention), summary(attention, zeros({1, 3, 8}))}) {
    INFO(text);
    CHECK(std::count(text.begin(), text.end(), '\n') == 6);  // a header, the model, q, k, v and out
  }
}

TEST_CASE("module: the summary counts tied weights once", "[module]") {
  Tied m;
  const std::string text = summary(m);
  INFO(text);
  CHECK(count(m) == 4);
  CHECK_THAT(text, Contains(" 4  in[") && Contains("out["));  // both are listed
}

TEST_CASE("to() of a tensor converts by value, also beside the module function", "[module]") {
  Tensor x = ones({2});
  const Tensor y = to(x, f64);
  CHECK(y.dtype() == f64);
  CHECK(x.dtype() == f32);
}

TEST_CASE("module: constructors keep no tensor that visit does not list", "[module]") {
  Rng rng(1);
  CHECK(all_listed([&] { return Linear({3, 4}, rng); }));
  CHECK(all_listed([&] { return Linear({3, 4, false}, rng); }));
  CHECK(all_listed([&] { return Embedding({3, 4}, rng); }));
  CHECK(all_listed([&] { return Mlp({.dim = 4}, rng); }));
  CHECK(all_listed([&] { return Glu({.dim = 4, .bias = true}, rng); }));
  for (NormKind k : {NormKind::layer, NormKind::rms, NormKind::scale, NormKind::scale_l2})
    CHECK(all_listed([&] { return Norm({.dim = 4, .kind = k}); }));
  for (GauBias b : {GauBias::none, GauBias::toeplitz, GauBias::rope, GauBias::t5})
    CHECK(all_listed([&] { return Gau({.dim = 8, .key_dim = 4, .bias = b}, rng); }));
  CHECK(all_listed([&] { return CrossGau({.dim = 8, .key_dim = 4}, rng); }));
  CHECK_FALSE(all_listed([&] { return Forgetful(rng); }));  // the check itself can fail
}
