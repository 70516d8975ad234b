// The place where an error was thrown: in a model, and in a backward pass.
#pragma once

#include <string>

namespace sluice {
class Node;
}

namespace sluice::detail {

/// The node whose vjp runs on this thread, or null. Defined in core, where errors are made.
extern constinit thread_local const Node* vjp_of;

/// Appends the running modules to an error's text, as ModuleScope::path() names them: " — in blocks.3.feed (Mlp) /
/// Linear". Appends nothing outside of modules, to a text that names them already, and to a text that begins with the
/// only running module: "gau: …" in Gau. Then appends the op whose vjp runs, unless the text begins with it:
/// " — in the backward pass of clipped_exp".
void append_place(std::string& text);

}  // namespace sluice::detail
