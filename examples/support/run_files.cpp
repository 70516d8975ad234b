#include "run_files.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

#include <unistd.h>

namespace sluice::examples {
namespace {

[[noreturn]] void fail(const std::string& path) {
  throw std::runtime_error("cannot write '" + path + "' — " + std::strerror(errno));
}

std::string number(double v) {
  char text[40];
  // to_chars would shorten 1000000 to 1e+06; a step should look like one.
  const bool whole = std::abs(v) < 1e15 && v == std::trunc(v);
  const auto end = whole ? std::to_chars(text, text + sizeof text, static_cast<std::int64_t>(v)).ptr
                         : std::to_chars(text, text + sizeof text, v).ptr;
  return std::string(text, end);
}

/// The numbers of one line; empty when it is not `columns` numbers.
std::vector<double> parse_row(std::string_view line, std::size_t columns) {
  std::vector<double> row;
  const char *at = line.data(), *end = at + line.size();
  while (true) {
    double v = 0;
    const auto [stop, error] = std::from_chars(at, end, v);
    if (error != std::errc{}) return {};
    row.push_back(v);
    if (stop == end) break;
    if (*stop != ',') return {};
    at = stop + 1;
  }
  return row.size() == columns ? row : std::vector<double>{};
}

}  // namespace

void replace_file(const std::string& path, std::string_view text) {
  const std::string beside = path + ".tmp" + std::to_string(getpid());
  std::FILE* file = std::fopen(beside.c_str(), "wb");
  if (!file) fail(path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;  // a full disk may show only here
  if (written && closed && std::rename(beside.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(beside.c_str());
  errno = error;
  fail(path);
}

CsvLog::CsvLog(std::string path, std::vector<std::string> columns, std::int64_t resume_step)
    : path_(std::move(path)), columns_(columns.size()) {
  std::string header;
  for (const std::string& column : columns) header += (header.empty() ? "" : ",") + column;
  std::string kept = header + '\n';

  std::ifstream old;
  if (resume_step > 0 && std::filesystem::exists(path_)) {
    old.open(path_, std::ios::binary);
    // Going on would replace a log that is there but cannot be read.
    if (!old) throw std::runtime_error("CsvLog: cannot read '" + path_ + "'");
  }
  std::string line;
  for (std::int64_t number = 1; old.is_open() && std::getline(old, line) && !old.eof(); ++number) {
    if (number == 1) {
      if (line == header) continue;
      throw std::runtime_error("CsvLog: '" + path_ + "' has the columns '" + line + "', need '" +
                               header + "'; move it away or start anew");
    }
    std::vector<double> row = parse_row(line, columns_);
    if (row.empty()) {
      throw std::runtime_error("CsvLog: '" + path_ + "' line " + std::to_string(number) + " is not " +
                               std::to_string(columns_) + " numbers: '" + line + "'");
    }
    if (!(row[0] < static_cast<double>(resume_step))) continue;
    kept += line + '\n';
    rows_.push_back(std::move(row));
  }
  if (old.bad()) throw std::runtime_error("CsvLog: cannot read '" + path_ + "'");
  old.close();

  replace_file(path_, kept);
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) fail(path_);
}

void CsvLog::append(const std::vector<double>& values) {
  if (values.size() != columns_) {
    throw std::invalid_argument("CsvLog: got " + std::to_string(values.size()) + " values for " +
                                std::to_string(columns_) + " columns");
  }
  std::string line;
  for (const double v : values) line += (line.empty() ? "" : ",") + number(v);
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0) {
    fail(path_);
  }
  rows_.push_back(values);
}

}  // namespace sluice::examples
