#include <sluice/core/strided.h>

#include <sluice/core/parallel.h>

#include <algorithm>
#include <cstring>

namespace sluice::detail {

namespace {

template <class T, class S>
void convert_run(const S* from, int64_t stride, int64_t n, T* out) {
  if (stride == 1) {
    if constexpr (std::is_same_v<T, S>) std::memcpy(out, from, static_cast<std::size_t>(n) * sizeof(T));
    else
      for (int64_t i = 0; i < n; ++i) out[i] = convert<T>(from[i]);
  } else if (stride == 0) {
    std::fill_n(out, n, convert<T>(*from));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = convert<T>(from[i * stride]);
  }
}

/// Calls run(element offset, stride, count, position) for the inner runs of [start, start+n).
template <class Run>
void for_each_run(const Walk& w, int64_t start, int64_t n, Run run) {
  if (w.rank == 0) {
    if (n > 0) run(int64_t{0}, int64_t{1}, n, int64_t{0});
    return;
  }
  int64_t index[kMaxRank];
  int64_t offset = 0;
  int64_t rest = start;
  for (int d = w.rank - 1; d >= 0; --d) {
    index[d] = rest % w.shape[d];
    rest /= w.shape[d];
    offset += index[d] * w.strides[d];
  }
  const int last = w.rank - 1;
  for (int64_t done = 0; done < n;) {
    int64_t count = std::min(w.shape[last] - index[last], n - done);
    run(offset, w.strides[last], count, done);
    done += count;
    index[last] += count;
    offset += count * w.strides[last];
    for (int d = last; d > 0 && index[d] == w.shape[d]; --d) {
      offset += w.strides[d - 1] - w.shape[d] * w.strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

}  // namespace

Walk::Walk(const Layout& l) {
  contiguous = l.is_contiguous();
  if (contiguous) {
    rank = 1, shape[0] = l.numel(), strides[0] = 1;
    return;
  }
  for (int i = 0; i < l.rank(); ++i) {
    if (l.shape[i] == 1) continue;
    if (rank > 0 && strides[rank - 1] == l.strides[i] * l.shape[i]) {
      shape[rank - 1] *= l.shape[i];
      strides[rank - 1] = l.strides[i];
    } else {
      shape[rank] = l.shape[i], strides[rank] = l.strides[i];
      ++rank;
    }
  }
}

template <class T>
void read_tile(const Walk& walk, const std::byte* base, DType dtype, int64_t start, int64_t n,
               T* out) {
  dispatch_all(dtype, [&]<class S>() {
    vectorised([=, &walk, from = reinterpret_cast<const S*>(base)] {
      for_each_run(walk, start, n, [&](int64_t offset, int64_t stride, int64_t count, int64_t at) {
        convert_run(from + offset, stride, count, out + at);
      });
    });
  });
}
template void read_tile(const Walk&, const std::byte*, DType, int64_t, int64_t, float*);
template void read_tile(const Walk&, const std::byte*, DType, int64_t, int64_t, double*);
template void read_tile(const Walk&, const std::byte*, DType, int64_t, int64_t, BFloat16*);
template void read_tile(const Walk&, const std::byte*, DType, int64_t, int64_t, int64_t*);
template void read_tile(const Walk&, const std::byte*, DType, int64_t, int64_t, int32_t*);
template void read_tile(const Walk&, const std::byte*, DType, int64_t, int64_t, bool*);

void copy_strided(const std::byte* from, const Layout& from_layout, DType from_type, std::byte* to,
                  const Layout& to_layout, DType to_type) {
  const Walk source(from_layout), target(to_layout);
  const int64_t n = from_layout.numel();
  dispatch_all(to_type, [&]<class T>() {
    T* out = reinterpret_cast<T*>(to);
    parallel_for(n, 64 * kTile, [&](int64_t begin, int64_t end) {
      if (target.contiguous) return read_tile(source, from, from_type, begin, end - begin, out + begin);
      T tile[kTile];
      for (int64_t i = begin; i < end; i += kTile) {
        int64_t m = std::min(kTile, end - i);
        read_tile(source, from, from_type, i, m, tile);
        for_each_run(target, i, m, [&](int64_t offset, int64_t stride, int64_t count, int64_t at) {
          for (int64_t k = 0; k < count; ++k) out[offset + k * stride] = tile[at + k];
        });
      }
    });
  });
}

}  // namespace sluice::detail
