// A CSV file that a training run leaves, and the curves in it.
//
//   CsvLog log("log.csv", {"step", "train", "valid"}, first_step);
//   log.append({double(step), train, valid});
//   write_svg_curve("loss.svg", {}, {log.series("train"), log.series("valid")});
#pragma once

#include <sluice/layers/train/curve.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

/// Grows by one row per call; its first column is the step.
class CsvLog {
 public:
  /// Opens `path` for a run whose next row will be that of `resume_step`. With 0 (or less), or when
  /// there is no file yet, a new file holding the header is written. Otherwise the rows with a step
  /// below `resume_step` are kept, byte for byte; the others belong to the run that was cut off and
  /// will come a second time. A last line cut short by a crash is dropped too.
  /// IOError when the file cannot be read or written, has another header, or has a row that is not numbers.
  CsvLog(std::string path, std::vector<std::string> columns, int64_t resume_step = 0);

  /// Appends one row and flushes it, so that a killed run loses nothing. Numbers are written shortest-exact, not-a-number as
  /// `nan`. ValueError for a wrong number of values, IOError when the disk is full.
  void append(const std::vector<double>& values);

  /// All rows in the file, kept and appended: what a resumed run draws its curve from.
  const std::vector<std::vector<double>>& rows() const { return rows_; }
  /// A column over the first one, without the rows in which it is not a number. ValueError when there is none of that name.
  Series series(std::string_view column, bool noisy = false) const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::vector<std::string> columns_;
  std::vector<std::vector<double>> rows_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace sluice
