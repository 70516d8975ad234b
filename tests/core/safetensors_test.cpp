#include <sluice/core/text/safetensors.h>

#include <sluice/core/text/file.h>
#include "support/temp_folder.h"

#include "support/approx.h"
#include "support/catch.h"
#include "support/child.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

using namespace sluice;
using sluice::testing::TempFolder;

namespace {

void put(const std::string& path, const std::string& bytes) {
  write_file_atomically(path, [&](FileWriter& out) { out.write(bytes); });
}

/// A file with this header and `data` zero bytes.
std::string file_of(const std::string& header, std::size_t data = 0) {
  const uint64_t n = header.size();
  std::string s(8, '\0');
  std::memcpy(s.data(), &n, 8);
  return s + header + std::string(data, '\0');
}
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"("a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// Loading these bytes is an IOError with the path and the reason.
void refuse(const TempFolder& folder, const std::string& bytes, const std::string& reason) {
  const std::string path = folder / "hostile.safetensors";
  put(path, bytes);
  INFO(reason);
  try {
    load_safetensors(path);
    FAIL("loaded");
  } catch (const IOError& e) { CHECK_THAT(e.what(), Contains(path) && Contains(reason)); }
}

}  // namespace

TEST_CASE("safetensors: every dtype and layout comes back", "[safetensors]") {
  TempFolder folder;
  const std::string path = folder / "model.safetensors";
  const Tensor matrix({{1, 2, 3}, {4, 5, 6}});
  SafeTensors file;
  file.metadata = {{"format", "pt"}, {"note", "ü \"quoted\""}};
  file.tensors = {{"matrix", matrix},
                  {"transposed", alias(matrix, Layout({3, 2}, {1, 3}, 0))},
                  {"row", alias(matrix, Layout({3}, {1}, 3))},
                  {"spread", alias(matrix, Layout({4, 2}, {0, 1}, 1))},
                  {"scalar", Tensor(2.5f)},
                  {"empty", empty({3, 0}, {.dtype = i32})},
                  {"f64", Tensor::from<double>({1e300, -0.1})},
                  {"bf16", Tensor::from<BFloat16>({BFloat16(1.5f), BFloat16(-3.f)})},
                  {"i64", Tensor::from<int64_t>({INT64_MIN, INT64_MAX})},
                  {"i32", Tensor::from<int32_t>({-7, 7, 8})},
                  {"bool", Tensor::from<bool>({true, false, true})},
                  {"名前", Tensor({1.f})}};
  save_safetensors(path, file);
  const SafeTensors back = load_safetensors(path);
  CHECK(back.metadata == file.metadata);
  REQUIRE(back.tensors.size() == file.tensors.size());
  for (const auto& [name, t] : file.tensors) {
    INFO(name);
    const Tensor& b = back.tensors.at(name);
    CHECK(b.dtype() == t.dtype());
    CHECK(b.shape() == t.shape());
    CHECK(b.to_vector<double>() == t.to_vector<double>());
  }
  CHECK(back.tensors.at("i64").to_vector<int64_t>() == file.tensors.at("i64").to_vector<int64_t>());
  CHECK(folder.count() == 1);  // no temporary file stays
}

