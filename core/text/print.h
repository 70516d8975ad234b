// Tensors as text, and tables.
#pragma once

#include <sluice/core/tensor.h>

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct PrintOptions {
  int precision = 4;         // digits after the point
  int64_t threshold = 1000;  // with more elements than this, only the edges are shown
  int64_t edge_items = 3;    // how many at each end
  int line_width = 80;       // long rows are wrapped
};

/// A header line, `Tensor[2,3] f32 cpu grad_fn=matmul`, then the values as NumPy lays them out.
std::string to_string(const Tensor& x, const PrintOptions& options = {});
std::ostream& operator<<(std::ostream& out, const Tensor& x);
/// "[2,3]", "f32", "cuda:0".
std::ostream& operator<<(std::ostream& out, const Shape& shape);
std::ostream& operator<<(std::ostream& out, DType dtype);
std::ostream& operator<<(std::ostream& out, Device device);

/// One line: shape, dtype, device; min, max, mean and (population) std of the finite values; how
/// many are zero, NaN and infinite; bytes; contiguous or the strides.
std::string describe(const Tensor& x);

namespace detail {
/// Escapes text for a quoted string of another language: puts a backslash before quotes and backslashes, and a space in
/// place of each control character.
std::string escaped(std::string_view text);
/// The lines of a table, each ended by a newline. Columns are two spaces apart and as wide as their widest cell. An r
/// in `sides` ("llr": one letter a column) aligns the cells of its column at the right.
std::string aligned(const std::vector<std::vector<std::string>>& lines, std::string_view sides);
}  // namespace detail

}  // namespace sluice
