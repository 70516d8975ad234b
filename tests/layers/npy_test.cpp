#include <sluice/layers/data/npy.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/core/text/file.h>
#include <sluice/ops/basic.h>

#include <limits>
#include <string>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// A file with this header, of version 1, 2 or 3, and these bytes of numbers.
std::string npy(std::string header, const std::string& data, int version = 1) {
  std::string file = std::string("\x93NUMPY") + static_cast<char>(version) + '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}
std::string dict(const std::string& descr, const std::string& shape, bool by_columns = false) {
  return str("{'descr': '", descr, "', 'fortran_order': ", by_columns ? "True" : "False", ", 'shape': ", shape,
             ", }\n");
}
template <class T> std::string bytes_of(const std::vector<T>& x) {
  return {reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T)};
}

}  // namespace

TEST_CASE("npy: the bytes that NumPy writes", "[data][npy]") {
  const TempFolder folder;
  const std::string path = folder / "x.npy";
  const auto written = [&](const Tensor& x) { return write_npy(path, x), read_file(path); };
  // np.save(path, np.arange(6, dtype=np.float32).reshape(2, 3))
  const std::string header =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }" + std::string(58, ' ') + "\n";
  const std::string numbers = bytes_of(std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(written(Tensor({{0, 1, 2}, {3, 4, 5}})) == npy(header, numbers));
  CHECK(written(transpose(Tensor({{0, 3}, {1, 4}, {2, 5}}), 0, 1)) == npy(header, numbers));
  for (const auto& [x, says] :
       {std::pair(full({}, 7, {f64}), "{'descr': '<f8', 'fortran_order': False, 'shape': (), }"),
        {arange(0, 3), "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }"},
        {zeros({0, 4}, {i32}), "{'descr': '<i4', 'fortran_order': False, 'shape': (0, 4), }"},
        {ones({1, 1, 2}, {boolean}), "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 1, 2), }"}}) {
    const std::string file = written(x);
    CHECK(file.substr(10, std::string(says).size()) == says);
    CHECK(file.size() == 128 + static_cast<std::size_t>(x.numel() * size_of(x.dtype())));
    const Tensor again = read_npy(path);
    CHECK(again.shape() == x.shape());
    CHECK(again.dtype() == x.dtype());
    CHECK(max_abs_diff(again, x) == 0);
  }
  CHECK_THROWS_WITH(write_npy(path, to(ones({2}), bf16)), Contains("write_npy: NumPy has no bf16 — got [2]"));
  CHECK_THROWS_WITH(write_npy(path, Tensor()), Contains("write_npy: the tensor is undefined"));
  CHECK_THROWS_AS(write_npy(path, empty({2}, {f32, meta})), DeviceError);
  CHECK(read_npy(path).shape() == Shape{1, 1, 2});  // nothing was lost
}

TEST_CASE("npy: every dtype, order and version", "[data][npy]") {
  const TempFolder folder;
  const auto read = [&](const std::string& file) { return read_npy(folder.put("x.npy", file)); };
  const auto same = [](const Tensor& x, DType dtype, const std::vector<double>& values) {
    CHECK(x.dtype() == dtype);
    CHECK(x.to_vector<double>() == values);
  };
  same(read(npy(dict("<f2", "(3,)"), bytes_of<uint16_t>({0x3c00, 0xc000, 1}))), f32, {1, -2, 0x1p-24});
  same(read(npy(dict("|i1", "(2,)"), bytes_of<int8_t>({-128, 127}))), i32, {-128, 127});
  same(read(npy(dict("|u1", "(2,)"), bytes_of<uint8_t>({0, 255}))), i32, {0, 255});
  same(read(npy(dict("<i2", "(1,)"), bytes_of<int16_t>({-300}))), i32, {-300});
  same(read(npy(dict("<u2", "(1,)"), bytes_of<uint16_t>({65535}))), i32, {65535});
  same(read(npy(dict("<u4", "(1,)"), bytes_of<uint32_t>({4294967295u}))), i64, {4294967295.0});
  same(read(npy(dict("<u8", "(1,)"), bytes_of<uint64_t>({1u << 31}))), i64, {2147483648.0});
  same(read(npy(dict("<i8", "(2, 1)"), bytes_of<int64_t>({-5, 6}), 2)), i64, {-5, 6});
  same(read(npy(dict("<f8", "()"), bytes_of<double>({0.5}), 3)), f64, {0.5});
  same(read(npy("{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<i4\"}", bytes_of<int32_t>({1, 2}))), i32, {1, 2});
  const Tensor turned = read(npy(dict("<f4", "(2, 3)", true), bytes_of<float>({0, 3, 1, 4, 2, 5})));
  CHECK(turned.shape() == Shape{2, 3});
  CHECK(turned.is_contiguous());
  same(turned, f32, {0, 1, 2, 3, 4, 5});
  const Tensor deep = read(npy(dict("<f4", "(2, 1, 3)", true), bytes_of<float>({0, 3, 1, 4, 2, 5})));
  CHECK(deep.shape() == Shape{2, 1, 3});
  same(deep, f32, {0, 1, 2, 3, 4, 5});
}

