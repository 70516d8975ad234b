// Weights of PyTorch: what load_pytorch refuses and what it says; files that are none, and those in pieces.
#include "layers/pytorch_samples.h"

#include <sluice/layers/train/training.h>

#include <fstream>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("load_pytorch: missing, unexpected and misfit tensors are listed, and nothing changes", "[pytorch]") {
  Rng rng(1);
  const Linear m({3, 2}, rng);
  const Tensor w = counted({2, 3}, 1), b = counted({2}, 1);
  CHECK_THAT(refusal(m, {{"weight", w}}), Contains("missing: \"bias\""));
  const std::string text = refusal(m, {{"weigth", w}, {"bias", b}, {"zzzzzzzz", b}});
  CHECK_THAT(text, Contains("missing: \"weight\" — did you mean \"weigth\"?"));
  CHECK_THAT(text, Contains("unexpected: \"weigth\" — did you mean \"weight\"?"));
  CHECK_THAT(text, Contains("unexpected: \"zzzzzzzz\"") && !Contains("unexpected: \"zzzzzzzz\" —"));
  // That two names are of one module does not make them alike.
  CHECK_THAT(refusal(m, {{"a.long.way.down.norm1", b}}, {{"^", "a.long.way.down."}}),
             Contains("missing: \"a.long.way.down.bias\"\n") && Contains("unexpected: \"a.long.way.down.norm1\""));
  CHECK_THAT(refusal(m, {{"a.long.way.down.bia", b}}, {{"^", "a.long.way.down."}}),
             Contains("missing: \"a.long.way.down.bias\" — did you mean \"a.long.way.down.bia\"?"));
  CHECK_THAT(refusal(m, {{"weight", counted({3, 2}, 1)}, {"bias", b}}),
             Contains("misfit: \"weight\" is f64 [3,2]; \"weight\" needs [2,3], its transpose: see PyTorchLayout"));
  CHECK_THAT(refusal(m, {{"weight", to(w, i64)}, {"bias", b}}),
             Contains("\"weight\" is i64 [2,3]; \"weight\" needs f32 [2,3]"));
  CHECK_THAT(refusal(m, {{"weight", w}, {"bias", counted({}, 1)}}), Contains("\"bias\" is f64 []; \"bias\" needs [2]"));
  std::map<std::string, Tensor> many{{"weight", w}, {"bias", b}};
  for (int i = 0; i < 30; ++i) many[str("extra.", i)] = b;
  CHECK_THAT(refusal(m, many), Contains("… and 18 more") && !Contains("extra.9"));

  // A misfit stays one without `strict`; missing and unexpected ones are told.
  CHECK_THAT(refusal(m, {{"weight", w}, {"bias", w}}, {}, {.strict = false}),
             Contains("misfit") && !Contains("missing:"));
  TempFolder folder;
  save_safetensors(folder / "m", {{{"bias", b}, {"other", w}, {"skip.me", w}}, {}});
  const Tensor before = clone(m.weight.detach());
  const PyTorchNames names = load_pytorch(m, folder / "m", {}, {.ignore = {"^skip"}, .strict = false});
  CHECK(names.missing == std::vector<std::string>{"weight"});
  CHECK(names.unexpected == std::vector<std::string>{"other"});
  CHECK((same_bits(m.weight.detach(), before) && same_bits(m.bias.detach(), to(b, f32))));
}

TEST_CASE("load_pytorch: among many names the nearest is found, too", "[pytorch]") {
  std::vector<Linear> m;
  Rng rng(1);
  for (int i = 0; i < 90; ++i) m.emplace_back(LinearOptions{1, 1}, rng);
  std::map<std::string, Tensor> file;
  for (int i = 0; i < 90; ++i)
    for (const char* part : {"bias", "weight"}) file[str("b.", i, ".", part)] = zeros({1});
  const std::string text = refusal(m, file);
  for (const int i : {0, 1, 10, 11})
    for (const char* part : {"bias", "weight"}) {
      const std::string ours = str(i, ".", part);
      CHECK_THAT(text, Contains(str("missing: \"", ours, "\" — did you mean \"b.", ours, "\"?")));
      CHECK_THAT(text, Contains(str("unexpected: \"b.", ours, "\" — did you mean \"", ours, "\"?")));
    }
}

