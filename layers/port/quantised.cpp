#include <sluice/layers/port/quantised.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/text/utf8.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

namespace sluice::detail {

namespace {

/// y [..., columns] in the dtype T: number(r, c) in row r of all rows, computed as f64 for f64, otherwise as f32.
Tensor made_of(const Shape& shape, DType dtype, auto number) {
  Tensor y = empty(shape, {dtype});
  const int64_t columns = shape.back();
  const auto fill = [&]<class T>() {
    T* const to = y.mutable_data<T>();
    parallel_for(y.numel() / columns, 16, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t c = 0; c < columns; ++c) to[r * columns + c] = T(number.template operator()<Computed<T>>(r, c));
    });
  };
  if (dtype == bf16) fill.template operator()<BFloat16>();
  else dispatch_float("load_pytorch", dtype, fill);
  return y;
}

/// Number of rows that share a scale if `rows` rows have `scales` scales: a power of two, or 0 if none fits.
int64_t served(int64_t rows, int64_t scales) {
  if (rows < 1 || scales < 1) return 0;
  const auto each = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((rows - 1) / scales + 1)));
  return (rows - 1) / each + 1 == scales ? each : 0;
}

/// Numbers [..., rows, columns], bf16 of F8 or i32 of integers, times their scales; undefined if these do not fit.
Tensor scaled(const Tensor& x, const Tensor& given, DType dtype) {
  if (x.rank() < 2 || (x.dtype() != bf16 && x.dtype() != i32) || !is_float(given.dtype())) return {};
  Shape grid = x.shape();  // of the scales
  grid[x.rank() - 2] = grid[x.rank() - 1] = 1;
  const Tensor scale = given.numel() == 1 ? expand(reshape(given, Shape::filled(x.rank(), 1)), grid) : given;
  if (scale.rank() != x.rank()) return {};
  const int64_t rows = x.dim(-2), columns = x.dim(-1), down = scale.dim(-2), across = scale.dim(-1);
  grid[x.rank() - 2] = down, grid[x.rank() - 1] = across;
  const int64_t r_each = served(rows, down), c_each = served(columns, across);
  if (r_each == 0 || c_each == 0 || scale.shape() != grid || x.numel() == 0) return {};
  const Tensor numbers = contiguous(x), scales = to(contiguous(scale), f32);
  const auto product = [&]<class N>(const N* n) {
    return made_of(x.shape(), dtype, [=, s = scales.data<float>()]<class A>(int64_t r, int64_t c) {
      const int64_t row = r / rows * down + r % rows / r_each;
      return A(Computed<N>(n[r * columns + c])) * A(s[row * across + c / c_each]);
    });
  };
  return x.dtype() == bf16 ? product(numbers.data<BFloat16>()) : product(numbers.data<int32_t>());
}

/// The whole numbers of 4 or 8 bits that are packed into I32, as bf16. Undefined if they are no matrix of `shape`, or
/// if both widths fit: one I32 holds a row of up to 4 numbers at either width.
Tensor unpacked(const Tensor& packed, const Tensor& shape) {
  if (packed.rank() != 2 || packed.dtype() != i32 || packed.numel() == 0 || shape.shape() != Shape{2}) return {};
  const std::vector<int64_t> size = to(shape, i64).to_vector<int64_t>();
  const int64_t across = packed.dim(1), columns = size[1];
  const auto fits = [&](int64_t each) { return columns > 0 && (columns - 1) / each + 1 == across; };
  if (size[0] != packed.dim(0) || fits(4) == fits(8)) return {};
  const Tensor p = contiguous(packed);
  const int64_t each = fits(4) ? 4 : 8;
  return made_of({size[0], columns}, bf16, [=, data = p.data<int32_t>()]<class A>(int64_t r, int64_t c) {
    const int64_t bits = 32 / each, last = (int64_t{1} << bits) - 1;
    return A((data[r * across + c / each] >> (c % each * bits) & last) - (last + 1) / 2);
  });
}

/// The numbers of E2M1, by their four bits.
constexpr float kE2M1[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};

