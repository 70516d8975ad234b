// Every layer of the table with its sequence cut over ranks, against the layer uncut: outputs, gradients of the inputs,
// gradients of the parameters.
#include "support/catch.h"
#include "support/table_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/sequence.h>

#include <map>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kTokens = 14;  // beyond chunks of 4 and 3, windows of 4, and the global positions

/// Lengths of the pieces: even, ragged, and with nothing for some.
const std::vector<std::vector<int64_t>>& cuts() {
  static const std::vector<std::vector<int64_t>> all{{7, 7},    {13, 1},    {0, 14},      {5, 5, 4},
                                                     {5, 1, 8}, {2, 12, 0}, {4, 4, 4, 2}, {1, 6, 0, 7}};
  return all;
}

enum Variant { plain, padding, documents, both };

LayerInputs inputs_of(const LayerSample& s, int variant) {
  LayerInputs in = s.inputs(2, kTokens, 1, true);
  const auto tokens = [](const std::vector<double>& values, DType dtype) {
    return tensor_of(values, {2, kTokens}, dtype);
  };
  if (s.cross() && s.row.key_mask && variant == padding)
    in.key_mask = tokens({1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, boolean);
  if (s.masks_keys() && (variant == padding || variant == both))
    s.mask_of_keys(in) =
        tokens({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}, boolean);
  if (s.documents() && (variant == documents || variant == both))
    in.segments = tokens({0, 0, 0, 0, 0, 0, 2, 2, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4}, i64);
  return in;
}

/// Output and gradients of a call, of the loss Σ y ⊙ weight.
struct Result {
  Tensor y;
  std::map<std::string, Tensor> inputs, parameters;
};
Result run(const LayerSample& s, const LayerInputs& in, const Tensor& weight) {
  Result result;
  const Tensor y = call(*s.layer, in);
  result.y = y.detach();
  std::vector<std::pair<std::string, Tensor>> leaves;
  if (is_float(in.x.dtype())) leaves.emplace_back("x", in.x);
  if (in.context.defined()) leaves.emplace_back(s.row.branch ? "branch" : "context", in.context);
  const std::size_t own = leaves.size();
  for (const NamedTensor& t : s.layer->state())
    if (t.tensor.requires_grad()) leaves.emplace_back(t.name, t.tensor);
  std::vector<Tensor> wanted;
  for (const auto& [name, t] : leaves) wanted.push_back(t);
  std::vector<Tensor> got(leaves.size());
  if (y.requires_grad()) got = grad({sum(y * weight)}, wanted, {.allow_unused = true});
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Tensor g = got[i].defined() ? got[i].detach() : zeros_like(leaves[i].second);
    const bool cut = i < own && leaves[i].first != "context";
    (cut ? result.inputs : result.parameters)[leaves[i].first] = g;
  }
  return result;
}

Tensor leaf(const Tensor& x) { return !x.defined() || !is_float(x.dtype()) ? x : clone(x.detach()).requires_grad_(); }
Tensor piece_of(const Tensor& x, int64_t first, int64_t n) { return x.defined() ? narrow(x.detach(), 1, first, n) : x; }

LayerInputs piece_of(const LayerSample& s, const LayerInputs& in, int64_t first, int64_t n) {
  LayerInputs p = in;
  p.x = leaf(piece_of(in.x, first, n)), p.context = leaf(s.row.branch ? piece_of(in.context, first, n) : in.context);
  p.key_mask = piece_of(in.key_mask, first, n), p.segments = piece_of(in.segments, first, n);
  return p;
}

/// The layer with its sequence cut: pieces joined, what all ranks hold added up.
Result run_cut(const LayerRow& row, const Json& options, const LayerInputs& in, const Tensor& weight,
               const std::vector<int64_t>& lengths, DType dtype = f64) {
  const auto ranks = static_cast<int>(lengths.size());
  std::vector<LayerSample> samples;
  std::vector<Result> results(lengths.size());
  for (int r = 0; r < ranks; ++r) samples.push_back(make_sample(row, options, dtype));
  run_ranks(ranks, [&](const Communicator& c) {
    const auto self = static_cast<std::size_t>(c.rank());
    int64_t first = 0;
    for (std::size_t r = 0; r < self; ++r) first += lengths[r];
    SequenceScope scope(c);
    results[self] =
        run(samples[self], piece_of(samples[self], in, first, lengths[self]), narrow(weight, 1, first, lengths[self]));
  });
  Result all = results[0];
  for (std::size_t r = 1; r < results.size(); ++r) {
    all.y = cat({all.y, results[r].y}, 1);
    for (auto& [name, g] : all.inputs) g = cat({g, results[r].inputs[name]}, 1);
    for (auto& [name, g] : all.parameters) g = g + results[r].parameters[name];
  }
  return all;
}

double off(const Tensor& a, const Tensor& b) { return max_abs_diff(a, b) / (1 + max_abs(b)); }

}  // namespace

