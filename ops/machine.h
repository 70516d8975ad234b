// The hardware and libraries that this process computes with, in one line: to be printed before timings.
#pragma once

#include <string>

namespace sluice {

/// Processor, instruction set in use, kernels of OpenBLAS, threads:
/// "Intel(R) Xeon(R) Gold 6530, avx512, OpenBLAS SkylakeX, 2 threads".
std::string describe_machine();

}  // namespace sluice
