// OpenBLAS (or Accelerate, on macOS without OpenBLAS), and the choice of its kernels. A release of OpenBLAS does not
// know processors younger than itself: on them 0.3.21 (Debian 12) silently falls back to kernels of 2004. So before the
// first product the choice is compared with what the processor can do, and corrected. With AVX2 or NEON only gemv comes
// here (plan.h). With kernels of 2004 it takes 3.5 to 8 times as long in cache, and twice as long from memory.
#pragma once

#include <sluice/core/kernel/cpu.h>

#include <string>
#include <string_view>

namespace sluice {

/// The library and the kernels that it runs here, after the correction, e.g. "OpenBLAS SkylakeX"; "OpenBLAS unknown" if
/// the library does not tell; "Accelerate" if built with it.
std::string blas_name();
/// The kernels alone.
std::string blas_core();

namespace detail {

/// The kernels that OpenBLAS should run instead of `current`; empty if `current` is good enough. vendor: "intel", "amd"
/// or empty.
std::string wanted_blas_core(std::string_view current, Isa isa, std::string_view vendor);

/// Makes OpenBLAS choose again, as if OPENBLAS_CORETYPE had been `core`. Returns false if this build of OpenBLAS
/// cannot. Must not be called while another thread computes with OpenBLAS.
bool set_blas_core(const std::string& core);

/// Compares OpenBLAS's choice with the processor and corrects it; if that fails, one line on stderr says what to do. A
/// user's OPENBLAS_CORETYPE is left alone. Called once, before the first product.
void correct_blas_core();

}  // namespace detail
}  // namespace sluice