TEST_CASE("npy: what is wrong with a file", "[data][npy]") {
  const TempFolder folder;
  const auto refuses = [&](const std::string& file, const std::string& why) {
    const std::string path = folder.put("bad.npy", file);
    INFO(why);
    CHECK_THROWS_WITH(read_npy(path), Contains("read_npy: '" + path + "': ") && Contains(why));
    CHECK_THROWS_AS(read_npy(path), IOError);
  };
  const std::string two = bytes_of<float>({1, 2});
  refuses("", "the file has 0 bytes; an NPY file has 10 before its header");
  refuses("PK\3\4 an npz file", "does not begin as an NPY file");
  refuses(npy(dict("<f4", "(2,)"), two, 4), "is of version 4; 1 to 3 are known");
  refuses(npy(dict("<f4", "(2,)"), two).substr(0, 40), "the header takes");
  refuses(npy(dict("<f4", "(2,)"), two, 2).substr(0, 11), "the file ends before its header");
  refuses(npy(dict("<f4", "(2,)"), ""), "[2] of F32 takes 8 bytes; the file has 0");
  refuses(npy(dict("<f4", "(2,)"), two + "x"), "[2] of F32 takes 8 bytes; the file has 9");
  refuses(npy(dict(">f4", "(2,)"), two), "numbers are big-endian");
  refuses(npy(dict("<c8", "(1,)"), two), "numbers of dtype '<c8' are not read");
  refuses(npy(dict("|O", "(1,)"), two), "numbers of dtype '|O' are not read");
  refuses(npy(dict("", "(1,)"), two), "numbers of dtype '' are not read");
  refuses(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", two), "structured arrays");
  refuses(npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }", two), "neither True nor False");
  refuses(npy("{'descr': '<f4', 'shape': (2,), }", two), "no value of 'fortran_order'");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, 'shape':", two), "no value of 'shape'");
  refuses(npy(dict("<f4", "2"), two), "shape is not a list in round brackets");
  refuses(npy(dict("<f4", "(-2,)"), two), "something else than sizes");
  refuses(npy(dict("<f4", "(2.0,)"), two), "something else than sizes");
  refuses(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2", two), "shape does not end");
  refuses(npy(dict("<f4", "(4611686018427387904, 2)"), two), "the shape's size overflows");
  refuses(npy(dict("<f4", "(65536, 65536, 65536, 65536)"), ""), "the shape's size overflows");
  refuses(npy(dict("<f4", "(0, 9223372036854775807)"), ""), "the shape's size overflows");
  refuses(npy(dict("<f4", "(99999999999999999999,)"), two), "something else than sizes");
  refuses(npy(dict("<f4", "(1, 1, 1, 1, 1, 1, 1, 1, 2)"), two), "more than 8 dims");
  refuses(npy(dict("|b1", "(2,)"), "\1\2"), "is BOOL, but its byte 1 is neither 0 nor 1");
  refuses(npy(dict("<u8", "(1,)"), bytes_of<uint64_t>({std::numeric_limits<uint64_t>::max()})), "is beyond i64");
}
