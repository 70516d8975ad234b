// Kernels that make, copy, compare and edit tensors. A thread takes an element, or eight neighbours.
#include <sluice/core/number/philox.h>
#include <sluice/core/number/random.h>
#include <sluice/cuda/elementwise/transposed.cuh>
#include <sluice/cuda/kernels.h>

#include <cmath>

namespace sluice::cuda {

using sluice::detail::Computed;
using sluice::detail::convert;
using sluice::detail::kPerBlock;
using sluice::detail::StridedRange;

namespace {

// -- copying ------------------------------------------------------------------------------------------------------
template <class S, class T> struct Copy {
  const S* source;
  T* target;
  StridedRange in, out;
  __device__ void operator()(int64_t i) const { target[offset_at(out, i)] = convert<T>(source[offset_at(in, i)]); }
  __device__ void vector(int64_t i) const {
    const S* const from = source + offset_at(in, i);
    T* const to = target + offset_at(out, i);
    if constexpr (std::is_same_v<S, T>) {  // bit for bit
#pragma unroll
      for (int piece = 0; piece < kNeighbours * static_cast<int>(sizeof(T)) / 16; ++piece)
        reinterpret_cast<Bytes16<uint32_t>*>(to)[piece] = reinterpret_cast<const Bytes16<uint32_t>*>(from)[piece];
    } else {
      float x[kNeighbours];
      load_vector(x, from), store_vector(to, x);
    }
  }
};

template <class T> constexpr bool kIsFloat = std::is_same_v<T, float> || std::is_same_v<T, BFloat16>;

template <class S, class T>
void copy_as(const Tensor& from, const StridedRange& in, Tensor& to, const StridedRange& out) {
  const Copy<S, T> body{data_of<S>(from), data_of<T>(to), in, out};
  if constexpr ((kIsFloat<S> && kIsFloat<T>) || (std::is_same_v<S, T> && sizeof(T) > 1)) {  // few copies are of bools
    if (walks_in_vectors(in, body.source, sizeof(S)) && walks_in_vectors(out, body.target, sizeof(T)))
      return for_each_vector(to.numel(), body);
    if (const auto c = transposed(in, out)) return copy(body.source, body.target, *c, to.numel());
  }
  for_each(to.numel(), body);
}

template <class T> struct Fill {
  T* target;
  StridedRange out;
  T value;
  __device__ void operator()(int64_t i) const { target[offset_at(out, i)] = value; }
  __device__ void vector(int64_t i) const {
    uint32_t word;
    if constexpr (sizeof(T) == sizeof word) word = __builtin_bit_cast(uint32_t, value);
    else word = value.bits * 0x10001u;
    auto* const to = reinterpret_cast<Bytes16<uint32_t>*>(target + offset_at(out, i));
#pragma unroll
    for (std::size_t piece = 0; piece < kNeighbours * sizeof(T) / 16; ++piece) to[piece] = {word, word, word, word};
  }
};
template <class T> void fill_as(Tensor& x, double value) {
  const Fill<T> body{data_of<T>(x), StridedRange(x.layout()), convert<T>(value)};
  if constexpr (kIsFloat<T>)
    if (walks_in_vectors(body.out, body.target, sizeof(T))) return for_each_vector(x.numel(), body);
  for_each(x.numel(), body);
}

template <class T> void ramp_as(Tensor& y, double start, double step) {
  T* p = data_of<T>(y);
  for_each(y.numel(), [=] __device__(int64_t i) { p[i] = convert<T>(start + step * static_cast<double>(i)); });
}

template <class T> void eye_as(Tensor& y) {
  T* p = data_of<T>(y);
  const int64_t m = y.dim(1);
  for_each(y.numel(), [=] __device__(int64_t i) { p[i] = convert<T>(i / m == i % m ? 1.0 : 0.0); });
}

template <class T> void one_hot_as(const int64_t* index, Tensor& y) {
  T* p = data_of<T>(y);
  const int64_t classes = y.dim(-1);
  for_each(y.numel(), [=] __device__(int64_t i) { p[i] = convert<T>(index[i / classes] == i % classes ? 1.0 : 0.0); });
}

template <class T> void zero_triangle_as(Tensor& y, bool upper, int64_t k) {
  T* p = data_of<T>(y);
  const int64_t n = y.dim(-2), m = y.dim(-1);
  for_each(y.numel(), [=] __device__(int64_t i) {
    const int64_t distance = i % m - i / m % n;
    if (upper ? distance < k : distance > k) p[i] = convert<T>(0.0);
  });
}

template <class T> struct AddTo {
  T* x;
  const T* y;
  StridedRange in;
  Computed<T> factor;
  __device__ void operator()(int64_t i) const {
    using C = Computed<T>;
    x[i] = convert<T>(convert<C>(x[i]) + factor * convert<C>(y[offset_at(in, i)]));
  }
  __device__ void vector(int64_t i) const {
    float u[kNeighbours], v[kNeighbours];
    load_vector(u, x + i), load_vector(v, y + offset_at(in, i));
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) u[e] += factor * v[e];
    store_vector(x + i, u);
  }
};
template <class T> void add_to_as(Tensor& x, const Tensor& y, double factor) {
  const AddTo<T> body{data_of<T>(x), data_of<T>(y), StridedRange(y.layout()), static_cast<Computed<T>>(factor)};
  if constexpr (!std::is_same_v<T, double>)
    if (is_aligned_16(body.x) && walks_in_vectors(body.in, body.y, sizeof(T))) return for_each_vector(x.numel(), body);
  for_each(x.numel(), body);
}

// -- comparing ------------------------------------------------------------------------------------------------
template <class T> __device__ bool holds(Compare kind, T u, T v) {
  switch (kind) {
    case Compare::eq: return u == v;
    case Compare::ne: return u != v;
    case Compare::lt: return u < v;
    case Compare::le: return u <= v;
    case Compare::gt: return u > v;
    case Compare::ge: return u >= v;
    case Compare::both: return u && v;
    case Compare::either: return u || v;
    default: return u - u == T(0);
  }
}

/// An operand of any dtype, read as T.
template <class T> struct Source {
  const std::byte* at;
  DType dtype;
  StridedRange walk;
  Source(const Tensor& x, const Shape& shape) : at(address_of(x)), dtype(x.dtype()), walk(x.layout().expanded(shape)) {}
  __device__ T operator()(int64_t i) const {
    const int64_t where = offset_at(walk, i);
    switch (dtype) {
      case f32: return convert<T>(reinterpret_cast<const float*>(at)[where]);
      case f64: return convert<T>(reinterpret_cast<const double*>(at)[where]);
      case bf16: return convert<T>(reinterpret_cast<const BFloat16*>(at)[where]);
      case i64: return convert<T>(reinterpret_cast<const int64_t*>(at)[where]);
      case i32: return convert<T>(reinterpret_cast<const int32_t*>(at)[where]);
      default: return convert<T>(reinterpret_cast<const bool*>(at)[where]);
    }
  }
};

template <class T> void compare_as(Compare kind, const Tensor& a, const Tensor& b, Tensor& y) {
  const Source<T> u(a, y.shape()), v(b, y.shape());
  bool* p = data_of<bool>(y);
  for_each(y.numel(), [=] __device__(int64_t i) { p[i] = holds(kind, u(i), v(i)); });
}

// -- random numbers: a thread takes a block of four words ---------------------------------------------------------
template <class T, class Value> void random_as(const RandomFill& f, Tensor& y, Value value) {
  constexpr int per_block = sizeof(T) == 1 ? 4 : kPerBlock<T>;
  const int64_t n = y.numel();
  const RandomBlocks words_at = blocks_of("random numbers", f.from);
  T* p = data_of<T>(y);
  for_each(ceil_div(n, per_block), [=] __device__(int64_t block) {
    const auto words = words_at(static_cast<uint64_t>(block));
    T values[per_block];
    value(words.word, values);
    for (int i = 0; i < per_block; ++i)
      if (block * per_block + i < n) p[block * per_block + i] = values[i];
  });
}

template <class T> struct Uniform {
  T a, span, last;
  __device__ void operator()(const uint32_t* words, T* out) const {
    for (int i = 0; i < kPerBlock<T>; ++i) out[i] = sluice::detail::uniform_value(words, i, a, span, last);
  }
};
template <class T> struct Normal {
  T mean, std;
  __device__ void operator()(const uint32_t* words, T* out) const {
    for (int i = 0; i < kPerBlock<T>; i += 2) sluice::detail::normal_pair(words, i, mean, std, out[i], out[i + 1]);
  }
};
template <class T> struct TruncatedNormal {
  double mean, std, edge;
  __device__ void operator()(const uint32_t* words, T* out) const {
    for (int i = 0; i < kPerBlock<T>; ++i)
      out[i] = static_cast<T>(mean + std * sluice::detail::truncated_normal_value<T>(words, i, edge));
  }
};
struct Bernoulli {
  uint64_t threshold;
  __device__ void operator()(const uint32_t* words, bool* out) const {
    for (int i = 0; i < 4; ++i) out[i] = words[i] < threshold;
  }
};
struct Integers {
  uint64_t low, range;
  __device__ void operator()(const uint32_t* words, int64_t* out) const {
    for (int i = 0; i < 2; ++i)
      out[i] = static_cast<int64_t>(low + sluice::detail::scaled_word(sluice::detail::word64(words, i), range));
  }
};

template <class T> void random_floats(const RandomFill& f, Tensor& y) {
  const T a = static_cast<T>(f.a), b = static_cast<T>(f.b), span = b - a;
  if (f.kind == RandomFill::uniform) random_as<T>(f, y, Uniform<T>{a, span, span > 0 ? std::nextafter(b, a) : a});
  else if (f.kind == RandomFill::normal) random_as<T>(f, y, Normal<T>{a, b});
  else random_as<T>(f, y, TruncatedNormal<T>{f.a, f.b, std::erf(std::sqrt(2.0))});
}

template <class T> struct Dropout {
  const T* x;
  T* y;
  bool whole;  // addresses allow that eight numbers are read and written at once
  RandomBlocks words_at;
  detail::Dropping<Computed<T>> drop;
  __device__ T dropped(uint32_t word, T value) const { return convert<T>(drop(word, convert<Computed<T>>(value))); }
  __device__ void operator()(int64_t i) const {
    const auto words = words_at(static_cast<uint64_t>(i / 4));
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (i % 4 == e) y[i] = dropped(words.word[e], x[i]);
  }
  /// Two blocks of words.
  __device__ void vector(int64_t i) const {
    T value[kNeighbours];
    if (whole) load_neighbours(value, x + i);
    else
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) value[e] = x[i + e];
    const auto block = static_cast<uint64_t>(i / 4);
    const auto low = words_at(block), high = words_at(block + 1);
#pragma unroll
    for (int e = 0; e < kNeighbours; ++e) value[e] = dropped(e < 4 ? low.word[e % 4] : high.word[e % 4], value[e]);
    if (whole) store_neighbours(y + i, value);
    else
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) y[i + e] = value[e];
  }
};
template <class T> void dropout_as(const Tensor& x, Tensor& y, DropoutSpec s) {
  const bool whole = is_aligned_16(address_of(x)) && is_aligned_16(address_of(y));
  const RandomBlocks words_at = blocks_of("dropout", s.from);
  for_each_vector(x.numel(),
                  Dropout<T>{data_of<T>(x), data_of<T>(y), whole, words_at, detail::Dropping<Computed<T>>(s.p)});
}

