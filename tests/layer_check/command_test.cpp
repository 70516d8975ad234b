// The command itself: the listing, conversions, cotangents, and every way in which a case can be wrong.
#include "layer_check/case.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"
#include "support/folders.h"

#include <sluice/core/text/json.h>
#include <sluice/core/text/print.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

Rand rand_(5);
Tensor random(const Shape& shape, DType dtype = f64) { return random_tensor(shape, dtype, rand_); }

/// A GAU small enough to write down.
Case small_gau(DType dtype = f64) {
  return {"gau",
          R"({"dim": 4, "key_dim": 2, "expansion": 3, "norm": "none"})",
          {{"input.x", random({2, 5, 4}, dtype)},
           {"param.in.weight", random({4, 8}, dtype)},
           {"param.in.bias", random({8}, dtype)},
           {"param.out.weight", random({3, 4}, dtype)},
           {"param.out.bias", random({4}, dtype)},
           {"param.gamma", random({2, 2}, dtype)},
           {"param.beta", random({2, 2}, dtype)}}};
}
Case small_attention() {
  return {"attention",
          R"({"lse": true})",
          {{"input.q", random({1, 2, 3, 4})}, {"input.k", random({1, 1, 5, 4})}, {"input.v", random({1, 1, 5, 3})}}};
}

const std::string& text(const Json& j, std::string_view name) { return j.at(name).get<std::string>(); }

}  // namespace

TEST_CASE("layer_check: --list describes every layer", "[layer_check]") {
  ::setenv("SLUICE_CUDA", "none", 1);
  const Finished run = layer_check("--list");
  ::unsetenv("SLUICE_CUDA");
  REQUIRE(run.status == 0);
  const Json list = parse_json(run.out);
  CHECK(text(list.at("devices"), "cpu") == "every layer");
  CHECK_THAT(text(list.at("devices"), "cuda"), Contains("none here") && Contains("SLUICE_CUDA=none"));
  ::setenv("SLUICE_CUDA", "gpus", 1);
  CHECK_THAT(layer_check("--list").out,
             Contains("SLUICE_CUDA=gpus in the environment, which may be gpu, emulated or none"));
  ::unsetenv("SLUICE_CUDA");
  std::ifstream file(source_folder() + "/examples/layer_check/README.md");
  const std::string readme{std::istreambuf_iterator<char>(file), {}};
  std::ifstream table_file(source_folder() + "/layers/LAYERS.md");
  const std::string table{std::istreambuf_iterator<char>(table_file), {}};
  std::set<std::string> names;
  for (const Json& layer : list.at("layers").get<Json::List>()) {
    const std::string name = text(layer, "name");
    INFO(name);
    CHECK(names.insert(name).second);
    // A layer that the table alone describes has its type for a formula, and its row in the table of layers.
    const std::string type = text(layer, "formula");
    CHECK((name.starts_with("cost_") || readme.find("`" + name + "`") != readme.npos ||
           table.find("`" + type + "`") != table.npos));
    CHECK_FALSE(type.empty());
    CHECK(layer.find("source"));
    CHECK_FALSE(layer.at("outputs").get<Json::List>().empty());
    CHECK_FALSE(layer.at("samples").get<Json::List>().empty());
    for (const Json& o : layer.at("options").get<Json::List>()) {
      CHECK(o.find(o.at("required").get<bool>() ? "example" : "default"));
      CHECK(o.find("meaning"));
      const std::string type = text(o, "type");
      CHECK(std::set<std::string>{"bool", "int", "float", "float or null", "text", "text or null", "list of int",
                                  "list of float", "list of objects"}
                .contains(type));
      CHECK((o.find("values") != nullptr) == type.starts_with("text"));
    }
    for (const Json& i : layer.at("inputs").get<Json::List>()) {
      CHECK(std::set<std::string>{"float", "i64", "bool"}.contains(text(i, "dtype")));
      CHECK(text(i, "shape").ends_with("]"));
      CHECK(i.find("optional"));
    }
    for (const Json& p : layer.at("parameters").get<Json::List>()) CHECK(text(p, "shape").starts_with("["));
  }
  for (const char* name : {"mlp",
                           "glu",
                           "norm",
                           "group_norm",
                           "rope",
                           "toeplitz_bias",
                           "t5_bias",
                           "alibi_bias",
                           "rope_bias",
                           "activation",
                           "gau",
                           "cross_gau",
                           "tutorial_gau",
                           "gau_attention",
                           "flash",
                           "mixed_chunk_attention",
                           "flash_model",
                           "mc_tfm",
                           "attention",
                           "pattern_attention",
                           "neighbour_attention",
                           "topk_attention",
                           "threshold_attention",
                           "sinkhorn",
                           "sinkhorn_attention",
                           "sinkhorn_block_attention",
                           "feature_map",
                           "linear_attention",
                           "linear_attention_form",
                           "linear_scan",
                           "retention",
                           "gla",
                           "multi_head_attention",
                           "attention_stack",
                           "attention_gate",
                           "gated_attention",
                           "gated_cross_attention",
                           "gated_residual",
                           "fused_attention",
                           "unpack_q_proj",
                           "first_token_share",
                           "max_activation",
                           "gate_statistics",
                           "effective_rank",
                           "cost_gau",
                           "cost_multi_head_attention",
                           "cost_sinkhorn_attention",
                           "cost_flash_model"})
    CHECK(names.contains(name));

  // Where the defaults do not go together with the required options' examples, the row of the table says what does.
  const Json retention = parse_json(layer_check("--list retention").out);
  for (const Json& o : retention.at("layers").get<Json::List>().at(0).at("options").get<Json::List>()) {
    if (text(o, "name") == "dim") CHECK((o.at("example") == Json(8) && !o.find("default")));
    if (text(o, "name") == "heads") CHECK((o.at("example") == Json(2) && o.at("default") == Json(8)));
    if (text(o, "name") == "chunk") CHECK_FALSE(o.find("example"));
  }

  const Json one = parse_json(layer_check("--list gau").out);
  const auto& layers = one.at("layers").get<Json::List>();
  REQUIRE(layers.size() == 1);
  CHECK(text(layers[0].at("parameters").get<Json::List>().at(3), "shape") == "[dim, 2*e + s]");
}

