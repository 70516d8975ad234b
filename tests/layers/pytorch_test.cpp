// Weights of PyTorch: layouts, names, fused projections, dtypes, and the way back.
#include "layers/pytorch_samples.h"
#include "support/folders.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/transformer_block.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/short_convolution.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

const std::string golden = source_folder() + "/tests/golden/port/";
const std::vector<std::string> numbers{"(^|\\.)(input|output|cotangent|grad)(\\.|$)"};  // beside the weights

/// Output and input gradient of a layer against those in the file.
template <class M>
void check_numbers(const M& m, const std::string& prefix, const std::string& name = "fused_projections.safetensors") {
  const std::map<std::string, Tensor> file = load_safetensors(golden + name).tensors;
  const Tensor x = clone(file.at(prefix + "input.x")).requires_grad_(), y = m(x);
  INFO(prefix);
  CHECK(max_abs_diff(y, file.at(prefix + "output")) < 1e-12);
  backward(sum(y * file.at(prefix + "cotangent")));
  CHECK(max_abs_diff(x.grad(), file.at(prefix + "grad.input.x")) < 1e-12);
}
MultiHeadAttention attention(HeadsOptions heads) {
  Rng rng(1);
  heads.heads = 2, heads.qkv_bias = heads.out_bias = true, heads.dtype = f64;
  return MultiHeadAttention({.heads = heads}, rng);
}
PyTorchRules fused(const std::string& from, const std::string& to, PyTorchStorage how) {
  PyTorchRules rules;
  for (const char* name : {"q", "k", "v"}) rules.push_back({from + name + "\\.", to, how}), ++how.part;
  return rules;
}

struct Blocks {
  std::vector<Mlp> blocks;
  SLUICE_PARTS(blocks);
};
struct Maps {
  Linear q, k, v;
  SLUICE_PARTS(q, k, v);
};
struct Square {
  Tensor w = zeros({3, 3}).requires_grad_();
  SLUICE_PARTS(w);
};

}  // namespace

TEST_CASE("load_pytorch: linear maps are transposed, square ones too", "[pytorch]") {
  Rng rng(1);
  for (int64_t out : {3, 2}) {
    const Linear m({3, out, true}, rng);
    const uint32_t version = m.weight.version();
    const auto weight_of = m.weight.ref();
    const Tensor w = counted({out, 3}, 1), b = counted({out}, 50);
    REQUIRE(refusal(m, {{"weight", w}, {"bias", b}}).empty());
    CHECK(same_bits(m.weight.detach(), to(contiguous(transpose(w, 0, 1)), f32)));
    CHECK(same_bits(m.bias.detach(), to(b, f32)));
    CHECK((m.weight.ref() == weight_of && m.weight.requires_grad() && m.weight.version() > version));
  }
}

TEST_CASE("load_pytorch: tables, numbers, buffers and tied tensors stay as they are", "[pytorch]") {
  Rng rng(1);
  Mixed m;
  m.embedding = Embedding({3, 3}, rng);
  std::map<std::string, Tensor> file{{"number", counted({}, 5)},
                                     {"table", arange(4, 7, 1, {i64})},
                                     {"in", counted({2, 3}, 1)},
                                     {"embedding.weight", counted({3, 3}, 20)}};
  REQUIRE(refusal(m, file).empty());  // `out` is `in`
  CHECK(m.number.item() == 5);
  CHECK(m.table.to_vector<int64_t>() == std::vector<int64_t>{4, 5, 6});
  CHECK(same_bits(m.out.detach(), counted({2, 3}, 1, f32)));
  CHECK(same_bits(m.embedding.weight.detach(), counted({3, 3}, 20, f32)));
  file.erase("in");
  CHECK_THAT(refusal(m, file), Contains("missing: \"in\"") && Contains("missing: \"out\""));
  file["in"] = counted({2, 3}, 1), file["table"] = arange(4, 7, 1, {i32});
  CHECK_THAT(refusal(m, file), Contains("misfit: \"table\" is i32 [3]; \"table\" needs i64 [3]"));
}

