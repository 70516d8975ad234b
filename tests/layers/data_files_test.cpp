#include <sluice/layers/data/csv.h>
#include <sluice/layers/data/gzip.h>
#include <sluice/layers/data/idx.h>
#include <sluice/layers/data/text.h>

#include "support/catch.h"
#include "support/temp_folder.h"

#include <chrono>
#include <cmath>
#include <limits>

using namespace sluice;
using sluice::testing::TempFolder;

namespace {

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}
/// The call throws an IOError that holds each of these texts.
template <class F> void refuses(F&& call, const std::vector<std::string>& texts) {
  INFO(texts.back());
  try {
    call();
    FAIL("accepted");
  } catch (const IOError& e) {
    for (const std::string& text : texts) CHECK_THAT(e.what(), Contains(text));
  }
}

// Written by zlib.
const std::string kSquares = unhex(  // dynamic codes: "0 1 4 9 … 89401 "
    "1f8b08000000000002032594cb01c330084357c908e667f0fe8b558f5e1a37012c24c1f9eccbef7d763faf2fee97efbbf98d"
    "7d76ce67ae67a6be2ae22944315e7acefbc253f1ca565ca69e935ff9fbaaef771577f56cfd6fbd1f7d7f8a7b97ba4ab4a30a"
    "662a65d43457710b6e49ae2beebd00b8206921b2493008a11f501888fdbccfe3e4e7794cc894e19753f36ef8fa14176484ea"
    "035ac843f5225539b8235ab7c5e8de7842904758125419c29729a47985399b6e69a38efa29a3e1a0637df98a9eab393dbdbb"
    "475f9565625319b7947b5b55eea85e9f821c65b4eefcba746fb710f4139681fa71e19b448b2bcc3342ffe843113a09a5d854"
    "976fce6a0559c7f79c0782af2244b382cdc833f3e09cf068174a6d60d7ff4a079c7b41bf374af85b51569fc85a81502d1e02"
    "a6ddf506b942c97906e994a7df1011b69c580de7bbef6f107337fe42a5f5d6e9a4666ffd7edc357baf44e7bc78de01db5b9c"
    "6fcdf1c0af9ed58b1ffaf2d318c4fe0e092c62f0e024cb2ef0e37f9b38bc7918ef23d7474d7c6e6e067512e6e518ea177ac8"
    "fbe4162ab9d4d5fb8b762ee08a5f45bd8b09697476758111515f3343eec313fe4a3c8860712273361685ab388fb3e12aa157"
    "4c385e936d31aae3c00863f2025f46a8b4acccbd92e871c6c351819d6b9d7dd157965fbf0fd6ef9d82be0cc4ec6c68403933"
    "3192f7ec289c9d6da6fbe49e47efd39839c46748c89572ac0d673e335cf5f55f776927ec666096a58df06431e159cd80dd9d"
    "b07b19b1661b64d70e193b42bb84dc616fe45369fdb24bea1803b65c951dceb63b475660fbb087f49f110d7653c5a86625fb"
    "4a53aabbaab8570a3d4696bd5672a3629a5da7dd45ee686cf45beaa5641cc53c41d74cd3ef3da5de2155536e5a051af3237e"
    "eefaeac69e63dfe7c6e4c6d7e6d6d6b9d4a475c53477ddbd57ac090312e9fd039b50b21ece6e8a037ec1647f187db5d3636f"
    "bf1df4ae6d221e3ae1a40b7e7a6750bee17c771f377c76c36d2fcf3d70aeb153cd396831075d6677f3187a8da3dd383a4ea0"
    "e9acbeda50eca942f7293c20f8ea719a7e35b8ea7d06cfcce09f7978e907ecb002ac76060000");
