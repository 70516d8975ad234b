// What the drivers found, per op: written as a table when the run ends.
#pragma once

#include <string>
#include <vector>

namespace sluice::testing {

enum class Column { reference, f32, gradient, gradient_f32, second_gradient };

/// Notes that a row of `op` passed or failed a check: `value` is the error, or for the f32 columns the
/// share of the allowed error that was used.
void note_check(const std::string& op, Column column, double value, bool passed);
/// Notes why an op's gradients are not checked.
void note_flat(const std::string& op, const std::string& reason);

/// Writes the table to `folder`/op_table.txt, if any check was noted.
void write_op_table(const std::string& folder);

/// The names of the scalar formulas in ops/elementwise/formulas.h; templates are left out, their instances are in.
std::vector<std::string> formula_names(const std::string& source_dir);

}  // namespace sluice::testing
