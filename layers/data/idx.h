// The IDX format of MNIST and similar data sets: one array of numbers, plain or gzip-compressed.
#pragma once

#include <sluice/core/tensor.h>

#include <string>

namespace sluice {

/// Reads the array of an IDX file and converts it to `dtype`:
/// Tensor images = read_idx("train-images-idx3-ubyte.gz") / 255, labels = read_idx("train-labels-idx1-ubyte.gz", i64).
/// Throws IOError naming the file and its fault: another format, sizes that do not match the data, more than 8 dims, a
/// damaged or truncated file, a finite number that is infinite in `dtype`. Compares the sizes with the file before it
/// allocates memory. Throws DTypeError for dtype bool, and for an integer dtype if the file has floating-point numbers.
Tensor read_idx(const std::string& path, DType dtype = f32);

}  // namespace sluice
