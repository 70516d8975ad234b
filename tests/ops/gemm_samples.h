// Products to be computed in every way: operands that end where memory ends, with gaps that nobody may read.
#pragma once

#include "support/isa_scope.h"

#include <sluice/core/kernel/cpu.h>
#include <sluice/ops/gemm/ladder.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace sluice::testing {

using detail::Product;
using detail::Trans;

/// Numbers whose last one lies before a page that may not be touched.
template <class T> class Fenced {
 public:
  explicit Fenced(std::size_t n) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t used = (n * sizeof(T) + page - 1) / page * page;
    bytes_ = used + page;
    base_ = static_cast<char*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::mprotect(base_ + used, page, PROT_NONE);
    data_ = reinterpret_cast<T*>(base_ + used) - n;
  }
  ~Fenced() { ::munmap(base_, bytes_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  T* data() { return data_; }

 private:
  char* base_;
  T* data_;
  std::size_t bytes_;
};

struct Sizes {
  int64_t n, m, k;
};

/// A product with operands in fenced memory; gaps between rows hold NaN, which nobody may read into a result.
template <class T> struct Sample {
  Sizes s;
  Trans ta, tb;
  int64_t lda, ldb, ldc;
  Fenced<T> a, b;
  std::vector<T> c;

  static std::size_t count(int64_t rows, int64_t cols, int64_t ld) {
    return static_cast<std::size_t>(rows > 0 && cols > 0 ? (rows - 1) * ld + cols : 0);
  }
  Sample(Sizes sizes, Trans left, Trans right, int64_t gap, bool whole = true, uint64_t seed = 1)
      : s(sizes), ta(left), tb(right), lda((left == Trans::no ? s.k : s.n) + gap),
        ldb((right == Trans::no ? s.m : s.k) + gap), ldc(s.m + gap),
        a(left == Trans::no ? count(s.n, s.k, lda) : count(s.k, s.n, lda)),
        b(right == Trans::no ? count(s.k, s.m, ldb) : count(s.m, s.k, ldb)),
        c(static_cast<std::size_t>(s.n * ldc), T(-7)) {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    uint64_t state = seed * 0x9E3779B97F4A7C15ull;
    auto next = [&] {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const auto number = static_cast<int64_t>(state >> 33) % 2048 - 1024;
      return whole ? T(number % 4) : T(number) / T(777);
    };
    auto draw = [&](T* x, int64_t rows, int64_t cols, int64_t ld) {
      if (rows == 0 || cols == 0) return;
      std::fill_n(x, (rows - 1) * ld + cols, nan);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) x[i * ld + j] = next();
    };
    draw(a.data(), ta == Trans::no ? s.n : s.k, ta == Trans::no ? s.k : s.n, lda);
    draw(b.data(), tb == Trans::no ? s.k : s.m, tb == Trans::no ? s.m : s.k, ldb);
    for (int64_t i = 0; i < s.n; ++i)
      for (int64_t j = 0; j < s.m; ++j) c[static_cast<std::size_t>(i * ldc + j)] = next();
  }
  Product<T> product(T alpha, T beta, std::vector<T>& to) {
    return {ta, tb, s.n, s.m, s.k, alpha, a.data(), lda, b.data(), ldb, beta, to.data(), ldc};
  }
};

template <class T> bool same(const std::vector<T>& x, const std::vector<T>& y) {
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!(x[i] == y[i]) && !(std::isnan(x[i]) && std::isnan(y[i]))) return false;
  return true;
}
template <class T> bool same_bits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() && !std::memcmp(x.data(), y.data(), x.size() * sizeof(T));
}

constexpr Trans kTrans[] = {Trans::no, Trans::yes};

}  // namespace sluice::testing
