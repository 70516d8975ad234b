#include "support/folders.h"

// The only file that is compiled with the names of folders: the objects of all others are the same in any checkout.
namespace sluice::testing {

std::string source_folder() { return SLUICE_SOURCE_DIR; }
std::string output_folder() { return SLUICE_TEST_OUTPUT_DIR; }

}  // namespace sluice::testing