TEST_CASE("safetensors: the bytes are those of the reference implementation", "[safetensors]") {
  TempFolder folder;
  const std::string path = folder / "x.safetensors";
  // The wider type comes first, so that every tensor is aligned; spaces pad the header.
  save_safetensors(path, {.tensors = {{"a", Tensor::from<bool>({true})}, {"b", Tensor({1, 2})}}, .metadata = {}});
  std::string header = R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("a":{"dtype":"BOOL","shape":[1],"data_offsets":[8,9]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(read_file(path) == file_of(header) + std::string("\0\0\x80\x3f\0\0\0\x40\x01", 9));
}

TEST_CASE("safetensors: f16 is read as f32, exactly", "[safetensors]") {
  TempFolder folder;
  // 1, −2, 65504 (largest), 2^−24 (smallest), −0, ∞, NaN, 1/3 rounded
  put(folder / "x", file_of("{" + entry("F16", "[8]", "[0,16]") + "}") +
                        std::string("\x00\x3c\x00\xc0\xff\x7b\x01\x00\x00\x80\x00\x7c\x01\x7e\x55\x35", 16));
  const Tensor x = load_safetensors(folder / "x").tensors.at("a");
  CHECK(x.dtype() == f32);
  const auto v = x.to_vector<float>();
  CHECK(std::vector<float>(v.begin(), v.begin() + 4) == std::vector<float>{1, -2, 65504, 0x1p-24f});
  CHECK((v[4] == 0 && std::signbit(v[4]) && std::isinf(v[5]) && v[5] > 0 && std::isnan(v[6]) && v[7] == 0.33325195f));
  refuse(folder, file_of("{" + entry("F16", "[2]", "[0,8]") + "}") + std::string(8, '\0'), "takes 4 bytes");
}

TEST_CASE("safetensors: floats of eight bits are read as bf16, exactly", "[safetensors]") {
  TempFolder folder;
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  const auto read = [&](const std::string& dtype) {
    put(folder / "x", file_of("{" + entry(dtype, "[256]", "[0,256]") + "}") + all);
    const Tensor x = load_safetensors(folder / "x").tensors.at("a"), y = map_safetensors(folder / "x").tensors.at("a");
    CHECK(x.dtype() == bf16);
    CHECK(sluice::testing::same_bits(x, y));
    return x.to_vector<double>();
  };
  // sign, `exponents` bits, `fractions` bits: ±2^(e − bias)·1.f, or ±2^(1 − bias)·0.f for e = 0
  const auto number = [](int b, int exponents, int fractions) {
    const int e = (b & 127) >> fractions, f = b & ((1 << fractions) - 1), bias = (1 << (exponents - 1)) - 1;
    const double size = std::ldexp(f + (e > 0 ? 1 << fractions : 0), (e > 0 ? e : 1) - bias - fractions);
    return b & 128 ? -size : size;
  };
  const std::vector<double> e4m3 = read("F8_E4M3"), e5m2 = read("F8_E5M2"), e8m0 = read("F8_E8M0");
  for (int b = 0; b < 256; ++b) {
    INFO(b);
    const auto i = static_cast<std::size_t>(b);
    CHECK(((b & 127) == 127 ? std::isnan(e4m3[i]) : e4m3[i] == number(b, 4, 3)));
    if ((b & 127) > 124) CHECK(std::isnan(e5m2[i]));
    else if ((b & 127) == 124) CHECK(e5m2[i] == (b < 128 ? INFINITY : -INFINITY));
    else CHECK(e5m2[i] == number(b, 5, 2));
    if (b > 0) CHECK((b == 255 ? std::isnan(e8m0[i]) : e8m0[i] == std::ldexp(1.0, b - 127)));  // 2^−127 is denormal
  }
  CHECK((e4m3[126] == 448 && std::signbit(e4m3[128]) && std::signbit(e5m2[128])));  // −0
}

TEST_CASE("safetensors: integers without a dtype here are read as the next one that holds them", "[safetensors]") {
  TempFolder folder;
  const auto read = [&](const std::string& dtype, std::size_t size, const std::string& bytes, DType want) {
    const std::string end = std::to_string(bytes.size()), count = std::to_string(bytes.size() / size);
    put(folder / "x", file_of("{" + entry(dtype, "[" + count + "]", "[0," + end + "]") + "}") + bytes);
    const Tensor x = load_safetensors(folder / "x").tensors.at("a"), y = map_safetensors(folder / "x").tensors.at("a");
    CHECK(x.dtype() == want);
    CHECK(y.dtype() == want);
    CHECK(y.to_vector<int64_t>() == x.to_vector<int64_t>());
    return x.to_vector<int64_t>();
  };
  using Whole = std::vector<int64_t>;
  CHECK(read("I8", 1, "\x01\x80\xff\x7f", i32) == Whole{1, -128, -1, 127});
  CHECK(read("U8", 1, "\x01\x80\xff\x7f", i32) == Whole{1, 128, 255, 127});
  CHECK(read("I16", 2, std::string("\x02\x01\x00\x80", 4), i32) == Whole{258, -32768});
  CHECK(read("U16", 2, std::string("\x02\x01\x00\x80", 4), i32) == Whole{258, 32768});
  CHECK(read("U32", 4, "\x04\x03\x02\x01\xff\xff\xff\xff", i64) == Whole{0x01020304, 0xffffffff});
  CHECK(read("U64", 8, "\x08\x07\x06\x05\x04\x03\x02\x01\xff\xff\xff\xff\xff\xff\xff\x7f", i64) ==
        Whole{0x0102030405060708, INT64_MAX});
  CHECK(read("U8", 1, "", i32).empty());
  refuse(folder, file_of("{" + entry("U64", "[2]", "[0,16]") + "}") + std::string(15, '\x01') + "\x80",
         "'a' is U64, but its value 1 is beyond i64");
  refuse(folder, file_of("{" + entry("I16", "[2]", "[0,2]") + "}", 2), "takes 4 bytes, its data_offsets span 2");
}

TEST_CASE("safetensors: tensors that are not wanted are skipped, whatever they hold", "[safetensors]") {
  TempFolder folder;
  const auto one = [](const std::string& name, const std::string& dtype, const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[1],"data_offsets":)" + offsets + "}";
  };
  const std::string first = one("first", "F4", "[0,1]"), second = one("second", "F32", "[1,5]"),
                    third = one("third", "U64", "[5,13]"), fourth = one("fourth", "BOOL", "[13,14]");
  const auto write = [&](const std::string& header) {
    put(folder / "x", file_of(header) + std::string("\xff\0\0\x80\x3f\xff\xff\xff\xff\xff\xff\xff\xff\x01", 14));
  };
  write("{" + fourth + "," + first + "," + third + "," + second + "}");
  std::multiset<std::string> asked;
  const auto read = [&] {
    return load_safetensors(folder / "x",
                            [&](const std::string& name) {
                              asked.insert(name);
                              return name == "second" || name == "fourth";
                            })
        .tensors;
  };
  const auto got = read();
  CHECK(got.size() == 2);
  CHECK(got.at("second").item() == 1);
  CHECK(got.at("fourth").item() == 1);
  CHECK(asked == std::multiset<std::string>{"first", "second", "third", "fourth"});
  CHECK_THROWS_WITH(load_safetensors(folder / "x"), Contains("'first' has the dtype 'F4'"));
  // Where the others lie is checked all the same.
  for (const auto& [offsets, why] : {std::pair("[0,2]", "overlaps"),
                                     {"[1,0]", "reversed"},
                                     {"[0]", "two data_offsets"},
                                     {"[0,9223372036854775807]", "overlaps"},
                                     {"[0,18446744073709551615]", "huge number"}}) {
    write("{" + one("first", "F4", offsets) + "," + second + "," + third + "," + fourth + "}");
    CHECK_THROWS_WITH(read(), Contains(why));
  }
  write("{" + first + "," + second + "," + one("third", "U64", "[5,1000]") + "}");
  CHECK_THROWS_WITH(read(), Contains("the file holds only 14"));
}

