// Where in a model an error was made.
#pragma once

#include <string>

namespace sluice::detail {

/// Appends the modules that run to an error's text, as ModuleScope::path() names them: " — in blocks.3.feed (Mlp) /
/// Linear". Appends nothing outside of modules, to a text that has them, and to one that begins with the only one:
/// "gau: …" in Gau.
void append_module_path(std::string& text);

}  // namespace sluice::detail