__global__ void first_outside_kernel(const int64_t* index, int64_t n, int64_t low, int64_t limit,
                                     unsigned long long* first) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    if (index[i] < low || index[i] >= limit) atomicMin(first, static_cast<unsigned long long>(i));
}

}  // namespace

int64_t first_outside(const int64_t* index, int64_t n, int64_t low, int64_t limit, int64_t instead) {
  if (n == 0) return 0;
  if (recording()) return record_index_check(index, n, low, limit, instead), n;
  const Scratch<unsigned long long> first(1);
  const unsigned long long none = static_cast<unsigned long long>(n);
  copy_to_device(first.get(), &none, sizeof none);
  launch(first_outside_kernel, grid_of(std::min(ceil_div(n, kThreads), kMostBlocks)), dim3(kThreads), 0, index, n, low,
         limit, first.get());
  return static_cast<int64_t>(value_at(first.get()));
}

void copy(const Tensor& from, Tensor& to) {
  const StridedRange in(from.shape() == to.shape() ? from.layout() : from.layout().expanded(to.shape()));
  const StridedRange out(to.layout());
  if (from.dtype() == to.dtype() && in.contiguous && out.contiguous)
    return copy_on_device(address_of(to), address_of(from), static_cast<std::size_t>(to.numel() * size_of(to.dtype())));
  dispatch_all(from.dtype(),
               [&]<class S>() { dispatch_all(to.dtype(), [&]<class T>() { copy_as<S, T>(from, in, to, out); }); });
}

