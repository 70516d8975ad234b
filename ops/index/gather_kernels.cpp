// The loops of gather and its relatives, and of triangles.
#include <sluice/ops/kernels.h>

#include <sluice/core/number/arithmetic.h>
#include <sluice/core/kernel/copy_rows.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/kernel/transpose.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice {

namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per task
constexpr int64_t kColumns = 128;    // summed at a time

int64_t per_task(int64_t elements) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements)); }

/// Whether n indices lie in [0, size).
bool all_within(const int64_t* p, int64_t n, int64_t size) {
  uint64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= static_cast<uint64_t>(p[i]) >= static_cast<uint64_t>(size);
  return !bad;
}

[[noreturn, gnu::noinline, gnu::cold]] void fail_index(const char* op, const Tensor& index, int64_t size) {
  const int64_t *p = index.data<int64_t>(), *bad = p;
  while (*bad >= 0 && *bad < size) ++bad;
  fail<ValueError>(op, ": index ", *bad, " is outside [0, ", size, ") — got it at element ", bad - p,
                   " of an index of shape ", index);
}

void check_indices(const char* op, const Tensor& index, int64_t size) {
  if (!all_within(index.data<int64_t>(), index.numel(), size)) fail_index(op, index, size);
}

/// The positions of an index sorted by target and then by position: a counting sort.
struct Groups {
  std::vector<int64_t> targets;  // distinct, ascending
  std::vector<int64_t> starts;   // where each target's run in `members` starts, and the end
  std::vector<int64_t> members;

  Groups(const int64_t* index, int64_t n, int64_t size) : members(static_cast<std::size_t>(n)) {
    std::vector<int64_t> next(static_cast<std::size_t>(size) + 1);
    for (int64_t i = 0; i < n; ++i) ++next[static_cast<std::size_t>(index[i])];
    int64_t at = 0;
    for (int64_t v = 0; v < size; ++v) {
      int64_t& count = next[static_cast<std::size_t>(v)];
      if (count > 0) targets.push_back(v), starts.push_back(at);
      at += std::exchange(count, at);
    }
    starts.push_back(n);
    for (int64_t i = 0; i < n; ++i) members[static_cast<std::size_t>(next[static_cast<std::size_t>(index[i])]++)] = i;
  }
  int64_t count() const { return static_cast<int64_t>(targets.size()); }
};

void gather_cpu(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  const int last = y.rank() - 1;
  const int64_t size = x.shape()[dim], n = y.shape()[last], rows = n == 0 ? 0 : y.numel() / n;
  const int64_t along = x.strides()[dim], step = dim == last ? 0 : x.strides()[last];
  const int64_t matrix = last > 0 ? y.shape()[last - 1] : 1;  // rows that are evenly far apart
  const int64_t down = last > 0 && dim != last - 1 ? x.strides()[last - 1] : 0;
  const int64_t* at = index.data<int64_t>();
  Layout lanes(y.shape(), x.strides(), 0);  // where the rows of y begin in x: at index 0 of dim
  lanes.strides[dim] = 0;
  dispatch_all(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* out = y.mutable_data<T>();
    // Rows that are read nearly whole: the next one is fetched ahead, since the processor cannot foresee an index.
    constexpr int64_t kLine = 64 / sizeof(T);
    const bool dense = dim == last && along == 1 && n > 1 && n >= size / kLine;
    parallel_for(rows, per_task(n), [&](int64_t begin, int64_t end) {
      if (!all_within(at + begin * n, (end - begin) * n, size)) fail_index("gather", index, size);
      for (int64_t r = begin, stop; r < end; r = stop) {
        stop = std::min(end, (r / matrix + 1) * matrix);
        const T* row = from + lanes.step_to(r, 0, last);
        if (n == 1) {
          for (int64_t k = 0; k < stop - r; ++k) out[r + k] = row[k * down + at[r + k] * along];
          continue;
        }
        for (int64_t k = r; k < stop; ++k, row += down) {
          if (dense)
            for (int64_t j = 0; j < size; j += kLine) __builtin_prefetch(row + down + j);
          if (step == 0 && along == 1)
            for (int64_t j = 0; j < n; ++j) out[k * n + j] = row[at[k * n + j]];
          else
            for (int64_t j = 0; j < n; ++j) out[k * n + j] = row[j * step + at[k * n + j] * along];
        }
      }
    });
  });
}

