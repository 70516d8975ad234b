#include <sluice/cuda/blas.h>

#include <sluice/cuda/device.h>

#include <vector>

namespace sluice::cuda {

namespace {

int64_t ld_of(const BlasProduct& p) { return p.c_ld ? p.c_ld : p.m; }

template <class T> void products(const BlasProduct& p) {
  for (int64_t i = 0; i < p.batch; ++i) {
    T* c = static_cast<T*>(p.c) + i * p.c_stride;
    sluice::detail::gemm(p.left.trans, p.right.trans, p.n, p.m, p.k, T(1), static_cast<const T*>(p.a) + i * p.a_stride,
                         p.left.ld, static_cast<const T*>(p.b) + i * p.b_stride, p.right.ld, T(p.accumulate), c,
                         ld_of(p), p.precision);
    if (p.bias) sluice::detail::add_bias(c, p.n, p.m, ld_of(p), static_cast<const T*>(p.bias));
  }
}

/// Products of bf16 operands, which f32 holds exactly.
template <class T> void products_of_bf16(const BlasProduct& p) {
  const auto wide = [](const void* from, const sluice::detail::Operand& o, int64_t rows, int64_t cols) {
    std::vector<float> all(static_cast<std::size_t>(rows * cols));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        all[static_cast<std::size_t>(i * cols + j)] = to_float(
            static_cast<const BFloat16*>(from)[o.trans == sluice::detail::Trans::no ? i * o.ld + j : j * o.ld + i]);
    return all;
  };
  std::vector<float> y(static_cast<std::size_t>(p.n * p.m));
  for (int64_t i = 0; i < p.batch; ++i) {
    const auto a = wide(static_cast<const BFloat16*>(p.a) + i * p.a_stride, p.left, p.n, p.k);
    const auto b = wide(static_cast<const BFloat16*>(p.b) + i * p.b_stride, p.right, p.k, p.m);
    sluice::detail::gemm(sluice::detail::Trans::no, sluice::detail::Trans::no, p.n, p.m, p.k, 1.0f, a.data(), p.k,
                         b.data(), p.m, 0.0f, y.data(), p.m, Precision::f32);
    T* c = static_cast<T*>(p.c) + i * p.c_stride;
    for (int64_t e = 0; e < p.n * p.m; ++e) {
      T& to = c[e / p.m * ld_of(p) + e % p.m];
      to = T(y[static_cast<std::size_t>(e)] + (p.bias ? to_float(static_cast<const T*>(p.bias)[e % p.m]) : 0.0f) +
             (p.accumulate ? to_float(to) : 0.0f));
    }
  }
}

}  // namespace

bool blas(const BlasProduct& p) {
  if (!p.any_size && p.n * p.m * p.k < int64_t{1} << 18) return false;  // small products test the kernel of gemm.cuh
  enqueue([p] {
    if (p.dtype == bf16) return p.result == bf16 ? products_of_bf16<BFloat16>(p) : products_of_bf16<float>(p);
    if (p.dtype == f64) products<double>(p);
    else products<float>(p);
  });
  return true;
}

}  // namespace sluice::cuda
