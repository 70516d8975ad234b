#include <sluice/ops/gemm/openblas.h>

#include <sluice/ops/gemm/gemm.h>

#include <cblas.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

// Weak: builds of OpenBLAS for one processor lack the second and the third, other libraries have none.
extern "C" {
void openblas_set_num_threads(int);
__attribute__((weak)) char* openblas_get_corename();
__attribute__((weak)) void gotoblas_dynamic_init();
__attribute__((weak)) void gotoblas_dynamic_quit();
}

namespace sluice {

namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

std::string current_core() {
  return openblas_get_corename ? openblas_get_corename() : "unknown";
}

std::string_view vendor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) return "intel";
  if (__builtin_cpu_is("amd")) return "amd";
#endif
  return "";
}

void prepare() {
  static std::once_flag once;
  std::call_once(once, [] {
    detail::correct_blas_core();
    openblas_set_num_threads(1);  // TBB owns the threads
  });
}

}  // namespace

std::string blas_core() {
  prepare();
  return current_core();
}

namespace detail {

std::string wanted_blas_core(std::string_view current, Isa isa, std::string_view vendor) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find_if(names.begin(), names.end(), [&](std::string_view name) {
             return std::equal(name.begin(), name.end(), current.begin(), current.end(),
                               [](char a, char b) { return (a | 32) == (b | 32); });
           }) != names.end();
  };
  const bool without_avx2 =
      is({"Katmai", "Coppermine", "Northwood", "Prescott", "Banias", "Atom", "Core2", "Penryn", "Dunnington", "Nehalem",
          "Sandybridge", "Athlon", "Opteron", "Opteron_SSE3", "Barcelona", "Bobcat", "Bulldozer", "Piledriver",
          "Steamroller", "Excavator", "Nano"});
  if (isa >= Isa::avx512 && vendor == "intel") return without_avx2 || is({"Haswell", "Zen"}) ? "SkylakeX" : "";
  if (isa >= Isa::avx2 && without_avx2) return vendor == "amd" ? "Zen" : "Haswell";
  return "";
}

bool set_blas_core(const std::string& core) {
  if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit) return false;
  const char* set = std::getenv(kVariable);
  const std::string before = set ? set : "";
  ::setenv(kVariable, core.c_str(), 1);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  set ? ::setenv(kVariable, before.c_str(), 1) : ::unsetenv(kVariable);
  return true;
}

void correct_blas_core() {
  const std::string wanted = wanted_blas_core(current_core(), isa(), vendor());
  if (wanted.empty() || std::getenv(kVariable) || (set_blas_core(wanted) && current_core() == wanted)) return;
  std::fprintf(stderr, "sluice: OpenBLAS runs its kernels for %s on this processor (%s), several times too slow; set %s=%s\n",
               current_core().c_str(), isa_name(isa()), kVariable, wanted.c_str());
}

namespace {

CBLAS_TRANSPOSE trans(Read r) {
  return r == Read::plain ? CblasNoTrans : CblasTrans;
}

/// What BLAS refuses: an empty c, and an empty sum. True when nothing is left to do.
template <class T>
bool trivial(int64_t n, int64_t m, int64_t k, T beta, T* c, int64_t ldc) {
  prepare();
  if (n == 0 || m == 0) return true;
  if (k > 0) return false;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
  return true;
}

/// c = alpha · a · b + beta · c by the two BLAS routines of one type. A product with one row or one column reads a
/// matrix once, and is memory-bound: gemv does that without the packing of gemm.
template <class T, class Gemm, class Gemv>
void product(Gemm gemm, Gemv gemv, Read ra, Read rb, int64_t n, int64_t m, int64_t k, T alpha, const T* a, int64_t lda,
             const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (trivial(n, m, k, beta, c, ldc)) return;
  if (beta == T(0) && (n == 1 || m == 1))  // some versions of gemv scale c by 0, and keep a NaN
    for (int64_t i = 0; i < n; ++i) std::fill_n(c + i * ldc, m, T(0));
  if (n == 1) {  // cᵀ = bᵀ aᵀ
    const bool plain = rb == Read::plain;
    gemv(CblasRowMajor, plain ? CblasTrans : CblasNoTrans, int(plain ? k : m), int(plain ? m : k), alpha, b, int(ldb), a,
         int(ra == Read::plain ? 1 : lda), beta, c, 1);
  } else if (m == 1) {
    const bool plain = ra == Read::plain;
    gemv(CblasRowMajor, plain ? CblasNoTrans : CblasTrans, int(plain ? n : k), int(plain ? k : n), alpha, a, int(lda), b,
         int(rb == Read::plain ? ldb : 1), beta, c, int(ldc));
  } else {
    gemm(CblasRowMajor, trans(ra), trans(rb), int(n), int(m), int(k), alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
  }
}

}  // namespace

void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc) {
  product<float>(cblas_sgemm, cblas_sgemv, ra, rb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void gemm(Read ra, Read rb, int64_t n, int64_t m, int64_t k, double alpha, const double* a, int64_t lda, const double* b,
          int64_t ldb, double beta, double* c, int64_t ldc) {
  product<double>(cblas_dgemm, cblas_dgemv, ra, rb, n, m, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace detail
}  // namespace sluice