/// put(element of y, element of src) for all positions of the index. A lane is all positions that differ along dim
/// only: lanes have distinct targets, so they run in parallel and each puts in the order of the index.
template <class T, class Put>
void scatter_lanes(const char* op, Tensor& y, int dim, const Tensor& index, const Tensor& src, Put put) {
  const Shape& shape = index.shape();
  const ReduceShape s = ReduceShape::along(shape, dim);
  if (index.numel() == 0) return;
  const Layout box(shape, y.strides(), 0);
  std::vector<int64_t> lane(static_cast<std::size_t>(s.inner));  // offset of each inner position
  for (int64_t i = 0; i < s.inner; ++i) lane[static_cast<std::size_t>(i)] = box.step_to(i, dim + 1, shape.rank());
  const int64_t size = y.shape()[dim], along = y.strides()[dim], width = std::min<int64_t>(s.inner, 256);
  const int64_t blocks = ceil_div(s.inner, width);
  const int64_t* at = index.data<int64_t>();
  const T* in = src.data<T>();
  T* out = y.mutable_data<T>();
  parallel_for(s.outer * blocks, per_task(s.n * width), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t o = task / blocks, first = task % blocks * width, stop = std::min(s.inner, first + width);
      T* base = out + box.step_to(o, 0, dim);
      if (s.inner == 1) {  // one lane
        const int64_t row = o * s.n;
        if (!all_within(at + row, s.n, size)) fail_index(op, index, size);
        for (int64_t k = 0; k < s.n; ++k) put(base[at[row + k] * along], in[row + k]);
        continue;
      }
      for (int64_t k = 0; k < s.n; ++k) {
        const int64_t row = (o * s.n + k) * s.inner;
        if (!all_within(at + row + first, stop - first, size)) fail_index(op, index, size);
        for (int64_t i = first; i < stop; ++i)
          put(base[lane[static_cast<std::size_t>(i)] + at[row + i] * along], in[row + i]);
      }
    }
  });
}

void scatter_add_cpu(Tensor& y, int dim, const Tensor& index, const Tensor& src) {
  dispatch_sum("scatter_add", y.dtype(), [&]<class T, class>() {
    scatter_lanes<T>("scatter_add", y, dim, index, src, [](T& to, T from) { to = detail::sum_of(to, from); });
  });
}

void scatter_cpu(Tensor& y, int dim, const Tensor& index, const Tensor& src) {
  dispatch_all(y.dtype(),
               [&]<class T>() { scatter_lanes<T>("scatter", y, dim, index, src, [](T& to, T from) { to = from; }); });
}

/// to[k] = slice at[k] of `base`, k < n: `size` numbers each.
template <class T>
void copy_slices(const T* base, int64_t along, const int64_t* at, int64_t n, int64_t size, T* __restrict__ to) {
  if (size == 1) {
    for (int64_t k = 0; k < n; ++k) to[k] = base[at[k] * along];
  } else {
    for (int64_t k = 0; k < n; ++k)
      detail::copy_bytes(base + at[k] * along, to + k * size, size * static_cast<int64_t>(sizeof(T)));
  }
}

void index_select_cpu(const char* op, const Tensor& x_in, int dim, const Tensor& index, Tensor& y) {
  check_indices(op, index, x_in.shape()[dim]);
  if (y.numel() == 0) return;
  // A slice must be one run of memory; the dims before it and the dim itself may have any stride.
  Layout slice;
  for (int d = dim + 1; d < x_in.rank(); ++d)
    slice.shape.push_back(x_in.shape()[d]), slice.strides.push_back(x_in.strides()[d]);
  const Tensor x = slice.is_contiguous() ? x_in : clone(x_in);
  const ReduceShape s = ReduceShape::along(y.shape(), dim);
  const int64_t along = x.strides()[dim];
  const int64_t* at = index.data<int64_t>();
  dispatch_all(x.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* out = y.mutable_data<T>();
    parallel_for(s.outer * s.n, per_task(s.inner), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin, stop; r < end; r = stop) {  // the slices of one position before dim
        const int64_t o = r / s.n;
        stop = std::min(end, (o + 1) * s.n);
        const T* base = from + x.layout().step_to(o, 0, dim);
        copy_slices(base, along, at + (r - o * s.n), stop - r, s.inner, out + r * s.inner);
      }
    });
  });
}

/// Whether each index is above the one before, so that no two name one slice.
bool ascends(const int64_t* p, int64_t n) {
  int64_t k = 1;
  while (k < n && p[k - 1] < p[k]) ++k;
  return k >= n;
}

/// target [size] += the rows of base that [m, end) name, one after the other, in Sum.
template <class Sum, class T>
[[gnu::always_inline]] inline void add_rows(const T* base, int64_t row, const int64_t* m, const int64_t* end,
                                            int64_t size, T* target) {
  const auto add = [](Sum sum, T x) { return detail::sum_of(sum, detail::convert<Sum>(x)); };
  if (size == 1) {
    Sum sum = detail::convert<Sum>(*target);
    for (; m < end; ++m) sum = add(sum, base[*m * row]);
    *target = detail::convert<T>(sum);
    return;
  }
  Sum sum[kColumns];
  for (int64_t i = 0; i < size; ++i) sum[i] = detail::convert<Sum>(target[i]);
  for (; m + 4 <= end; m += 4) {  // loading four rows at once hides the latency of memory
    const T *a = base + m[0] * row, *b = base + m[1] * row, *c = base + m[2] * row, *d = base + m[3] * row;
    for (int64_t i = 0; i < size; ++i) sum[i] = add(add(add(add(sum[i], a[i]), b[i]), c[i]), d[i]);
  }
  for (; m < end; ++m)
    for (int64_t i = 0; i < size; ++i) sum[i] = add(sum[i], base[*m * row + i]);
  for (int64_t i = 0; i < size; ++i) target[i] = detail::convert<T>(sum[i]);
}

