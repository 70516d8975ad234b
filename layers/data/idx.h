// The IDX format of MNIST and its relatives: one array of numbers, as it is or gzip-compressed.
#pragma once

#include <sluice/core/tensor.h>

#include <string>

namespace sluice {

/// The array of an IDX file, converted to `dtype` (any but bool): Tensor images = read_idx("train-images-idx3-ubyte.gz") / 255,
/// labels = read_idx("train-labels-idx1-ubyte.gz", i64). IOError naming the file and what is wrong with it: another format,
/// sizes that are not those of the data, more than 8 dims, a damaged or truncated file; memory is taken only after the sizes
/// have been compared with the file. DTypeError for bool, and for fractions asked for as integers.
Tensor read_idx(const std::string& path, DType dtype = f32);

}  // namespace sluice