const std::string kFixed = unhex("1f8b08000000000002034b4c4a4e84a2140097bf0ac40c000000");
const std::string kFar = unhex(  // 200 bytes, 32,500 zeros, the same bytes again
    "1f8b0800000000000203edc1cd2bbb0100c0f14d59edb0965614e6e5e0e0b466356148ca4be230331621614aab4d4b64ad1c"
    "7876b187a4b6222f65ad919a721213cd4a5c48310b3339ece0223b6c07bf3fe4f7fd7caedd8bd35db98f9c2973f6e62a4d0a"
    "d288f6d53ca36cb74e0a9690c760499b550bf74bbb4f06539fa6f66862309e37efbb4d15cf7a479efd6279b3febb75ae5b91"
    "3d0fc43f97bd896a5bcf9f3969afc889e181fcd5a83cd17b176ae8f01b1f8c5bb2edf4c9a54ce5eb3c96961dd678b49bc6b6"
    "0d875eeccfd4a90bb31ee7afcf5534d4726a737895764b4c5aa2d135ae5da8f7158a03dd8a7b586cfa9a7206eac357eb05c1"
    "f1d8cbcdfb68f227229758f752553b955ae1712c1a9400000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000fe5bd7eec5e9aedc47ce94397b739526056944fb6a9e51b65b27054bc863b0"
    "a4cdaa85fba5dd2783a94f537b343118cf9bf7dda68a67bd23cf7eb1bc59ffdd3ad7adc89e07e29fcbde44b5ade7cf9cb457"
    "e4c4f040fe6a549ee8bd0b3574f88d0fc62dd976fae452a6f2751e4bcb0e6b3cda4d63db86432ff667ead485598ff3d7e72a"
    "1a6a39b539bc4abb25262dd1e81ad72ed4fb0ac5816ec53d2c367d4d3903f5e1abf582e078ece5e67d34f913914bac7ba9aa"
    "9d4aadf038160dfe0381e267d084800000");

std::string squares() {
  std::string s;
  for (int i = 0; i < 300; ++i) s += std::to_string(i * i) + " ";
  return s;
}
/// A gzip file whose one block holds the bytes as they are; sums as given.
std::string stored(const std::string& bytes, uint32_t crc, uint32_t size) {
  std::string s("\x1f\x8b\x08\0\0\0\0\0\0\x03\x01", 11);
  const auto put16 = [&](uint32_t v) { s += static_cast<char>(v & 255), s += static_cast<char>(v >> 8 & 255); };
  put16(static_cast<uint32_t>(bytes.size())), put16(~static_cast<uint32_t>(bytes.size()));
  s += bytes;
  put16(crc), put16(crc >> 16), put16(size), put16(size >> 16);
  return s;
}

std::string idx(unsigned kind, const std::vector<uint32_t>& sizes, const std::string& data) {
  std::string s{'\0', '\0', static_cast<char>(kind), static_cast<char>(sizes.size())};
  for (const uint32_t n : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) s += static_cast<char>(n >> shift & 255);
  return s + data;
}

}  // namespace

TEST_CASE("gunzip: every kind of block, far distances, several members", "[data]") {
  CHECK(gunzip(kSquares, "p") == squares());
  CHECK(gunzip(kFixed, "p") == "abcabcabcabd");
  const std::string far = gunzip(kFar, "p");
  REQUIRE(far.size() == 32900);
  CHECK(far.substr(0, 200) == far.substr(32700));
  CHECK(far.substr(200, 32500) == std::string(32500, '\0'));
  CHECK(gunzip(stored("123456789", 0xcbf43926, 9), "p") == "123456789");  // the check value of CRC-32
  CHECK(gunzip(kFixed + stored("123456789", 0xcbf43926, 9) + std::string(7, '\0'), "p") == "abcabcabcabd123456789");
  CHECK(gunzip(kSquares, "p", 7) == "0 1 4 9");
  CHECK(gunzip(kSquares, "p", 0).empty());
  std::string named = kFixed;  // with extra bytes, a name, a comment and a sum of the header
  named[3] = 4 | 8 | 16 | 2;
  named.insert(10, std::string("\2\0xyname\0comment\0\360\171", 19));
  CHECK(gunzip(named, "p") == "abcabcabcabd");
  named[28] ^= 1;
  refuses([&] { gunzip(named, "p"); }, {"header crc mismatch"});
}

TEST_CASE("gunzip: a damaged file is an IOError", "[data]") {
  for (std::size_t n = 0; n < kSquares.size(); ++n)
    refuses([&] { gunzip(kSquares.substr(0, n), "the/path"); }, {"the/path", " at byte "});
  refuses([] { gunzip(stored("123456789", 0xcbf43927, 9), "p"); }, {"incorrect data check"});
  refuses([] { gunzip(stored("123456789", 0xcbf43926, 10), "p"); }, {"incorrect length check"});
  const std::string header = kFixed.substr(0, 10), back = header + unhex("030200");  // three bytes from one byte back
  refuses([&] { gunzip(back, "p"); }, {"invalid distance too far back"});
  refuses([&] { gunzip(kFixed + back, "p"); }, {"invalid distance too far back"});  // of its own member
  refuses([&] { gunzip(header + unhex("0500920000000000"), "p"); }, {"invalid code lengths set"});
  // Any single byte changed is noticed, or was of no meaning: time, level and system in the header, bits behind the
  // last word.
  for (std::size_t i = 0; i < kSquares.size(); ++i)
    for (const int flip : {1, 16, 255}) {
      std::string bytes = kSquares;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      std::string got;
      try {
        got = gunzip(bytes, "p");
      } catch (const IOError&) { continue; }
      INFO(i << " " << flip);
      CHECK(got == squares());
      CHECK(((i >= 3 && i < 10) || i == kSquares.size() - 9));
    }
}

