// Models whose files store weights in few bits. tests/golden/quantised/make_quantised.py makes them.
#include "golden/model_logits.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>
#include <sluice/layers/port/pytorch.h>
#include <sluice/layers/port/quantised.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>

using namespace sluice;
using namespace sluice::testing;

namespace {

std::string folder_of(const std::string& name) { return source_folder() + "/tests/golden/quantised/" + name; }

/// A safetensors file: entries {name, dtype, shape, bytes}.
struct Stored {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
void write(const std::string& path, const std::vector<Stored>& tensors) {
  Json::Object header;
  std::string data;
  for (const Stored& t : tensors) {
    const auto begin = std::ssize(data);
    data += t.bytes;
    header.emplace_back(t.name, Json::Object{{"dtype", t.dtype},
                                             {"shape", Json::list(t.shape)},
                                             {"data_offsets", Json::List{int64_t{begin}, int64_t{std::ssize(data)}}}});
  }
  const std::string text = to_text(header);
  const uint64_t length = text.size();
  write_file_atomically(path, [&](FileWriter& w) {
    w.write(&length, 8);
    w.write(text);
    w.write(data);
  });
}
std::string bytes_of(const std::vector<float>& xs) {
  std::string s(xs.size() * sizeof(float), '\0');
  std::memcpy(s.data(), xs.data(), s.size());
  return s;
}

}  // namespace

TEST_CASE("models: weights in few bits are what transformers makes of them", "[golden][models][quantised]") {
  for (const std::string name : {"deepseek_v3_fp8", "llama_int8", "qwen3_int4", "gpt_oss_mxfp4"}) {
    INFO(name);
    check_logits(folder_of(name), {3, 1, 1, 7, 1});
    // In bf16 each weight is the product of its number and its scale, rounded once; so it is beside f32.
    const Decoder low = load_model_files(folder_of(name)), full = load_model_files(folder_of(name), {.dtype = f32});
    const std::vector<NamedTensor> have = state_dict(low), want = state_dict(full);
    REQUIRE(have.size() == want.size());
    for (std::size_t i = 0; i < have.size(); ++i) {
      INFO(have[i].name);
      const Tensor &x = have[i].tensor, &y = want[i].tensor;
      CHECK(same_bits(x, to(y, x.dtype())));
    }
    // Written again, the weights are floats, and config.json says nothing of how they were stored.
    TempFolder folder;
    save_model_files(full, folder / "", folder_of(name));
    CHECK_THAT(read_file(folder / "config.json"), !Contains("quantization_config") && Contains("float32"));
    const std::vector<NamedTensor> again = state_dict(load_model_files(folder / ""));
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(again[i].tensor, want[i].tensor));
  }
}

TEST_CASE("models: saved, weights in few bits that are no part of the decoder are floats, too", "[models][quantised]") {
  TempFolder folder, to;
  const std::string like = folder_of("deepseek_v3_fp8"), more = "model.layers.2.eh_proj.weight";
  std::filesystem::copy_file(like + "/model.safetensors", folder / "a.safetensors");
  write(folder / "b.safetensors", {{more, "F8_E4M3", {2, 1}, "\x38\x40"}});  // 1, 2
  write(folder / "c.safetensors", {{more + "_scale_inv", "F32", {1, 1}, bytes_of({0.75f})}});
  Json::Object shards{{more, "b.safetensors"}, {more + "_scale_inv", "c.safetensors"}};
  for (const auto& [name, x] : load_safetensors(folder / "a.safetensors").tensors)
    shards.emplace_back(name, "a.safetensors");
  folder.put("model.safetensors.index.json", to_text(Json::Object{{"weight_map", shards}}));
  Json config = parse_json(read_file(like + "/config.json"));
  config["num_nextn_predict_layers"] = 1;
  folder.put("config.json", to_text(config));
  save_model_files(load_model_files(folder / ""), to / "", folder / "");
  const SafeTensors saved = load_safetensors(to / "model.safetensors");
  CHECK(saved.tensors.at(more).to_vector<float>() == std::vector<float>{0.75f, 1.5f});
  for (const auto& [name, x] : saved.tensors) CHECK_THAT(name, !EndsWith("_scale_inv"));
}