/// y += src where no slice has two sources.
template <class Sum, class T>
void add_each(const ReduceShape& s, int64_t size, const int64_t* at, const T* __restrict__ in, T* __restrict__ y) {
  parallel_for(s.outer * s.n, per_task(s.inner), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin, stop; r < end; r = stop) {  // the slices of one position before dim
      const int64_t o = r / s.n;
      stop = std::min(end, (o + 1) * s.n);
      for (int64_t k = r; k < stop; ++k) {
        T* to = y + (o * size + at[k - o * s.n]) * s.inner;
        for (int64_t i = 0; i < s.inner; ++i)
          to[i] = detail::convert<T>(
              detail::sum_of(detail::convert<Sum>(to[i]), detail::convert<Sum>(in[k * s.inner + i])));
      }
    }
  });
}

/// The index is sorted by target. A task sums a block of columns of all slices of one target, in the order of
/// the index, and writes it once.
template <class Sum, class T>
void add_groups(const ReduceShape& s, int64_t size, const int64_t* at, const T* in, T* y) {
  const Groups groups(at, s.n, size);
  const int64_t blocks = ceil_div(s.inner, kColumns), tasks = groups.count() * blocks;
  const int64_t work = s.n / groups.count() * std::min(kColumns, s.inner);
  parallel_for(s.outer * tasks, per_task(work), [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 8, kLine = 64 / sizeof(T);
    const int64_t *members = groups.members.data(), *last = members + s.n;
    for (int64_t task = begin, stop; task < end; task = stop) {  // those of one position before dim
      const int64_t o = task / tasks, first_task = task - o * tasks;
      stop = std::min(end, (o + 1) * tasks);
      auto g = static_cast<std::size_t>(first_task / blocks);
      int64_t column = first_task % blocks * kColumns;
      for (int64_t left = stop - task; left > 0; --left) {
        const int64_t *m = members + groups.starts[g], *end_m = members + groups.starts[g + 1];
        const int64_t w = std::min(kColumns, s.inner - column);
        const T* base = in + o * s.n * s.inner + column;
        if (end_m - m < kAhead && w >= kLine)  // the processor cannot foresee the rows of the next groups
          for (const int64_t* k = m + kAhead; k < std::min(end_m + kAhead, last); ++k)
            for (int64_t i = 0; i < w; i += kLine) __builtin_prefetch(base + *k * s.inner + i);
        add_rows<Sum>(base, s.inner, m, end_m, w, y + (o * size + groups.targets[g]) * s.inner + column);
        if ((column += kColumns) >= s.inner) column = 0, ++g;
      }
    }
  });
}

/// Slices of one number: a task goes through the index once for each position before dim.
template <class Sum, class T>
void add_numbers(const ReduceShape& s, int64_t size, const int64_t* at, const T* in, T* y) {
  parallel_for(s.outer, per_task(s.n + size), [=](int64_t begin, int64_t end) {
    std::vector<Sum> sum(static_cast<std::size_t>(size));
    Sum* const sums = sum.data();
    for (int64_t o = begin; o < end; ++o) {
      const T* from = in + o * s.n;
      T* to = y + o * size;
      for (int64_t i = 0; i < size; ++i) sums[i] = detail::convert<Sum>(to[i]);
      for (int64_t k = 0; k < s.n; ++k) sums[at[k]] = detail::sum_of(sums[at[k]], detail::convert<Sum>(from[k]));
      for (int64_t k = 0; k < s.n; ++k)
        to[at[k]] = detail::convert<T>(sums[at[k]]);  // places that no index names keep their bits
    }
  });
}

