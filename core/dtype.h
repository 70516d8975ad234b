// Element types. f32, f64 and bf16 compute; i64, i32 and bool serve indices, counts and masks. An op of bf16 tensors
// computes in f32 and rounds its result once. Attention and scans also round what they multiply, weights and states.
#pragma once

#include <sluice/core/error.h>
#include <sluice/core/kernel/fn.h>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace sluice {

/// Element types. Floating-point ones have gradients.
enum class DType : uint8_t { f32, f64, bf16, i64, i32, boolean };
using enum DType;

/// The upper half of an f32.
struct BFloat16 {
  uint16_t bits;  // sign, exponent, 7 bits of mantissa
  BFloat16() = default;
  /// Rounds to nearest even; a NaN stays one. Tensors of f64 and integers are rounded to f32 first.
  SLUICE_FN explicit BFloat16(float x) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));  // one instruction; every NaN becomes 0x7fff
#else
    const uint32_t u = std::bit_cast<uint32_t>(x);
    bits = (u & 0x7fffffffu) > 0x7f800000u ? static_cast<uint16_t>((u >> 16) | 0x40)
                                           : static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#endif
  }
  /// Exact.
  SLUICE_FN explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

/// Bytes of an element.
constexpr int64_t size_of(DType t) {
  switch (t) {
    case f32:
    case i32: return 4;
    case f64:
    case i64: return 8;
    case bf16: return 2;
    default: return 1;
  }
}
/// "f32", …, "bool".
constexpr std::string_view name_of(DType t) {
  constexpr std::string_view names[] = {"f32", "f64", "bf16", "i64", "i32", "bool"};
  return names[static_cast<int>(t)];
}
/// f32, f64 or bf16.
constexpr bool is_float(DType t) { return t == f32 || t == f64 || t == bf16; }
/// i64 or i32.
constexpr bool is_integer(DType t) { return t == i64 || t == i32; }

/// DType of a C++ type. Does not compile for a type without one.
template <class T> constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return f32;
  else if constexpr (std::is_same_v<T, double>) return f64;
  else if constexpr (std::is_same_v<T, BFloat16>) return bf16;
  else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, long long>) return i64;
  else if constexpr (std::is_same_v<T, int32_t>) return i32;
  else {
    static_assert(std::is_same_v<T, bool>,
                  "no dtype for this C++ type: elements are float, double, BFloat16, int64_t, int32_t or bool; copy "
                  "other values to one of these");
    return boolean;
  }
}

inline void append_text(std::string& s, DType t) { s += name_of(t); }

namespace detail {
/// What elements T are computed in.
template <class T> using Computed = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
}  // namespace detail

/// Calls `f<float>` or `f<double>`. Throws DTypeError for other dtypes. For kernels that get bf16 as f32
/// (core/kernel/kernel.h).
template <class F> decltype(auto) dispatch_float(std::string_view op, DType t, F&& f) {
  if (t == f32) return f.template operator()<float>();
  if (t == f64) return f.template operator()<double>();
  fail<DTypeError>(op, ": needs f32 or f64 — got ", t);
}

/// Calls `f<T, Sum>` for a kernel that adds elements T up: floats in f64, integers in their own type, wrapping around.
/// Throws DTypeError for bf16 and bool, as dispatch_float() does.
template <class F> void dispatch_sum(std::string_view op, DType t, F&& f) {
  if (t == i64) f.template operator()<int64_t, int64_t>();
  else if (t == i32) f.template operator()<int32_t, int32_t>();
  else dispatch_float(op, t, [&]<class T>() { f.template operator()<T, double>(); });
}

/// Calls `f<T>` with the C++ type T of any dtype.
template <class F> decltype(auto) dispatch_all(DType t, F&& f) {
  switch (t) {
    case f32: return f.template operator()<float>();
    case f64: return f.template operator()<double>();
    case bf16: return f.template operator()<BFloat16>();
    case i64: return f.template operator()<int64_t>();
    case i32: return f.template operator()<int32_t>();
    default: return f.template operator()<bool>();
  }
}

}  // namespace sluice