TEST_CASE("load_pytorch: scales of F8 are one, one for each row, or a grid", "[pytorch][quantised]") {
  TempFolder folder;
  const std::string path = folder / "x";
  constexpr int64_t out = 11, in = 19;
  std::string bytes;
  for (int64_t i = 0; i < out * in; ++i) bytes += static_cast<char>(i % 120 + (i % 3 == 0 ? 128 : 0));
  const auto number = [](int64_t i) {  // of F8_E4M3
    const int64_t b = i % 120;
    const double size = b < 8 ? std::ldexp(double(b), -9) : std::ldexp(1 + double(b % 8) / 8, int(b / 8) - 7);
    return i % 3 == 0 ? -size : size;
  };
  Rng rng(1);
  for (const auto& [down, across, r_each, c_each] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 16, 32}, {11, 1, 1, 32}, {3, 2, 4, 16}, {6, 19, 2, 1}, {2, 5, 8, 4}}) {
    INFO(down << " x " << across);
    std::vector<float> scales;
    for (int64_t i = 0; i < down * across; ++i) scales.push_back(0.3f + 0.7f * static_cast<float>(i % 13));
    const bool one = down * across == 1;
    write(path, {{"weight", "F8_E4M3", {out, in}, bytes},
                 {one ? "weight_scale" : "weight_scale_inv", "F32",
                  one ? std::vector<int64_t>{} : std::vector<int64_t>{down, across}, bytes_of(scales)}});
    for (const DType dtype : {f32, f64, bf16}) {
      const Linear m({.in = in, .out = out, .bias = false, .dtype = dtype}, rng);
      load_pytorch(m, path);
      Tensor want = empty({in, out}, {f64});
      for (int64_t r = 0; r < out; ++r)
        for (int64_t c = 0; c < in; ++c)
          want.mutable_data<double>()[c * out + r] =
              number(r * in + c) * double(scales[static_cast<std::size_t>(r / r_each * across + c / c_each)]);
      CHECK(same_bits(m.weight.detach(), dtype == f64 ? want : to(to(want, f32), dtype)));
    }
  }
}

TEST_CASE("load_pytorch: matrices of experts have grids of their own", "[pytorch][quantised]") {
  Rng rng(2);
  const Tensor x = to(normal({3, 5, 6}, 0, 1, rng), bf16), scale = uniform({3, 2, 3}, 0.5, 1.5, rng);
  std::map<std::string, Tensor> file{{"w", x}, {"w_scale", scale}};
  std::set<std::string> names{"w", "w_scale"};
  detail::dequantise(
      "test", file, names, [](const std::string& name) { return name == "w"; }, [](const std::string&) { return f32; });
  CHECK(names == std::set<std::string>{"w"});
  REQUIRE(file.size() == 1);
  const Tensor rows = narrow(repeat_interleave(scale, 4, 1), 1, 0, 5);
  CHECK(same_bits(file.at("w"), to(x, f32) * repeat_interleave(rows, 2, 2)));
}

TEST_CASE("load_pytorch: integers that bf16 does not have are scaled as they are", "[pytorch][quantised]") {
  for (const DType dtype : {f32, f64, bf16}) {
    std::map<std::string, Tensor> file{{"w", Tensor::from<int32_t>({257, 1001, 3, -65535}, {2, 2})},
                                       {"w_scale", Tensor::from<float>({0.3f, 7}, {2, 1})}};
    std::set<std::string> names{"w", "w_scale"};
    detail::dequantise(
        "test", file, names, [](const std::string& name) { return name == "w"; },
        [=](const std::string&) { return dtype; });
    const DType computed = dtype == f64 ? f64 : f32;
    const Tensor want = Tensor::from<double>({257, 1001, 3, -65535}, {2, 2});
    const Tensor scales = to(Tensor::from<float>({0.3f, 7}, {2, 1}), computed);
    CHECK(same_bits(file.at("w"), to(to(want, computed) * scales, dtype)));
  }
}