TEST_CASE("read_idx: types, shapes and dtypes", "[data]") {
  TempFolder folder;
  std::string bytes = unhex("00017f80ff10");
  const std::string path = folder.put("file", idx(0x08, {2, 3}, bytes));
  Tensor x = read_idx(path);
  CHECK((x.dtype() == f32 && x.shape() == Shape{2, 3}));
  CHECK(x.to_vector() == std::vector<float>{0, 1, 127, 128, 255, 16});
  CHECK(read_idx(path, i64).to_vector<int64_t>() == std::vector<int64_t>{0, 1, 127, 128, 255, 16});
  CHECK(read_idx(path, i32).dtype() == i32);
  CHECK(read_idx(folder.put("file", idx(0x09, {6}, bytes)), i64).to_vector<int64_t>() ==
        std::vector<int64_t>{0, 1, 127, -128, -1, 16});
  CHECK(read_idx(folder.put("file", idx(0x0b, {3}, bytes)), i64).to_vector<int64_t>() ==
        std::vector<int64_t>{1, 0x7f80, -240});
  CHECK(read_idx(folder.put("file", idx(0x0c, {1}, unhex("fffffffe"))), f64).item() == -2);
  CHECK(read_idx(folder.put("file", idx(0x0d, {1}, unhex("3fc00000")))).item() == 1.5);
  CHECK(read_idx(folder.put("file", idx(0x0e, {}, unhex("3ff8000000000000"))), f64).item() == 1.5);
  CHECK(read_idx(folder.put("file", idx(0x08, {2, 0, 9}, ""))).shape() == Shape{2, 0, 9});
  CHECK_THROWS_WITH(read_idx(folder.put("file", idx(0x08, {0, 2'065'850'207, 1'835'365'473}, ""))),
                    Contains("': shape [0,2065850207,1835365473] has too many elements"));
  CHECK_THROWS_AS(read_idx(folder.put("file", idx(0x0d, {1}, unhex("3fc00000"))), i64), DTypeError);
  CHECK_THROWS_AS(read_idx(path, boolean), DTypeError);
}

TEST_CASE("read_idx: a number that the dtype has not is refused", "[data]") {
  TempFolder folder;
  const std::string wide =
      folder.put("file", idx(0x0e, {3}, unhex("3ff80000000000007ff00000000000007e37e43c8800759c")));
  refuses([&] { read_idx(wide); }, {wide, "number 2 is 1e+300, beyond f32; ask for f64"});
  CHECK(read_idx(wide, f64).to_vector<double>() == std::vector<double>{1.5, INFINITY, 1e300});
  const std::string largest = folder.put("file", idx(0x0d, {2}, unhex("7f8000007f7fffff")));
  CHECK(read_idx(largest).to_vector() == std::vector<float>{INFINITY, std::numeric_limits<float>::max()});
  refuses([&] { read_idx(largest, bf16); }, {"number 1 is 3.40282", "beyond bf16; ask for f32"});
}

TEST_CASE("read_idx: compressed", "[data]") {
  TempFolder folder;
  // 00 00 08 02 00000003 00000002, then 1 2 3 4 5 6: stored, CRC by Python's zlib.
  const std::string file = idx(0x08, {3, 2}, unhex("010203040506"));
  const std::string packed = stored(file, 0x82c7403c, 18);
  CHECK(read_idx(folder.put("file", packed)).to_vector() == std::vector<float>{1, 2, 3, 4, 5, 6});
  refuses([&] { read_idx(folder.put("file", packed.substr(0, packed.size() - 9))); }, {folder / "file", "ends early"});
  refuses(
      [&] {
        read_idx(folder.put("file", stored(idx(0x08, {3, 1}, unhex("010203040506")), 0xb32f5aa1, 18)));
      },
      {"needs 3 bytes"});
}

