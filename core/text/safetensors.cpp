#include <sluice/core/text/safetensors.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/file_dtype.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/utf8.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <vector>

namespace sluice {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference implementation's limit
constexpr uint64_t kMaxBytes = uint64_t{1} << 46;

int order_of(DType t) {
  const auto at = std::ranges::find(detail::kFileDTypes, t, &detail::FileDType::dtype);
  return static_cast<int>(at - std::begin(detail::kFileDTypes));
}

/// A name from the file for an error text, cut to 100 characters.
std::string cited(const std::string& name) { return str("'", detail::shortened(name, 100), "'"); }

struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape, offsets;
  const detail::FileDType* type = nullptr;  // of dtype
  bool wanted = true;
  Shape dims;  // of shape

  std::size_t bytes() const { return offsets[1] - offsets[0]; }
};

/// What j is, for an error text.
const char* kind_of(const Json& j) {
  constexpr const char* kKinds[] = {"null",     "a boolean", "a number", "a fractional or huge number",
                                    "a string", "an array",  "an object"};
  return kKinds[j.value.index()];
}

/// Checks one tensor's dtype, shape and range against each other and fills type and dims. Returns the reason if
/// something is wrong, else "".
std::string check_entry(Entry& e) {
  if (e.offsets.size() != 2) return str("tensor ", cited(e.name), " needs two data_offsets");
  const uint64_t begin = e.offsets[0], end = e.offsets[1];
  if (begin > end) return str("tensor ", cited(e.name), " has reversed data_offsets [", begin, ",", end, "]");
  if (!e.wanted) return {};
  const auto known = std::ranges::find(detail::kFileDTypes, e.dtype, &detail::FileDType::name);
  if (known == std::end(detail::kFileDTypes)) {
    std::string all;
    for (const detail::FileDType& t : detail::kFileDTypes) all += str(all.empty() ? "" : ", ", t.name);
    return str("tensor ", cited(e.name), " has the dtype ", cited(e.dtype), "; known are ", all);
  }
  e.type = known;
  // Zero sizes are counted as one here, so that strides cannot overflow either.
  const auto item = static_cast<uint64_t>(std::max(known->bytes, size_of(known->dtype)));
  uint64_t bound = item, bytes = static_cast<uint64_t>(known->bytes);
  for (uint64_t s : e.shape) {
    if (s > kMaxBytes / bound) return str("tensor ", cited(e.name), " has a shape whose size overflows");
    bound *= std::max<uint64_t>(s, 1), bytes *= s;
    e.dims.push_back(static_cast<int64_t>(s));
  }
  if (end - begin != bytes)
    return str("tensor ", cited(e.name), " ", e.dims, " ", e.dtype, " takes ", bytes, " bytes, its data_offsets span ",
               end - begin);
  return {};
}

/// The bytes of a file: read() copies the next ones, mapped() returns a view of them.
class Source {
 public:
  Source(const char* op, const std::string& path, bool map) {
    if (map) mapping_ = std::make_shared<MappedFile>(path, op);
    else file_.emplace(path, op);
  }
  uint64_t size() const { return file_ ? file_->size() : mapping_->size(); }
  void read(void* to, std::size_t n) {
    if (file_) return file_->read(to, n);
    std::copy_n(mapping_->data() + at_, n, static_cast<std::byte*>(to));  // of an empty tensor `to` is null
    at_ += n;
  }
  void skip(uint64_t n) {
    if (file_) file_->skip(n);
    at_ += n;
  }
  /// A tensor over the next bytes. Undefined if it is empty, or if the bytes are not mapped or not aligned.
  Tensor mapped(const Shape& shape, DType dtype) {
    if (file_ || shape.numel() == 0) return {};
    std::byte* const data = mapping_->data() + at_;
    if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(size_of(dtype)) != 0) return {};
    const auto bytes = static_cast<std::size_t>(shape.numel() * size_of(dtype));
    at_ += bytes;
    auto storage = Storage::borrow(data, bytes, [owner = mapping_] {});
    return Tensor(Ref<TensorImpl>(new TensorImpl(std::move(storage), shape, dtype)));
  }

 private:
  std::optional<FileReader> file_;
  std::shared_ptr<MappedFile> mapping_;
  uint64_t at_ = 0;
};

