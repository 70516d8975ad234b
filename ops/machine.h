// What this process computes with, in one line: the first that a program prints about its speed.
#pragma once

#include <string>

namespace sluice {

/// Processor, instruction set in use, kernels of OpenBLAS, threads:
/// "Intel(R) Xeon(R) Gold 6530, avx512, OpenBLAS SkylakeX, 2 threads".
std::string describe_machine();

}  // namespace sluice
