// Command-line options of the examples: --name VALUE, --name=VALUE, and --name of a bool.
#pragma once

#include <sluice/core/text/options.h>

namespace sluice::examples {

/// Sets the options that the command line names. Throws ValueError for an unknown name and for a value of another type
/// or out of range; --help prints all and ends run_program().
void parse_flags(const std::string& program, const std::string& purpose, const OptionList& options, int argc,
                 char** argv);

/// All that main() does: the status is that of program(argc, argv), 0 after --help, and 1 for an exception, which is
/// printed, or if stdout does not take what was written.
int run_program(int (*program)(int, char**), int argc, char** argv);

}  // namespace sluice::examples