/// The weight of MXFP4 with these blocks and exponents; undefined if they do not fit.
Tensor of_blocks(const Tensor& blocks, const Tensor& exponents, DType dtype) {
  constexpr int64_t bytes = 16, group = 2 * bytes;
  if (blocks.rank() < 3 || blocks.dim(-1) != bytes || blocks.numel() == 0 || blocks.dtype() != i32 ||
      exponents.dtype() != i32)
    return {};
  Shape shape = blocks.shape();
  shape.erase(shape.rank() - 1);
  if (exponents.shape() != shape) return {};
  const int64_t columns = (shape[shape.rank() - 1] *= group);
  const Tensor b = contiguous(blocks), e = contiguous(exponents);
  const Tensor rows =
      made_of(shape, dtype, [=, two = b.data<int32_t>(), power = e.data<int32_t>()]<class A>(int64_t r, int64_t c) {
        const int64_t at = r * columns + c;
        const int32_t e = power[at / group];
        if (e < 0 || e >= 255) return std::numeric_limits<A>::quiet_NaN();  // 255 is E8M0's NaN; the others are none
        return std::ldexp(A(kE2M1[two[at / 2] >> (at % 2 * 4) & 15]), e - 127);
      });
  return transpose(rows, -1, -2);
}

}  // namespace

std::string weight_of(const std::string& name) {
  const auto without = [&](const char* end) { return name.substr(0, name.size() - std::string_view(end).size()); };
  for (const char* end : {".input_scale", ".activation_scale"})
    if (name.ends_with(end)) return without(end) + ".weight";
  for (const char* end : {"_scale_inv", "_scale", "_blocks", "_scales", "_packed", "_shape"})
    if (name.ends_with(end)) return without(end);
  return {};
}

void dequantise(const std::string& op, std::map<std::string, Tensor>& file, std::set<std::string>& names,
                const std::function<bool(const std::string&)>& wanted,
                const std::function<DType(const std::string&)>& dtype) {
  std::set<std::string> weights, beside;
  for (const std::string& name : names)
    if (const std::string weight = weight_of(name); !weight.empty() && wanted(weight) && !wanted(name))
      weights.insert(weight), beside.insert(name);
  for (const std::string& name : weights) {
    const auto take = [&](const char* end) {
      const auto node = file.extract(name + end);
      return node ? node.mapped() : Tensor();
    };
    const Tensor inverse = take("_scale_inv"), factor = take("_scale"), scale = factor.defined() ? factor : inverse,
                 blocks = take("_blocks"), exponents = take("_scales"), packed = take("_packed"),
                 shape = take("_shape");
    const bool few_bits = scale.defined() || blocks.defined() || exponents.defined() || packed.defined();
    if (!few_bits) continue;  // scales of inputs alone
    const auto refuse = [&](const auto&... why) { fail<IOError>(op, ": \"", shortened(name), "\"", why...); };
    Tensor x = take("");
    if (packed.defined() && shape.defined() && !x.defined()) {
      x = unpacked(packed, shape);
      if (!x.defined())
        refuse(" is packed as ", packed.dtype(), " ", packed.shape(),
               "; need I32 [rows, columns/4 or columns/8, rounded up], rows and more than 4 columns as its shape says");
    }
    if (blocks.defined() != exponents.defined() || x.defined() == blocks.defined() || scale.defined() != x.defined())
      refuse(" is stored in few bits, but not all of it is there");
    const Tensor y = x.defined() ? scaled(x, scale, dtype(name)) : of_blocks(blocks, exponents, dtype(name));
    if (!y.defined() && x.defined())
      refuse(" ", x.dtype(), " ", x.shape(), " has scales ", scale.dtype(), " ", scale.shape(),
             "; need one, or a grid of them, each for 2^a rows and 2^b columns");
    if (!y.defined())
      refuse(" has blocks ", blocks.dtype(), " ", blocks.shape(), " and scales ", exponents.dtype(), " ",
             exponents.shape(), "; need U8 [..., rows, columns/32, 16] and [..., rows, columns/32]");
    file[name] = y, names.insert(name);
  }
  for (const std::string& name : beside) file.erase(name), names.erase(name);
}

}  // namespace sluice::detail
