#include <sluice/cuda/blas.h>

#include <sluice/core/error.h>
#include <sluice/cuda/device.h>
#include <sluice/cuda/recording.h>
#include <sluice/cuda/runtime.h>

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

namespace sluice::cuda {

namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  // 32 MiB, NVIDIA's advice for Hopper

/// The functions used. They are loaded at run time, so that a program starts and computes without the library.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  void* workspace = nullptr;  // never freed
};

template <class F> bool find(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(dlsym(library, name));
  return f != nullptr;
}

/// Memory that products may use. It is not the pool's, which may hold all there is: that then gives some back.
void* make_workspace() {
  void* p = nullptr;
  if (cudaMalloc(&p, kWorkspace) == cudaSuccess) return p;
  cudaGetLastError();
  if (!recording()) cudaDeviceSynchronize();  // no other thread records meanwhile: blas() holds the turn
  cudaMemPool_t pool;
  if (cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess) cudaMemPoolTrimTo(pool, 0);
  if (const cudaError_t status = cudaMalloc(&p, kWorkspace); status != cudaSuccess) {
    cudaGetLastError();
    fail<MemoryError>("cuda: cannot allocate ", kWorkspace, " bytes for cuBLASLt — ", cudaGetErrorString(status));
  }
  return p;
}

/// The library, loaded at the first call; null if there is none. MemoryError if its workspace finds no room; the next
/// call tries again.
const Library* library() {
  static const Library* const it = []() -> const Library* {
    void* file = nullptr;
    for (const char* name :
         {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so"})
      if (!file) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    static Library l{};
    if (!file || !find(file, "cublasLtCreate", l.create) || !find(file, "cublasLtMatmulDescCreate", l.desc_create) ||
        !find(file, "cublasLtMatmulDescDestroy", l.desc_destroy) ||
        !find(file, "cublasLtMatmulDescSetAttribute", l.desc_set) ||
        !find(file, "cublasLtMatrixLayoutCreate", l.layout_create) ||
        !find(file, "cublasLtMatrixLayoutDestroy", l.layout_destroy) ||
        !find(file, "cublasLtMatrixLayoutSetAttribute", l.layout_set) ||
        !find(file, "cublasLtMatmulPreferenceCreate", l.preference_create) ||
        !find(file, "cublasLtMatmulPreferenceSetAttribute", l.preference_set) ||
        !find(file, "cublasLtMatmulAlgoGetHeuristic", l.heuristic) || !find(file, "cublasLtMatmul", l.matmul))
      return nullptr;
    l.workspace = make_workspace();
    if (l.create(&l.handle) != CUBLAS_STATUS_SUCCESS || l.preference_create(&l.preference) != CUBLAS_STATUS_SUCCESS)
      return nullptr;
    l.preference_set(l.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace);
    const uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // the parts of a sum are never added in bf16
    l.preference_set(l.preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums);
    return &l;
  }();
  return it;
}

/// The library's description of a matrix, column-major.
struct MatrixLayout {
  const Library& l;
  cublasLtMatrixLayout_t it = nullptr;
  MatrixLayout(const Library& l, cudaDataType type, int64_t rows, int64_t cols, int64_t ld, int64_t batch,
               int64_t stride)
      : l(l) {
    l.layout_create(&it, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld);
    const int32_t count = static_cast<int32_t>(batch);
    l.layout_set(it, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    l.layout_set(it, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
  }
  ~MatrixLayout() { l.layout_destroy(it); }
};

/// The library's description of how a product is computed; null if the library refuses it.
struct MatmulDesc {
  const Library& l;
  cublasLtMatmulDesc_t it = nullptr;
  MatmulDesc(const Library& l, cublasComputeType_t compute, cudaDataType scale) : l(l) {
    if (l.desc_create(&it, compute, scale) != CUBLAS_STATUS_SUCCESS) it = nullptr;
  }
  ~MatmulDesc() {
    if (it) l.desc_destroy(it);
  }
  template <class V> void set(cublasLtMatmulDescAttributes_t what, V value) {
    l.desc_set(it, what, &value, sizeof value);
  }
};

/// The alignment in bytes, at most 256, of matrices that lie `stride` bytes apart. The library assumes 256 unless it is
/// told otherwise, and would read a view that begins elsewhere by 16 bytes at once.
uint32_t alignment(const void* p, int64_t stride = 0) {
  const auto at = reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(stride) | 256;
  return static_cast<uint32_t>(at & (~at + 1));
}

/// Of all matrices of a product. As in PyTorch, the alignment of the result, d, includes that of the bias.
struct Alignments {
  uint32_t a, b, c, d;
  explicit Alignments(const BlasProduct& p) {
    const auto of = [&](const void* at, int64_t stride, DType dtype) {
      return alignment(at, p.batch > 1 ? stride * size_of(dtype) : 0);
    };
    a = of(p.a, p.a_stride, p.dtype), b = of(p.b, p.b_stride, p.dtype), c = of(p.c, p.c_stride, p.result);
    d = p.bias ? std::min(c, alignment(p.bias)) : c;
  }
};

using Key = std::array<int64_t, 19>;
std::mutex choosing;
std::map<Key, cublasLtMatmulAlgo_t> chosen;  // kept, because the heuristic takes tens of microseconds
/// The library's kernel for a product with this key; nothing if it has none. b comes first: see blas().
std::optional<cublasLtMatmulAlgo_t> algorithm_for(const Key& key, const MatmulDesc& desc, const MatrixLayout& b,
                                                  const MatrixLayout& a, const MatrixLayout& c,
                                                  const Alignments& align) {
  const std::lock_guard lock(choosing);
  if (const auto known = chosen.find(key); known != chosen.end()) return known->second;
  const Library& l = desc.l;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, uint32_t bytes) {
    l.preference_set(l.preference, what, &bytes, sizeof bytes);
  };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align.b);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align.a);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align.c);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align.d);
  cublasLtMatmulHeuristicResult_t best{};
  int count = 0;
  const cublasStatus_t status = l.heuristic(l.handle, desc.it, b.it, a.it, c.it, c.it, l.preference, 1, &best, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return std::nullopt;
  return chosen[key] = best.algo;
}

}  // namespace

