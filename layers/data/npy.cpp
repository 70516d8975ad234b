#include <sluice/layers/data/npy.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/file_dtype.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

namespace sluice {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

/// NumPy's names of dtypes, without the order of bytes, and those of kFileDTypes.
constexpr std::pair<std::string_view, std::string_view> kDTypes[] = {
    {"f8", "F64"}, {"f4", "F32"}, {"f2", "F16"}, {"i8", "I64"}, {"i4", "I32"}, {"i2", "I16"},
    {"i1", "I8"},  {"u8", "U64"}, {"u4", "U32"}, {"u2", "U16"}, {"u1", "U8"},  {"b1", "BOOL"}};

const detail::FileDType* file_dtype(std::string_view name) {
  return std::ranges::find(detail::kFileDTypes, name, &detail::FileDType::name);
}

/// What the header says: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, a dictionary of Python.
class Header {
 public:
  const detail::FileDType* type;
  bool by_columns;  // the first dim is the one without gaps
  Shape shape;

  Header(const std::string& path, std::string_view text) : path_(path), text_(text) {
    const std::string_view descr = value("descr");
    check(descr.size() > 1 && (descr[0] == '\'' || descr[0] == '"'), "structured arrays are not read");
    const std::string_view name = descr.substr(1, descr.find(descr[0], 1) - 1);
    const bool plain = name.size() == 3 && std::string_view("<|=").find(name[0]) != std::string_view::npos;
    check(name.empty() || name[0] != '>', "numbers are big-endian: in Python, a.astype(a.dtype.newbyteorder('<'))");
    const auto known =
        std::ranges::find(kDTypes, plain ? name.substr(1) : "", &std::pair<std::string_view, std::string_view>::first);
    check(known != std::end(kDTypes), "numbers of dtype '", name, "' are not read");
    type = file_dtype(known->second);
    const std::string_view order = value("fortran_order");
    by_columns = order.starts_with("True");
    check(by_columns || order.starts_with("False"), "fortran_order is neither True nor False");
    read_shape(value("shape"));
  }

  /// Bytes of all numbers.
  uint64_t bytes() const { return static_cast<uint64_t>(shape.numel() * type->bytes); }

 private:
  void check(bool good, const auto&... why) const {
    if (!good) fail<IOError>("read_npy: '", path_, "': ", why...);
  }
  /// The text behind a key.
  std::string_view value(const std::string& key) const {
    std::size_t at = std::min(text_.find("'" + key + "':"), text_.find("\"" + key + "\":"));
    if (at != std::string_view::npos) at = text_.find_first_not_of(" ", at + key.size() + 3);
    check(at < text_.size(), "the header has no value of '", key, "'");
    return text_.substr(at);
  }
  void read_shape(std::string_view text) {
    constexpr uint64_t most = uint64_t{1} << 46;
    const char *at = text.data(), *const end = at + text.size();
    const auto skip = [&](std::string_view any) {
      while (at < end && any.find(*at) != std::string_view::npos) ++at;
    };
    check(at < end && *at == '(', "shape is not a list in round brackets");
    uint64_t bound = static_cast<uint64_t>(std::max(type->bytes, size_of(type->dtype)));
    for (++at, skip(" "); at < end && *at != ')'; skip(", ")) {
      uint64_t size = 0;
      const auto [behind, error] = std::from_chars(at, end, size);
      check(error == std::errc() && behind > at, "shape holds something else than sizes");
      check(size <= most / bound, "the shape's size overflows");
      check(shape.rank() < kMaxRank, "the array has more than ", kMaxRank, " dims");
      bound *= std::max<uint64_t>(size, 1), at = behind;
      shape.push_back(static_cast<int64_t>(size));
    }
    check(at < end, "shape does not end");
  }

  const std::string& path_;
  std::string_view text_;
};

}  // namespace

Tensor read_npy(const std::string& path) {
  FileReader file(path, "read_npy");
  const auto check = [&](bool good, const auto&... why) {
    if (!good) fail<IOError>("read_npy: '", path, "': ", why...);
  };
  unsigned char head[12] = {};  // the magic text, the version, the length of the header: 2 bytes, from version 2 on 4
  check(file.size() >= 10, "the file has ", file.size(), " bytes; an NPY file has 10 before its header");
  file.read(head, 10);
  check(std::equal(kMagic.begin(), kMagic.end(), reinterpret_cast<const char*>(head)),
        "does not begin as an NPY file: '\\x93NUMPY'");
  const int version = head[6];
  check(version >= 1 && version <= 3, "is of version ", version, "; 1 to 3 are known");
  const uint64_t before = version == 1 ? 10 : 12;
  check(file.size() >= before, "the file ends before its header");
  file.read(head + 10, before - 10);
  uint64_t length = 0;
  for (uint64_t i = 8; i < before; ++i) length |= uint64_t{head[i]} << (8 * (i - 8));
  check(length <= file.size() - before, "the header takes ", length, " bytes; the file has ", file.size() - before);
  std::string text(length, '\0');
  file.read(text.data(), text.size());
  const Header header(path, text);
  const uint64_t data = file.size() - before - length;
  check(header.bytes() == data, header.shape, " of ", header.type->name, " takes ", header.bytes(),
        " bytes; the file has ", data);

  const Shape& shape = header.shape;
  Shape stored = shape, order;
  if (header.by_columns) std::reverse(stored.begin(), stored.end());
  for (int d = shape.rank(); d-- > 0;) order.push_back(d);
  const Tensor x = detail::read_numbers(*header.type, stored, [&](void* to, std::size_t n) { file.read(to, n); });
  const std::string wrong = detail::wrong_number(*header.type, x);
  check(wrong.empty(), "the array ", wrong);
  return header.by_columns ? contiguous(permute(x, order)) : x;
}

void write_npy(const std::string& path, const Tensor& x) {
  const char* op = "write_npy";
  if (!x.defined()) fail<ValueError>(op, ": the tensor is undefined (default-constructed or moved from)");
  if (x.dtype() == bf16) fail<DTypeError>(op, ": NumPy has no bf16 — got ", x, "; write to(x, f32)");
  const Tensor rows = contiguous(detail::on_cpu(op, x.detach()));
  const auto own = std::ranges::find(detail::kFileDTypes, x.dtype(), &detail::FileDType::dtype);
  const auto name = std::ranges::find(kDTypes, own->name, &std::pair<std::string_view, std::string_view>::second);
  std::string text =
      str("{'descr': '", own->bytes == 1 ? '|' : '<', name->first, "', 'fortran_order': False, 'shape': (");
  for (int d = 0; d < x.rank(); ++d) text += str(d > 0 ? " " : "", x.dim(d), d + 1 < x.rank() || d == 0 ? "," : "");
  text += "), }";
  text.resize((10 + text.size() + 1 + 63) / 64 * 64 - 11, ' '), text += '\n';  // numbers begin at a multiple of 64
  write_file_atomically(
      path,
      [&](FileWriter& out) {
        out.write(std::string(kMagic) + '\1' + '\0' + static_cast<char>(text.size() % 256) +
                  static_cast<char>(text.size() / 256) + text);
        out.write(rows.raw(), static_cast<std::size_t>(rows.numel() * size_of(rows.dtype())));
      },
      op);
}

}  // namespace sluice
