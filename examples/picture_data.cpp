// What the engines do, as JSON for the pictures of docs/pictures: the tape of a loss, of its gradient and of the
// gradient's gradient, and the tiles that attention() computes under five masks.
//
//   picture_data > data.json
#include "support/options.h"

#include <sluice/core/node.h>
#include <sluice/ops/attention/attention_tiles.h>
#include <sluice/sluice.h>

#include <iostream>
#include <map>

using namespace sluice;
using namespace sluice::examples;

namespace {

std::string json_string(const std::string& text) { return to_text(Json(text)); }
template <class Range, class F> std::string list(const Range& values, F text) {
  std::string out;
  for (const auto& v : values) out += (out.empty() ? "" : ",\n") + text(v);
  return "[" + out + "]";
}

/// The nodes behind y: op or name of the leaf, shape, place in the order of creation, and the nodes of the inputs.
std::string tape_of(const Tensor& y) {
  std::vector<const Node*> nodes{y.impl().history.get()};
  std::map<const Node*, std::size_t> place{{nodes[0], 0}};
  std::string out;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = *nodes[i];
    std::string inputs;
    for (const Edge& e : node.edges) {
      if (!e.node) continue;
      const auto [at, fresh] = place.try_emplace(e.node.get(), nodes.size());
      if (fresh) nodes.push_back(e.node.get());
      inputs += str(inputs.empty() ? "" : ",", at->second);
    }
    out += str(out.empty() ? "" : ",\n", "{\"op\":", json_string(node.is_leaf() ? "w" : node.name()),
               ",\"shape\":", json_string(str(node.outputs[0].shape)), ",\"seq\":", node.seq, ",\"inputs\":[", inputs,
               "]}");
  }
  return "[" + out + "]";
}
/// L = Σ tanh(x·w)², its gradient, and the gradient of the gradient's sum.
std::string tapes() {
  Rng rng(1);
  const Tensor x = normal({4, 3}, 0, 1, rng), w = normal({3, 2}, 0, 1, rng).requires_grad_();
  const Tensor loss = sum(square(tanh(matmul(x, w))));
  const Tensor gradient = grad(loss, w, {.create_graph = true});
  const Tensor second = grad(sum(gradient), w, {.create_graph = true});
  return list(std::vector{loss, gradient, second}, tape_of);
}

constexpr int64_t kTokens = 1024, kCell = 16;

struct Plan {
  std::string title, note;
  AttentionMask mask;
};
std::vector<Plan> plans() {
  std::vector<float> real(kTokens, 1), document(kTokens, 0);
  for (int64_t i = 0; i < kTokens; ++i) {
    if (i >= 700) real[static_cast<std::size_t>(i)] = 0;
    document[static_cast<std::size_t>(i)] = i < 300 ? 0 : i < 750 ? 1 : 2;
  }
  const Tensor keys = reshape(Tensor::from(real), {1, kTokens}) > 0.5;
  const Tensor segments = to(reshape(Tensor::from(document), {1, kTokens}), i64);
  return {{"causal", "a token sees the past", {.causal = true}},
          {"window", "the last 200", {.causal = true, .window = 200}},
          {"padding", "700 real keys", {.keys = keys}},
          {"documents", "three, causal", {.causal = true, .query_segments = segments, .key_segments = segments}},
          {"blocks", "BigBird", bigbird_mask(kTokens, {.block = 64, .random = 1})}};
}

/// The tiles in the order in which the forward kernel goes over them, of one head of `kTokens` tokens.
std::string tiles_of(const Plan& plan) {
  const Tensor x = zeros({1, 1, kTokens, 16});
  const detail::ScoreTiles<float> tiles(detail::AttentionCall{.q = x, .k = x, .v = x, .options = {.mask = plan.mask}});
  const int64_t rows = 128, cols = tiles.visibility.only_span() ? 512 : 256;  // attention_forward.cpp
  std::string out;
  for (int64_t row = 0; row < kTokens; row += rows) {
    const auto range = tiles.columns(row, rows);
    for (int64_t col = range.begin; col < range.end; col += cols)
      if (const auto t = tiles.tile(0, 0, row, rows, col, std::min(cols, kTokens - col), range))
        out +=
            str(out.empty() ? "" : ",", "[", t->row, ",", t->col, ",", t->rows, ",", t->cols, ",", int(t->masked), "]");
  }
  const std::vector<double> seen = to(visible_pairs(plan.mask, 1, 1, kTokens, kTokens), f32).to_vector<double>();
  std::string pairs;  // the middle of each cell, a line for each row
  for (int64_t i = kCell / 2; i < kTokens; i += kCell) {
    for (int64_t j = kCell / 2; j < kTokens; j += kCell)
      pairs += seen[static_cast<std::size_t>(i * kTokens + j)] > 0 ? '1' : '0';
    pairs += '\n';
  }
  return str("{\"title\":", json_string(plan.title), ",\"note\":", json_string(plan.note), ",\"tiles\":[", out,
             "],\n\"pairs\":", json_string(pairs), "}");
}

int program(int argc, char** argv) {
  bool smoke = false;
  OptionList o;
  o("smoke", smoke, "as without: it takes no time");
  parse_flags("picture_data", "what the engines do, for the pictures of docs/pictures", o, argc, argv);
  std::cout << "{\"tapes\":" << tapes() << ",\n\"tokens\":" << kTokens << ",\"cell\":" << kCell
            << ",\"chunk\":" << LinearScanOptions{}.chunk << ",\n\"plans\":" << list(plans(), tiles_of) << "}\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }
