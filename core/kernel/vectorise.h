// Compiles a loop for several instruction sets and runs the version for the one in use (core/kernel/cpu.h), so that a
// program built for any processor of its architecture is as fast as one built for this processor. A set that the
// compiler targets anyway (-march=native) is not compiled again.
#pragma once

#include <sluice/core/kernel/cpu.h>

// Before a loop whose iterations do not depend on one another, which the compiler then need not prove.
#if defined(__clang__)
#define SLUICE_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define SLUICE_VECTORIZE _Pragma("GCC ivdep")
#else
#define SLUICE_VECTORIZE
#endif

#if defined(__clang__)  // clang would warn that loops with C library calls stay scalar
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

namespace sluice::detail {

// gnu::flatten: GCC inlines all calls below f that it can see; clang inlines only f's own calls. A function that is not
// inlined keeps the compiler's target: only these templates need a newer processor. Under -O2 GCC would not vectorise
// loops of unknown length.
#if defined(__clang__)
#define SLUICE_VECTOR(features) gnu::target(features), gnu::flatten, gnu::noinline
#else
#define SLUICE_VECTOR(features) \
  gnu::target(features ",prefer-vector-width=512"), gnu::optimize("O3"), gnu::flatten, gnu::noinline
#endif
#if defined(__x86_64__) && !(defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#define SLUICE_VECTOR_AVX2
template <class F, class... Args>
[[SLUICE_VECTOR("avx2,fma,f16c,bmi,bmi2,lzcnt,movbe")]] void run_avx2(F& f, Args... args) {
  f(args...);
}
#endif
#if defined(__x86_64__) && !(defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512CD__) && \
                             defined(__AVX512DQ__) && defined(__AVX512VL__))
#define SLUICE_VECTOR_AVX512
template <class F, class... Args>
[[SLUICE_VECTOR("avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]] void run_avx512(
    F& f, Args... args) {
  f(args...);
}
#endif

#if !defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SLUICE_VECTOR_O3
// Here the compiler's target already has the vector instructions. clang vectorises under -O2, too.
template <class F, class... Args> [[gnu::optimize("O3"), gnu::flatten, gnu::noinline]] void run_o3(F& f, Args... args) {
  f(args...);
}
#endif

/// Calls f(args...), compiled for the instruction set in use.
template <class F, class... Args> void vectorised(F&& f, Args... args) {
#if defined(SLUICE_VECTOR_AVX2) || defined(SLUICE_VECTOR_AVX512)
  const Isa in_use = isa();
#endif
#if defined(SLUICE_VECTOR_AVX512)
  if (in_use >= Isa::avx512) return run_avx512(f, args...);
#endif
#if defined(SLUICE_VECTOR_AVX2)
  if (in_use >= Isa::avx2) return run_avx2(f, args...);
#endif
#if defined(SLUICE_VECTOR_O3)
  return run_o3(f, args...);
#else
  f(args...);
#endif
}

#undef SLUICE_VECTOR
#undef SLUICE_VECTOR_AVX2
#undef SLUICE_VECTOR_AVX512
#undef SLUICE_VECTOR_O3

}  // namespace sluice::detail

#if defined(__clang__)
#pragma clang diagnostic pop
#endif