/// The reading of one file. All of the header is checked before memory is taken for a tensor.
class Reading {
 public:
  Reading(const char* op, const std::string& path, bool map) : op_(op), path_(path), file_(op, path, map) {}

  SafeTensors read(const std::function<bool(const std::string&)>& wanted) {
    const std::string header = read_header();
    SafeTensors out;
    std::vector<Entry> entries;
    for (const auto& [name, value] : parsed(header))
      if (name == "__metadata__") out.metadata = metadata(value);
      else entries.push_back(entry(name, value));
    for (Entry& e : entries) {
      e.wanted = !wanted || wanted(e.name);
      const std::string wrong = check_entry(e);
      check(wrong.empty(), wrong);
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
    check_offsets(entries, file_.size() - 8 - header.size());
    for (const Entry& e : entries)
      if (e.wanted) out.tensors.emplace(e.name, read_tensor(e));
      else file_.skip(e.bytes());
    return out;
  }

 private:
  void check(bool good, const auto&... why) const {
    if (!good) fail<IOError>(op_, ": '", path_, "': ", why...);
  }

  std::string read_header() {
    check(file_.size() >= 8, "the file has ", file_.size(), " bytes; the header's length alone takes 8");
    uint64_t length;
    file_.read(&length, 8);
    std::string start(reinterpret_cast<const char*>(&length), 8);  // "<!DOCTYP", "version " of Git LFS
    check(length <= kMaxHeader || !(start.starts_with("PK") || start.starts_with("\x80\x02")),
          "is a pickle, not safetensors; in Python: safetensors.torch.save_file(model.state_dict(), path)");
    std::replace_if(
        start.begin(), start.end(), [](char c) { return c < ' ' || c > '~'; }, '.');
    check(length <= kMaxHeader, "the header claims ", length, " bytes; the limit is ", kMaxHeader,
          "; is it a safetensors file? It begins with '", start, "'");
    check(length <= file_.size() - 8, "the header claims ", length, " bytes, more than the file has");
    std::string header(length, '\0');
    file_.read(header.data(), header.size());
    check(!header.empty() && header[0] == '{', "the header is not a JSON object");
    return header;
  }

  Json::Object parsed(const std::string& header) const {
    try {
      Json json = parse_json(header);
      check(json.as<Json::Object>(), "the header is not a JSON object");
      return std::get<Json::Object>(std::move(json.value));
    } catch (const ValueError& e) {
      check(false, "the header: ", e.what());
      throw;
    }
  }
  std::map<std::string, std::string> metadata(const Json& value) const {
    const auto* all = value.as<Json::Object>();
    check(all, "__metadata__ is ", kind_of(value), ", not an object");
    std::map<std::string, std::string> out;
    for (const auto& [key, v] : *all) {
      const auto* text = v.as<std::string>();
      check(text, "metadata ", cited(key), " is ", kind_of(v), ", not a string");
      out.emplace(key, *text);
    }
    return out;
  }
  Entry entry(const std::string& name, const Json& value) const {
    const auto* all = value.as<Json::Object>();
    check(all, cited(name), " is ", kind_of(value), ", not an object");
    const std::string tensor = str("tensor ", cited(name));
    for (const auto& [key, v] : *all)
      check(key == "dtype" || key == "shape" || key == "data_offsets", tensor, " has an unknown key ", cited(key));
    const auto find = [&](const char* key) -> const Json& {
      const Json* v = value.find(key);
      check(v, tensor, " has no ", key);
      return *v;
    };
    const auto* dtype = find("dtype").as<std::string>();
    check(dtype, tensor, ": dtype is ", kind_of(find("dtype")));
    const auto naturals = [&](const char* key) {
      const auto* list = find(key).as<Json::List>();
      check(list, tensor, ": ", key, " is ", kind_of(find(key)));
      std::vector<uint64_t> out;
      for (const Json& v : *list) {
        const auto* i = v.as<int64_t>();
        check(i && *i >= 0, tensor, ": ", key, " holds ", i ? "a negative number" : kind_of(v));
        out.push_back(static_cast<uint64_t>(*i));
      }
      return out;
    };
    Entry e{.name = name, .dtype = *dtype, .shape = naturals("shape"), .offsets = naturals("data_offsets"), .dims = {}};
    check(e.shape.size() <= kMaxRank, tensor, " has more than ", kMaxRank, " dimensions");
    return e;
  }

  /// The sorted tensors must fill the `data` bytes behind the header.
  void check_offsets(const std::vector<Entry>& entries, uint64_t data) const {
    uint64_t at = 0;
    for (const Entry& e : entries) {
      const uint64_t begin = e.offsets[0];
      check(begin >= at, "tensor ", cited(e.name), " overlaps another: it starts at ", begin, ", not at ", at);
      check(begin == at, "there is a hole before tensor ", cited(e.name), ": it starts at ", begin, ", not at ", at);
      at = e.offsets[1];
    }
    check(at <= data, "the tensors take ", at, " bytes, the file holds only ", data);
    check(at == data, "the file has ", data - at, " trailing bytes");
  }

  Tensor read_tensor(const Entry& e) {
    Tensor t = e.type->widen ? Tensor() : file_.mapped(e.dims, e.type->dtype);
    if (!t.defined())
      t = detail::read_numbers(*e.type, e.dims, [&](void* to, std::size_t bytes) { file_.read(to, bytes); });
    const std::string wrong = detail::wrong_number(*e.type, t);
    check(wrong.empty(), "tensor ", cited(e.name), " ", wrong);
    return t;
  }

  const char* op_;
  const std::string& path_;
  Source file_;
};

}  // namespace

