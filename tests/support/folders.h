// Where the tests find the project's files, and where they write their tables.
#pragma once

#include <string>

namespace sluice::testing {

/// The root of the source tree, without a slash at the end.
std::string source_folder();
/// The root of the build tree, without a slash at the end.
std::string output_folder();

}  // namespace sluice::testing