TEST_CASE("load_pytorch: of MXFP4 the exponent 255 is NaN, those beside it are powers of two", "[pytorch][quantised]") {
  for (const DType dtype : {f32, f64, bf16}) {
    std::map<std::string, Tensor> file{{"w_blocks", full({1, 4, 16}, 0x42, {i32})},  // 1 and 2 in turns
                                       {"w_scales", Tensor::from<int32_t>({255, 253, 127, 2}, {1, 4})}};
    std::set<std::string> names{"w_blocks", "w_scales"};
    detail::dequantise(
        "test", file, names, [](const std::string& name) { return name == "w"; },
        [=](const std::string&) { return dtype; });
    const std::vector<double> w = to(file.at("w"), f64).to_vector<double>();
    REQUIRE(w.size() == 128);
    for (std::size_t i = 0; i < 32; ++i) CHECK(std::isnan(w[i]));
    for (std::size_t group : {1u, 2u, 3u})
      for (std::size_t i = 0; i < 32; ++i)
        CHECK(w[32 * group + i] == std::ldexp(1.0 + double(i % 2), group == 1 ? 126 : group == 2 ? 0 : -125));
  }
  // Numbers of a forged file that are no bytes.
  std::map<std::string, Tensor> file{{"w_blocks", full({1, 3, 16}, 0x42, {i32})},
                                     {"w_scales", Tensor::from<int32_t>({INT32_MIN, -1, 256}, {1, 3})}};
  std::set<std::string> names{"w_blocks", "w_scales"};
  detail::dequantise(
      "test", file, names, [](const std::string& name) { return name == "w"; }, [](const std::string&) { return f32; });
  for (const float x : file.at("w").to_vector<float>()) CHECK(std::isnan(x));
}