// formulas.py compares what the listing says with the layers.
TEST_CASE("layer_check: --self-check builds every layer with all its samples", "[layer_check]") {
  const Finished run = layer_check("--self-check");
  INFO(run.out);
  CHECK(run.status == 0);
  CHECK_THAT(run.out, Contains("multi_head_attention: ") && !Contains("FAILED"));
}

TEST_CASE("layer_check: --parameters prints names and shapes for given options", "[layer_check]") {
  const Finished run =
      layer_check(R"(--parameters gau '{"dim": 4, "key_dim": 2, "norm": "scale", "linear_bias": false}')");
  CHECK(run.out == "norm.weight [1]\nin.weight [4,18]\nout.weight [8,4]\ngamma [2,2]\nbeta [2,2]\n");
  CHECK_THAT(layer_check(R"(--parameters retention '{"dim": 8, "heads": 2}')").out,
             Contains("log_gamma [2] (not trained)\n"));
}

TEST_CASE("layer_check: inputs of any float dtype, results of the one asked for", "[layer_check]") {
  Case c = small_gau(f32);
  const auto exact = outputs(c);
  CHECK(exact.at("output").dtype() == f64);
  CHECK(exact.at("grad.param.in.weight").dtype() == f64);
  c.arguments = "--dtype f32 --device cpu";
  const auto rounded = outputs(c);
  CHECK(rounded.at("output").dtype() == f32);
  CHECK(rounded.size() == exact.size());
  for (const auto& [name, x] : exact) CHECK(max_abs_diff(x, to(rounded.at(name), f64)) < 1e-4 * (1 + max_abs(x)));
  c.arguments = "";
  for (auto& [name, x] : c.tensors) x = to(x, bf16);
  CHECK(outputs(c).at("output").dtype() == f64);
}

TEST_CASE("layer_check: gradients are those of the cotangent", "[layer_check]") {
  Case c = small_gau();
  const auto ones_given = outputs(c);
  c.tensors["cotangent"] = ones({2, 5, 4}, {f64});
  const auto same = outputs(c);
  for (const auto& [name, x] : ones_given) CHECK(same_bits(x, same.at(name)));
  c.tensors["cotangent"] = full({2, 5, 4}, 3, {f64});
  CHECK(max_abs_diff(outputs(c).at("grad.param.gamma"), ones_given.at("grad.param.gamma") * 3.0) < 1e-12);

  Case a = small_attention();
  const auto main_only = outputs(a);
  a.tensors["cotangent"] = zeros({1, 2, 3, 3}, {f64});
  CHECK(max_abs(outputs(a).at("grad.input.q")) == 0);
  a.tensors["cotangent.lse"] = ones({1, 2, 3}, {f64});
  const auto of_lse = outputs(a);
  CHECK(max_abs(of_lse.at("grad.input.q")) > 0.01);
  CHECK(max_abs(of_lse.at("grad.input.v")) == 0);
  a.tensors.erase("cotangent");  // ones again
  CHECK(max_abs_diff(outputs(a).at("grad.input.q"), main_only.at("grad.input.q") + of_lse.at("grad.input.q")) < 1e-12);
}