TEST_CASE("sequence: every layer cut over ranks is the layer uncut", "[sequence][table]") {
  std::set<std::string> refused;
  int compared = 0;
  for (const LayerRow& row : layer_table())
    for (const Json& options : row.samples) {
      const LayerSample s = make_sample(row, options);
      INFO(s.text);
      for (int variant : {plain, padding, documents, both}) {
        const LayerInputs in = inputs_of(s, variant);
        const bool masked = in.key_mask.defined() || in.context_mask.defined();
        if (variant != plain && !masked && !in.segments.defined()) continue;
        if (variant == both && !in.segments.defined()) continue;
        Rand rand(11);
        const Tensor y = call(*s.layer, in), weight = random_tensor(y.shape(), f64, rand);
        const Result want = run(s, in, weight);
        for (const std::vector<int64_t>& lengths : cuts()) {
          std::string text = "pieces";
          for (int64_t n : lengths) text += " " + std::to_string(n);
          INFO(text << ", variant " << variant);
          try {
            const Result got = run_cut(row, options, in, weight, lengths);
            REQUIRE(got.y.shape() == want.y.shape());
            CHECK(off(got.y, want.y) <= 1e-11);
            for (const auto& [name, g] : want.inputs) {
              INFO("gradient of " << name);
              CHECK(off(got.inputs.at(name), g) <= 1e-11);
            }
            for (const auto& [name, g] : want.parameters) {
              INFO("gradient of " << name);
              CHECK(off(got.parameters.at(name), g) <= 1e-11);
            }
            ++compared;
          } catch (const ValueError& e) {
            if (std::string(e.what()).find("cannot be cut over ranks") == std::string::npos) FAIL_CHECK(e.what());
            refused.insert(row.name +
                           (s.has("separate_global_projections", true) ? " with separate_global_projections" : ""));
          } catch (const Error& e) { FAIL_CHECK(e.what()); }
        }
      }
    }
  // What cannot be cut: the samples are not causal, and each output depends on all tokens in its own way.
  CHECK(refused == std::set<std::string>{"sinkhorn_attention", "sinkhorn_block_attention", "global_local_attention",
                                         "multi_head_attention with separate_global_projections"});
  CHECK(compared > 2000);
}

TEST_CASE("sequence: states and decays cross ranks in bf16, too", "[sequence][bf16]") {
  const std::vector<int64_t> first{0, 5, 9}, lengths{5, 4, 5};
  for (const char* name : {"mamba2", "gla", "gated_delta_net", "kda", "rwkv7"}) {
    INFO(name);
    const LayerRow& row = layer_row(name);
    const LayerSample s = make_sample(row, row.samples[0], bf16);
    const LayerInputs in = s.inputs(2, kTokens, 1);
    std::vector<LayerSample> samples;
    for (int r = 0; r < 3; ++r) samples.push_back(make_sample(row, row.samples[0], bf16));
    const auto rows_of = [&](std::size_t r) {
      return call(*samples[r].layer, piece_of(samples[r], in, first[r], lengths[r])).detach();
    };
    std::vector<Tensor> cut(3), alone(3);
    run_ranks(3, [&](const Communicator& c) {
      const auto self = static_cast<std::size_t>(c.rank());
      alone[self] = rows_of(self);
      SequenceScope scope(c);
      cut[self] = rows_of(self);
    });
    const Tensor y = call(*s.layer, in).detach();
    CHECK(cut[0].dtype() == bf16);
    CHECK(max_abs_diff(cat(cut, 1), y) <= 2e-2 * max_abs(y));
    CHECK(max_abs_diff(cat(alone, 1), y) > 0.1 * max_abs(y));
  }
}

TEST_CASE("sequence: every layer in bf16 cut over ranks is near the layer uncut", "[sequence][table][bf16]") {
  int compared = 0;
  for (const LayerRow& row : layer_table())
    for (const Json& options : row.samples) {
      const LayerSample s = make_sample(row, options, bf16);
      INFO(s.text);
      const LayerInputs in = inputs_of(s, plain);
      try {
        Rand rand(12);
        const Tensor weight = random_tensor(call(*s.layer, in).shape(), bf16, rand);
        const Result want = run(s, in, weight), got = run_cut(row, options, in, weight, {5, 4, 5}, bf16);
        CHECK(got.y.dtype() == bf16);
        CHECK(max_abs_diff(got.y, want.y) <= 5e-2 * max_abs(want.y));
        for (const auto& [name, g] : want.inputs) {
          INFO("gradient of " << name);
          CHECK(max_abs_diff(got.inputs.at(name), g) <= (drawn_layers() > 0 ? 0.3 : 0.1) * max_abs(g));
        }
        ++compared;
      } catch (const ValueError& e) {
        CHECK(std::string(e.what()).find("cannot be cut over ranks") != std::string::npos);
      }
    }
  CHECK(compared > 100);
}
