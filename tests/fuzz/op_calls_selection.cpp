// Calls of ops/attention/key_selection.h.
#include "fuzz/op_calls.h"

#include <sluice/ops/attention/key_selection.h>

#include <algorithm>

namespace sluice::testing {

namespace {

KeyIndex drawn_index(Draw& d) {
  const int64_t m = d.size(), heads = d.size(), width = d.size();
  return {d.tensor({2, heads, m, width}, f32), d.tensor({2, d.size(), width}, f32), d.tensor({2, m, heads}, f32)};
}

}  // namespace

void add_selection_calls(OpCalls& calls) {
  const auto add = [&](const char* name, std::function<Tensor(Draw&)> f) {
    calls.emplace_back(name, [f](Draw& d) { return std::vector<Tensor>{f(d)}; });
  };
  add("choose_blocks", [](Draw& d) {
    const int64_t m = d.size(), first = d.below(9), block = d.chance(0.8) ? 1 + d.below(5) : d.get<int64_t>();
    const int64_t n = first + m, size = std::max<int64_t>(1, block), blocks = n / size + (n % size != 0);
    const Tensor scores = d.tensor({1 + d.below(2), d.size(), m, blocks}, f32);
    const Tensor keys = d.chance(0.3) ? d.tensor({1, n}, boolean) : Tensor();
    return choose_blocks(scores, first, {block, d.get<int64_t>(), d.below(3), d.below(3)}, keys);
  });
  add("block_means", [](Draw& d) {
    const Tensor x = d.chance(0.5) ? d.tensor({2, d.size(), d.size(), d.size()}, f32) : d.get<Tensor>();
    return block_means(x, d.get<int64_t>(), d.get<int64_t>(), d.chance(0.2) ? d.get<Tensor>() : Tensor()).rows;
  });
  add("block_maxima", [](Draw& d) {
    const int64_t m = d.size(), n = m + d.below(9), width = d.size();
    return block_maxima(d.tensor({2, 2, m, width}, f32), d.tensor({2, 1, n, width}, f32), d.get<int64_t>());
  });
  add("index_scores", [](Draw& d) { return index_scores(drawn_index(d)); });
  add("index_mask", [](Draw& d) {
    const KeyIndex index = drawn_index(d);
    return index_mask(index, d.get<int64_t>(), {.causal = d.chance(0.5)});
  });
  add("index_keys", [](Draw& d) {
    const KeyIndex index = drawn_index(d);
    return index_keys(index, d.get<int64_t>(), {.causal = d.chance(0.5)});
  });
}

}  // namespace sluice::testing
