#include <sluice/ops/gemm/openblas.h>

#include <sluice/core/memory/allocator.h>
#include <sluice/core/error.h>
#include <sluice/core/memory/no_copy.h>
#include <sluice/core/memory/heap.h>
#include <sluice/ops/gemm/ladder.h>

#if defined(SLUICE_ACCELERATE)
#define ACCELERATE_NEW_LAPACK
#include <Accelerate/Accelerate.h>
#else
#include <cblas.h>
#endif
#if defined(__APPLE__)
#include <dlfcn.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

// Functions that may be missing: builds of OpenBLAS for one processor lack the last two, other libraries lack all. The
// functions of buffers (blas_memory_…) are exported, but no header declares them.
#if !defined(__APPLE__)
extern "C" {
__attribute__((weak)) void openblas_set_num_threads(int);
__attribute__((weak)) char* openblas_get_corename();
__attribute__((weak)) void* blas_memory_alloc(int);
__attribute__((weak)) void blas_memory_free(void*);
__attribute__((weak)) void gotoblas_dynamic_init();
__attribute__((weak)) void gotoblas_dynamic_quit();
}
#endif

namespace sluice {

namespace {

#if defined(__APPLE__)  // its linker refuses a weak symbol that no library has
template <class F> F* found(const char* name) { return reinterpret_cast<F*>(::dlsym(RTLD_DEFAULT, name)); }
const auto openblas_set_num_threads = found<void(int)>("openblas_set_num_threads");
const auto openblas_get_corename = found<char*()>("openblas_get_corename");
const auto blas_memory_alloc = found<void*(int)>("blas_memory_alloc");
const auto blas_memory_free = found<void(void*)>("blas_memory_free");
const auto gotoblas_dynamic_init = found<void()>("gotoblas_dynamic_init");
const auto gotoblas_dynamic_quit = found<void()>("gotoblas_dynamic_quit");
#endif

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

std::string current_core() { return openblas_get_corename ? openblas_get_corename() : "unknown"; }

std::string_view vendor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("intel")) return "intel";
  if (__builtin_cpu_is("amd")) return "amd";
#endif
  return "";
}

// Not by std::call_once: its variables are libstdc++'s thread-local ones, which a library that is opened while a
// program runs cannot reach without a call.
void prepare() {
  [[maybe_unused]] static const bool prepared = [] {
    detail::correct_blas_core();
    if (openblas_set_num_threads) openblas_set_num_threads(1);  // TBB owns the threads
#if defined(SLUICE_ACCELERATE)
    ::setenv("VECLIB_MAXIMUM_THREADS", "1", 0);  // Accelerate reads this at its first product
#endif
    return true;
  }();
}

/// The buffer of one call while it runs. OpenBLAS maps and keeps a buffer for each call that runs at the same time. Up
/// to 0.3.29 it retries without end if the system refuses a buffer. So the first call at each level of concurrency
/// makes OpenBLAS map as many buffers as there are running calls, after a trial for each whether the system has room
/// for it.
class Buffer : private NoCopy {
 public:
  Buffer() {
    const bool has_one = running.fetch_add(1, std::memory_order_relaxed) < mapped.load(std::memory_order_relaxed);
    if (has_one || !blas_memory_alloc || !blas_memory_free) return;
    try {
      map();
    } catch (...) {
      running.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
  }
  ~Buffer() { running.fetch_sub(1, std::memory_order_relaxed); }

 private:
  static void map() {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    const int calls = running.load(std::memory_order_relaxed);
    if (calls <= mapped.load(std::memory_order_relaxed)) return;
    struct Held : std::vector<void*> {
      ~Held() {
        for (void* p : *this) blas_memory_free(p);
      }
    } held;
    while (std::ssize(held) < calls) {
      check_room();
      held.push_back(blas_memory_alloc(0));
    }
    mapped.store(calls, std::memory_order_relaxed);
  }
  /// Throws MemoryError unless the system has room for a buffer. Another allocation may still take that room first.
  static void check_room() {
    const detail::Pages& pages = detail::system_pages();
    const std::size_t bytes = pages.of(std::size_t{130} << 20);  // BUFFER_SIZE of builds for many processors is 128 MB
    std::byte* p = pages.map(nullptr, bytes);
    if (!p) {
      release_cached_memory();
      p = pages.map(nullptr, bytes);
    }
    if (!p) fail<MemoryError>("matmul: the system has no ", bytes, " bytes for a buffer of OpenBLAS");
    pages.unmap(p, bytes);
  }

  inline static std::atomic<int> running{0}, mapped{0};  // calls, buffers
};

}  // namespace

std::string blas_core() {
  prepare();
  return current_core();
}

std::string blas_name() {
#if defined(SLUICE_ACCELERATE)
  return "Accelerate";
#else
  return "OpenBLAS " + blas_core();
#endif
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
      is({"Katmai",    "Coppermine", "Northwood", "Prescott",    "Banias",      "Atom",      "Core2",
          "Penryn",    "Dunnington", "Nehalem",   "Sandybridge", "Athlon",      "Opteron",   "Opteron_SSE3",
          "Barcelona", "Bobcat",     "Bulldozer", "Piledriver",  "Steamroller", "Excavator", "Nano"});
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
  std::fprintf(stderr,
               "sluice: OpenBLAS runs its kernels for %s on this processor (%s), several times too slow; set %s=%s\n",
               current_core().c_str(), isa_name(isa()), kVariable, wanted.c_str());
}

namespace {

CBLAS_TRANSPOSE trans(Trans r) { return r == Trans::no ? CblasNoTrans : CblasTrans; }

/// A product by gemm or gemv of BLAS. With one row or one column it reads a matrix once and is memory-bound: gemv does
/// so without the packing of gemm.
template <class T, class Gemm, class Gemv> void product(Gemm gemm, Gemv gemv, const Product<T>& p) {
  const int n = int(p.n), m = int(p.m), k = int(p.k);
  if (n == 0 || m == 0) return;
  if (k == 0) return gemm_naive(p);  // BLAS refuses an empty sum
  prepare();
  const Buffer buffer;
  if (p.beta == T(0) && (n == 1 || m == 1))  // some versions of gemv scale c by 0, and keep a NaN
    for (int64_t i = 0; i < n; ++i) std::fill_n(p.c + i * p.ldc, m, T(0));
  if (n == 1) {  // cᵀ = bᵀ aᵀ
    const bool plain = p.tb == Trans::no;
    gemv(CblasRowMajor, plain ? CblasTrans : CblasNoTrans, plain ? k : m, plain ? m : k, p.alpha, p.b, int(p.ldb), p.a,
         p.ta == Trans::no ? 1 : int(p.lda), p.beta, p.c, 1);
  } else if (m == 1) {
    const bool plain = p.ta == Trans::no;
    gemv(CblasRowMajor, plain ? CblasNoTrans : CblasTrans, plain ? n : k, plain ? k : n, p.alpha, p.a, int(p.lda), p.b,
         p.tb == Trans::no ? int(p.ldb) : 1, p.beta, p.c, int(p.ldc));
  } else {
    gemm(CblasRowMajor, trans(p.ta), trans(p.tb), n, m, k, p.alpha, p.a, int(p.lda), p.b, int(p.ldb), p.beta, p.c,
         int(p.ldc));
  }
}

}  // namespace

void gemm_blas(const Product<float>& p) { product(cblas_sgemm, cblas_sgemv, p); }
void gemm_blas(const Product<double>& p) { product(cblas_dgemm, cblas_dgemv, p); }

}  // namespace detail
}  // namespace sluice
