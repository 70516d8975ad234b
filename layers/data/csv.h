// Comma-separated values (RFC 4180), plain or gzip-compressed.
//
//   Csv csv = read_csv("houses.csv");
//   Tensor x = csv.columns({"rooms", "area"}), price = csv.column("price");   // f32 [rows, 2] and [rows]
//   std::vector<std::string> towns;
//   Tensor town = csv.classes("town", towns);                                 // i64 [rows], indices of towns
#pragma once

#include <sluice/core/tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct CsvOptions {
  bool header = true;                  // true: the first line has the names of columns; false: names are "0", "1", …
  char separator = ',';                // between cells
  std::optional<double> missing = {};  // the number for an empty cell; without it, an empty cell in a column of numbers
                                       // throws IOError
};

/// The cells of a file, and tensors made from them. A quoted cell may contain separators, line breaks and doubled
/// quotes.
struct Csv {
  std::string path;  // for messages
  CsvOptions options;
  std::vector<std::string> names;  // names of the columns
  std::vector<std::string> cells;  // row by row
  std::vector<int64_t> lines;      // the line of the file, counted from 1, where each row begins

  /// Number of rows below the header.
  int64_t rows() const { return static_cast<int64_t>(lines.size()); }
  /// The text of a cell. row and column are not checked.
  const std::string& cell(int64_t row, int64_t column) const {
    return cells[static_cast<std::size_t>(row) * names.size() + static_cast<std::size_t>(column)];
  }
  /// The index of a column. Throws ValueError if no column or two columns have this name, with the most similar name.
  int64_t index(std::string_view name) const;

  /// column() returns one column as [rows], columns() several columns as [rows, columns]. Throws IOError with line and
  /// column for a cell that is not a number of this dtype, ValueError for an unknown name, and DTypeError for bool.
  Tensor column(std::string_view name, DType dtype = f32) const;
  Tensor columns(const std::vector<std::string>& which, DType dtype = f32) const;
  /// All columns.
  Tensor columns(DType dtype = f32) const { return columns(names, dtype); }
  /// Returns i64 [rows]: the index of each cell's text in `classes`. If `classes` is empty, it is first set to the
  /// sorted list of all texts in the column. Throws IOError for a text that is not in `classes`, and ValueError if
  /// `classes` lists a text twice.
  Tensor classes(std::string_view name, std::vector<std::string>& classes) const;
};

/// Reads a file. Lines end with LF, CR LF or CR; empty lines are skipped; all other lines must have the same number of
/// cells. Throws IOError naming the file and the line for another number of cells, and for a quoted cell that does not
/// end or continues after its closing quote. Throws IOError for an empty file, and ValueError for a separator that is a
/// quote or a line break.
Csv read_csv(const std::string& path, CsvOptions options = {});

}  // namespace sluice
