// indices = the order of x along dim;  values = gather(x, dim, indices), whose gradient goes back to the
// places the values came from. Indices are piecewise constant in x and have no gradient.
#include <sluice/ops/index/sort.h>

#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/vectorise.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

namespace sluice {

namespace {

template <class T> struct Entry {
  T value;
  int64_t index;
};

constexpr int64_t kFew = 64, kBlock = 32, kRadix = 256;

/// As wide as T, so that loops vectorise.
template <class T> using Count = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

/// True if one of n values, at most kBlock, comes before the bound.
template <class T, class Before> bool any_before(const T* x, int64_t n, T bound, Before before) {
  Count<T> any = 0;
  for (int64_t i = 0; i < n; ++i) any |= before(x[i], bound) ? 1 : 0;
  return any != 0;
}

/// Writes the places of the NaN among n values to order[at], …, order[k − 1].
template <class T> void order_nans(const T* x, int64_t k, int64_t at, int64_t* order) {
  for (int64_t i = 0; at < k; ++i)
    if (x[i] != x[i]) order[at++] = i;
}

/// order_row() of few values: the rank of each is the number of those before it.
template <class T, class Before> void order_by_rank(const T* x, int64_t n, int64_t k, Before before, int64_t* order) {
  const auto length = static_cast<Count<T>>(round_up(n, 16));  // whole vectors
  T padded[kFew] = {};
  Count<T> rank[kFew] = {};
  std::copy_n(x, n, padded);
  detail::vectorised([=, &rank, &padded] {
    for (Count<T> j = 0; j < n; ++j) {
      const T y = x[j];
      for (Count<T> i = 0; i < length; ++i) {
        const Count<T> first = before(y, padded[i]) ? 1 : 0, equal = y == padded[i] ? 1 : 0, earlier = j < i ? 1 : 0;
        rank[i] += first | (equal & earlier);
      }
    }
  });
  int64_t numbers = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) continue;
    ++numbers;
    if (rank[i] < k) order[rank[i]] = i;
  }
  order_nans(x, k, numbers, order);
}

/// order[0…k) = indices of the first k of the n values; ties by index, NaN last. Keeps candidates and reduces them to
/// the first k whenever there are too many. A later value is a candidate only if it comes before the last of these k.
template <class T, class Before>
void order_row(const T* x, int64_t n, int64_t k, Before before, std::vector<Entry<T>>& entries, int64_t* order) {
  const auto less = [before](const Entry<T>& a, const Entry<T>& b) {
    return before(a.value, b.value) || (!before(b.value, a.value) && a.index < b.index);
  };
  const auto count = [&] { return static_cast<int64_t>(entries.size()); };
  const auto select = [&] {
    if (count() <= k) return;
    std::nth_element(entries.begin(), entries.begin() + (k - 1), entries.end(), less);
    entries.resize(static_cast<std::size_t>(k));
  };
  entries.clear();
  int64_t i = 0;
  for (; i < n && count() < 16 * k; ++i)
    if (x[i] == x[i]) entries.push_back({x[i], i});
  while (i < n) {
    select();
    const T bound = entries.back().value;
    for (int64_t m; i < n && count() < 16 * k; i += m) {
      m = std::min(kBlock, n - i);
      if (!any_before(x + i, m, bound, before)) continue;
      for (int64_t j = i; j < i + m; ++j)
        if (before(x[j], bound)) entries.push_back({x[j], j});
    }
  }
  select();
  std::sort(entries.begin(), entries.end(), less);
  int64_t at = 0;
  for (const Entry<T>& e : entries) order[at++] = e.index;
  order_nans(x, k, at, order);
}

/// A whole number that orders as x does: −0 as 0, and denormals as 0 where they are flushed.
template <class T> auto radix_key(T x, bool descending) {
  using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  constexpr Key top = Key(1) << (8 * sizeof(Key) - 1);
  Key key;
  if constexpr (std::is_floating_point_v<T>) {
    key = std::bit_cast<Key>(x + T(0));
    key = key & top ? ~key : key | top;
  } else {
    key = static_cast<Key>(x) ^ top;
  }
  return descending ? static_cast<Key>(~key) : key;
}
/// Sorts `numbers` of the n values of x by their keys less `least`: byte by byte, the lowest first; each pass keeps the
/// order of equal bytes. `most` is the highest such key: bytes above it take no pass.
template <class Key, class T>
void order_keys(const T* x, int64_t n, int64_t numbers, bool descending, uint64_t least, uint64_t most,
                int64_t* order) {
  struct Entry {
    Key key;
    uint32_t index;
  };
  const auto entries = std::make_unique_for_overwrite<Entry[]>(2 * static_cast<std::size_t>(numbers));
  Entry *from = entries.get(), *to = from + numbers;
  for (int64_t i = 0, at = 0; i < n; ++i)
    if (x[i] == x[i]) from[at++] = {static_cast<Key>(radix_key(x[i], descending) - least), static_cast<uint32_t>(i)};
  for (int shift = 0; shift < 64 && most >> shift != 0; shift += 8) {
    const auto byte = [=](const Entry& e) { return static_cast<std::size_t>(e.key >> shift & 255); };
    uint32_t place[257] = {};
    for (int64_t i = 0; i < numbers; ++i) ++place[byte(from[i]) + 1];
    for (int b = 1; b < 256; ++b) place[b] += place[b - 1];
    for (int64_t i = 0; i < numbers; ++i) to[place[byte(from[i])]++] = from[i];
    std::swap(from, to);
  }
  for (int64_t i = 0; i < numbers; ++i) order[i] = from[i].index;
}
/// order_row() for all n < 2^32 values.
template <class T> void order_by_radix(const T* x, int64_t n, bool descending, int64_t* order) {
  uint64_t least = ~uint64_t{0}, most = 0;
  int64_t numbers = 0, nans = n;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) continue;
    const uint64_t key = radix_key(x[i], descending);
    least = std::min(least, key), most = std::max(most, key), ++numbers;
  }
  for (int64_t i = n; numbers < nans && i-- > 0;)
    if (x[i] != x[i]) order[--nans] = i;
  if (numbers == 0) return;
  const bool narrow = (most - least) >> 32 == 0;
  (narrow ? order_keys<uint32_t, T> : order_keys<uint64_t, T>)(x, n, numbers, descending, least, most - least, order);
}

