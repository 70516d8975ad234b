// Layers that stream: step() over pieces of a sequence in place of one pass.
#pragma once

#include <sluice/layers/nn/named_tensor.h>
#include <sluice/ops/view.h>

#include <concepts>
#include <utility>
#include <vector>

namespace layer_check {

template <class M>
concept Streams = requires(const M& m, const sluice::Tensor& x) {
  { m.step(x, typename M::State{}) } -> std::same_as<std::pair<sluice::Tensor, typename M::State>>;
};

/// step() over the pieces, joined: x [batch, n, ...] with n = Σ pieces.
template <Streams M>
std::vector<sluice::NamedTensor> run_stream(const M& m, const sluice::Tensor& x, const std::vector<int64_t>& pieces) {
  typename M::State state{};
  std::vector<sluice::Tensor> rows;
  for (const sluice::Tensor& piece : sluice::split(x, pieces, 1)) {
    auto [y, next] = m.step(piece, std::move(state));
    rows.push_back(y), state = std::move(next);
  }
  return {{"", sluice::cat(rows, 1)}};
}

}  // namespace layer_check
