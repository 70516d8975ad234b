#include <sluice/layers/train/log.h>

#include <sluice/core/error.h>
#include <sluice/core/text/file.h>
#include <sluice/core/number/number.h>
#include <sluice/core/text/options.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

namespace sluice {
namespace {

std::string number(double v) {
  if (std::isnan(v)) return "nan";  // to_chars would write "-nan" for a negative NaN
  char text[40];
  // to_chars would shorten 1000000 to 1e+06; steps should be written as integers.
  const bool whole = std::abs(v) < 1e15 && v == std::trunc(v);
  const auto end = whole ? std::to_chars(text, text + sizeof text, static_cast<int64_t>(v)).ptr
                         : std::to_chars(text, text + sizeof text, v).ptr;
  return std::string(text, end);
}

/// The numbers of one line; empty if the line is not `columns` numbers.
std::vector<double> parse_row(std::string_view line, std::size_t columns) {
  std::vector<double> row;
  for (std::size_t at = 0, comma = 0; comma != line.npos; at = comma + 1) {
    comma = line.find(',', at);
    const std::optional<double> v = parse_double(line.substr(at, comma - at));
    if (!v) return {};
    row.push_back(*v);
  }
  return row.size() == columns ? row : std::vector<double>{};
}

std::string reason() { return std::system_category().message(errno); }

}  // namespace

CsvLog::CsvLog(std::string path, std::vector<std::string> columns, int64_t resume_step)
    : path_(std::move(path)), columns_(std::move(columns)) {
  if (columns_.empty()) fail<ValueError>("csv_log: needs columns, of which the first is the step");
  for (const std::string& column : columns_)
    if (column.find_first_of(",\"\r\n") != column.npos)
      fail<ValueError>("csv_log: a column's name must have neither commas, quotes nor line ends — got '", column, "'");
  for (auto column = columns_.begin(); column != columns_.end(); ++column)
    if (std::find(columns_.begin(), column, *column) != column)
      fail<ValueError>("csv_log: two columns have the name '", *column, "'");
  const std::string header = detail::joined(columns_, ",");
  std::string kept = header + '\n', old;
  std::error_code error;
  const bool there = resume_step > 0 && std::filesystem::exists(path_, error);
  if (error) fail<IOError>("csv_log: cannot look for '", path_, "': ", error.message());
  if (there) old = read_file(path_, "csv_log");

  int64_t line_number = 0;
  for (std::size_t at = 0, end; (end = old.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = old.substr(at, end - at);
    if (++line_number == 1) {
      if (line == header) continue;
      fail<IOError>("csv_log: '", path_, "' has the columns '", line, "', need '", header,
                    "'; move it away or start anew");
    }
    std::vector<double> row = parse_row(line, columns_.size());
    if (row.empty())
      fail<IOError>("csv_log: '", path_, "' line ", line_number, " is not ", columns_.size(), " numbers: '", line, "'");
    if (!(row[0] < static_cast<double>(resume_step))) continue;
    kept += line + '\n';
    rows_.push_back(std::move(row));
  }

  write_file_atomically(
      path_, [&](FileWriter& out) { out.write(kept); }, "csv_log");
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) fail<IOError>("csv_log: cannot write '", path_, "': ", reason());
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);
  size_ = std::ssize(kept);
}

void CsvLog::append(const std::vector<double>& values) {
  if (values.size() != columns_.size())
    fail<ValueError>("csv_log: got ", values.size(), " values for ", columns_.size(), " columns");
  std::string line;
  for (const double v : values) line += (line.empty() ? "" : ",") + number(v);
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size()) {
    const std::string why = reason();
    // The next row begins a line. By the descriptor: the path may name another file where the program is by now.
    if (::ftruncate(::fileno(file_.get()), size_) != 0) errno = 0;
    fail<IOError>("csv_log: cannot write '", path_, "': ", why);
  }
  size_ += std::ssize(line);
  rows_.push_back(values);
}

Series CsvLog::series(std::string_view column, bool noisy) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end())
    fail<ValueError>("csv_log: '", path_, "' has no column \"", column, "\"", did_you_mean(column, columns_));
  Series out{.name = std::string(column), .noisy = noisy};
  for (const auto& row : rows_)
    if (const double y = row[static_cast<std::size_t>(found - columns_.begin())]; !std::isnan(y))
      out.x.push_back(row[0]), out.y.push_back(y);
  return out;
}

}  // namespace sluice