TEST_CASE("load_pytorch: what is stored in few bits must be whole", "[pytorch][quantised]") {
  TempFolder folder;
  const std::string path = folder / "x", eight(8, '\x38'), ones = bytes_of({1, 1, 1, 1});
  Rng rng(1);
  const Linear m({.in = 4, .out = 2, .bias = false}, rng);
  const Tensor before = clone(m.weight.detach());
  const auto refusal = [&](const std::vector<Stored>& tensors) -> std::string {
    write(path, tensors);
    try {
      load_pytorch(m, path);
    } catch (const IOError& e) { return e.what(); }
    return {};
  };
  const Stored w{"weight", "F8_E4M3", {2, 4}, eight};
  CHECK_THAT(refusal({w, {"weight_scale", "F32", {3}, ones.substr(4)}}),
             Contains("load_pytorch: '") && Contains("\"weight\" bf16 [2,4] has scales f32 [3]; need one, or a grid"));
  CHECK_THAT(refusal({w, {"weight_scale", "F32", {1, 3}, ones.substr(4)}}), Contains("need one, or a grid"));
  CHECK_THAT(refusal({w, {"weight_scale", "F32", {4, 1}, ones}}), Contains("need one, or a grid"));
  CHECK_THAT(refusal({w, {"weight_scale", "I32", {}, ones.substr(12)}}), Contains("has scales i32 []"));
  CHECK_THAT(refusal({{"weight", "F32", {2, 2}, ones}, {"weight_scale", "F32", {}, ones.substr(12)}}),
             Contains("\"weight\" f32 [2,2] has scales f32 []"));  // in bf16 its numbers would be others
  CHECK_THAT(refusal({{"weight_scale", "F32", {}, ones.substr(12)}}), Contains("not all of it is there"));
  CHECK_THAT(refusal({w, {"weight_scales", "U8", {2, 1}, "zz"}}), Contains("not all of it is there"));
  CHECK_THAT(refusal({{"weight_blocks", "U8", {2, 1, 4}, eight}, {"weight_scales", "U8", {2, 1}, "zz"}}),
             Contains("\"weight\" has blocks i32 [2,1,4] and scales i32 [2,1]"));
  const Stored shape{"weight_shape", "I64", {2}, std::string("\2\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 16)},
      one{"weight_scale", "F32", {1, 1}, ones.substr(12)};
  CHECK_THAT(refusal({{"weight_packed", "I32", {2, 1}, eight}, one}), Contains("not all of it is there"));
  CHECK_THAT(refusal({{"weight_packed", "I32", {1, 2}, eight}, shape, one}),
             Contains("\"weight\" is packed as i32 [1,2]"));
  CHECK_THAT(refusal({{"weight_packed", "I32", {2, 1}, eight}, shape, one}), Contains("more than 4 columns"));
  CHECK_THAT(refusal({w, {"weight_zero_point", "I8", {2, 1}, "zz"}}), Contains("unexpected: \"weight_zero_point\""));
  CHECK_THAT(refusal({w, {"other_scale", "F32", {}, ones.substr(12)}}), Contains("unexpected: \"other_scale\""));
  CHECK(same_bits(m.weight.detach(), before));
  // A scale of what the weight multiplies changes no weight; a bare F8 is its own number.
  CHECK(refusal({w, {"input_scale", "F32", {}, bytes_of({7})}}).find("unexpected") != std::string::npos);
  CHECK(refusal({w}).empty());
  CHECK(max_abs_diff(m.weight.detach(), ones_like(m.weight.detach())) == 0);  // 0x38 is 1
}

TEST_CASE("load_pytorch: the columns and the packed words say how many bits a number has", "[pytorch][quantised]") {
  TempFolder folder;
  Rng rng(1);
  const std::string bytes("\0\x01\x7f\xff\x80\x80\x80\x80", 8);  // two words for one row
  const std::vector<float> by_8 = {-128, -127, -1, 127, 0, 0, 0, 0},
                           by_4 = {-8, -8, -7, -8, 7, -1, 7, 7, -8, 0, -8, 0, -8, 0, -8, 0};
  for (const auto& [columns, want] : {std::pair(5, &by_8), {8, &by_8}, {9, &by_4}, {12, &by_4}, {16, &by_4}}) {
    INFO(columns);
    const Linear m({.in = columns, .out = 1, .bias = false}, rng);
    const std::string size{1, 0, 0, 0, 0, 0, 0, 0, char(columns), 0, 0, 0, 0, 0, 0, 0};
    write(folder / "x", {{"weight_packed", "I32", {1, 2}, bytes},
                         {"weight_shape", "I64", {2}, size},
                         {"weight_scale", "F32", {1, 1}, bytes_of({1})}});
    load_pytorch(m, folder / "x");
    CHECK(m.weight.detach().to_vector<float>() == std::vector<float>(want->begin(), want->begin() + columns));
  }
}

TEST_CASE("models: how weights are stored must be known", "[models][quantised]") {
  TempFolder folder;
  const std::string like = folder_of("llama_int8"), text = read_file(like + "/config.json");
  std::filesystem::copy_file(like + "/model.safetensors", folder / "model.safetensors");
  const auto refusal = [&](const std::string& what, const std::string& by) -> std::string {
    const std::size_t at = text.find(what);
    REQUIRE(at != std::string::npos);
    folder.put("config.json", std::string(text).replace(at, what.size(), by));
    try {
      load_model_files(folder / "");
    } catch (const IOError& e) { return e.what(); }
    return {};
  };
  CHECK(refusal("int-quantized", "naive-quantized").empty());
  CHECK_THAT(refusal("int-quantized", "nvfp4-pack-quantized"),
             Contains("\"quantization_config.format\" is \"nvfp4-pack-quantized\"; known: float-quantized, int-"));
  CHECK_THAT(refusal("compressed-tensors", "gptq"),
             Contains("\"quantization_config.quant_method\" is \"gptq\"; known: fp8, mxfp4, compressed-tensors"));
  CHECK_THAT(refusal("\"format\"", "\"weight_block_size\": [128, 96], \"format\""), Contains("need powers of two"));
}
