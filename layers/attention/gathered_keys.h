// Attention in which each query has its own list of keys: they are gathered, and nothing is computed for the others.
//
//   m·count·(heads·(d + dv) multiply-adds + kv_heads·(d + dv) numbers copied)
//
// A copied number takes as long as about 64 multiply-adds (kCopy), and is shared by the heads that read one KV head. So
// this is for many heads of few KV heads, as absorbed MLA has them, and for lists that are short beside the keys.
#pragma once

#include <sluice/ops/attention/attention.h>

namespace sluice {

/// attention() where query i sees the keys keys[b, 0, i, ·] alone: i64 [batch, 1, m, count] with numbers below n, −1 in
/// places without a key. q [batch, heads, m, d], k [batch, kv_heads, n, d], v [batch, kv_heads, n, dv] → [batch, heads,
/// m, dv]. Of the options it takes weighting, scale, softcap and sink. Gradients of any order; the gathered keys of
/// some queries at a time are held, also backward, which gathers again. ShapeError for operands that do not fit.
Tensor attention_to_keys(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
                         const AttentionOptions& options = {});

namespace detail {
/// True if attention_to_keys() takes these options; on a CPU alone, where its time is known. `drops`: with dropout.
bool may_gather_keys(const AttentionOptions& options, Device device, bool drops);
/// How many pairs of a query and a key attention() computes in the time of one query's `count` gathered keys, per head.
double gathered_pairs(int64_t heads, int64_t kv_heads, int64_t count);
}  // namespace detail

}  // namespace sluice