TEST_CASE("safetensors: bytes of bool are 0 or 1", "[safetensors]") {
  TempFolder folder;
  refuse(folder, file_of("{" + entry("BOOL", "[3]", "[0,3]") + "}") + std::string("\x01\x00\xff", 3),
         "is BOOL, but its byte 2 is neither 0 nor 1");
}

TEST_CASE("safetensors: hostile files are refused with the reason", "[safetensors]") {
  TempFolder folder;
  auto refused = [&](const std::string& bytes, const std::string& why) { refuse(folder, bytes, why); };
  auto header = [&](const std::string& h, const std::string& why, std::size_t data = 4) {
    refuse(folder, file_of(h, data), why);
  };
  // The length.
  refused("", "0 bytes");
  refused("1234567", "7 bytes");
  refused(std::string(7, '\0') + "\x80" + "{}", "claims 9223372036854775808 bytes");
  refused(std::string(8, '\xff') + "{}", "claims 18446744073709551615 bytes");
  refused(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "the limit is 100000000");
  refused(std::string("\x03\0\0\0\0\0\0\0{}", 10), "more than the file has");
  refused(file_of(""), "not a JSON object");
  // The JSON.
  header("[]", "not a JSON object");
  header(" {}", "not a JSON object");
  header("{}}", "it is not JSON");
  header("{\"a\xff\":1}", "it is not JSON");
  header("{\"a\":", "it is not JSON");
  header(R"({"a":{"shape":)" + std::string(200'000, '[') + "}}", "nested deeper than 32");
  header("{" + entry("F32", "[[1]]", "[0,4]") + "}", "shape holds an array");
  header(R"({"a":{"b":{}}})", "unknown key 'b'");
  header(R"({"a":1})", "'a' is a number, not an object");
  header(R"({"a":null})", "'a' is null, not an object");
  // The metadata.
  header(R"({"__metadata__":{"k":1}})", "metadata 'k' is a number, not a string");
  header(R"({"__metadata__":{"k":{}}})", "metadata 'k' is an object, not a string");
  header(R"({"__metadata__":["k"]})", "not an object");
  header(R"({"__metadata__":{"k":"1","k":"2"}})", "the name \"k\" appears twice");
  // The keys.
  const std::string good = entry("F32", "[1]", "[0,4]");
  header("{" + good + "," + good + "}", "the name \"a\" appears twice");
  header(R"({"a":{"dtype":"F32","dtype":"F32"}})", "\"dtype\" appears twice");
  header(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "'a' has no dtype");
  header(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "'a' has no shape");
  header(R"({"a":{"dtype":"F32","shape":[1]}})", "'a' has no data_offsets");
  header(R"({"a":{"dtype":4}})", "dtype is a number");
  header(R"({"a":{"dtype":"F32","shape":"1"}})", "shape is a string");
  header("{" + entry("F4", "[2]", "[0,4]") + "}", "tensor 'a' has the dtype 'F4'; known are I64, F64,");
  header("{" + entry(std::string(5000, 'x'), "[1]", "[0,4]") + "}", "x…'");
  // The shape.
  header("{" + entry("F32", "[-1]", "[0,4]") + "}", "shape holds a negative number");
  header("{" + entry("F32", "[1.5]", "[0,4]") + "}", "shape holds a fractional or huge number");
  header("{" + entry("F32", "[1e300]", "[0,4]") + "}", "shape holds a fractional or huge number");
  header("{" + entry("F32", "[99999999999999999999]", "[0,4]") + "}", "fractional or huge");
  header("{" + entry("F32", "[18446744073709551615]", "[0,4]") + "}", "fractional or huge");
  header("{" + entry("F32", "[4294967296,4294967296]", "[0,0]") + "}", "overflows", 0);
  header("{" + entry("F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]") + "}", "overflows", 0);
  header("{" + entry("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", "more than 8 dimensions");
  header("{" + entry("F32", "[true]", "[0,4]") + "}", "shape holds a boolean");
  // The offsets.
  header("{" + entry("F32", "[1]", "[4,0]") + "}", "reversed data_offsets [4,0]");
  header("{" + entry("F32", "[1]", "[4]") + "}", "two data_offsets");
  header("{" + entry("F32", "[1]", "[0,4,8]") + "}", "two data_offsets");
  header("{" + entry("F32", "[1]", "[0,-4]") + "}", "data_offsets holds a negative number");
  header("{" + entry("F32", "[2]", "[0,4]") + "}", "takes 8 bytes, its data_offsets span 4");
  const std::string b = R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":)";
  header("{" + entry("F32", "[2]", "[0,8]") + b + "[4,12]}}", "'b' overlaps another", 12);
  header("{" + entry("F32", "[2]", "[0,8]") + b + "[0,8]}}", "overlaps another", 8);
  header("{" + entry("F32", "[2]", "[0,8]") + b + "[12,20]}}", "hole before tensor 'b'", 20);
  header("{" + entry("F32", "[1]", "[4,8]") + "}", "hole before tensor 'a'", 8);
  header("{" + good + "}", "1 trailing bytes", 5);
  header("{" + good + "}", "the file holds only 3", 3);
  header("{" + entry("F32", "[1099511627776]", "[0,4398046511104]") + "}", "the file holds only 4");

  put(folder / "good", file_of("{" + good + "}   ", 4));  // and the one they are variations of
  CHECK(load_safetensors(folder / "good").tensors.at("a").item() == 0);
}

TEST_CASE("safetensors: files that cannot be read or written", "[safetensors]") {
  TempFolder folder;
  CHECK_THROWS_AS(load_safetensors(folder / "missing"), IOError);
  CHECK_THROWS_WITH(load_safetensors(folder / "missing"), Contains("missing") && Contains("No such file"));
  CHECK_THROWS_WITH(load_safetensors(folder / "."), Contains("not a regular file"));
  CHECK_THROWS_WITH(load_safetensors("/dev/zero"), Contains("not a regular file"));
  const SafeTensors file{.tensors = {{"a", Tensor({1, 2})}}, .metadata = {}};
  CHECK_THROWS_AS(save_safetensors(folder / "no/such/folder", file), IOError);
  CHECK_THROWS_WITH(save_safetensors("/dev/null", file), Contains("not a regular file"));
  CHECK_THROWS_WITH(save_safetensors(folder / "x", {.tensors = {{"a", Tensor()}}, .metadata = {}}),
                    Contains("'a' is undefined"));
  CHECK_THROWS_WITH(save_safetensors(folder / "x", {.tensors = {{"\xff", Tensor(1.f)}}, .metadata = {}}),
                    Contains("not UTF-8"));
  CHECK_THROWS_WITH(save_safetensors(folder / "x", {.tensors = {{"__metadata__", Tensor(1.f)}}, .metadata = {}}),
                    Contains("reserved"));
  CHECK(folder.count() == 0);
}

TEST_CASE("a failed write leaves the earlier file and no other", "[safetensors]") {
  TempFolder folder;
  const std::string path = folder / "x";
  put(path, "earlier");
  auto body = [](FileWriter& out) {
    out.write(std::string(1 << 20, 'x'));
    throw std::runtime_error("stop");
  };
  CHECK_THROWS_WITH(write_file_atomically(path, body), "stop");
  CHECK(read_file(path) == "earlier");

  // The disk is full, as far as this process can tell.
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  std::string error;
  try {
    save_safetensors(path, {.tensors = {{"a", empty({100'000})}}, .metadata = {}});
  } catch (const IOError& e) { error = e.what(); }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(error, Contains(path) && Contains("too large"));
  CHECK(read_file(path) == "earlier");
  CHECK(folder.count() == 1);
}

TEST_CASE("what a killed save left is removed by the next, what a running one writes is not", "[safetensors]") {
  TempFolder folder;
  const std::string path = folder / "x";
  auto killed = [&] {
    return testing::in_child([&]() -> std::string {
      write_file_atomically(path, [](FileWriter& out) {
        out.write(std::string(1 << 20, 'x'));
        ::_exit(1);
      });
      return "not killed";
    });
  };
  REQUIRE(killed() == "dies");
  REQUIRE(killed() == "dies");
  CHECK(folder.count() >= 1);  // the second removes what the first left
  const std::vector<std::string> others = {".x.tmp",    ".x.12.tmp", ".x.1.2.3.tmp", ".x.a.1.tmp", ".x..1.tmp",
                                           ".x.1..tmp", "x.1.2.tmp", ".y.1.2.tmp",   ".x.1.2.tmp~"};
  for (const auto& name : others) std::ofstream(folder / name) << "mine";
  put(path, "new");
  CHECK(read_file(path) == "new");
  CHECK(folder.count() == 1 + static_cast<std::ptrdiff_t>(others.size()));
  for (const auto& name : others) CHECK(read_file(folder / name) == "mine");

  write_file_atomically(path, [&](FileWriter& out) {
    out.write("first");
    CHECK(testing::in_child([&] { return put(path, "second"), ""; }) == "");
    CHECK(read_file(path) == "second");
    put(path, "third");
    CHECK(read_file(path) == "third");
    CHECK(folder.count() == 2 + static_cast<std::ptrdiff_t>(others.size()));
  });
  CHECK(read_file(path) == "first");
  CHECK(folder.count() == 1 + static_cast<std::ptrdiff_t>(others.size()));
}

TEST_CASE("a write follows a link and keeps the permissions", "[safetensors]") {
  namespace fs = std::filesystem;
  TempFolder folder;
  put(folder / "file", "1");
  fs::permissions(folder / "file", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("file", folder / "link");
  put(folder / "link", "2");
  CHECK(fs::is_symlink(folder / "link"));
  CHECK(read_file(folder / "file") == "2");
  CHECK(fs::status(folder / "file").permissions() == (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("safetensors: killed while saving, the file is always whole", "[safetensors]") {
  TempFolder folder;
  const std::string path = folder / "x";
  SafeTensors versions[2];
  for (int v = 0; v < 2; ++v)
    versions[v].tensors["a"] = Tensor::from(std::vector<float>(1 << 20, static_cast<float>(v)));
  save_safetensors(path, versions[0]);
  for (int round = 0; round < 8; ++round) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      try {
        for (int i = 1;; ++i) save_safetensors(path, versions[i % 2]);
      } catch (...) { _exit(1); }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 7 * round));
    kill(child, SIGKILL);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));  // it was still saving
    const auto values = load_safetensors(path).tensors.at("a").to_vector();
    CHECK(std::count(values.begin(), values.end(), values[0]) == 1 << 20);
  }
}