TEST_CASE("layer_check: buffers that options determine may be left out", "[layer_check]") {
  Case c{"retention",
         R"({"dim": 4, "heads": 2, "expand_v": 1, "group_norm": "rms_plain", "gate": false})",
         {{"input.x", random({1, 3, 4})},
          {"param.q.weight", random({4, 4})},
          {"param.k.weight", random({4, 4})},
          {"param.v.weight", random({4, 4})},
          {"param.out.weight", random({4, 4})}}};
  const auto without = outputs(c);
  CHECK_FALSE(without.contains("grad.param.log_gamma"));
  c.tensors["param.log_gamma"] = log(Tensor::from(std::vector<double>{1 - 1.0 / 32, 1 - 1.0 / 64}));
  CHECK(max_abs_diff(outputs(c).at("output"), without.at("output")) < 1e-14);
}

TEST_CASE("layer_check: unknown names are errors that list the known ones", "[layer_check]") {
  Case c = small_gau();
  c.layer = "gua";
  CHECK_THAT(error_of(c), Contains("unknown layer \"gua\"") && Contains("cross_gau, tutorial_gau"));
  c = small_gau();
  c.config = R"({"dim": 4, "keydim": 2})";
  CHECK_THAT(error_of(c), Contains("gau: unknown option \"keydim\"") && Contains("key_dim"));
  c.config = R"({"dim": 4, "kind": "relu"})";
  CHECK_THAT(error_of(c), Contains("option \"kind\"") && Contains("got \"relu\"") && Contains("softmax_plus"));
  c.config = R"({"key_dim": 2})";
  CHECK_THAT(error_of(c), Contains("option \"dim\"") && Contains("required"));
  for (const char* wrong :
       {R"({"dim": "4"})", R"({"dim": 4.5})", R"({"dim": true})", R"({"dim": null})", R"({"dim": [4]})"}) {
    c.config = wrong;
    CHECK_THAT(error_of(c), Contains("option \"dim\" must be of type int"));
  }
  c.config = R"({"dim": 4, "causal": 1})";
  CHECK_THAT(error_of(c), Contains("option \"causal\"") && Contains("bool"));
  c.config = R"({"dim": 4, "dim": {"a": 1}})";
  CHECK_THAT(error_of(c), Contains("\"dim\""));
  c = {"multi_head_attention", R"({"dim": 4, "gates": [{"position": "g7"}]})", {}};
  CHECK_THAT(error_of(c), Contains("gates[0]") && Contains("got \"g7\"") && Contains("g1, g2"));
  c.config = R"({"dim": 4, "gates": [{"place": "g1"}]})";
  CHECK_THAT(error_of(c), Contains("unknown option \"place\""));
}

TEST_CASE("layer_check: a config that is not a JSON object is an error", "[layer_check]") {
  Case c = small_gau();
  for (const char* wrong : {"", "{", "{\"dim\": 4,}", "[]", "4", "{\n\"dim\":\n}"}) {
    c.config = wrong;
    CHECK_THAT(error_of(c), Contains("config is not"));
  }
}

TEST_CASE("layer_check: tensors that are missing, unexpected or misfit are named", "[layer_check]") {
  Case c = small_gau();
  c.tensors.erase("param.out.weight");
  CHECK_THAT(error_of(c),
             Contains("param.out.weight is missing") && Contains("in.weight [4,8]") && Contains("out.weight [3,4]"));
  c = small_gau();
  c.tensors.erase("input.x");
  CHECK_THAT(error_of(c), Contains("input.x is missing") && Contains("[batch, n, dim]"));
  c = small_gau();
  c.tensors["param.extra"] = random({1});
  CHECK_THAT(error_of(c),
             Contains("param.extra") && Contains("is not a parameter with these options") && Contains("gamma [2,2]"));
  c = small_gau();
  c.tensors["input.y"] = random({1});
  CHECK_THAT(error_of(c),
             Contains("input.y") && Contains("is not an input with these options") && Contains("key_mask"));
  c = small_gau();
  c.tensors["weight"] = random({1});
  CHECK_THAT(error_of(c), Contains("unexpected tensor \"weight\""));
  c = small_gau();
  c.tensors["param.gamma"] = random({4, 2});
  CHECK_THAT(error_of(c), Contains("param.gamma has shape [4,2], must be [2,2]"));
  c = small_gau();
  c.tensors["input.x"] = random({2, 5, 3});
  CHECK_THAT(error_of(c), Contains("input.x has shape [2,5,3], must be [batch, n, dim] = [2, 5, 4]"));
  c = small_gau();
  c.tensors["input.x"] = random({5, 4});
  CHECK_THAT(error_of(c), Contains("input.x has shape [5,4], must be [batch, n, dim] = [batch, n, 4]"));
  c = small_gau();
  c.tensors["input.key_mask"] = random({2, 5});
  CHECK_THAT(error_of(c), Contains("input.key_mask is f64, must be bool"));
  c.tensors["input.key_mask"] = random({2, 6}) > 0.0;
  CHECK_THAT(error_of(c), Contains("input.key_mask has shape [2,6], must be [batch, n] = [2, 5]"));
  c = small_gau();
  c.tensors["param.gamma"] = to(random({2, 2}), i64);
  CHECK_THAT(error_of(c), Contains("gamma") && Contains("i64"));
  c = small_gau();
  c.tensors["cotangent"] = random({2, 5, 3});
  CHECK_THAT(error_of(c), Contains("cotangent is f64[2,5,3]") && Contains("[2,5,4]"));
  c = small_attention();
  c.tensors["cotangent.les"] = random({1, 2, 3});
  CHECK_THAT(error_of(c), Contains("cotangent.les") && Contains("lse"));
}

