#include "support/op_table.h"

#include "support/op_cases.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <set>

namespace sluice::testing {

namespace {

struct Cell {
  double worst = 0;
  bool seen = false, failed = false;
};
struct Line {
  std::array<Cell, 5> cells;
  std::set<std::string> reasons;
};
std::map<std::string, Line>& lines() {
  static std::map<std::string, Line> table;
  return table;
}

std::string cell_text(const Cell& c, bool share) {
  if (!c.seen) return "—";
  char text[48];
  if (share) std::snprintf(text, sizeof text, "%s %3.0f %%", c.failed ? "✗" : "✓", std::min(999.0, 100 * c.worst));
  else std::snprintf(text, sizeof text, "%s %.1e", c.failed ? "✗" : "✓", c.worst);
  return text;
}

/// Pads to a width counted in characters, not bytes.
std::string padded(const std::string& s, std::size_t width) {
  const auto n = static_cast<std::size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  return n < width ? s + std::string(width - n, ' ') : s;
}

}  // namespace

void note_check(const std::string& op, Column column, double value, bool passed) {
  Cell& c = lines()[op].cells[static_cast<std::size_t>(column)];
  c.seen = true;
  c.failed |= !passed;
  c.worst = std::max(c.worst, value);
}
void note_flat(const std::string& op, const std::string& reason) { lines()[op].reasons.insert(reason); }

void write_op_table(const std::string& folder) {
  if (lines().empty()) return;
  std::map<std::string, int> rows;
  for (const OpCase& c : all_cases()) ++rows[c.op];
  std::ofstream out(folder + "/op_table.txt");
  out << "Worst result over all rows of an op. f32: share of the allowed error that was used. gradcheck: fused\n"
         "backward against central differences, relative. gradgradcheck: the same for the gradient of the\n"
         "gradient. Lines named formula: partials of the scalar formula against the complex step.\n\n";
  out << padded("op", 24) << padded("rows", 6) << padded("reference", 12) << padded("f32", 10)
      << padded("gradcheck", 12) << padded("its f32", 10) << padded("gradgradcheck", 15) << "\n";
  for (const auto& [op, line] : lines()) {
    out << padded(op, 24) << padded(rows.count(op) ? std::to_string(rows[op]) : "", 6)
        << padded(cell_text(line.cells[0], false), 12) << padded(cell_text(line.cells[1], true), 10)
        << padded(cell_text(line.cells[2], false), 12) << padded(cell_text(line.cells[3], true), 10)
        << padded(cell_text(line.cells[4], false), 15);
    const char* separator = "";
    for (const std::string& r : line.reasons) out << separator << "not all: " << r, separator = "; ";
    out << "\n";
  }
}

std::vector<std::string> formula_names(const std::string& source_dir) {
  const std::regex named(R"(^(?:struct (\w+)(?: : \w+(?:<\w+>)?)? \{|using (\w+) = (?!Formulas)|)"
                         R"(SLUICE_(?:UNARY|BINARY)_FORMULA\((\w+), ))");
  std::vector<std::string> names;
  for (const char* page : {"/ops/elementwise/formulas.h", "/ops/elementwise/formulas_of_layers.h"}) {
    std::ifstream in(source_dir + page);
    bool is_template = false;
    for (std::string line; std::getline(in, line);) {
      std::smatch m;
      if (std::regex_search(line, m, named) && !is_template) names.push_back(m[1].str() + m[2].str() + m[3].str());
      is_template = line.rfind("template ", 0) == 0;
    }
  }
  return names;
}

}  // namespace sluice::testing
