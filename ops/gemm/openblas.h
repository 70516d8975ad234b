// OpenBLAS (on macOS without it: Accelerate), and which of its kernels run. Releases do not know processors younger than themselves: 0.3.21 (Debian 12)
// falls back on them to kernels of 2004, at a fifth of the speed, and says nothing. So before the first product the
// choice is compared with what the processor can do, and corrected.
#pragma once

#include <sluice/core/cpu.h>

#include <string>
#include <string_view>

namespace sluice {

/// The library, and the kernels that it runs here, after the correction, e.g. "OpenBLAS SkylakeX"; "OpenBLAS unknown" if it
/// does not say, "Accelerate" on macOS.
std::string blas_name();
/// The kernels alone.
std::string blas_core();

namespace detail {

/// The kernels that OpenBLAS should run where it has chosen `current`; empty if those are as good as any. vendor:
/// "intel", "amd" or empty.
std::string wanted_blas_core(std::string_view current, Isa isa, std::string_view vendor);

/// Makes OpenBLAS choose again, as if OPENBLAS_CORETYPE had been `core`; false if this build of it cannot. Not to be
/// called while another thread computes with it.
bool set_blas_core(const std::string& core);

/// The comparison and the correction; if it fails, one line on stderr says what to do. A user's OPENBLAS_CORETYPE is
/// left alone. Products do this once, before the first.
void correct_blas_core();

}  // namespace detail
}  // namespace sluice