TEST_CASE("read_idx: hostile files are IOErrors that name file and place", "[data]") {
  TempFolder folder;
  const auto hostile = [&](const std::string& bytes, const std::string& text) {
    const std::string path = folder.put("file", bytes);
    refuses([&] { read_idx(path); }, {path, text});
  };
  hostile("", "within its first 4 bytes");
  hostile(unhex("000008"), "within its first 4 bytes");
  hostile(unhex("89504e470d0a"), "bytes 0 to 2 are 137 80 78");
  hostile(unhex("00000a0100000001ff"), "bytes 0 to 2 are 0 0 10");
  hostile(unhex("00000809") + std::string(40, '\0'), "says 9 dims");
  hostile(unhex("0000080300000001000000"), "at byte 11");
  hostile(idx(0x08, {2, 3}, "12345"), "needs 6 bytes of data from byte 12 on; there are 5");
  hostile(idx(0x08, {2, 3}, "1234567"), "there are 7");
  hostile(idx(0x08, {0, 3}, "1"), "there are 1");
  hostile(idx(0x08, {0xffffffff}, "1"), "shape [4294967295] needs more bytes");
  hostile(idx(0x0e, {0x7fffffff, 0xffffffff, 2}, "1"), "needs more bytes");          // beyond 2^63
  hostile(idx(0x08, {0x10000, 0x10000, 0x10000, 0x10000}, ""), "needs more bytes");  // 2^64: 0 if it wrapped
  hostile(idx(0x08, {0x10000, 0x10000, 0x10000, 0x10000, 1}, ""), "needs more bytes");
  hostile(idx(0x0e, {0x80000000, 0x40000000}, "1"), "needs more bytes");  // 2^64 bytes
  hostile(stored(idx(0x08, {0x7fffffff}, "12345"), 0x2801eae6, 13), "needs more bytes");
  refuses([&] { read_idx(folder / "none"); }, {folder / "none"});
  refuses([&] { read_idx(folder / ""); }, {"not a regular file"});
}

TEST_CASE("read_csv: header, quotes, line ends, types", "[data]") {
  TempFolder folder;
  const Csv csv = read_csv(folder.put(
      "file", "\xef\xbb\xbfname,\"a, b\",n\r\n\"say \"\"hi\"\"\", 1.5 ,7\r\n\r\n\"two\nlines\",-2e-3,+8.0\nx,inf,9"));
  CHECK(csv.names == std::vector<std::string>{"name", "a, b", "n"});
  REQUIRE(csv.rows() == 3);
  CHECK(csv.cell(0, 0) == "say \"hi\"");
  CHECK(csv.cell(1, 0) == "two\nlines");
  CHECK(csv.lines == std::vector<int64_t>{2, 4, 6});
  CHECK(csv.column("a, b", f64).to_vector<double>() == std::vector<double>{1.5, -2e-3, INFINITY});
  CHECK(csv.column("n", i64).to_vector<int64_t>() == std::vector<int64_t>{7, 8, 9});
  const Tensor both = csv.columns({"n", "a, b"});
  CHECK((both.dtype() == f32 && both.shape() == Shape{3, 2}));
  CHECK(both.to_vector() == std::vector<float>{7, 1.5f, 8, -2e-3f, 9, INFINITY});
  CHECK_THROWS_WITH(csv.index("nane"), Contains("did you mean \"name\""));
  CHECK_THROWS_AS(csv.column("n", boolean), DTypeError);

  const Csv plain = read_csv(folder.put("file", "1;2\n3;4\n"), {.header = false, .separator = ';'});
  CHECK(plain.columns(i64).to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4});
  CHECK(plain.column("1").to_vector() == std::vector<float>{2, 4});
  const Csv head = read_csv(folder.put("file", "a,b\n"));
  CHECK((head.rows() == 0 && head.columns().shape() == Shape{0, 2}));
  CHECK(read_csv(folder.put("file", kFixed), {.header = false}).cell(0, 0) == "abcabcabcabd");
  CHECK_THROWS_AS(read_csv(folder / "file", {.separator = '"'}), ValueError);
}

TEST_CASE("read_csv: lines that end as on old Macs, also within quotes; numbers that are too small", "[data]") {
  TempFolder folder;
  const Csv csv = read_csv(folder.put("file", "a,b\r1,\"x\ry\"\r\r-1e-400,\"z\"\r4,w"));
  REQUIRE(csv.rows() == 3);
  CHECK(csv.names == std::vector<std::string>{"a", "b"});
  CHECK(csv.column("a", f64).to_vector<double>() == std::vector<double>{1, 0, 4});
  CHECK(csv.cell(0, 1) == "x\ry");
  CHECK(csv.cell(2, 1) == "w");
  CHECK(csv.lines == std::vector<int64_t>{2, 5, 6});
  refuses([&] { read_csv(folder.put("file", "a,b\r1,2\r\n3")); }, {"line 3", "1 cells"});
  refuses([&] { read_csv(folder.put("file", "a,b\r1,\"2\"3\r")); }, {"line 2", "goes on after its quote"});
}