TEST_CASE("load_pytorch: dims of size 1 that the file has beyond the model's", "[pytorch]") {
  for (const int64_t in : {1, 3})
    for (const auto& [weight, bias] : {std::pair<Shape, Shape>{{1, 4, 1, in}, {1, 1, 4, 1}}, {{4, in, 1}, {4, 1}}}) {
      Rng rng(1);
      const Linear m({in, 4, true}, rng);
      REQUIRE(refusal(m, {{"weight", counted(weight, 1)}, {"bias", counted(bias, 50)}}).empty());
      CHECK(same_bits(contiguous(transpose(m.weight.detach(), 0, 1)), counted({4, in}, 1, f32)));
      CHECK(same_bits(m.bias.detach(), counted({4}, 50, f32)));
    }
  Rng rng(1);
  const Linear one({1, 1, true}, rng);
  CHECK(refusal(one, {{"weight", counted({1, 1, 1}, 1)}, {"bias", counted({1, 1, 1, 1}, 1)}}).empty());
  CHECK_THAT(refusal(one, {{"weight", counted({1, 1}, 1)}, {"bias", counted({1, 2}, 1)}}),
             Contains("\"bias\" is f64 [1,2]"));
}

TEST_CASE("load_pytorch: tied tensors that the file has under one name", "[pytorch]") {
  Rng rng(1);
  const auto make = [&] {
    Mixed m;
    m.embedding = Embedding({3, 3}, rng);
    return m;
  };
  const PyTorchRules rules{{"^(in|out)$", "shared"}, {"table|number|embedding", "rest.$&"}};
  CHECK(comes_back(make(), make(), rules));
  Mixed untied = make();
  untied.out = ones({2, 3});
  CHECK_THAT(refusal(untied, {}, rules), Contains("\"in\" and \"out\" are both \"shared\""));
}

TEST_CASE("load_pytorch: a square matrix of no Linear needs a rule", "[pytorch]") {
  const Square m;
  const Tensor w = counted({3, 3}, 1);
  CHECK_THAT(refusal(m, {{"w", w}}), Contains("\"w\" [3,3] is square") && Contains("PyTorchLayout::transposed"));
  REQUIRE(refusal(m, {{"w", w}}, {{"w", "w", {.layout = PyTorchLayout::transposed}}}).empty());
  CHECK(same_bits(contiguous(transpose(m.w.detach(), 0, 1)), to(w, f32)));
  REQUIRE(refusal(m, {{"w", w}}, {{"w", "w", {.layout = PyTorchLayout::as_is}}}).empty());
  CHECK(same_bits(m.w.detach(), to(w, f32)));
  CHECK(comes_back(Square{}, Square{zeros({3, 3}).requires_grad_()},
                   {{"w", "v", {.layout = PyTorchLayout::transposed}}}));
}

TEST_CASE("load_pytorch: all float dtypes, into all", "[pytorch]") {
  Rng rng(1);
  const Tensor third = to(counted({4, 3}, 1) / 3.0, f64);
  for (DType dtype : {f32, f64, bf16})
    for (auto [name, error] :
         {std::pair("f16", 0x1p-11), std::pair("bf16", 0x1p-8), std::pair("f32", 0x1p-24), std::pair("f64", 0.0)}) {
      INFO(name << " into " << str(dtype));
      const Linear m({3, 4, false, {}, dtype}, rng);
      load_pytorch(m, golden + "dtypes.safetensors", {}, {.prefix = str(name, ".")});
      const double bound = error + (dtype == bf16 ? 0x1p-8 : dtype == f32 ? 0x1p-24 : 0);
      const Tensor got = to(transpose(m.weight.detach(), 0, 1), f64);
      CHECK(max_abs_diff(got / third, ones_like(third)) <= bound + 1e-15);
      if (error > 0 && dtype != bf16)  // it was that dtype
        CHECK(max_abs_diff(got / third, ones_like(third)) > error / 8);
    }
}

