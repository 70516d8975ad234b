// What layer_check once refused or let pass by mistake.
#include "layer_check/case.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <chrono>
#include <fstream>

using namespace sluice;
using namespace sluice::testing;

namespace {

Rand rand_(9);
Tensor random(const Shape& shape, DType dtype = f64) { return random_tensor(shape, dtype, rand_); }

Case attention_layer(const std::string& more = "") {
  return {"multi_head_attention",
          R"({"dim": 4, "heads": 2)" + more + "}",
          {{"input.x", random({1, 3, 4})},
           {"param.q.weight", random({4, 4})},
           {"param.k.weight", random({4, 4})},
           {"param.v.weight", random({4, 4})},
           {"param.out.weight", random({4, 4})}}};
}
Case form(const std::string& layer, const std::string& config, std::map<std::string, Tensor> inputs) {
  Case c{layer, config, {}};
  for (auto& [name, x] : inputs) c.tensors["input." + name] = x;
  return c;
}

}  // namespace

TEST_CASE("layer_check: inputs that broadcast may have fewer dims", "[layer_check]") {
  Case c = attention_layer();
  const Tensor plain = outputs(c).at("output");
  c.tensors["input.mask"] = ones({3, 3}) > 0.0;
  c.tensors["input.bias"] = zeros({1, 1, 3, 3}, {f64});
  c.tensors["input.segments"] = zeros({1, 3}, {i64});
  CHECK(max_abs_diff(outputs(c).at("output"), plain) < 1e-14);
}

TEST_CASE("layer_check: F16 tensors are taken", "[layer_check]") {
  TempFolder folder;
  const std::string in = folder / "in", out = folder / "out";
  const std::string header =
      R"({"__metadata__":{"layer":"softmax"},"input.x":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})";
  const uint64_t size = header.size();
  std::ofstream(in, std::ios::binary) << std::string(reinterpret_cast<const char*>(&size), 8) << header
                                      << std::string("\x00\x3c\x00\x3c", 4);  // 1, 1
  const Finished run = layer_check(in + " " + out);
  INFO(run.err);
  REQUIRE(run.status == 0);
  CHECK(load_safetensors(out).tensors.at("output").to_vector<double>() == std::vector<double>{0.5, 0.5});
}

TEST_CASE("layer_check: results are of the dtype asked for", "[layer_check]") {
  Case c{"alibi_bias", R"({"m": 3, "n": 3, "heads": 2})", {}, "--dtype f32"};
  CHECK(outputs(c).at("output").dtype() == f32);
}

TEST_CASE("layer_check: names that occur twice in a config are refused", "[layer_check]") {
  Case c = attention_layer(R"(, "heads": 1)");
  CHECK_THAT(error_of(c), Contains("\"heads\" appears twice"));
}

TEST_CASE("layer_check: values that mean nothing are refused", "[layer_check]") {
  auto error = [](const std::string& layer, const std::string& config, std::map<std::string, Tensor> inputs = {}) {
    return error_of(form(layer, config, std::move(inputs)));
  };
  CHECK_THAT(error("cost_multi_head_attention", R"({"dim": 8, "heads": 0, "tokens": 6})"),
             Contains("heads must be at least 1 — got heads=0"));
  CHECK_THAT(error("cost_flash", R"({"dim": 8, "chunk": 0, "tokens": 6})"), Contains("chunk must be at least 1"));
  CHECK_THAT(error("norm", R"({"dim": 4, "eps": -1})", {{"x", random({2, 4})}}),
             Contains("eps must be at least 0 — got eps=-1"));
  const Tensor decreasing = Tensor::from<int64_t>({2, 1, 1, 1}, {1, 4});
  CHECK_THAT(error("segment_mask", R"({"chunk": 2})", {{"segments", decreasing}}),
             Contains("input.segments decreases"));
  const Tensor q = abs(random({1, 1, 4, 2}));
  CHECK_THAT(error("linear_scan", "{}", {{"q", q}, {"k", q}, {"v", q}, {"log_decay", full({4}, 0.5, {f64})}}),
             Contains("input.log_decay has values that are not <= 0"));
  CHECK_THAT(error("gla_attention", "{}", {{"q", q}, {"k", q}, {"v", q}, {"alpha", full({1, 1, 4, 2}, 1.5, {f64})}}),
             Contains("input.alpha has values outside [0, 1]"));
  Case padded = form("segment_mask", R"({"chunk": 2})",
                     {{"segments", decreasing}, {"key_mask", Tensor::from<bool>({false, true, true, true}, {1, 4})}});
  CHECK(outputs(padded).at("output").numel() == 4);  // padding may hold anything
}