TEST_CASE("load_pytorch: rules that make no sense", "[pytorch]") {
  Rng rng(1);
  const Linear m({3, 2}, rng);
  const std::map<std::string, Tensor> file{{"weight", counted({2, 3}, 1)}, {"bias", counted({2}, 1)}};
  const auto said = [&](PyTorchRule rule) { return refusal(m, file, {rule}); };
  CHECK_THAT(said({"(", ""}), Contains("\"(\" is no regular expression"));
  CHECK_THAT(refusal(m, file, {}, {.ignore = {"["}}), Contains("\"[\" is no regular expression"));
  CHECK_THAT(said({"bias", "bias", {.groups = 0}}), Contains("groups must be at least 1 — got groups=0"));
  CHECK_THAT(said({"bias", "bias", {.layout = PyTorchLayout::transposed}}),
             Contains("layout=transposed is of matrices"));
  CHECK_THAT(said({"bias", "weight", {.part = 1}}), Contains("where they do not fit side by side: [2,3], [2]"));
  CHECK_THAT(said({"bias", "weight", {.part = 1, .groups = 2}}), Contains("in different groups or layouts"));
  CHECK_THAT(refusal(Mixed{}, {}, {{"number", "", {.pieces = {{"a"}}}}}), Contains("\"number\" is one number"));
  CHECK(said({"no such name", "x", {.groups = 0}}).empty());
}

TEST_CASE("load_pytorch: files that are no weights of PyTorch", "[pytorch]") {
  TempFolder folder;
  Rng rng(1);
  const Linear m({3, 2}, rng);
  const std::vector<Tensor> before = values(m);
  const auto said = [&](const std::string& name) -> std::string {
    try {
      load_pytorch(m, folder / name);
    } catch (const IOError& e) {
      CHECK(equal(values(m), before));
      return e.what();
    }
    return "";
  };
  folder.put("model.bin", "PK\x03\x04 and so on"), folder.put("old.pt", "\x80\x02}q\x01(X\x02\x03\x04.");
  folder.put("empty", ""), folder.put("one", "P");
  CHECK_THAT(said("model.bin"), Contains("is a pickle") && Contains("save_file"));
  CHECK_THAT(said("old.pt"), Contains("is a pickle"));
  CHECK_THAT(said("empty"), Contains("0 bytes"));
  CHECK_THAT(said("one"), Contains("1 bytes"));
  CHECK_THAT(said("absent"), Contains("absent"));
  save(m, folder / "own");
  CHECK_THAT(said("own"), Contains("save()") && Contains("load()"));
  Adam adam(parameters(m));
  save_checkpoint(m, folder / "checkpoint", adam, rng, {});
  CHECK_THAT(said("checkpoint"), Contains("save_checkpoint()"));
}

TEST_CASE("load_pytorch: tensors of dtypes that nothing here has are in nobody's way", "[pytorch]") {
  TempFolder folder;
  Rng rng(1);
  const Linear m({1, 1, false}, rng);
  const std::string header = R"({"weight":{"dtype":"F16","shape":[1,1],"data_offsets":[0,2]},)"
                             R"("masked_bias":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})";
  const uint64_t size = header.size();
  std::ofstream(folder / "m", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&size), 8) << header << std::string("\x00\xc0\x01\x02", 4);
  CHECK_THROWS_WITH(load_pytorch(m, folder / "m"), Contains("unexpected: \"masked_bias\""));
  load_pytorch(m, folder / "m", {}, {.ignore = {"masked_bias"}});
  CHECK(m.weight.item() == -2);
}

TEST_CASE("load_pytorch: endless names take neither stack nor time", "[pytorch]") {
  Rng rng(1);
  std::map<std::string, Tensor> file;
  for (const char* letter : {"a", "b", "c"}) {
    std::string name;
    while (name.size() < 3'000'000) name += letter;
    file[name] = counted({1}, 0);
  }
  const std::string text = refusal(Linear({3, 2}, rng), file, {}, {.ignore = {"(a|b|c)*x"}});
  CHECK_THAT(text, Contains("missing: \"bias\"") && Contains("aaa…\""));
  CHECK(text.size() < 2000);
  CHECK_THROWS_AS(load_state(Linear({3, 2}, rng), file), IOError);
}

TEST_CASE("load_pytorch: sharded checkpoints by their index", "[pytorch]") {
  TempFolder folder;
  Rng rng(1);
  const Linear m({3, 2}, rng);
  const Tensor w = counted({2, 3}, 1), b = counted({2}, 9);
  save_safetensors(folder / "a-1.safetensors", {{{"weight", w}}, {}});
  save_safetensors(folder / "a-2.safetensors", {{{"bias", b}}, {}});
  const auto write = [&](const std::string& text) { return folder.put("model.safetensors.index.json", text); };
  const std::string index = write(
      R"({"metadata": {"total_size": 32}, "weight_map": {"weight": "a-1.safetensors", "bias": "a-2.safetensors"}})");
  load_pytorch(m, index);
  CHECK(same_bits(m.bias.detach(), to(b, f32)));
  CHECK(m.weight.to_vector() == std::vector<float>{1, 4, 2, 5, 3, 6});
  for (auto [text, why] :
       {std::pair(R"({})", "weight_map"), std::pair("{", "index"), std::pair(R"({"weight_map": {"w": 1}})", "index"),
        std::pair(R"({"weight_map": {"w": "../a-1.safetensors"}})", "same folder"),
        std::pair(R"({"weight_map": {"w": "model.safetensors.index.json"}})", "same folder"),
        std::pair(R"({"weight_map": {"w": "a-1.safetensors\u0000.safetensors"}})", "a NUL"),
        std::pair(R"({"weight_map": {"w": "a-3.safetensors"}})", "a-3")}) {
    write(text);
    CHECK_THROWS_WITH(load_pytorch(m, index), Contains(why));
  }
  save_safetensors(folder / "a-2.safetensors", {{{"bias", b}, {"weight", w}}, {}});
  write(R"({"weight_map": {"weight": "a-1.safetensors", "bias": "a-2.safetensors"}})");
  CHECK_THROWS_WITH(load_pytorch(m, index), Contains("another file, too, holds \"weight\""));
}