SafeTensors load_safetensors(const std::string& path, const std::function<bool(const std::string&)>& wanted,
                             const char* op) {
  return Reading(op, path, false).read(wanted);
}
SafeTensors map_safetensors(const std::string& path, const std::function<bool(const std::string&)>& wanted,
                            const char* op) {
  return Reading(op, path, true).read(wanted);
}

void save_safetensors(const std::string& path, const SafeTensors& file, const char* op) {
  std::vector<std::pair<std::string, Tensor>> sorted(file.tensors.begin(), file.tensors.end());
  for (const auto& [name, t] : sorted) {
    if (!t.defined()) fail<IOError>(op, ": '", path, "': tensor '", name, "' is undefined");
    if (name == "__metadata__") fail<IOError>(op, ": '", path, "': the name '__metadata__' is reserved");
    if (t.device() == meta) fail<DeviceError>(op, ": tensor '", name, "' is on meta and has no values");
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](auto& a, auto& b) { return order_of(a.second.dtype()) < order_of(b.second.dtype()); });

  Json::Object header;
  if (!file.metadata.empty())
    header.emplace_back("__metadata__", Json::Object(file.metadata.begin(), file.metadata.end()));
  int64_t at = 0;
  for (const auto& [name, t] : sorted) {
    const int64_t end = at + t.numel() * size_of(t.dtype());
    header.emplace_back(name, Json::Object{{"dtype", detail::kFileDTypes[order_of(t.dtype())].name},
                                           {"shape", Json::List(t.shape().begin(), t.shape().end())},
                                           {"data_offsets", Json::List{at, end}}});
    at = end;
  }
  std::string text;
  try {
    text = to_text(header);
  } catch (const ValueError& e) {
    fail<IOError>(op, ": '", path, "': a name or metadata entry is not UTF-8 (", e.what(), ")");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeader)
    fail<IOError>(op, ": '", path, "': the header would take ", text.size(), " bytes; the limit is ", kMaxHeader);

  write_file_atomically(
      path,
      [&](FileWriter& out) {
        const uint64_t length = text.size();
        out.write(&length, 8);
        out.write(text);
        for (const auto& [name, t] : sorted) {
          Tensor rows = detail::on_cpu(op, t);
          if (!rows.is_contiguous()) {
            rows = empty(t.shape(), {t.dtype()});
            detail::copy_elements(t, rows);
          }
          out.write(rows.raw(), static_cast<std::size_t>(rows.numel() * size_of(rows.dtype())));
        }
      },
      op);
}

}  // namespace sluice