/// The same for kSide positions before dim at a time, whose numbers are transposed, so that they are added side by
/// side.
constexpr int64_t kSide = 16;
template <class Sum, class T>
void add_numbers_beside(const ReduceShape& s, int64_t size, const int64_t* at, const T* in, T* y) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  constexpr int64_t kWidth = 64, side = 16 / sizeof(T);
  std::vector<int64_t> named(at, at + s.n);
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  parallel_for(s.outer / kSide, per_task(kSide * (s.n + size)), [&, size, at, in, y](int64_t begin, int64_t end) {
    std::vector<Sum> sum(static_cast<std::size_t>(size * kSide));
    Sum* const sums = sum.data();
    alignas(64) T numbers[kWidth * kSide];
    for (int64_t o = begin * kSide; o < end * kSide; o += kSide) {
      const T* from = in + o * s.n;
      T* to = y + o * size;
      for (const int64_t i : named)
        for (int64_t r = 0; r < kSide; ++r) sums[i * kSide + r] = detail::convert<Sum>(to[r * size + i]);
      for (int64_t first = 0; first < s.n; first += kWidth) {
        const int64_t w = std::min(kWidth, s.n - first), squares = w / side * side;
        for (int64_t r = 0; r < kSide; r += side)
          for (int64_t c = 0; c < squares; c += side)
            detail::transpose_registers(reinterpret_cast<const Bits*>(from + r * s.n + first + c), s.n,
                                        reinterpret_cast<Bits*>(numbers + c * kSide + r), kSide);
        for (int64_t c = squares; c < w; ++c)
          for (int64_t r = 0; r < kSide; ++r) numbers[c * kSide + r] = from[r * s.n + first + c];
        for (int64_t c = 0; c < w; ++c) {
          Sum* const target = sums + at[first + c] * kSide;
          const T* const some = numbers + c * kSide;
          for (int64_t r = 0; r < kSide; ++r) target[r] = detail::sum_of(target[r], detail::convert<Sum>(some[r]));
        }
      }
      for (const int64_t i : named)  // places that no index names keep their bits
        for (int64_t r = 0; r < kSide; ++r) to[r * size + i] = detail::convert<T>(sums[i * kSide + r]);
    }
  });
  const int64_t done = s.outer / kSide * kSide;
  add_numbers<Sum>({s.outer - done, s.n, 1}, size, at, in + done * s.n, y + done * size);
}

/// Sums of floats are accumulated in f64.
void index_add_cpu(Tensor& y, int dim, const Tensor& index, const Tensor& src) {
  const int64_t size = y.shape()[dim], *at = index.data<int64_t>();
  check_indices("index_add", index, size);
  if (src.numel() == 0) return;
  const ReduceShape s = ReduceShape::along(src.shape(), dim);
  const auto add = [&]<class T, class Sum>() {
    const bool numbers = s.inner == 1 && size <= 4 * s.n;
    const auto run = ascends(at, s.n)                      ? add_each<Sum, T>
                     : !numbers                            ? add_groups<Sum, T>
                     : s.outer >= kSide && s.n >= 4 * size ? add_numbers_beside<Sum, T>
                                                           : add_numbers<Sum, T>;
    run(s, size, at, src.data<T>(), y.mutable_data<T>());
  };
  if (y.dtype() == bf16) add.operator()<BFloat16, double>();
  else dispatch_sum("index_add", y.dtype(), add);
}

void zero_triangle_cpu(Tensor& y, bool upper, int64_t k) {
  const int64_t n = y.dim(-2), m = y.dim(-1), bytes = size_of(y.dtype());
  if (y.numel() == 0) return;
  k = std::clamp(k, -n, m);
  parallel_for(y.numel() / m, per_task(m), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      // triu drops the columns before row + k, tril the columns after it.
      const int64_t i = r % n, edge = std::clamp<int64_t>(upper ? i + k : i + k + 1, 0, m);
      const int64_t first = upper ? 0 : edge, stop = upper ? edge : m;
      std::memset(y.raw() + (r * m + first) * bytes, 0, static_cast<std::size_t>((stop - first) * bytes));
    }
  });
}

void causal_mask_cpu(Tensor& y) {
  const int64_t lq = y.dim(0), lk = y.dim(1);
  bool* p = y.mutable_data<bool>();
  parallel_for(lq, per_task(lk), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t seen = std::clamp<int64_t>(i + lk - lq + 1, 0, lk);
      std::fill_n(p + i * lk, seen, true);
      std::fill_n(p + i * lk + seen, lk - seen, false);
    }
  });
}

}  // namespace

constinit decltype(kernel::gather) kernel::gather{"gather", &gather_cpu, Bf16::native};
constinit decltype(kernel::scatter_add) kernel::scatter_add{"scatter_add", &scatter_add_cpu, Bf16::updated};
constinit decltype(kernel::scatter) kernel::scatter{"scatter", &scatter_cpu, Bf16::native};
constinit decltype(kernel::index_select) kernel::index_select{"index_select", &index_select_cpu, Bf16::native};
constinit decltype(kernel::index_add) kernel::index_add{"index_add", &index_add_cpu, Bf16::native};
constinit decltype(kernel::zero_triangle) kernel::zero_triangle{"triu", &zero_triangle_cpu, Bf16::native};
constinit decltype(kernel::causal_mask) kernel::causal_mask{"causal_mask", &causal_mask_cpu};

}  // namespace sluice