/// order_row for k of at most kFew. The first k so far are kept sorted; few later values come before the last of them,
/// and whole blocks of x are compared with it at a time. A later equal value displaces none, as its index is higher.
/// False if order is unfinished because too many values do come before, as in a row that is sorted the other way round.
template <class T, class Before> bool order_few(const T* x, int64_t n, int64_t k, Before before, int64_t* order) {
  T best[kFew];
  int64_t count = 0, moves = 0, i = 0;
  const auto insert = [&](int64_t j) {
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && before(x[j], best[at - 1]); --at, ++moves) best[at] = best[at - 1], order[at] = order[at - 1];
    best[at] = x[j], order[at] = j;
  };
  for (; i < n && count < k; ++i)
    if (x[i] == x[i]) insert(i);
  for (; i < n && moves <= 8 * n; i += kBlock) {
    const int64_t m = std::min(kBlock, n - i);
    if (!any_before(x + i, m, best[k - 1], before)) continue;
    for (int64_t j = i; j < i + m; ++j)
      if (before(x[j], best[k - 1])) insert(j);
  }
  if (moves > 8 * n) return false;
  order_nans(x, k, count, order);
  return true;
}

/// Each row of contiguous x [rows…, n] gives a row of index [rows…, k].
void argsort_cpu(const Tensor& x, Tensor& index, bool descending) {
  const int64_t n = x.dim(-1), k = index.dim(-1);
  const auto levels = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n)));
  const bool few = k <= kFew && k * k <= 4 * n, radix = k == n && n >= kRadix && n >> 32 == 0;
  int64_t* out = index.mutable_data<int64_t>();
  dispatch_all(x.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, BFloat16>) {  // widened (core/kernel/kernel.h)
      const T* in = x.data<T>();
      parallel_for(x.numel() / n, std::max<int64_t>(1, (1 << 14) / (n * levels)), [&](int64_t begin, int64_t end) {
        std::vector<Entry<T>> entries;
        const auto ordered = [&](const T* row, int64_t* to, auto before) {
          if (few && order_few(row, n, k, before, to)) return;
          if (n <= std::min<int64_t>(kFew, 256 / sizeof(T))) order_by_rank(row, n, k, before, to);
          else order_row(row, n, k, before, entries, to);
        };
        for (int64_t r = begin; r < end; ++r) {
          const T* row = in + r * n;
          int64_t* to = out + r * k;
          if (radix) order_by_radix(row, n, descending, to);
          else if (descending) ordered(row, to, [](T a, T b) { return a > b; });
          else ordered(row, to, [](T a, T b) { return a < b; });
        }
      });
    }
  });
}

/// Indices of the first k entries along dim.
Tensor order(const Tensor& x, int dim, int64_t k, bool descending) {
  NoGrad guard;
  const Tensor rows = contiguous(transpose(x.detach(), dim, -1));
  Shape shape = rows.shape();
  shape[shape.rank() - 1] = k;
  Tensor index = empty(shape, {i64, x.device()}, "argsort");
  if (index.numel() > 0) kernel::argsort(rows, index, descending);
  return contiguous(transpose(index, dim, -1));
}

}  // namespace

constinit decltype(kernel::argsort) kernel::argsort{"sort", &argsort_cpu};

Sorted sort(const Tensor& x, int64_t dim, bool descending) {
  detail::check_defined("sort", x);
  const int d = wrap_dim("sort", dim, x.rank());
  if (x.rank() == 0) return {clone(x), zeros({}, {i64, x.device()})};
  Tensor index = order(x, d, x.shape()[d], descending);
  return {gather(x, d, index), index};
}

Tensor argsort(const Tensor& x, int64_t dim, bool descending) {
  detail::check_defined("argsort", x);
  const int d = wrap_dim("argsort", dim, x.rank());
  if (x.rank() == 0) return zeros({}, {i64, x.device()});
  return order(x, d, x.shape()[d], descending);
}

Sorted topk(const Tensor& x, int64_t k, int64_t dim) {
  detail::check_defined("topk", x);
  const int d = dim_of("topk", dim, x);
  if (k < 0 || k > x.shape()[d])
    fail<ValueError>("topk: k is out of range — got k=", k, ", x=", x, ", dim ", dim, "; need 0 <= k <= x.dim(dim)");
  Tensor index = order(x, d, k, true);
  return {gather(x, d, index), index};
}

}  // namespace sluice
