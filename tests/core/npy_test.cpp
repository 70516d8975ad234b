#include <sluice/core/npy.h>

#include <sluice/core/file.h>
#include "support/temp_folder.h"

#include "support/catch.h"

using namespace sluice;
using sluice::testing::TempFolder;
using Catch::Contains;

namespace {

void put(const std::string& path, const std::string& bytes) {
  write_file_atomically(path, [&](FileWriter& out) { out.write(bytes); });
}
std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string s = "\x93NUMPY";
  s += static_cast<char>(version), s += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) s += static_cast<char>(header.size() >> (8 * i));
  return s + header + data;
}
std::string dict(const std::string& descr, const std::string& shape,
                 const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

}  // namespace

TEST_CASE("npy: every dtype and layout comes back", "[npy]") {
  TempFolder folder;
  const Tensor matrix({{1, 2, 3}, {4, 5, 6}});
  for (const Tensor& t :
       {matrix, alias(matrix, Layout({3, 2}, {1, 3}, 0)), Tensor(2.5f), empty({3, 0}), Tensor({7.f}),
        Tensor::from<double>({1e300, -0.1}), Tensor::from<int64_t>({INT64_MIN, 5}),
        Tensor::from<int32_t>({-7, 7, 8}), Tensor::from<bool>({true, false})}) {
    save_npy(folder / "x.npy", t);
    const Tensor back = load_npy(folder / "x.npy");
    CHECK(back.dtype() == t.dtype());
    CHECK(back.shape() == t.shape());
    CHECK(back.to_vector<double>() == t.to_vector<double>());
    CHECK(read_file(folder / "x.npy").find('\n') % 64 == 63);  // data is 64-byte aligned
  }
  CHECK_THROWS_WITH(save_npy(folder / "x.npy", Tensor::from<BFloat16>({BFloat16(1.f)})),
                    Contains("bf16"));
  CHECK(load_npy(folder / "x.npy").dtype() == boolean);  // the refused save changed nothing
}

TEST_CASE("npy: headers as NumPy writes them", "[npy]") {
  TempFolder folder;
  const std::string bytes("\x01\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0\x06\0\0\0", 24);
  const int version = GENERATE(1, 2, 3);
  put(folder / "c", npy(dict("<i4", "(2, 3)"), bytes, version));
  CHECK(load_npy(folder / "c").to_vector<int32_t>() == std::vector<int32_t>{1, 2, 3, 4, 5, 6});
  put(folder / "f", npy(dict("<i4", "(2, 3)", "True"), bytes, version));
  const Tensor f = load_npy(folder / "f");
  CHECK(f.shape() == Shape{2, 3});
  CHECK(f.to_vector<int32_t>() == std::vector<int32_t>{1, 3, 5, 2, 4, 6});
  put(folder / "s",
      npy("{\"shape\":(),\"descr\":\"<i4\",\"fortran_order\":False}", bytes.substr(0, 4), version));
  CHECK(load_npy(folder / "s").item() == 1);
  put(folder / "b", npy(dict("|b1", "(2,)"), std::string("\0\x07", 2), version));
  CHECK(load_npy(folder / "b").to_vector<bool>() == std::vector<bool>{false, true});
}

TEST_CASE("npy: hostile files are refused with the reason", "[npy]") {
  TempFolder folder;
  auto refused = [&](const std::string& bytes, const std::string& reason) {
    const std::string path = folder / "hostile.npy";
    put(path, bytes);
    INFO(reason);
    try {
      load_npy(path);
      FAIL("loaded");
    } catch (const IOError& e) {
      CHECK_THAT(e.what(), Contains(path) && Contains(reason));
    }
  };
  const std::string four(4, '\0'), good = npy(dict("<f4", "(1,)"), four);
  refused("", "0 bytes");
  refused(good.substr(0, 9), "9 bytes");
  refused("PK" + good.substr(2), "not an .npy file");
  refused(npy(dict("<f4", "(1,)"), four, 4), "version 4");
  refused(good.substr(0, 40), "more than the file has");
  refused(npy("", "", 2).substr(0, 10), "within its header");
  refused(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{}", 14), "claims 4294967295 bytes");
  refused(npy("", four), "expected '{'");
  refused(npy("{'descr': '<f4'", four), "expected '}'");
  refused(npy("{'descr': '<f4", four), "does not end");
  refused(npy("{'descr': '<f4'}", four), "no 'fortran_order'");
  refused(npy("{'descr': '<f4', 'fortran_order': False}", four), "no 'shape'");
  refused(npy("{'fortran_order': False, 'shape': (1,)}", four), "no 'descr'");
  refused(npy("{'descr': '<f4', 'descr': '<f4'}", four), "'descr' twice");
  refused(npy("{'code': 'x'}", four), "unknown header key 'code'");
  refused(npy(dict("<f4", "(1,)") + "x", four), "text after");
  refused(npy(dict("<f4", "(1,)", "Maybe"), four), "neither True nor False");
  refused(npy(dict(">f4", "(1,)"), four), "dtype '>f4'");
  refused(npy(dict("<f2", "(2,)"), four), "dtype '<f2'");
  refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", four), "structured");
  refused(npy(dict("<f4", "(1)"), four), "not a tuple");
  refused(npy(dict("<f4", "1"), four), "expected '('");
  refused(npy(dict("<f4", "(1.5,)"), four), "not a tuple");
  refused(npy(dict("<f4", "(1, 1.5)"), four), "expected ')'");
  refused(npy(dict("<f4", "(-1,)"), four), "negative size");
  refused(npy(dict("<f4", "(a,)"), four), "not a tuple of integers");
  refused(npy(dict("<f4", "(99999999999999999999999,)"), four), "no file can hold");
  refused(npy(dict("<f4", "(4294967296, 4294967296)"), four), "overflows");
  refused(npy(dict("<f4", "(0, 70368744177664, 70368744177664)"), ""), "overflows");
  refused(npy(dict("<f4", "(1,1,1,1,1,1,1,1,1)"), four), "more than 8 dimensions");
  refused(npy(dict("<f4", "(2,)"), four), "takes 8 bytes, the file holds 4");
  refused(good + "x", "takes 4 bytes, the file holds 5");
  CHECK_THROWS_WITH(load_npy(folder / "missing"), Contains("missing") && Contains("No such file"));
  put(folder / "good", good);
  CHECK(load_npy(folder / "good").shape() == Shape{1});
}
