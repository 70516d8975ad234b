// What holds for Mamba and Mamba-2 alike: where a state begins, and what leaves it alone. Layers have width 6.
#pragma once

#include "support/approx.h"
#include "support/catch.h"
#include "support/table_samples.h"

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <map>
#include <string>
#include <vector>

namespace sluice::testing {

inline Tensor numbers(const Shape& shape, uint64_t seed, DType dtype = f64) {
  Rand rand(seed);
  return random_tensor(shape, dtype, rand);
}

/// A layer with parameters drawn from [−0.7, 0.7].
template <class Options> auto drawn_layer(const Options& o) {
  Rng rng(1);
  typename Options::Layer m(o, rng);
  Rand rand(2);
  std::map<std::string, Tensor> state;
  for (const NamedTensor& t : state_dict(m)) state[t.name] = random_tensor(t.tensor.shape(), o.dtype, rand, -0.7, 0.7);
  load_state(m, state);
  return m;
}

template <class Layer> Tensor last_state(const Layer& m, const Tensor& x, const Pass& pass = {}) {
  const auto p = m.operands(Call(m, Layer::type, x, m.options.dim, pass));
  return linear_scan_state(p.k, p.v, p.log_decay);
}

/// Padding leaves the state, and gives 0.
template <class Layer> void check_padding(const Layer& m) {
  const Tensor text = numbers({2, 70, 6}, 3), before = numbers({2, 5, 6}, 4), behind = numbers({2, 9, 6}, 5);
  const Tensor mask = logical_and(arange(84) >= 5.0, arange(84) < 75.0);
  const Pass pass{.key_mask = expand(unsqueeze(mask, 0), {2, 84})};
  const Tensor padded = cat({before, text, behind}, 1), y = m(padded, pass);
  CHECK(max_abs_diff(narrow(y, 1, 5, 70), m(text)) < 1e-13);
  CHECK(max_abs(narrow(y, 1, 0, 5)) == 0);
  CHECK(max_abs(narrow(y, 1, 75, 9)) == 0);
  const Tensor state = last_state(m, text);
  CHECK(max_abs_diff(last_state(m, padded, pass), state) < 1e-13);
  CHECK(max_abs_diff(last_state(m, padded), state) > 1e-3);
}

/// Documents in one row are documents in rows of their own.
template <class Layer> void check_documents(const Layer& m, double tolerance) {
  const std::vector<int64_t> lengths{70, 1, 2, 64, 3};  // beyond a chunk, shorter than the convolution
  std::vector<Tensor> texts, apart, numbered;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(numbers({2, lengths[i], 6}, 10 + i));
    apart.push_back(m(texts.back()));
    numbered.push_back(full({2, lengths[i]}, i % 2 ? 3 : 0, {i64}));  // the numbers come again
  }
  const Pass pass{.segments = cat(numbered, 1)};
  const Tensor row = cat(texts, 1);
  CHECK(max_abs_diff(m(row, pass), cat(apart, 1)) < tolerance);
  CHECK(max_abs_diff(m(row), cat(apart, 1)) > 1e-3);
  CHECK(max_abs_diff(last_state(m, row, pass), last_state(m, texts.back())) < tolerance);
}

/// The pieces of a stream, and tokens behind them, give the rows of the whole text x [2, 150, 6]. The stream keeps
/// `numbers_kept` numbers.
template <class Layer> void check_stream(const Layer& m, const Tensor& x, int64_t numbers_kept) {
  Stream stream;
  std::vector<Tensor> rows;
  for (const Tensor& piece : split(x, {1, 2, 64, 1, 82}, 1)) rows.push_back(step(m, piece, stream));
  CHECK(max_abs_diff(cat(rows, 1), m(x)) < 1e-13);
  const Tensor next = numbers({2, 4, 6}, 7);
  CHECK(max_abs_diff(step(m, next, stream), narrow(m(cat({x, next}, 1)), 1, 150, 4)) < 1e-13);
  CHECK(stream.numel() == numbers_kept);
}

/// Initial steps are log-uniform on [0.001, 0.1].
template <class Layer> void check_initial_steps(const Layer& m) {
  const Tensor dt = softplus(m.dt_bias.detach());
  CHECK((min(dt).item() > 0.000999 && max(dt).item() < 0.1001));
  CHECK(std::abs(mean(log(dt)).item() - std::log(0.01)) < 0.3);  // standard error 0.08; of a uniform Δ 1.3 off
}

/// All tensors of a layer of bf16 are trained, and bf16 but for a_log and dt_bias.
template <class Layer> void check_dtypes(const Layer& m) {
  for (const NamedTensor& t : state_dict(m)) {
    INFO(t.name);
    CHECK(t.tensor.requires_grad());
    CHECK(t.tensor.dtype() == (t.name == "a_log" || t.name == "dt_bias" ? f32 : bf16));
  }
}

}  // namespace sluice::testing