TEST_CASE("load_pytorch: of a tensor on meta, pieces that the file lacks become 0", "[pytorch]") {
  TempFolder folder;
  save_safetensors(folder / "m", {{{"row0", counted({1, 3}, 1)}}, {}});
  Linear m = [] {
    MetaInit shapes_only;
    Rng rng(1);
    return Linear({3, 2, false}, rng);
  }();
  (void)full({3, 2}, 7);  // memory that is taken next
  const PyTorchNames names =
      load_pytorch(m, folder / "m", {{"weight", "", {.pieces = {{"row0", 1}, {"row1"}}}}}, {.strict = false});
  CHECK(names.missing == std::vector<std::string>{"row1"});
  CHECK(m.weight.to_vector() == std::vector<float>{1, 0, 2, 0, 3, 0});
}

TEST_CASE("load_pytorch: pieces of a tensor on meta take no memory beside it", "[pytorch]") {
  TempFolder folder;
  constexpr int64_t pieces = 16, rows = 64, width = 96, bytes = pieces * rows * width * 4;
  PyTorchStorage cut;
  {
    std::map<std::string, Tensor> file;
    for (int64_t i = 0; i < pieces; ++i)
      cut.pieces.push_back({str(i), rows}), file[str(i)] = full({rows, width}, static_cast<double>(i), {bf16});
    save_safetensors(folder / "m", {file, {}});
  }
  const Linear m = [] {
    MetaInit shapes_only;
    Rng rng(1);
    return Linear({width, pieces * rows, false}, rng);
  }();
  const int64_t before = memory_stats().live;
  reset_peak_memory();
  load_pytorch(m, folder / "m", {{"weight", "", cut}}, {.map = true});
  CHECK(memory_stats().peak - before < bytes + bytes / 4);
  const std::vector<float> w = m.weight.to_vector();
  for (std::size_t i = 0; i < w.size(); ++i) REQUIRE(w[i] == static_cast<float>(i % (pieces * rows) / rows));
}

TEST_CASE("load_pytorch: a file that is read goes as a model on meta comes", "[pytorch]") {
  TempFolder folder;
  constexpr int64_t layers = 8, dim = 96, bytes = layers * dim * dim * 4;
  {
    std::map<std::string, Tensor> file;
    for (int64_t i = 0; i < layers; ++i) file[str(i, ".weight")] = counted({dim, dim}, 1, f32);
    save_safetensors(folder / "m", {file, {}});
  }
  std::vector<Linear> m;
  {
    MetaInit shapes_only;
    Rng rng(1);
    for (int64_t i = 0; i < layers; ++i) m.emplace_back(LinearOptions{dim, dim, false}, rng);
  }
  const int64_t before = memory_stats().live;
  reset_peak_memory();
  load_pytorch(m, folder / "m");
  CHECK(memory_stats().peak - before < bytes + bytes / 2);
  for (const Linear& linear : m) CHECK(same_bits(transpose(linear.weight.detach(), 0, 1), counted({dim, dim}, 1, f32)));
}

TEST_CASE("load_pytorch: tensors on meta that the file has as one get memory of their own", "[pytorch]") {
  TempFolder folder;
  save_safetensors(folder / "m", {{{"qk.weight", ones({4, 3})}, {"qk.bias", arange(4.0)}}, {}});
  MetaInit shapes_only;
  Rng rng(1);
  const std::vector<Linear> m{Linear({3, 2}, rng), Linear({3, 2}, rng)};
  load_pytorch(m, folder / "m", {{"0", "qk", {.part = 0}}, {"1", "qk", {.part = 1}}});
  CHECK(m[1].bias.to_vector() == std::vector<float>{2, 3});
  for (const NamedTensor& p : parameters(m)) CHECK(p.tensor.impl().storage->use_count() == 1);
  CHECK_NOTHROW(Adam(parameters(m)));  // it refuses parameters that share memory
}