/// A row-major product is the column-major product of the transposes in reverse order: cᵀ [m, n] = bᵀ [m, k] · aᵀ [k,
/// n]. The memory of a row-major matrix is that of its column-major transpose.
bool blas(const BlasProduct& p) {
  const StreamTurn turn;
  const Library* const l = library();
  if (!l || p.batch > INT32_MAX) return false;
  const auto type_of = [](DType t) { return t == f64 ? CUDA_R_64F : t == bf16 ? CUDA_R_16BF : CUDA_R_32F; };
  const cudaDataType type = type_of(p.dtype), result = type_of(p.result);
  const bool wide = p.dtype == f64, fast = p.dtype == f32 && p.precision == Precision::bf16;
  const cublasComputeType_t compute = wide   ? CUBLAS_COMPUTE_64F
                                      : fast ? CUBLAS_COMPUTE_32F_FAST_16BF
                                             : CUBLAS_COMPUTE_32F;
  const auto plain = [](const sluice::detail::Operand& o) { return o.trans == sluice::detail::Trans::no; };
  const cublasOperation_t first = plain(p.right) ? CUBLAS_OP_N : CUBLAS_OP_T,
                          second = plain(p.left) ? CUBLAS_OP_N : CUBLAS_OP_T;
  MatmulDesc desc(*l, compute, wide ? CUDA_R_64F : CUDA_R_32F);
  if (!desc.it) return false;
  desc.set(CUBLASLT_MATMUL_DESC_TRANSA, first), desc.set(CUBLASLT_MATMUL_DESC_TRANSB, second);
  if (p.bias) {
    desc.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    desc.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  const int64_t c_ld = p.c_ld ? p.c_ld : p.m;
  const MatrixLayout b(*l, type, plain(p.right) ? p.m : p.k, plain(p.right) ? p.k : p.m, p.right.ld, p.batch,
                       p.b_stride);
  const MatrixLayout a(*l, type, plain(p.left) ? p.k : p.n, plain(p.left) ? p.n : p.k, p.left.ld, p.batch, p.a_stride);
  const MatrixLayout c(*l, result, p.m, p.n, c_ld, p.batch, p.c_stride);
  const Alignments align(p);
  // clang-format off
  const Key key{type, result, static_cast<int64_t>(compute), first, second, p.n, p.m, p.k, p.left.ld, p.right.ld, c_ld,
                p.batch, p.a_stride, p.b_stride, p.c_stride, align.a << 16 | align.b, align.c << 16 | align.d,
                p.bias != nullptr, p.accumulate};
  // clang-format on
  const auto algorithm = algorithm_for(key, desc, b, a, c, align);
  if (!algorithm) return false;
  const double one = 1, zero = 0;
  const float onef = 1, zerof = 0;
  const void* const alpha = wide ? static_cast<const void*>(&one) : &onef;
  const void* const beta = p.accumulate ? alpha : wide ? static_cast<const void*>(&zero) : &zerof;
  const cublasStatus_t status = l->matmul(l->handle, desc.it, alpha, p.b, b.it, p.a, a.it, beta, p.c, c.it, p.c, c.it,
                                          &*algorithm, l->workspace, kWorkspace, turn);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;  // matmul may refuse the heuristic's choice for huge batches
  if (status != CUBLAS_STATUS_SUCCESS) fail<DeviceError>("matmul: cuBLASLt failed with status ", int{status});
  return true;
}

}  // namespace sluice::cuda