TEST_CASE("load_pytorch: names by rules, one after the other", "[pytorch]") {
  Rng rng(1);
  const Blocks m{{Mlp({.dim = 2, .hidden = 3}, rng), Mlp({.dim = 2, .hidden = 3}, rng)}};
  std::map<std::string, Tensor> file;
  double first = 0;
  for (const char* layer : {"0", "1"})
    for (auto [map, shape] : {std::pair("c_fc", Shape{3, 2}), std::pair("c_proj", Shape{2, 3})}) {
      file[str("x.h.", layer, ".mlp.", map, ".weight")] = counted(shape, first += 100);
      file[str("x.h.", layer, ".mlp.", map, ".bias")] = counted({shape[0]}, first += 100);
    }
  const PyTorchRules rules{{"^blocks\\.(\\d+)", "h.$1.mlp"}, {"mlp\\.in", "mlp.c_fc"}, {"mlp\\.out", "mlp.c_proj"}};
  file["other"] = ones({1});  // another prefix
  REQUIRE(refusal(m, file, rules, {.prefix = "x."}).empty());
  CHECK(same_bits(contiguous(transpose(m.blocks[1].in.weight.detach(), 0, 1)), counted({3, 2}, 500, f32)));
  CHECK(same_bits(m.blocks[0].out.bias.detach(), counted({2}, 400, f32)));
  CHECK_THAT(refusal(m, file, rules),
             Contains("missing: \"h.0.mlp.c_fc.bias\" — did you mean \"x.h.0.mlp.c_fc.bias\"?"));
}

TEST_CASE("load_pytorch: fused projections, row by row", "[pytorch]") {
  // 4 query heads and 2 KV heads of width 3, from 5 channels: a row's number says where it lies in the file.
  Rng rng(1);
  const Maps m{{{5, 12}, rng}, {{5, 6}, rng}, {{5, 6}, rng}};
  const auto at = [](const Tensor& x, int64_t i) { return x.to_vector()[static_cast<std::size_t>(i)]; };
  const auto row = [&](const Linear& l, int64_t i) { return static_cast<int64_t>(at(l.bias, i)); };
  std::map<std::string, Tensor> file{{"qkv.weight", counted({24, 5}, 0)}, {"qkv.bias", counted({24}, 0)}};
  REQUIRE(refusal(m, file, fused("^", "qkv.", {})).empty());
  for (int64_t c = 0; c < 6; ++c) CHECK((row(m.q, c + 6) == c + 6 && row(m.k, c) == 12 + c && row(m.v, c) == 18 + c));

  // A KV head's queries, its keys, its values: [2, 2·3 | 3 | 3].
  REQUIRE(refusal(m, file, fused("^", "qkv.", {.groups = 2})).empty());
  for (int64_t g = 0; g < 2; ++g)
    for (int64_t c = 0; c < 3; ++c) {
      CHECK((row(m.q, 6 * g + c) == 12 * g + c && row(m.q, 6 * g + 3 + c) == 12 * g + 3 + c));
      CHECK((row(m.k, 3 * g + c) == 12 * g + 6 + c && row(m.v, 3 * g + c) == 12 * g + 9 + c));
    }
  for (int64_t i = 0; i < 5; ++i)  // weights move as biases do
    for (int64_t o = 0; o < 6; ++o) CHECK(at(m.v.weight, 6 * i + o) == static_cast<float>(5 * row(m.v, o) + i));
  CHECK(comes_back(m, Maps{{{5, 12}, rng}, {{5, 6}, rng}, {{5, 6}, rng}}, fused("^", "qkv.", {.groups = 2})));

  CHECK_THAT(refusal(m, file, fused("^", "qkv.", {.groups = 4})),
             Contains("groups=4 must divide the rows of \"k.bias\""));
  CHECK_THAT(refusal(m, file, {{"^[qkv]", "qkv"}}),
             Contains("\"q.bias\" and \"k.bias\" are both \"qkv.bias\"") && Contains(".part"));
  file["qkv.bias"] = counted({23}, 0);
  CHECK_THAT(refusal(m, file, fused("^", "qkv.", {})),
             Contains("\"qkv.bias\" is f64 [23]; \"q.bias\" and \"k.bias\" and \"v.bias\" needs [24]"));
}

