// Damaged and foreign checkpoints: an error of ours, and nothing changes.
#include <sluice/layers/train/training.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/small_run.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cstring>
#include <fstream>
#include <memory>

using namespace sluice;
using namespace sluice::testing;

namespace {

using Run = SmallRun;

void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
std::string good_file(const TempFolder& folder) {
  Run run(1);
  run.save(folder / "good");
  return read_file(folder / "good");
}
/// The header rewritten by `change`, with its length.
template <class F> std::string with_header(const std::string& file, F change) {
  uint64_t n;
  std::memcpy(&n, file.data(), 8);
  std::string header = change(file.substr(8, n)), length(8, '\0');
  const uint64_t m = header.size();
  std::memcpy(length.data(), &m, 8);
  return length + header + file.substr(8 + n);
}
std::string replaced(std::string s, const std::string& from, const std::string& to) {
  const std::size_t at = s.find(from);
  REQUIRE(at != std::string::npos);
  return s.replace(at, from.size(), to);
}

/// Loading is an error of ours that names the file, and changes nothing; its text.
std::string refused(Run& run, const std::string& path) {
  const std::string before = run.bytes();
  std::string text = "loaded";
  try {
    run.load(path);
  } catch (const Error& e) { text = e.what(); }
  CHECK_THAT(text, Contains(path));
  CHECK(run.bytes() == before);
  return text;
}

}  // namespace

TEST_CASE("hostile checkpoint: cut off anywhere", "[training][hostile]") {
  TempFolder folder;
  const std::string good = good_file(folder);
  Run run(2);
  for (std::size_t n = 0; n < good.size(); n += n < 64 ? 1 : 13) {
    INFO("length " << n);
    put(folder / "bad", good.substr(0, n));
    refused(run, folder / "bad");
    CHECK_THROWS_AS(read_checkpoint_state(folder / "bad"), IOError);
  }
  put(folder / "bad", good.substr(0, good.size() - 1));
  refused(run, folder / "bad");
  put(folder / "bad", good + "x");
  CHECK_THAT(refused(run, folder / "bad"), Contains("trailing"));
  run.load(folder / "good");  // unharmed
  CHECK(run.bytes() == Run(1).bytes());
}

TEST_CASE("hostile checkpoint: one byte flipped, anywhere in the header and here and there in the data",
          "[training][hostile]") {
  TempFolder folder;
  const std::string good = good_file(folder);
  uint64_t header;
  std::memcpy(&header, good.data(), 8);
  int loaded = 0, thrown = 0;
  auto run = std::make_unique<Run>(2);
  const std::string before = run->bytes();
  for (std::size_t at = 0; at < good.size(); at += at < 64 ? 1 : at < 8 + header ? 7 : 67) {  // 7: every kind of byte
    constexpr int flips[] = {0x01, 0x20, 0x80, 0xff};
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ flips[at % 4]);
    put(folder / "bad", bad);
    INFO("byte " << at);
    try {
      run->load(folder / "bad");
      ++loaded;
      run = std::make_unique<Run>(2);
    } catch (const Error&) {
      ++thrown;
      if (run->bytes() != before) FAIL("changed, then threw");
    } catch (const std::exception& e) { FAIL("another exception: " << e.what()); }
  }
  CHECK(thrown > 150);  // names, dtypes, shapes, offsets
  CHECK(loaded > 3);    // values
}

TEST_CASE("hostile checkpoint: absurd lengths", "[training][hostile]") {
  TempFolder folder;
  const std::string good = good_file(folder);
  Run run(2);
  for (uint64_t n : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 40, uint64_t{99'999'999},
                     uint64_t{good.size() - 7}, uint64_t{0}}) {
    INFO("header length " << n);
    std::string bad = good;
    std::memcpy(bad.data(), &n, 8);
    put(folder / "bad", bad);
    refused(run, folder / "bad");
  }
}

