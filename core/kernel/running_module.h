// Where in a model an error was made.
#pragma once

#include <string>

namespace sluice::detail {

/// " — in blocks.3.feed (Mlp) / Linear": the modules that run, for the end of an error's text, as ModuleScope::path()
/// names them. Empty outside of modules, and in a single one without a name, which the text names by itself.
std::string in_running_module();

}  // namespace sluice::detail
