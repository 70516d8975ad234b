// The same values in other memory layouts, surrounded by bytes that nobody may read or write.
#pragma once

#include <sluice/core/tensor.h>

#include <string_view>
#include <vector>

namespace sluice::testing {

enum class Storing {
  plain,     // as it is
  permuted,  // dims in reverse order in memory
  gapped,    // every other element of the last dim
  reversed,  // negative strides
  offset,    // contiguous, somewhere inside a larger storage
};
std::string_view name_of(Storing how);

/// x stored that way; what lies between and around its elements is NaN, or a large number for integers.
/// A leaf if x is one.
Tensor stored(const Tensor& x, Storing how);

/// The first entry of x along `dim`, seen x.dim(dim) times by stride 0.
Tensor repeated(const Tensor& x, int dim);

/// Everything in x's storage.
std::vector<std::byte> storage_bytes(const Tensor& x);

}  // namespace sluice::testing
