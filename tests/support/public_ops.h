// The public ops, read from the headers: what the tables of tests must cover.
#pragma once

#include <string>
#include <vector>

namespace sluice::testing {

/// A public function declared in a header of ops/ that returns tensors.
struct PublicOp {
  std::string name, header;
};
/// Every one of them, from the headers under `source_dir`/ops, in order of appearance.
std::vector<PublicOp> public_ops(const std::string& source_dir);

}  // namespace sluice::testing
