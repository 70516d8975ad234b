#include <sluice/layers/data/csv.h>

#include <sluice/core/error.h>
#include <sluice/core/number/number.h>
#include <sluice/core/text/options.h>
#include <sluice/core/text/utf8.h>
#include <sluice/layers/data/gzip.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace sluice {

namespace {

/// Text from the file for a message, at most 40 bytes of it.
std::string cited(std::string_view text) { return str("\"", detail::shortened(text, 40), "\""); }

/// Reads the cells from the text of a file.
class Parser {
 public:
  Parser(std::string_view text, Csv& csv) : text_(text), csv_(csv) {
    if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);  // skip the byte order mark that some programs write
  }
  void run() {
    std::vector<std::string> row;
    bool first = true;
    while (at_ < text_.size()) {
      const int64_t begun = line_;
      row.clear();
      while (cell(row)) {}
      if (row.size() == 1 && row[0].empty() && !quoted_) continue;  // an empty line
      if (first) name_columns(row);
      if (row.size() != csv_.names.size())
        bad(begun, row.size(), " cells; need ", csv_.names.size(),
            csv_.options.header ? ", as the header has" : ", as the first line has");
      if (!(std::exchange(first, false) && csv_.options.header)) {
        csv_.cells.insert(csv_.cells.end(), std::make_move_iterator(row.begin()), std::make_move_iterator(row.end()));
        csv_.lines.push_back(begun);
      }
    }
    if (first) fail<IOError>("read_csv: '", csv_.path, "' is empty");
  }

 private:
  [[noreturn]] void bad(int64_t line, const auto&... what) {
    fail<IOError>("read_csv: '", csv_.path, "' line ", line, ": ", what...);
  }

  void name_columns(const std::vector<std::string>& row) {
    if (csv_.options.header) csv_.names = row;
    else
      for (std::size_t i = 0; i < row.size(); ++i) csv_.names.push_back(std::to_string(i));
  }
  /// Reads a cell and the separator or line end after it. Returns true if another cell of the same line follows.
  bool cell(std::vector<std::string>& row) {
    std::string value;
    quoted_ = at_ < text_.size() && text_[at_] == '"';
    if (quoted_) {
      const int64_t begun = line_;
      for (++at_;; ++at_) {
        if (at_ >= text_.size()) bad(begun, "a quoted cell does not end");
        if (text_[at_] == '"' && (++at_ >= text_.size() || text_[at_] != '"')) break;  // two quotes stand for one
        value += text_[at_];
        if (ends_line(at_)) ++line_;
      }
    } else {
      const char ends[] = {csv_.options.separator, '\n', '\r'};
      const std::size_t end = std::min(text_.find_first_of({ends, 3}, at_), text_.size());
      value = text_.substr(at_, end - at_), at_ = end;
    }
    row.push_back(std::move(value));
    if (at_ >= text_.size()) return false;
    if (text_[at_] == csv_.options.separator) return ++at_, true;
    if (text_[at_] == '\r' && !ends_line(at_)) ++at_;
    if (!ends_line(at_)) bad(line_, "cell ", row.size(), " goes on after its quote");
    ++at_, ++line_;
    return false;
  }
  /// True for the last byte of a line end, which is \n, \r\n or \r.
  bool ends_line(std::size_t at) const {
    return text_[at] == '\n' || (text_[at] == '\r' && (at + 1 >= text_.size() || text_[at + 1] != '\n'));
  }

  std::string_view text_;
  Csv& csv_;
  std::size_t at_ = 0;
  int64_t line_ = 1;
  bool quoted_ = false;  // whether the last cell was quoted
};

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

std::string_view without_plus(std::string_view s) {
  return s.starts_with('+') && !s.starts_with("+-") ? s.substr(1) : s;
}

bool parse(std::string_view s, double& value) {
  const std::optional<double> read = parse_double(without_plus(s));
  value = read.value_or(0);
  return read.has_value();
}
/// Also accepts "3.0" and "3e0", as programs write whole numbers that are stored as floats.
bool parse(std::string_view s, int64_t& value) {
  s = without_plus(s);
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error == std::errc() && end == s.data() + s.size()) return true;
  double real = 0;
  if (!parse(s, real) || std::abs(real) >= 0x1p53 || real != std::trunc(real)) return false;
  value = static_cast<int64_t>(real);
  return true;
}

