// The place in a model where an error was thrown.
#pragma once

#include <string>

namespace sluice::detail {

/// Appends the running modules to an error's text, as ModuleScope::path() names them: " — in blocks.3.feed (Mlp) /
/// Linear". Appends nothing outside of modules, to a text that names them already, and to a text that begins with the
/// only running module: "gau: …" in Gau.
void append_module_path(std::string& text);

}  // namespace sluice::detail
