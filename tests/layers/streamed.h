// A sequence through a stream, in pieces.
#pragma once

#include "support/catch.h"

#include <sluice/layers/nn/pass.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <vector>

namespace sluice::testing {

/// A stream that has read x.
template <class M> Stream stream_of(const M& model, const Tensor& x) {
  Stream stream;
  step(model, x, stream);
  return stream;
}

/// The outputs of x fed in pieces of the given sizes, repeated until it ends, to a copy of `stream`.
template <class M>
Tensor streamed(const M& model, const Tensor& x, const std::vector<int64_t>& sizes, Stream stream = {}) {
  std::vector<Tensor> outputs;
  int64_t at = 0;
  for (std::size_t i = 0; at < x.dim(1); ++i) {
    const int64_t size = std::min(sizes[i % sizes.size()], x.dim(1) - at);
    outputs.push_back(step(model, narrow(x, 1, at, size), stream)), at += size;
    CHECK_FALSE(outputs.back().requires_grad());
  }
  return cat(outputs, 1);
}

}  // namespace sluice::testing