template <class T> Tensor numbers(const Csv& csv, const std::vector<int64_t>& places, DType dtype) {
  const std::optional<double> missing = csv.options.missing;
  const double high = dtype == i32   ? 0x1p31 - 1
                      : dtype == i64 ? 0x1p63
                      : dtype == f64 ? std::numeric_limits<double>::max()
                      : dtype == f32
                          ? 0x1.fffffefffffffp127   // the largest f64 that rounds to a finite f32
                          : 0x1.fefffefffffffp127;  // the largest that rounds to an f32 and then to a finite bf16
  const double low = dtype == i32 ? -0x1p31 : -high;
  const auto fits = [&](double value) {
    if (!std::isfinite(value)) return !std::is_integral_v<T>;
    return value >= low && (dtype == i64 ? value < high : value <= high) &&
           (!std::is_integral_v<T> || value == std::trunc(value));
  };
  if (missing && !fits(*missing)) fail<ValueError>("csv: missing=", *missing, " is no value of type ", dtype);
  Tensor x = empty({csv.rows(), static_cast<int64_t>(places.size())}, {.dtype = dtype_of<T>()}, "csv");
  T* to = x.mutable_data<T>();
  for (int64_t row = 0; row < csv.rows(); ++row)
    for (const int64_t place : places) {
      const std::string_view cell = trimmed(csv.cell(row, place));
      const auto bad = [&](const auto&... what) {
        fail<IOError>("csv: '", csv.path, "' line ", csv.lines[static_cast<std::size_t>(row)], ", column \"",
                      csv.names[static_cast<std::size_t>(place)], "\": ", what...);
      };
      if (cell.empty()) {
        if (!missing) bad("the cell is empty; set `missing` to the number it stands for");
        *to++ = static_cast<T>(*missing);
        continue;
      }
      const bool read = parse(cell, *to);
      const auto value = static_cast<double>(*to++);
      if (!read || (std::isfinite(value) && (value > high || value < low)))
        bad(cited(cell), " is not a number of type ", dtype, "; classes() reads words");
    }
  return sluice::to(x, dtype);
}

}  // namespace

int64_t Csv::index(std::string_view name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    fail<ValueError>("csv: '", path, "' has no column \"", name, "\"", did_you_mean(name, names), "; it has ",
                     detail::shortened(detail::joined(names), 500));
  if (std::find(found + 1, names.end(), name) != names.end())
    fail<ValueError>("csv: '", path, "' has two columns \"", name, "\"");
  return found - names.begin();
}

Tensor Csv::columns(const std::vector<std::string>& which, DType dtype) const {
  if (dtype == boolean) fail<DTypeError>("csv: asked for bool; need a type of numbers");
  std::unordered_map<std::string_view, std::pair<int64_t, bool>> known;  // index of a name; true if it is unique
  for (std::size_t i = 0; i < names.size() && which.size() > 1; ++i) {
    const auto [at, is_new] = known.try_emplace(names[i], i, true);
    at->second.second = is_new;
  }
  std::vector<int64_t> places;
  for (const std::string& name : which) {
    const auto found = known.find(name);
    const bool once = found != known.end() && found->second.second;
    places.push_back(once ? found->second.first : index(name));  // index() throws for a wrong name
  }
  return is_float(dtype) ? numbers<double>(*this, places, dtype) : numbers<int64_t>(*this, places, dtype);
}

Tensor Csv::column(std::string_view name, DType dtype) const {
  return reshape(columns({std::string(name)}, dtype), {rows()});
}

Tensor Csv::classes(std::string_view name, std::vector<std::string>& classes) const {
  const int64_t place = index(name);
  if (classes.empty()) {
    for (int64_t row = 0; row < rows(); ++row) classes.push_back(cell(row, place));
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
  }
  std::map<std::string_view, int64_t> places;
  for (const std::string& text : classes)
    if (!places.emplace(text, static_cast<int64_t>(places.size())).second)
      fail<ValueError>("csv: '", path, "', column \"", name, "\": the class ", cited(text), " is listed twice");
  std::vector<int64_t> ids;
  for (int64_t row = 0; row < rows(); ++row) {
    const auto found = places.find(cell(row, place));
    if (found == places.end())
      fail<IOError>("csv: '", path, "' line ", lines[static_cast<std::size_t>(row)], ", column \"", name,
                    "\": ", cited(cell(row, place)), " is none of the ", classes.size(), " classes");
    ids.push_back(found->second);
  }
  return Tensor::from(ids);
}

Csv read_csv(const std::string& path, CsvOptions options) {
  if (options.separator == '"' || options.separator == '\n' || options.separator == '\r')
    fail<ValueError>("read_csv: the separator may be neither a quote nor a line break");
  Csv csv;
  csv.path = path, csv.options = options;
  Parser(read_unpacked(path, "read_csv"), csv).run();
  return csv;
}

}  // namespace sluice
