#include <sluice/layers/heads/kv_cache.h>

#include <sluice/core/node.h>
#include <sluice/ops/create.h>
#include <sluice/ops/view.h>

#include <algorithm>

namespace sluice {

namespace {

/// `old` if it has `room` rows and nobody else sees it; else fresh memory that starts with its first `used` rows.
Tensor with_room(const Tensor& old, const Tensor& like, int64_t used, int64_t room) {
  const bool shared = old.defined() && (old.ref()->use_count() > 1 || old.impl().storage->use_count() > 1);
  if (old.defined() && old.dim(2) == room && !shared) return old;
  Tensor fresh = empty({like.dim(0), like.dim(1), room, like.dim(3)}, like.options());
  if (used > 0) {
    Tensor head = narrow(fresh, 2, 0, used);
    copy_(head, narrow(old, 2, 0, used));
  }
  return fresh;
}

void check_continues(const char* what, const Tensor& old, const Tensor& next) {
  if (!old.defined()) return;
  if (old.dim(0) != next.dim(0) || old.dim(1) != next.dim(1) || old.dim(3) != next.dim(3))
    fail("kv_cache: ", what, "=", next, " do not continue a cache of ", old, "; need equal batch, heads and width");
  if (old.dtype() != next.dtype())
    fail<DTypeError>("kv_cache: ", what, " of ", next.dtype(), " do not continue a cache of ", old.dtype());
}

/// Rows `from` … of x to the places of the positions first, first + 1, … in a ring (or a plain list).
void write_rows(Tensor& ring, const Tensor& x, int64_t from, int64_t first) {
  const int64_t capacity = ring.dim(2);
  for (int64_t p = first, end = first + x.dim(2) - from; p < end;) {
    const int64_t row = p % capacity, count = std::min(end - p, capacity - row);
    Tensor place = narrow(ring, 2, row, count);
    copy_(place, narrow(x, 2, from + p - first, count));
    p += count;
  }
}

}  // namespace

Tensor KvCache::in_order(const Tensor& ring) const {
  if (!ring.defined()) fail<ValueError>("kv_cache: the cache is empty");
  const int64_t start = window > 0 && length > window ? length % window : 0;
  if (start == 0) return narrow(ring, 2, 0, stored());
  return cat({narrow(ring, 2, start, window - start), narrow(ring, 2, 0, start)}, 2);
}

KvCache::Rows KvCache::append(const Tensor& k, const Tensor& v, Order order) {
  if (k.rank() != 4 || v.rank() != 4 || k.dim(0) != v.dim(0) || k.dim(1) != v.dim(1) || k.dim(2) != v.dim(2))
    fail("kv_cache: got k=", k, ", v=", v, "; need [batch, heads, m, d], [batch, heads, m, dv]");
  if (window < 0) fail<ValueError>("kv_cache: window must not be negative — got ", window);
  check_continues("keys", keys, k), check_continues("values", values, v);
  NoGrad guard;
  const int64_t m = k.dim(2), before = stored(), capacity = keys.defined() ? keys.dim(2) : 0, total = length + m;
  const bool wraps = window > 0 && total > window;
  Rows seen;
  if (wraps && m > 1) {  // the first of the new queries see rows that the last ones overwrite
    const int64_t reach = std::min(before, window - 1);
    auto joined = [&](const Tensor& ring, const Tensor& fresh) {
      return reach == 0 ? contiguous(fresh) : cat({narrow(in_order(ring), 2, before - reach, reach), fresh}, 2);
    };
    seen = {joined(keys, k), joined(values, v)};
  }
  int64_t room = total > capacity ? std::max(total, 2 * capacity) : capacity;
  if (window > 0) room = std::min(room, window);
  keys = with_room(keys, k, std::min(length, capacity), room);
  values = with_room(values, v, std::min(length, capacity), room);
  const int64_t skipped = wraps ? std::max<int64_t>(0, m - window) : 0;  // overwritten in the same call
  write_rows(keys, k, skipped, length + skipped), write_rows(values, v, skipped, length + skipped);
  length = total;
  if (seen.keys.defined()) return seen;
  if (order == Order::any) return {narrow(keys, 2, 0, stored()), narrow(values, 2, 0, stored())};
  return {stored_keys(), stored_values()};
}

int64_t KvCache::numel() const {
  if (!keys.defined()) return 0;
  return keys.dim(0) * keys.dim(1) * stored() * (keys.dim(3) + values.dim(3));
}

}  // namespace sluice
