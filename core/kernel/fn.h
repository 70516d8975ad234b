// SLUICE_FN marks functions that formulas and kernels call: they are inlined into loops, and nvcc compiles them for the
// device, too.
#pragma once

#ifndef SLUICE_FN
#ifdef __CUDACC__
#define SLUICE_FN __host__ __device__ inline
#else
#define SLUICE_FN inline __attribute__((always_inline))
#endif
#endif
