// What the references of layers with heads share.
#pragma once

#include "layers/layer_loops.h"

namespace sluice::testing {

/// Queries of each head, keys and values of each KV head.
struct HeadRows {
  std::vector<Matrix> q, k, v;
};
/// x·Wq, and k and v of x or, if the call has one, of the context; with `rotate` and use_rope, turned.
HeadRows projected(const LayerFacts& l, const LayerSequence& s, bool rotate = true);
/// Turns queries and keys, with use_rope.
void turn(const LayerFacts& l, HeadRows& rows);
/// The heads side by side, through W_o with project_out, beside x with residual.
Matrix finished(const LayerFacts& l, const std::vector<Matrix>& attended, const Matrix& x);

/// Whether query i may see key j in head h: keys, documents, masks of the call, and the option causal.
bool sees(const LayerFacts& l, const LayerSequence& s, std::size_t h, std::size_t i, std::size_t j);

/// The keys that each query sees of the `count` best pools of `size` real keys, by score(query, keys of a whole pool),
/// and of the pool that is not whole, causally. Of equal scores the first counts.
std::vector<std::vector<bool>> in_pools(
    const LayerSequence& s, std::size_t size, std::size_t count,
    const std::function<double(std::size_t query, const std::vector<std::size_t>& keys)>& score);

using AttendHead = std::function<Matrix(std::size_t head, const Matrix& q, const Matrix& k, const Matrix& v)>;
/// What `attend` gives for each head; by_heads(): finished() of these.
std::vector<Matrix> each_head(const HeadRows& rows, const AttendHead& attend);
Matrix by_heads(const LayerFacts& l, const LayerSequence& s, const HeadRows& rows, const AttendHead& attend);

}  // namespace sluice::testing