TEST_CASE("read_csv: many columns take time in proportion", "[data]") {
  TempFolder folder;
  std::string header, row;
  for (int i = 0; i < 40000; ++i) header += str(i ? "," : "", "column ", i), row += str(i ? "," : "", i);
  const std::string path = folder.put("file", header + "\n" + row);
  const auto start = std::chrono::steady_clock::now();
  const Csv csv = read_csv(path);
  const auto middle = std::chrono::steady_clock::now();
  const Tensor x = csv.columns();
  CHECK(std::chrono::steady_clock::now() - middle < 30 * (middle - start));  // looked up one by one: 200 times
  CHECK(x.shape() == Shape{1, 40000});
  CHECK(csv.columns({"column 39999", "column 7"}).to_vector() == std::vector<float>{39999, 7});
  CHECK_THROWS_WITH(csv.columns({"column 3", "colum 5"}), Contains("no column \"colum 5\""));
  const Csv twice = read_csv(folder.put("file", "a,b,a\n1,2,3"));
  CHECK_THROWS_WITH(twice.columns({"b", "a"}), Contains("two columns \"a\""));
}

TEST_CASE("read_csv: missing values and classes", "[data]") {
  TempFolder folder;
  const std::string path = folder.put("file", "town,x\nrome,1\noslo,\nrome,\n");
  refuses([&] { read_csv(path).column("x"); }, {path, "line 3, column \"x\"", "empty"});
  CHECK(read_csv(path, {.missing = -1}).column("x", i32).to_vector<int32_t>() == std::vector<int32_t>{1, -1, -1});
  const auto holes = read_csv(path, {.missing = std::nan("")}).column("x").to_vector();
  CHECK((holes[0] == 1 && std::isnan(holes[1]) && std::isnan(holes[2])));
  CHECK_THROWS_AS(read_csv(path, {.missing = std::nan("")}).column("x", i64), ValueError);
  CHECK_THROWS_AS(read_csv(path, {.missing = 0.5}).column("x", i64), ValueError);
  CHECK(read_csv(path, {.missing = -0x1p31}).column("x", i32).to_vector<double>()[1] == -0x1p31);
  CHECK_THROWS_AS(read_csv(path, {.missing = 0x1p31}).column("x", i32), ValueError);
  CHECK(read_csv(path, {.missing = 4e9}).column("x", i64).to_vector<double>()[1] == 4e9);
  CHECK_THROWS_AS(read_csv(path, {.missing = 0x1p63}).column("x", i64), ValueError);
  CHECK_THROWS_AS(read_csv(path, {.missing = 1e300}).column("x"), ValueError);

  const Csv csv = read_csv(path);
  std::vector<std::string> towns;
  CHECK(csv.classes("town", towns).to_vector<int64_t>() == std::vector<int64_t>{1, 0, 1});
  CHECK(towns == std::vector<std::string>{"oslo", "rome"});
  std::vector<std::string> known{"rome", "bonn", "oslo"};
  CHECK(csv.classes("town", known).to_vector<int64_t>() == std::vector<int64_t>{0, 2, 0});
  std::vector<std::string> twice{"rome", "oslo", "rome"};
  CHECK_THROWS_WITH(csv.classes("town", twice),
                    "csv: '" + path + "', column \"town\": the class \"rome\" is listed twice");
  std::vector<std::string> fewer{"rome"};
  refuses([&] { csv.classes("town", fewer); }, {path, "line 3", "\"oslo\" is none of the 1 classes"});
}

