// The identities that connect the layers, by name. A test measures a difference and notes it here;
// the table of all of them is printed when a full run ends, and one that no test measured fails the run.
#pragma once

#include <sluice/core/tensor.h>

#include <string>

namespace sluice::testing {

/// Checks difference <= tolerance (NaN fails) and notes the largest difference under `name`, which must stand
/// in the list of identities.cpp, letter by letter. May be called often for one name.
void check_identity(const std::string& name, double difference, double tolerance = 1e-9);
/// The same for max |a − b| of two tensors of one shape.
void check_identity(const std::string& name, const Tensor& a, const Tensor& b, double tolerance = 1e-9);

/// Writes identity_table.txt to `folder`; prints it too when SLUICE_PRINT_TABLES is set.
void write_identity_table(const std::string& folder);

}  // namespace sluice::testing