TEST_CASE("layer_check: sizes beyond the memory are refused before anything is allocated", "[layer_check]") {
  const auto start = std::chrono::steady_clock::now();
  auto error = [](const std::string& layer, const std::string& config) { return error_of({layer, config, {}}); };
  CHECK_THAT(error("flash_block", R"({"dim": 8, "layers": 1000000000})"),
             Contains("layers must be in [1, 10000] — got layers=1000000000"));
  CHECK_THAT(error("alibi_bias", R"({"heads": 8, "m": 2000000, "n": 2000000})"), Contains("memory"));
  CHECK_THAT(layer_check(R"(--parameters gau '{"dim": 2000000, "expansion": 2000000}')").err, Contains("memory"));
  CHECK_THAT(layer_check(R"(--parameters linear '{"in_dim": 2147483647, "out_dim": 1000000}')").err,
             Contains("memory"));
  CHECK_THAT(layer_check(R"(--parameters linear '{"in_dim": 2147483647, "out_dim": 2147483647}')").err,
             Contains("[2147483647,2147483647] has too many elements"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("layer_check: wrong ranks say which input and what is needed", "[layer_check]") {
  Case c = form("attention", "{}", {{"q", random({3, 4})}, {"k", random({1, 1, 5, 4})}, {"v", random({1, 1, 5, 4})}});
  CHECK_THAT(error_of(c), Contains("input.q has shape [3,4], must be [batch, heads, m, d]") &&
                              Contains("its rank is 2, needed is 4"));
  const auto biased = [](int64_t width) {
    return form("toeplitz_bias", R"({"m": 3, "n": 3, "n_max": 4})", {{"w", random({2, width})}});
  };
  CHECK_THAT(error_of(biased(9)), Contains("must be [heads, 2*n_max - 1] = [2, 7]"));
  CHECK(outputs(biased(7)).at("output").shape() == Shape{2, 3, 3});
  c = attention_layer(R"(, "context_dim": 4)");
  c.tensors["input.context"] = random({1, 5, 4}), c.tensors["input.mask"] = ones({5, 3}) > 0.0;
  CHECK_THAT(error_of(c), Contains("input.mask has shape [5,3], must be broadcast [batch, heads, n if context_dim == 0 "
                                   "else m, n] = [1, 2, 3, 5]"));
}

TEST_CASE("layer_check: names of other programs are answered with the nearest of ours", "[layer_check]") {
  Case c = attention_layer();
  c.tensors = {{"input.x", random({1, 3, 4})}};
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    c.tensors[std::string("param.") + name + ".weight"] = random({4, 4});
  const std::string error = error_of(c);
  CHECK_THAT(error, Contains("param.q_proj.weight — did you mean \"param.q.weight\"?") &&
                        Contains("param.k_proj.weight — did you mean \"param.k.weight\"?") &&
                        Contains("param.o_proj.weight — did you mean \"param.out.weight\"?") &&
                        Contains("param.v.weight, param.out.weight are missing"));
  c = attention_layer();
  c.tensors["model.q_proj.weight"] = random({1});
  c.tensors["model.k_proj.weight"] = random({1});
  CHECK_THAT(error_of(c), Contains("unexpected tensors \"model.k_proj.weight\", \"model.q_proj.weight\""));
  c = attention_layer(R"(, "head_dims": 2)");
  CHECK_THAT(error_of(c), Contains("did you mean \"head_dim\"?"));
  c = attention_layer();
  c.layer = "multihead_attention";
  CHECK_THAT(error_of(c), Contains("did you mean \"multi_head_attention\"?"));
}

TEST_CASE("layer_check: bytes of BOOL other than 0 and 1 are refused", "[layer_check]") {
  TempFolder folder;
  const std::string in = folder / "in";
  Case c = form("segment_mask", R"({"chunk": 2})",
                {{"segments", zeros({1, 2}, {i64})}, {"key_mask", Tensor::from<bool>({true, true}, {1, 2})}});
  save_safetensors(in, {c.tensors, {{"layer", c.layer}, {"config", c.config}}});
  std::fstream file(in, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put(7);
  file.close();
  const Finished run = layer_check(in + " " + folder / "out");
  CHECK(run.status == 1);
  CHECK_THAT(run.err, Contains("is BOOL, but its byte 1 is neither 0 nor 1"));
}
