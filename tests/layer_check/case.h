// Runs the layer_check binary on a case, as a script would.
#pragma once

#include "golden/golden.h"

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

/// [n, w] → [1, n, w], and back.
Tensor batched(const Tensor& x);
Tensor unbatched(const Tensor& x);
/// [n, w] → [1, 1, n, w], and back.
Tensor lifted(const Tensor& x);
Tensor lowered(const Tensor& x);

/// |got − the golden array| < tolerance everywhere; names both in the message.
void check_golden(const GoldenCase& c, const std::string& array, const Tensor& got, double tolerance = 1e-9);
/// Golden gradients are central differences, good to about 1e-8.
inline void check_gradient(const GoldenCase& c, const std::string& array, const Tensor& got) {
  check_golden(c, array, got, 1e-6);
}

}  // namespace sluice::testing
