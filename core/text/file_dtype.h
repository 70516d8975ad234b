// The dtypes of files, by their names in safetensors: those of tensors, and others whose numbers are read as a wider
// dtype that holds each of them exactly.
#pragma once

#include <sluice/core/tensor.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

namespace sluice::detail {

/// F16 as f32, exact.
inline float float_of_half(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31u, fraction = h & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));  // ∞ and NaN
  if (exponent > 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  return std::copysign(static_cast<float>(fraction) * 0x1p-24f, sign ? -1.0f : 1.0f);  // denormal, 0
}
/// F8_E4M3 without ∞: largest 448, smallest 2^−9 (Micikevicius et al. 2022, "FP8 Formats for Deep Learning").
inline BFloat16 bf16_of_e4m3(uint8_t b) {
  const uint32_t sign = uint32_t{b & 0x80u} << 24, exponent = (b >> 3) & 15u, fraction = b & 7u;
  if ((b & 0x7f) == 0x7f) return BFloat16(std::numeric_limits<float>::quiet_NaN());
  if (exponent > 0) return BFloat16(std::bit_cast<float>(sign | ((exponent + 120) << 23) | (fraction << 20)));
  return BFloat16(std::copysign(static_cast<float>(fraction) * 0x1p-9f, sign ? -1.0f : 1.0f));
}
/// F8_E5M2, the upper half of an F16.
inline BFloat16 bf16_of_e5m2(uint8_t b) { return BFloat16(float_of_half(static_cast<uint16_t>(b << 8))); }
/// F8_E8M0, 2^(b − 127), a scale; 255 is NaN.
inline BFloat16 bf16_of_e8m0(uint8_t b) {
  return BFloat16(b == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, b - 127));
}

struct FileDType {
  std::string_view name;
  int64_t bytes;                               // bytes of a number in the file
  DType dtype;                                 // dtype of the tensor
  void (*widen)(const void*, int64_t, void*);  // converts n numbers of the file; null: as they are in the tensor
};

template <auto one, class From> void widen_each(const void* from, int64_t n, void* to) {
  using To = decltype(one(From{}));
  for (int64_t i = 0; i < n; ++i) static_cast<To*>(to)[i] = one(static_cast<const From*>(from)[i]);
}
/// widen_each() for numbers of one byte, by a table of all 256 values.
template <auto one> void widen_bytes(const void* from, int64_t n, void* to) {
  static const auto all = [] {
    std::array<decltype(one(0)), 256> table;
    for (std::size_t b = 0; b < 256; ++b) table[b] = one(static_cast<uint8_t>(b));
    return table;
  }();
  const auto* const bytes = static_cast<const uint8_t*>(from);
  for (int64_t i = 0; i < n; ++i) static_cast<decltype(one(0))*>(to)[i] = all[bytes[i]];
}
template <class To, class From> To whole(From x) { return static_cast<To>(x); }

/// First the dtypes that are written, in the order in which the reference implementation sorts tensors: by size of
/// element, descending, so that every tensor is aligned.
constexpr FileDType kFileDTypes[] = {
    {"I64", 8, i64, nullptr},
    {"F64", 8, f64, nullptr},
    {"F32", 4, f32, nullptr},
    {"I32", 4, i32, nullptr},
    {"BF16", 2, bf16, nullptr},
    {"BOOL", 1, boolean, nullptr},
    {"F16", 2, f32, &widen_each<float_of_half, uint16_t>},
    {"F8_E4M3", 1, bf16, &widen_bytes<bf16_of_e4m3>},
    {"F8_E5M2", 1, bf16, &widen_bytes<bf16_of_e5m2>},
    {"F8_E8M0", 1, bf16, &widen_bytes<bf16_of_e8m0>},
    {"U8", 1, i32, &widen_each<whole<int32_t, uint8_t>, uint8_t>},
    {"I8", 1, i32, &widen_each<whole<int32_t, int8_t>, int8_t>},
    {"U16", 2, i32, &widen_each<whole<int32_t, uint16_t>, uint16_t>},
    {"I16", 2, i32, &widen_each<whole<int32_t, int16_t>, int16_t>},
    {"U32", 4, i64, &widen_each<whole<int64_t, uint32_t>, uint32_t>},
    {"U64", 8, i64, &widen_each<whole<int64_t, uint64_t>, uint64_t>},  // wrong_number() tells what becomes negative
};

/// A tensor of the numbers that read(to, bytes) copies from a file.
Tensor read_numbers(const FileDType& type, const Shape& shape, const std::function<void(void*, std::size_t)>& read);
/// Why x, read from numbers of a type, is wrong, behind the name of the tensor; "" if it is right.
std::string wrong_number(const FileDType& type, const Tensor& x);

}  // namespace sluice::detail
