// NumPy's .npy files: one array each. f32, f64, i32, i64 and bool, little-endian, versions 1 to 3.
#pragma once

#include <sluice/core/tensor.h>

#include <string>

namespace sluice {

/// Reads a file that NumPy's save() wrote; Fortran order becomes row-major. A file that is not
/// well-formed, or that holds another dtype, is an IOError with the path and the reason.
Tensor load_npy(const std::string& path);

/// Writes version 1.0, atomically; any layout is written row-major. DTypeError for bf16, which
/// NumPy does not have.
void save_npy(const std::string& path, const Tensor& x);

}  // namespace sluice
