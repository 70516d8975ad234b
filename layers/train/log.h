// The CSV log of a training run, and the curves in it.
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

/// A CSV file that grows by one row per append(). The first column is the step.
class CsvLog {
 public:
  /// Opens `path` for a run whose next row has the step `resume_step`. If resume_step <= 0, or if there is no file,
  /// writes a new file with the header. Otherwise keeps the rows with a step below `resume_step`, byte for byte, and
  /// drops the later rows of the interrupted run, which will be appended again. Also drops a last line that a crash cut
  /// short. Throws IOError when the file cannot be read or written, has another header, or has a row that is not
  /// numbers.
  CsvLog(std::string path, std::vector<std::string> columns, int64_t resume_step = 0);

  /// Appends one row and flushes it, so that a killed run loses nothing. Numbers are written with the fewest digits
  /// that keep their value, NaN as `nan`. Throws ValueError for a wrong number of values, IOError when the row cannot
  /// be written (a full disk).
  void append(const std::vector<double>& values);

  /// All rows in the file, kept and appended, for example for the curve of a resumed run.
  const std::vector<std::vector<double>>& rows() const { return rows_; }
  /// A column as a curve over the first column, without rows where the column is NaN. Throws ValueError if there is no
  /// column of this name.
  Series series(std::string_view column, bool noisy = false) const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::vector<std::string> columns_;
  std::vector<std::vector<double>> rows_;
  std::unique_ptr<std::FILE, Close> file_;  // without a buffer
  int64_t size_ = 0;                        // bytes of whole rows
};

}  // namespace sluice
