// Comma-separated values (RFC 4180), as they are or gzip-compressed.
//
//   Csv csv = read_csv("houses.csv");
//   Tensor x = csv.columns({"rooms", "area"}), price = csv.column("price");   // f32 [rows, 2] and [rows]
//   std::vector<std::string> towns;
//   Tensor town = csv.classes("town", towns);                                 // i64 [rows], places in towns
#pragma once

#include <sluice/core/tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct CsvOptions {
  bool header = true;                  // the first line names the columns; else they are called "0", "1", …
  char separator = ',';                // between cells
  std::optional<double> missing = {};  // what an empty cell counts as; without it, one that is read as a number is an error
};

/// The cells of a file, and tensors made of them. A cell in quotes may hold separators, line breaks and, doubled, quotes.
struct Csv {
  std::string path;                 // for messages
  CsvOptions options;
  std::vector<std::string> names;   // of the columns
  std::vector<std::string> cells;   // row by row
  std::vector<int64_t> lines;       // of the file, from 1, where each row begins

  /// Number of rows below the header.
  int64_t rows() const { return static_cast<int64_t>(lines.size()); }
  /// The text of a cell, unchecked.
  const std::string& cell(int64_t row, int64_t column) const {
    return cells[static_cast<std::size_t>(row) * names.size() + static_cast<std::size_t>(column)];
  }
  /// The place of a column; ValueError, with the name that is most like it, when there is none or there are two.
  int64_t index(std::string_view name) const;

  /// One column as [rows], or several, by default all, as [rows, columns]; any dtype but bool. IOError with line and column
  /// for a cell that is no number of that type.
  Tensor column(std::string_view name, DType dtype = f32) const;
  Tensor columns(const std::vector<std::string>& which, DType dtype = f32) const;
  /// All of them.
  Tensor columns(DType dtype = f32) const { return columns(names, dtype); }
  /// i64 [rows]: the place of each cell's text in `classes`, which if it is empty becomes the sorted list of those that occur.
  /// IOError for a text that is not in a given list.
  Tensor classes(std::string_view name, std::vector<std::string>& classes) const;
};

/// Reads a file whose lines, which end with LF, CR LF or CR, have, but for empty ones, equally many cells. IOError
/// naming the file and the line otherwise, and for a quoted cell that does not end or goes on after its quote.
Csv read_csv(const std::string& path, CsvOptions options = {});

}  // namespace sluice
