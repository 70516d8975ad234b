// Runs the layer_check binary on a case, as a script would.
#pragma once

#include <sluice/core/text/safetensors.h>

#include <map>
#include <string>

namespace sluice::testing {

struct Finished {
  int status = -1;
  std::string out, err;
};
/// The binary with these arguments, already quoted for the shell.
Finished layer_check(const std::string& arguments);

struct Case {
  std::string layer, config = "{}";
  std::map<std::string, Tensor> tensors;  // "input.x", "param.in.weight", "cotangent"
  std::string arguments = {};             // e.g. "--dtype f32"
};
/// Writes the case, runs it, returns what came out; fails the test if the binary does not succeed.
std::map<std::string, Tensor> outputs(const Case& c);
/// The one line on stderr; fails the test if the binary succeeds, prints more, or leaves a file behind.
std::string error_of(const Case& c);

}  // namespace sluice::testing