TEST_CASE("read_csv: what is no table is an IOError that names line and column", "[data]") {
  TempFolder folder;
  const auto hostile = [&](const std::string& text, std::vector<std::string> parts) {
    const std::string path = folder.put("file", text);
    parts.push_back(path);
    refuses([&] { read_csv(path); }, parts);
  };
  hostile("", {"is empty"});
  hostile("\n\n", {"is empty"});
  hostile("a,b\n1,2\n\n3\n", {"line 4: 1 cells; need 2"});
  hostile("a,b\n1,2,3\n", {"line 2: 3 cells"});
  hostile("a,b\n1,\"2\n3,4\n", {"line 2: a quoted cell does not end"});
  hostile("a,b\n1,\"2\"3\n", {"line 2: cell 2 goes on after its quote"});
  const auto no_number = [&](const std::string& cell, DType dtype) {
    const std::string path = folder.put("file", "a,b\n1,1\n" + cell + ",1\n");
    refuses([&] { read_csv(path).columns(dtype); }, {path, "line 3, column \"a\"", "is not a number of type"});
  };
  for (const char* cell : {"x", "1x", "1 2", "0x10", "1e999", "--1", "+-1", "++1", "\"\"\"\"", "1.5.2"})
    no_number(cell, f32);
  no_number("1e39", f32), no_number("-1e39", f32), no_number("3.4028236e38", f32), no_number("3.4028235e38", bf16),
      no_number("+-1", i64);
  const std::vector<float> ends =
      read_csv(folder.put("file", "a\n+3.4028235e38\n-3.4028235e38\n")).column("a").to_vector<float>();
  CHECK(ends == std::vector<float>{std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()});
  // A number becomes f32 and then bf16: the last one that is finite then, and the next.
  const std::string last = "3.3961774278184117e38", next = "3.396177427818412e38";
  no_number(next, bf16), no_number("-" + next, bf16);
  CHECK(read_csv(folder.put("file", "a\n" + last + "\n-3.39e38\n")).column("a", bf16).to_vector<double>() ==
        std::vector<double>{0x1.fep127, -0x1.fep127});
  for (const char* cell : {"1.5", "9223372036854775808", "1e300", "1e-3", "7x", "nan"}) no_number(cell, i64);
  no_number("2147483648", i32), no_number("-2147483649", i32);
  CHECK(read_csv(folder.put("file", "a\n4.000e+00\n")).column("a", i64).item() == 4);
  CHECK(read_csv(folder.put("file", "a\n+.5e1\n")).column("a", i64).item() == 5);
  CHECK(read_csv(folder.put("file", "a\n-2147483648\n")).column("a", i32).item() == -2147483648.0);
  CHECK(read_csv(folder.put("file", "a\n9223372036854775807\n")).column("a", i64).item<int64_t>() ==
        std::numeric_limits<int64_t>::max());
  no_number(std::string(1000, 'z'), f32);
}

TEST_CASE("text windows: tokens, strides, the last window", "[data]") {
  TempFolder folder;
  CHECK(read_text(folder.put("file", kFixed)) == "abcabcabcabd");
  CHECK(read_text(folder.put("file", "a\r\nb")) == "a\r\nb");
  refuses([&] { read_text(folder.put("file", "")); }, {"is empty"});

  const Tensor tokens = byte_tokens("abcdefg\xff");
  CHECK((tokens.dtype() == i32 && tokens.to_vector<int32_t>()[7] == 255));
  const TextWindows windows(tokens, 3);
  REQUIRE(windows.size() == 2);  // the third would need a tenth token
  const TextBatch batch = windows(Tensor::from<int64_t>({1, 0}));
  CHECK(batch.inputs.to_vector<int64_t>() == std::vector<int64_t>{'d', 'e', 'f', 'a', 'b', 'c'});
  CHECK(batch.targets.to_vector<int64_t>() == std::vector<int64_t>{'e', 'f', 'g', 'b', 'c', 'd'});
  CHECK(TextWindows(tokens, 3, 1).size() == 5);
  CHECK(TextWindows(tokens, 7).size() == 1);
  CHECK(TextWindows(Tensor::from<int64_t>({5, 6, 7}), 2, 9)(Tensor::from<int64_t>({0})).targets.to_vector<int64_t>() ==
        std::vector<int64_t>{6, 7});
  CHECK_THROWS_AS(TextWindows(tokens, 8), ShapeError);
  CHECK_THROWS_AS(TextWindows(tokens, 0), ValueError);
  CHECK_THROWS_AS(TextWindows(Tensor({1, 2, 3}), 1), DTypeError);
  CHECK_THROWS_AS(windows(Tensor::from<int64_t>({2})), ValueError);
  CHECK_THROWS_WITH(windows(Tensor::from<int64_t>({0, -1})), Contains("text_windows: index -1 is outside [0, 2)"));
  CHECK_THROWS_WITH(windows(Tensor({1, 2})), "text_windows: rows must be i64 of rank 1 — got f32 [2]");
}