TEST_CASE("hostile checkpoint: headers that lie", "[training][hostile]") {
  TempFolder folder;
  const std::string good = good_file(folder);
  // The entries, as the file spells them.
  const std::string bias = "\"model.in.bias\":{\"dtype\":\"F32\",\"shape\":[4]",
                    weight = "\"model.in.weight\":{\"dtype\":\"F32\",\"shape\":[3,4]";
  const std::vector<std::pair<std::string, std::pair<std::string, std::string>>> lies{
      {"wrong dtype of one size", {bias, replaced(bias, "F32", "I32")}},
      {"wrong dtype of another size", {bias, replaced(bias, "F32", "F64")}},
      {"unknown dtype", {bias, replaced(bias, "F32", "F8")}},
      {"transposed", {weight, replaced(weight, "[3,4]", "[4,3]")}},
      {"flattened", {weight, replaced(weight, "[3,4]", "[12]")}},
      {"huge", {weight, replaced(weight, "[3,4]", "[4294967296,4294967296]")}},
      {"negative", {weight, replaced(weight, "[3,4]", "[-3,-4]")}},
      {"duplicate", {"\"model.in.bias\"", "\"model.in.weight\""}},
      {"renamed", {"model.in.bias", "model.in.bios"}},
      {"unknown room", {"model.in.bias", "muddle.in.bias"}},
      {"moment of nothing", {"optimizer.in.bias.m\"", "optimizer.in.bias.x\""}},
      {"format", {"sluice-checkpoint-1", "sluice-checkpoint-9"}},
      {"no step", {"\"step\"", "\"stop\""}},
      {"step is text", {"\"step\":\"7\"", "\"step\":\"7a\""}},
      {"negative step", {"\"step\":\"7\"", "\"step\":\"-7\""}},
      {"huge step", {"\"step\":\"7\"", "\"step\":\"99999999999999999999\""}},
      {"step is a number", {"\"step\":\"7\"", "\"step\":7"}},
      {"no generator", {"rng.offset", "rng.off"}},
      {"negative generator", {"\"rng.seed\":\"1\"", "\"rng.seed\":\"-1\""}},
  };
  Run run(2);
  for (const auto& lie : lies) {
    const auto& change = lie.second;
    INFO(lie.first);
    put(folder / "bad", with_header(good, [&](std::string h) { return replaced(h, change.first, change.second); }));
    INFO(refused(run, folder / "bad"));
  }
  put(folder / "bad", with_header(good, [&](const std::string& h) {  // one tensor over another
        return replaced(h, "\"data_offsets\":[0,", "\"data_offsets\":[8,");
      }));
  refused(run, folder / "bad");
  put(folder / "bad", with_header(good, [](const std::string&) { return std::string(100000, '{'); }));
  refused(run, folder / "bad");
}

TEST_CASE("hostile checkpoint: entries missing, too many, or of another run", "[training][hostile]") {
  TempFolder folder;
  good_file(folder);
  const SafeTensors good = load_safetensors(folder / "good");
  Run run(2);
  for (const auto& [name, t] : good.tensors) {
    INFO(name);
    SafeTensors f = good;
    f.tensors.erase(name);
    save_safetensors(folder / "bad", f);
    CHECK_THAT(refused(run, folder / "bad"), Contains(name.substr(name.find('.') + 1)));
    f = good;
    f.tensors[name] = t.dtype() == i64 ? to(t, i32) : to(t, f64);
    save_safetensors(folder / "bad", f);
    refused(run, folder / "bad");
    f = good;
    f.tensors[name] = cat({flatten(t), flatten(t)});
    save_safetensors(folder / "bad", f);
    refused(run, folder / "bad");
    f = good;
    f.tensors[name + ".more"] = t;
    save_safetensors(folder / "bad", f);
    refused(run, folder / "bad");
  }
  for (int64_t n : {int64_t{-1}, INT64_MIN, INT64_MAX, (int64_t{1} << 53) + 1})
    for (const char* count : {"steps", "in.weight.updates"}) {
      INFO(count << " " << n);
      SafeTensors f = good;
      f.tensors[str("optimizer.", count)] = Tensor::from<int64_t>({n}, {});
      save_safetensors(folder / "bad", f);
      CHECK_THAT(refused(run, folder / "bad"), Contains(str("'", count, "'")));
      CHECK_THROWS_AS(run.load(folder / "bad"), IOError);
    }

  // Another model, another optimiser, a file of weights.
  Rng rng(3);
  Mlp bigger({.dim = 3, .hidden = 5}, rng);
  Adam adam(parameters(bigger));
  save_checkpoint(bigger, folder / "other", adam, rng, {});
  CHECK_THAT(refused(run, folder / "other"), Contains("[3,5]") && Contains("[3,4]"));
  Sgd sgd(parameters(run.net), {.lr = 0.1});
  save_checkpoint(run.net, folder / "sgd", sgd, rng, {});
  CHECK_THAT(refused(run, folder / "sgd"), Contains("holds the state of sgd, not of adam"));
  save(run.net, folder / "weights");
  CHECK_THAT(refused(run, folder / "weights"), Contains("not a Sluice checkpoint"));
  refused(run, folder / "absent");
  refused(run, "/");
}
