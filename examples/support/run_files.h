// Files a training run leaves behind: whole files replaced in one step, and a CSV log.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::examples {

/// Writes `text` beside the target and renames it into place: `path` always leads to a whole file,
/// the old or the new, even if the program is killed half-way.
/// Throws std::runtime_error, naming path and reason, when that fails; the old file is then intact.
void replace_file(const std::string& path, std::string_view text);

/// A CSV file that grows by one row per call; its first column is the step.
class CsvLog {
 public:
  /// Opens `path` for a run whose next row will be that of `resume_step`. With 0 (or less), or when
  /// there is no file yet, a new file holding the header is written. Otherwise the rows with a step
  /// below `resume_step` are kept, byte for byte; the others belong to the run that was cut off and
  /// will come a second time. A last line cut short by a crash is dropped too.
  /// Throws std::runtime_error when the file cannot be read or written, has another header, or has
  /// a row that is not numbers.
  CsvLog(std::string path, std::vector<std::string> columns, std::int64_t resume_step = 0);

  /// Appends one row and flushes it, so that a killed run loses nothing. Numbers are written
  /// shortest-exact, not-a-number as `nan`.
  /// Throws std::invalid_argument for a wrong number of values, std::runtime_error when the disk is full.
  void append(const std::vector<double>& values);

  /// All rows in the file, kept and appended: what a resumed run draws its curve from.
  const std::vector<std::vector<double>>& rows() const { return rows_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::size_t columns_;
  std::vector<std::vector<double>> rows_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace sluice::examples