void transfer(Device, const Tensor& from, Tensor& to) {
  const auto bytes = static_cast<std::size_t>(from.numel() * size_of(from.dtype()));
  if (to.device() == cpu) copy_to_host(to.raw(), address_of(from), bytes);
  else copy_to_device(address_of(to), from.raw(), bytes);
}

void random(const RandomFill& f, Tensor& y) {
  switch (f.kind) {
    case RandomFill::bernoulli: return random_as<bool>(f, y, Bernoulli{f.words[0]});
    case RandomFill::randint: return random_as<int64_t>(f, y, Integers{f.words[0], f.words[1]});
    case RandomFill::permutation: {  // a chain of exchanges, so the host makes it
      refuse_in_recording("a random permutation");
      Tensor here = empty(y.shape(), {i64, cpu});
      kernel::random(f, here);
      return transfer(cpu, here, y);
    }
    default: return dispatch_float("random", y.dtype(), [&]<class T>() { random_floats<T>(f, y); });
  }
}

void dropout(const Tensor& x, Tensor& y, DropoutSpec spec) {
  if (x.dtype() == bf16) return dropout_as<BFloat16>(x, y, spec);
  dispatch_float("dropout", x.dtype(), [&]<class T>() { dropout_as<T>(x, y, spec); });
}

