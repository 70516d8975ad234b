#include <sluice/layers/nn/kv_cache.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>

namespace sluice {

namespace {

const char* name_of_rows(std::size_t i) { return i == 0 ? "keys" : i == 1 ? "values" : "further rows"; }

void check_fresh(const std::vector<Tensor>& fresh, const std::vector<Tensor>& buffers) {
  if (fresh.empty() || (!buffers.empty() && fresh.size() != buffers.size()))
    fail<ValueError>("kv_cache: got ", fresh.size(), " tensors of rows for a cache of ", buffers.size());
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const Tensor& next = fresh[i];
    if (next.rank() != 4 || next.dim(0) != fresh[0].dim(0) || next.dim(2) != fresh[0].dim(2))
      fail("kv_cache: got ", name_of_rows(i), "=", next, " beside keys=", fresh[0], "; need [batch, heads, m, width]");
    if (buffers.empty()) continue;
    const Tensor& old = buffers[i];
    if (old.dim(0) != next.dim(0) || old.dim(1) != next.dim(1) || old.dim(3) != next.dim(3))
      fail("kv_cache: ", name_of_rows(i), "=", next, " do not continue a cache of ", old,
           "; need equal batch, heads and width");
    if (old.dtype() != next.dtype())
      fail<DTypeError>("kv_cache: ", name_of_rows(i), " of ", next.dtype(), " do not continue a cache of ",
                       old.dtype());
    if (old.device() != next.device())
      fail<DeviceError>("kv_cache: ", name_of_rows(i), " on ", next.device(), " do not continue a cache on ",
                        old.device(), "; move the stream with to(stream, device)");
  }
}

/// Fresh memory of `room` rows like those of x, which begins with `earlier`.
Tensor with_room(const Tensor& x, int64_t room, const Tensor& earlier) {
  Tensor fresh = empty({x.dim(0), x.dim(1), room, x.dim(3)}, x.options());
  if (earlier.defined()) {
    Tensor head = narrow(fresh, 2, 0, earlier.dim(2));
    copy_(head, earlier);
  }
  return fresh;
}

}  // namespace

std::vector<Tensor> KvCache::rows() const {
  if (buffers.empty()) fail<ValueError>("kv_cache: the cache is empty");
  std::vector<Tensor> all;
  for (const Tensor& x : buffers) all.push_back(narrow(x, 2, length - stored() - first, stored()));
  return all;
}

std::vector<Tensor> KvCache::append(const std::vector<Tensor>& fresh, int64_t wanted_window, int64_t expected) {
  detail::not_cut("step", "a stream has its tokens to itself; call the layer with a piece of the sequence");
  check_fresh(fresh, buffers);
  if (wanted_window < 0) fail<ValueError>("kv_cache: window must not be negative — got ", wanted_window);
  if (length > 0 && window != wanted_window)
    fail<ValueError>("kv_cache: a state with window ", window, " is of another layer; need ", wanted_window);
  NoGrad guard;
  window = wanted_window;
  const int64_t m = fresh[0].dim(2), total = length + m, capacity = buffers.empty() ? 0 : buffers[0].dim(2);
  const bool full = buffers.empty() || total - first > capacity;
  if (full || !std::ranges::all_of(buffers, &Tensor::is_sole_owner)) {
    const int64_t kept = stored(), least = kept + m;
    int64_t room = full ? std::max({least, reserved > 0 ? reserved : 2 * capacity, expected}) : capacity;
    if (window > 0 && room > window) room = std::max(least, window + (window + 2) / 4);
    const std::vector<Tensor> earlier = buffers.empty() ? std::vector<Tensor>(fresh.size()) : rows();
    std::vector<Tensor> roomy;  // the cache stays as it is until all memory is there
    for (std::size_t i = 0; i < fresh.size(); ++i) roomy.push_back(with_room(fresh[i], room, earlier[i]));
    buffers = std::move(roomy), first = length - kept;
  }
  const int64_t seen_from = window > 0 ? std::max<int64_t>(0, length - (window - 1)) : 0;
  std::vector<Tensor> seen;
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    Tensor place = narrow(buffers[i], 2, length - first, m);
    copy_(place, fresh[i]);
    seen.push_back(narrow(buffers[i], 2, seen_from - first, total - seen_from));
  }
  length = total;
  return seen;
}

void KvCache::take_back(int64_t before) noexcept {
  if (before == 0) *this = {};
  length = before;
}

void KvCache::trim() noexcept try {
  if (buffers.empty()) return;
  std::vector<Tensor> trimmed = rows();
  for (Tensor& x : trimmed) x = clone(x);
  buffers = std::move(trimmed), first = length - stored();
} catch (...) {}

int64_t KvCache::numel() const {
  int64_t numbers = 0;
  for (const Tensor& x : buffers) numbers += x.dim(0) * x.dim(1) * stored() * x.dim(3);
  return numbers;
}

}  // namespace sluice
