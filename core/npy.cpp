#include <sluice/core/npy.h>

#include <sluice/core/file.h>

#include <algorithm>
#include <bit>
#include <optional>

namespace sluice {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr uint64_t kMaxHeader =
    1 << 16;  // ours are under 200 bytes; only structured dtypes need more
constexpr int64_t kMaxBytes = int64_t{1} << 46;

constexpr std::pair<DType, std::string_view> kNames[] = {
    {f32, "<f4"}, {f64, "<f8"}, {i32, "<i4"}, {i64, "<i8"}, {boolean, "|b1"}};

/// Reads the one Python literal a header holds:
///   {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class HeaderParser {
 public:
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<Shape> shape;

  HeaderParser(const std::string& path, std::string_view text) : path_(path), rest_(text) {
    expect('{');
    while (!accept('}')) {
      std::string key = quoted();
      expect(':');
      if (key == "descr") once(key, descr), descr = quoted();
      else if (key == "fortran_order") once(key, fortran), fortran = boolean_word();
      else if (key == "shape") once(key, shape), shape = tuple();
      else stop("unknown header key '", key, "'");
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) stop("text after the header's closing brace");
    if (!descr) stop("the header has no 'descr'");
    if (!fortran) stop("the header has no 'fortran_order'");
    if (!shape) stop("the header has no 'shape'");
  }

 private:
  template <class... Why>
  [[noreturn]] void stop(const Why&... why) {
    fail<IOError>("load_npy: '", path_, "': ", why...);
  }
  template <class T>
  void once(const std::string& key, const std::optional<T>& value) {
    if (value) stop("the header has the key '", key, "' twice");
  }
  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size()));
  }
  bool accept(char c) {
    skip_space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c))
      stop("malformed header: expected '", c, "' before '", std::string(rest_.substr(0, 20)), "'");
  }
  std::string quoted() {
    skip_space();
    if (rest_.starts_with('[')) stop("structured dtypes are not supported");
    const char quote = rest_.starts_with('"') ? '"' : '\'';
    expect(quote);
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) stop("malformed header: a string does not end");
    std::string s(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return s;
  }
  bool boolean_word() {
    skip_space();
    for (std::string_view word : {"True", "False"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return word == "True";
    }
    stop("fortran_order is neither True nor False");
  }
  int64_t integer() {
    skip_space();
    if (rest_.starts_with('-')) stop("shape has a negative size");
    int64_t n = 0;
    std::size_t digits = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      n = 10 * n + (rest_[digits] - '0');
      if (n > kMaxBytes) stop("shape has a size that no file can hold");
    }
    if (digits == 0) stop("shape is not a tuple of integers");
    rest_.remove_prefix(digits);
    return n;
  }
  Shape tuple() {
    Shape s;
    expect('(');
    while (!accept(')')) {
      if (s.rank() == kMaxRank) stop("more than ", kMaxRank, " dimensions");
      s.push_back(integer());
      if (!accept(',')) {
        if (s.rank() == 1) stop("shape is not a tuple");  // (3) is an integer in Python
        expect(')');
        break;
      }
    }
    return s;
  }

  const std::string& path_;
  std::string_view rest_;
};

}  // namespace

Tensor load_npy(const std::string& path) {
  FileReader file(path);
  auto check = [&](bool good, const auto&... why) {
    if (!good) fail<IOError>("load_npy: '", path, "': ", why...);
  };
  unsigned char start[12] = {};
  check(file.size() >= 10, "the file has ", file.size(), " bytes, too few for a header");
  file.read(start, 8);
  check(std::equal(kMagic.begin(), kMagic.end(), reinterpret_cast<char*>(start)),
        "not an .npy file: it does not start with \\x93NUMPY");
  const int version = start[6];
  check(version >= 1 && version <= 3, "unknown format version ", version);
  const uint64_t prefix = version == 1 ? 10 : 12;  // the length takes 2 or 4 bytes
  check(file.size() >= prefix, "the file ends within its header");
  file.read(start + 8, prefix - 8);
  uint64_t length = 0;
  for (uint64_t i = prefix; i-- > 8;) length = length << 8 | start[i];
  check(length <= kMaxHeader, "the header claims ", length, " bytes; the limit is ", kMaxHeader);
  check(length <= file.size() - prefix, "the header claims ", length,
        " bytes, more than the file has");
  std::string text(length, '\0');
  file.read(text.data(), length);
  const HeaderParser header(path, text);

  auto known = std::find_if(std::begin(kNames), std::end(kNames),
                            [&](auto& n) { return n.second == *header.descr; });
  check(known != std::end(kNames), "dtype '", *header.descr,
        "' is not supported; need <f4, <f8, <i4, <i8 or |b1");
  const DType type = known->first;
  const Shape& shape = *header.shape;
  int64_t bound = size_of(type), bytes = bound;  // bound counts zero sizes as one: strides must fit
  for (int64_t s : shape) {
    check(s <= kMaxBytes / bound, "shape ", shape, " overflows");
    bound *= std::max<int64_t>(s, 1), bytes *= s;
  }
  const uint64_t held = file.size() - prefix - length;
  check(held == static_cast<uint64_t>(bytes), "shape ", shape, " ", type, " takes ", bytes,
        " bytes, the file holds ", held);

  Tensor data = empty(shape, {.dtype = type});
  file.read(data.raw(), static_cast<std::size_t>(bytes));
  if (type == boolean)  // any byte may stand in the file, a C++ bool is 0 or 1
    std::for_each_n(data.raw(), bytes, [](std::byte& b) { b = std::byte{b != std::byte{0}}; });
  if (!*header.fortran || shape.rank() < 2) return data;
  Layout columns(shape);  // the first dim runs fastest
  int64_t step = 1;
  for (int i = 0; i < shape.rank(); ++i) columns.strides[i] = step, step *= shape[i];
  Tensor rows = empty_like(data);
  detail::copy_elements(alias(data, columns), rows);
  return rows;
}

void save_npy(const std::string& path, const Tensor& x) {
  if (x.device() != cpu)
    fail<DeviceError>("save_npy: the tensor is on ", x.device(), "; copy it to cpu first");
  auto known = std::find_if(std::begin(kNames), std::end(kNames),
                            [&](auto& n) { return n.first == x.dtype(); });
  if (known == std::end(kNames))
    fail<DTypeError>("save_npy: NumPy has no ", x.dtype(), "; convert with to(x, f32)");
  std::string shape;
  for (int64_t s : x.shape()) shape += str(s, x.rank() == 1 ? "," : ", ");
  if (x.rank() > 1) shape.resize(shape.size() - 2);
  std::string header =
      str("{'descr': '", known->second, "', 'fortran_order': False, 'shape': (", shape, "), }");
  // With magic, version and length (10 bytes) and the newline, data starts at a multiple of 64.
  header.resize((header.size() + 11 + 63) / 64 * 64 - 11, ' ');
  header += '\n';

  Tensor rows = x;
  if (!x.is_contiguous()) {
    rows = empty_like(x);
    detail::copy_elements(x, rows);
  }
  write_file_atomically(path, [&](FileWriter& out) {
    out.write(std::string(kMagic) + std::string("\x01\x00", 2));
    const uint16_t length = static_cast<uint16_t>(header.size());
    out.write(&length, 2);
    out.write(header);
    out.write(rows.raw(), static_cast<std::size_t>(rows.numel() * size_of(rows.dtype())));
  });
}

}  // namespace sluice