TEST_CASE("load_pytorch: one tensor of the model from several of the file", "[pytorch]") {
  Rng rng(1);
  const GauOptions options{.dim = 4, .expansion = 3, .key_dim = 2, .norm = NormKind::none};
  const Gau m(options, rng);
  constexpr int64_t single = PyTorchPiece::single;
  const PyTorchRules rules{
      {"^in\\.", "", {.pieces = {{"hidden.", 3, 1}, {"hidden.", 3, 0}, {"qk.", 2}}}},
      {"^gamma", "", {.layout = PyTorchLayout::as_is, .pieces = {{"q_scale", single}, {"k_scale", 0}}}},
      {"^beta", ""}};
  std::map<std::string, Tensor> file{{"hidden.weight", counted({6, 4}, 0)}, {"hidden.bias", counted({6}, 100)},
                                     {"qk.weight", counted({2, 4}, 200)},   {"qk.bias", counted({2}, 300)},
                                     {"q_scale", counted({2}, 400)},        {"k_scale", counted({1, 2}, 500)},
                                     {"out.weight", counted({4, 3}, 600)},  {"out.bias", counted({4}, 700)}};
  const Tensor beta = clone(m.beta.detach());
  REQUIRE(refusal(m, file, rules).empty());
  CHECK(m.in.bias.to_vector() == std::vector<float>{103, 104, 105, 100, 101, 102, 300, 301});
  CHECK(slice(m.in.weight, 0, 1, 2).to_vector() == std::vector<float>{13, 17, 21, 1, 5, 9, 201, 205});
  CHECK(m.gamma.to_vector() == std::vector<float>{400, 401, 500, 501});
  CHECK(same_bits(m.beta.detach(), beta));
  CHECK(comes_back(m, Gau(options, rng), {rules[0], rules[1], {"^beta", "b", {.layout = PyTorchLayout::as_is}}}));

  PyTorchRules wrong = rules;
  wrong[0].stored.pieces[2].rows = 3;
  CHECK_THAT(refusal(m, file, wrong), Contains("all its rows, 8") && Contains("rows=3, and 2 are left"));
  wrong[0].stored.pieces[2].rows = 1;
  CHECK_THAT(refusal(m, file, wrong), Contains("rows=1, and 2 are left"));
  wrong[0].stored.pieces[2] = {"", 2};
  wrong.push_back({"weight|bias", ""});
  CHECK_THAT(refusal(m, file, wrong), Contains("must have names"));
  wrong = rules, wrong.push_back({"qk", "qk", {.part = 1}});
  CHECK_THAT(refusal(m, file, wrong), Contains("which the first cuts"));
}

TEST_CASE("load_pytorch: rows of a linear map, each a tensor of its own", "[pytorch]") {
  Rng rng(1);
  constexpr int64_t single = PyTorchPiece::single;
  for (PyTorchLayout layout : {PyTorchLayout::automatic, PyTorchLayout::as_is}) {
    const Linear m({3, 2, false}, rng);
    const PyTorchRules rules{{"weight", "", {.layout = layout, .pieces = {{"a", single}, {"b", single}}}}};
    REQUIRE(refusal(m, {{"a", counted({3}, 1)}, {"b", counted({3}, 7)}}, rules).empty());
    CHECK(m.weight.to_vector() == std::vector<float>{1, 7, 2, 8, 3, 9});
    CHECK(comes_back(m, Linear({3, 2, false}, rng), rules));
  }
}

TEST_CASE("load_pytorch: depthwise convolutions", "[pytorch]") {
  const auto make = [](uint64_t seed) {
    Rng rng(seed);
    // Square: the layer's type says how the file has it.
    return ShortConvolution({.dim = 3, .width = 3, .bias = true, .activation = Act::identity}, rng);
  };
  const ShortConvolution m = make(1);
  std::map<std::string, Tensor> file{{"weight", counted({3, 1, 3}, 1)}, {"bias", counted({3}, 20)}};
  REQUIRE(refusal(m, file).empty());
  CHECK(m.weight.to_vector() == std::vector<float>{1, 4, 7, 2, 5, 8, 3, 6, 9});
  // torch.nn.functional.conv1d: y[c, t] = b[c] + Σ_j w[c, 0, j]·x[c, t − 2 + j].
  CHECK(m(reshape(arange(1, 7, 1, {f32}), {1, 2, 3})).to_vector() == std::vector<float>{23, 33, 49, 34, 61, 100});
  CHECK(comes_back(m, make(2)));
  file["weight"] = counted({3, 3}, 1);
  CHECK_THAT(refusal(m, file), Contains("\"weight\" is f64 [3,3]; \"weight\" needs [3,1,3]"));

  const Square other;
  const PyTorchRules rules{{"w", "conv.w", {.layout = PyTorchLayout::depthwise}}};
  REQUIRE(refusal(other, {{"conv.w", counted({3, 1, 3}, 1)}}, rules).empty());
  CHECK(same_bits(contiguous(transpose(other.w.detach(), 0, 1)), counted({3, 3}, 1, f32)));
  CHECK_THAT(refusal(Mixed{}, {}, {{"table", "table", {.layout = PyTorchLayout::depthwise}}}),
             Contains("is of matrices"));
}