void fill(Tensor& x, double value) {
  dispatch_all(x.dtype(), [&]<class T>() { fill_as<T>(x, value); });
}
void ramp(Tensor& y, double start, double step) {
  dispatch_all(y.dtype(), [&]<class T>() { ramp_as<T>(y, start, step); });
}
void eye(Tensor& y) {
  dispatch_all(y.dtype(), [&]<class T>() { eye_as<T>(y); });
}

void one_hot(const Tensor& index, Tensor& y) {
  const int64_t classes = y.dim(-1), *p = data_of<int64_t>(index), n = index.numel();
  const int64_t bad = first_outside(p, n, 0, classes, 0);
  if (bad < n)
    fail<ValueError>("one_hot: index ", value_at(p + bad), " is outside [0, ", classes, ") — got it at element ", bad,
                     " of an index of shape ", index);
  dispatch_all(y.dtype(), [&]<class T>() { one_hot_as<T>(p, y); });
}

void causal_mask(Tensor& y) {
  bool* p = data_of<bool>(y);
  const int64_t lq = y.dim(0), lk = y.dim(1);
  for_each(y.numel(), [=] __device__(int64_t i) { p[i] = i % lk <= i / lk + lk - lq; });
}

void zero_triangle(Tensor& y, bool upper, int64_t k) {
  dispatch_all(y.dtype(), [&]<class T>() { zero_triangle_as<T>(y, upper, k); });
}

void add_to(Tensor& x, const Tensor& y, double factor) {
  if (x.dtype() == bf16) return add_to_as<BFloat16>(x, y, factor);
  dispatch_float("add_", x.dtype(), [&]<class T>() { add_to_as<T>(x, y, factor); });
}

/// Integers compare as i64, two f32 sides as f32, and any other pair with a float side as f64. All conversions are
/// exact, but for an i64 beyond ±2^53 beside a float.
void compare(Compare kind, const Tensor& a, const Tensor& b, Tensor& y) {
  if (a.dtype() == f32 && b.dtype() == f32) compare_as<float>(kind, a, b, y);
  else if (is_float(a.dtype()) || is_float(b.dtype())) compare_as<double>(kind, a, b, y);
  else compare_as<int64_t>(kind, a, b, y);
}

}  // namespace sluice::cuda
