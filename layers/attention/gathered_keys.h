// Attention in which each query has its own list of keys. Listed keys are gathered; nothing is computed for other keys.
//
//   m·count·(heads·(d + dv) multiply-adds + kv_heads·(d + dv) numbers copied)
//
// Copying a number takes as long as about 20 multiply-adds, with its gradient 64. The heads that read one KV head share
// its copies. So gathering pays for many heads of few KV heads, as in absorbed MLA, and for lists that are short beside
// the keys.
#pragma once

#include <sluice/ops/attention/attention.h>

namespace sluice {

/// attention() where query i sees only the keys that keys[b, 0, i, ·] lists: i64 [batch, 1, m, count] with numbers
/// below n, −1 for no key. q [batch, heads, m, d], k [batch, kv_heads, n, d], v [batch, kv_heads, n, dv] → [batch,
/// heads, m, dv]. Uses the options weighting, scale, softcap, sink and precision. Gradients of any order. Holds the
/// gathered keys of some queries at a time; the backward pass gathers again. Throws ShapeError for operands that do not
/// fit, and on a CPU ValueError for a number of n or more.
Tensor attention_to_keys(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
                         const AttentionOptions& options = {});

namespace detail {
/// True if attention_to_keys() takes these options. On a CPU only, where its time is known. `drops`: with dropout.
bool may_gather_keys(const AttentionOptions& options, Device device, bool drops);
/// How many query-key pairs attention() computes per head in the time of one query's `count` gathered keys.
double gathered_pairs(int64_t heads, int64_t kv_heads, int64_t count);
}  // namespace detail

}  // namespace sluice