TEST_CASE("load_pytorch: norms that store w − 1", "[pytorch]") {
  const RMSNorm m(3), other(3);
  const PyTorchRules rules{{"weight", "norm.w", {.add = 1}}};
  REQUIRE(refusal(m, {{"norm.w", Tensor::from<float>({0, -0.5, 0.25})}}, rules).empty());
  CHECK(m.weight.to_vector() == std::vector<float>{1, 0.5, 1.25});
  TempFolder folder;
  save_pytorch(m, folder / "m", rules);
  CHECK(load_safetensors(folder / "m").tensors.at("norm.w").to_vector() == std::vector<float>{0, -0.5, 0.25});
  CHECK_THAT(refusal(Mixed{}, {}, {{"table", "table", {.add = 1}}}), Contains("add=1 is of floats — got \"table\""));
}

TEST_CASE("load_pytorch: attention of torch, GPT-2, GPT-NeoX and Bloom computes what they compute", "[pytorch]") {
  const std::string path = golden + "fused_projections.safetensors";
  const MultiHeadAttention mha = attention({.dim = 8});
  PyTorchRules rules;
  for (int part = 0; part < 3; ++part) rules.push_back({str("^", "qkv"[part], "\\."), "in_proj_", {.part = part}});
  rules.push_back({"^out", "out_proj"});
  load_pytorch(mha, path, rules, {.prefix = "mha.", .ignore = numbers});
  check_numbers(mha, "mha.");

  const MultiHeadAttention gpt2 = attention({.dim = 8, .causal = true});
  rules.clear();
  for (int part = 0; part < 3; ++part) {
    rules.push_back(
        {str("^", "qkv"[part], "\\.weight"), "c_attn.weight", {.part = part, .layout = PyTorchLayout::as_is}});
    rules.push_back({str("^", "qkv"[part], "\\.bias"), "c_attn.bias", {.part = part}});
  }
  rules.push_back({"^out\\.weight", "c_proj.weight", {.layout = PyTorchLayout::as_is}});
  rules.push_back({"^out", "c_proj"});
  load_pytorch(gpt2, path, rules, {.prefix = "gpt2.", .ignore = numbers});
  check_numbers(gpt2, "gpt2.");

  rules = fused("^", "query_key_value.", {.groups = 2});
  rules.push_back({"^out", "dense"});
  const MultiHeadAttention neox = attention({.dim = 8, .causal = true, .use_rope = true, .rope = {.rot_dim = 2}});
  load_pytorch(neox, path, rules, {.prefix = "neox.", .ignore = numbers});
  check_numbers(neox, "neox.");

  Rng rng(1);
  HeadsOptions heads{.dim = 8, .heads = 2, .causal = true};
  heads.qkv_bias = heads.out_bias = true, heads.dtype = f64;
  const MultiHeadAttention bloom({.heads = heads, .position_bias = PositionBias::alibi}, rng);
  load_pytorch(bloom, path, rules, {.prefix = "bloom.", .ignore = numbers});
  check_numbers(bloom, "bloom.");
}

