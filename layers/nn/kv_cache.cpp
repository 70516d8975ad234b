#include <sluice/layers/nn/kv_cache.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>

namespace sluice {

namespace {

const char* name_of_ring(std::size_t i) { return i == 0 ? "keys" : i == 1 ? "values" : "further rows"; }

void check_fresh(const std::vector<Tensor>& fresh, const std::vector<Tensor>& rings) {
  if (fresh.empty() || (!rings.empty() && fresh.size() != rings.size()))
    fail<ValueError>("kv_cache: got ", fresh.size(), " tensors of rows for a cache of ", rings.size());
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const Tensor& next = fresh[i];
    if (next.rank() != 4 || next.dim(0) != fresh[0].dim(0) || next.dim(2) != fresh[0].dim(2))
      fail("kv_cache: got ", name_of_ring(i), "=", next, " beside keys=", fresh[0], "; need [batch, heads, m, width]");
    if (rings.empty()) continue;
    const Tensor& old = rings[i];
    if (old.dim(0) != next.dim(0) || old.dim(1) != next.dim(1) || old.dim(3) != next.dim(3))
      fail("kv_cache: ", name_of_ring(i), "=", next, " do not continue a cache of ", old,
           "; need equal batch, heads and width");
    if (old.dtype() != next.dtype())
      fail<DTypeError>("kv_cache: ", name_of_ring(i), " of ", next.dtype(), " do not continue a cache of ",
                       old.dtype());
    if (old.device() != next.device())
      fail<DeviceError>("kv_cache: ", name_of_ring(i), " on ", next.device(), " do not continue a cache on ",
                        old.device(), "; move the stream with to(stream, device)");
  }
}

/// `old` if it has `room` rows and nobody else sees it; else fresh memory that starts with its first `used` rows.
Tensor with_room(const Tensor& old, const Tensor& like, int64_t used, int64_t room) {
  if (old.defined() && old.dim(2) == room && old.is_sole_owner()) return old;
  Tensor fresh = empty({like.dim(0), like.dim(1), room, like.dim(3)}, like.options());
  if (used > 0) {
    Tensor head = narrow(fresh, 2, 0, used);
    copy_(head, narrow(old, 2, 0, used));
  }
  return fresh;
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

/// The `count` rows of a ring at the places of the positions first, first + 1, …; a view where they lie in a row.
Tensor rows_at(const Tensor& ring, int64_t first, int64_t count) {
  const int64_t capacity = std::max<int64_t>(1, ring.dim(2)), row = first % capacity;
  const Tensor head = narrow(ring, 2, row, std::min(count, ring.dim(2) - row));
  return head.dim(2) == count ? head : cat({head, narrow(ring, 2, 0, count - head.dim(2))}, 2);
}

}  // namespace

std::vector<Tensor> KvCache::rows() const {
  if (rings.empty()) fail<ValueError>("kv_cache: the cache is empty");
  std::vector<Tensor> all;
  for (const Tensor& ring : rings) all.push_back(rows_at(ring, length - stored(), stored()));
  return all;
}

std::vector<Tensor> KvCache::append(const std::vector<Tensor>& fresh, int64_t wanted_window, Order order,
                                    int64_t expected) {
  detail::not_cut("step", "a stream has its tokens to itself; call the layer with a piece of the sequence");
  check_fresh(fresh, rings);
  if (wanted_window < 0) fail<ValueError>("kv_cache: window must not be negative — got ", wanted_window);
  if (length > 0 && window != wanted_window)
    fail<ValueError>("kv_cache: a state with window ", window, " is of another layer; need ", wanted_window);
  NoGrad guard;
  window = wanted_window;
  const int64_t m = fresh[0].dim(2), total = length + m, capacity = rings.empty() ? 0 : rings[0].dim(2);
  const bool wraps = window > 0 && total > window;
  std::vector<Tensor> seen;
  if (wraps && m > 1) {  // the first of the new queries see rows that the last ones overwrite
    const int64_t reach = std::min(stored(), window - 1);
    for (std::size_t i = 0; i < fresh.size(); ++i)
      seen.push_back(reach == 0 ? contiguous(fresh[i]) : cat({rows_at(rings[i], length - reach, reach), fresh[i]}, 2));
  }
  int64_t room = total > capacity ? std::max({total, 2 * capacity, reserved, expected}) : capacity;
  if (window > 0) room = std::min(room, window);
  const int64_t skipped = wraps ? std::max<int64_t>(0, m - window) : 0;  // overwritten in the same call
  const Tensor none;
  std::vector<Tensor> roomy, saved;  // the cache stays as it is until all memory is there
  for (std::size_t i = 0; i < fresh.size(); ++i)
    roomy.push_back(with_room(rings.empty() ? none : rings[i], fresh[i], std::min(length, capacity), room));
  if (const int64_t from = std::max(window, length + skipped); wraps)
    for (const Tensor& ring : roomy) saved.push_back(clone(rows_at(ring, from, total - from)));
  rings = std::move(roomy), overwritten = std::move(saved), length = total;  // take_back() undoes what follows
  for (std::size_t i = 0; i < fresh.size(); ++i) write_rows(rings[i], fresh[i], skipped, total - m + skipped);
  if (!seen.empty()) return seen;
  if (order == Order::position) return rows();
  for (const Tensor& ring : rings) seen.push_back(narrow(ring, 2, 0, stored()));
  return seen;
}

void KvCache::take_back(int64_t before) {
  if (before == length) return;
  if (before == 0) {
    *this = {};
    return;
  }
  for (std::size_t i = 0; i < overwritten.size(); ++i)
    write_rows(rings[i], overwritten[i], 0, length - overwritten[i].dim(2));
  overwritten.clear(), length = before;
}

int64_t KvCache::numel() const {
  int64_t numbers = 0;
  for (const Tensor& ring : rings) numbers += ring.dim(0) * ring.dim(1) * stored() * ring.dim(3);
  return numbers;
}

}  // namespace sluice
