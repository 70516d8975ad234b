// The NPY format of NumPy: one array, as np.save() writes and np.load() reads it.
#pragma once

#include <sluice/core/tensor.h>

#include <string>

namespace sluice {

/// Reads the array of a file of np.save(): f32, f64, i64, i32 and bool as they are; float16 as f32, int8, uint8, int16
/// and uint16 as i32, uint32 and uint64 as i64, all exactly. Throws IOError naming the file and its fault: another
/// format or dtype, big-endian numbers, sizes that do not match the data, more than 8 dims, a uint64 beyond i64.
/// Compares the sizes with the file before it allocates memory.
Tensor read_npy(const std::string& path);
/// Writes x row-major, atomically (see write_file_atomically). Throws DTypeError for bf16, which NumPy does not have,
/// and DeviceError on meta.
void write_npy(const std::string& path, const Tensor& x);

}  // namespace sluice