TEST_CASE("layer_check: what the layer refuses is one line on stderr", "[layer_check]") {
  Case c = small_gau();
  c.config = R"({"dim": 4, "key_dim": 3, "heads": 2})";
  CHECK_THAT(error_of(c), Contains("heads=2 must divide key_dim=3"));
  c.config = R"({"dim": 4, "key_dim": 1000000000, "expansion": 1000000000000})";
  error_of(c);
  c = small_gau();
  c.arguments = "--device cuda";
  ::setenv("SLUICE_CUDA", "none", 1);
  CHECK_THAT(error_of(c), Contains("no CUDA backend") && Contains("SLUICE_CUDA=none"));
  ::unsetenv("SLUICE_CUDA");
  c.arguments = "--device gpu";
  CHECK_THAT(error_of(c), Contains("cpu or cuda") && Contains("\"gpu\""));
  c.arguments = "--dtype f16";
  CHECK_THAT(error_of(c), Contains("f64 or f32"));
  c.arguments = "--fast";
  CHECK_THAT(error_of(c), Contains("--fast"));
  CHECK(layer_check("only_one_file").status == 1);
  CHECK(layer_check("").status == 1);
}

TEST_CASE("layer_check: damaged files are errors, and nothing is written", "[layer_check]") {
  TempFolder folder;
  const std::string in = folder / "in", out = folder / "out";
  auto run = [&] { return layer_check(in + " " + out); };
  CHECK_THAT(run().err, Contains(in));  // absent
  const Case c = small_gau();
  save_safetensors(in, {c.tensors, {{"config", c.config}}});
  CHECK_THAT(run().err, Contains("metadata has no entry \"layer\""));
  save_safetensors(in, {c.tensors, {{"layer", "gau"}, {"config", c.config}}});
  const std::uintmax_t whole = std::filesystem::file_size(in);
  REQUIRE(run().status == 0);
  const SafeTensors before = load_safetensors(out);
  CHECK(text(parse_json(before.metadata.at("config")), "kind") == "su");  // complete, with defaults
  for (const std::uintmax_t size : {whole - 1, whole / 2, std::uintmax_t{9}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(in, size);
    const Finished truncated = run();
    CHECK(truncated.status == 1);
    CHECK_THAT(truncated.err, Contains(in));
  }
  const SafeTensors after = load_safetensors(out);  // of the run that succeeded
  CHECK(same_bits(before.tensors.at("output"), after.tensors.at("output")));
  save_safetensors(in, {c.tensors, {{"layer", "gau"}, {"config", c.config}}});
  CHECK_THAT(layer_check(in + " " + folder / "no/such/folder/out").err, Contains("no/such/folder"));
}

TEST_CASE("layer_check: every form takes a decay that broadcasts, as the listing says", "[layer_check]") {
  using Arrays = std::map<std::string, Tensor>;
  Rand rand(7);
  const auto positive = [&](const Shape& shape) { return random_tensor(shape, f64, rand, 0.1, 0.9); };
  const Arrays t{{"input.phi_q", positive({2, 3, 4, 5})},
                 {"input.phi_k", positive({2, 3, 4, 5})},
                 {"input.v", positive({2, 3, 4, 2})},
                 {"cotangent", positive({2, 3, 4, 2})}};
  for (const Shape& shape : {Shape{3, 1}, {4}, {}, {2, 1, 4}}) {
    Arrays given = t;
    given["input.log_decay"] = neg(positive(shape));
    std::map<std::string, Arrays> results;
    for (const char* form : {"chunked", "quadratic", "recurrent"})
      results[form] = outputs({"linear_attention_form",
                               R"({"direction": "causal", "chunk": 2, "form": ")" + std::string(form) + "\"}", given});
    for (const auto& [form, got] : results)
      for (const char* name :
           {"output", "grad.input.phi_q", "grad.input.phi_k", "grad.input.v", "grad.input.log_decay"}) {
        INFO(form << ' ' << name << " with log_decay " << shape);
        CHECK(max_abs_diff(got.at(name), results["quadratic"].at(name)) < 1e-11);
      }
  }
}