TEST_CASE("load_pytorch: blocks of torch and Qwen3 compute what they compute", "[pytorch]") {
  Rng rng(1);
  const MlpOptions mlp{.dim = 8, .hidden = 12, .activation = Act::gelu, .init = {}, .dtype = f64};
  const TransformerBlock encoder(attention({.dim = 8}), Mlp(mlp, rng), {.placement = NormPlacement::post});
  PyTorchRules rules{{"attention_norm", "norm1"}, {"feed_norm", "norm2"},    {"attention\\.", "self_attn."},
                     {"feed\\.in", "linear1"},    {"feed\\.out", "linear2"}, {"self_attn\\.out", "self_attn.out_proj"}};
  for (int part = 0; part < 3; ++part)
    rules.push_back({str("self_attn\\.", "qkv"[part], "\\."), "self_attn.in_proj_", {.part = part}});
  load_pytorch(encoder, golden + "blocks.safetensors", rules, {.prefix = "encoder.", .ignore = numbers});
  check_numbers(encoder, "encoder.", "blocks.safetensors");

  MultiHeadAttentionOptions o = qwen_attention_options(8, 4, 2, 4, {});
  o.norm = NormKind::none, o.heads.residual = false, o.heads.dtype = f64;  // the block has both
  const GluOptions glu{.dim = 8, .hidden = 12, .init = {}, .dtype = f64};
  const TransformerBlock decoder(MultiHeadAttention(o, rng), Glu(glu, rng), {.norm = NormKind::rms, .norm_eps = 1e-6});
  load_pytorch(decoder, golden + "blocks.safetensors",
               {{"attention_norm", "input_layernorm"},
                {"feed_norm", "post_attention_layernorm"},
                {"attention\\.([qkv])\\.", "attention.$1_proj."},
                {"attention\\.out", "attention.o_proj"},
                {"^attention", "self_attn"},
                {"feed\\.value", "mlp.up_proj"},
                {"feed\\.gate", "mlp.gate_proj"},
                {"feed\\.out", "mlp.down_proj"}},
               {.prefix = "qwen3.", .ignore = numbers});
  check_numbers(decoder, "qwen3.", "blocks.safetensors");
}

TEST_CASE("load_pytorch: Falcon's attention, fused by KV heads, computes what it computes", "[pytorch]") {
  Rng rng(1);
  const HeadsOptions heads{.dim = 8, .heads = 4, .kv_heads = 2, .causal = true, .use_rope = true, .dtype = f64};
  const MultiHeadAttention falcon({.heads = heads}, rng);
  PyTorchRules rules = fused("^", "query_key_value.", {.groups = 2});
  rules.push_back({"^out", "dense"});
  load_pytorch(falcon, golden + "blocks.safetensors", rules, {.prefix = "falcon.", .ignore = numbers});
  check_numbers(falcon, "falcon.", "blocks.safetensors");
}

TEST_CASE("save_pytorch: what it writes reads back, bit for bit", "[pytorch]") {
  Rng rng(1);
  const auto both = [&](auto make, const PyTorchRules& rules = {}) { CHECK(comes_back(make(), make(), rules)); };
  both([&] { return Linear({3, 3}, rng); });
  both([&] { return Glu({.dim = 4}, rng); }, {{"value", "up_proj"}, {"gate", "gate_proj"}, {"out", "down_proj"}});
  both([&] { return Flash({.dim = 4, .expansion = 5, .key_dim = 3, .chunk = 4, .use_rope = false}, rng); });
  both([&] { return GatedAttention({.heads = {.dim = 6, .heads = 2}}, rng); });
  PyTorchRules rules = fused("^", "c_attn.", {});
  for (PyTorchRule& r : rules) r.stored.layout = PyTorchLayout::as_is;
  both([&] { return MultiHeadAttention(qwen_attention_options(6, 2, 1, 4), rng); },
       {{"^q\\.", "q_proj.", {.part = 0, .groups = 2}}, {"gates\\.0\\.map\\.", "q_proj.", {.part = 1, .groups = 2}}});
  both([&] { return MultiHeadAttention({.heads = {.dim = 6, .heads = 2}}, rng); }, rules);

  TempFolder folder;
  const Linear m({3, 2}, rng);
  save_pytorch(m, folder / "m", {}, "head.");
  const SafeTensors file = load_safetensors(folder / "m");
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  CHECK(file.tensors.at("head.weight").shape() == Shape{2, 3});
  CHECK(same_bits(file.tensors.at("head.weight"), contiguous(transpose(m.weight.detach(), 0, 1))));
}
