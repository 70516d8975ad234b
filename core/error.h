// Errors. The library never aborts and never prints: every failure is one of these types, and its
// text has the form  "op: what is wrong — got a=[8,64,32], b=[8,48,64]; need …".
#pragma once

#if __cplusplus < 202002L
#error "Sluice needs C++20: compile with -std=c++20"
#endif

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct ShapeError : Error { using Error::Error; };     // ranks, sizes, dims, strides
struct DTypeError : Error { using Error::Error; };     // element types
struct DeviceError : Error { using Error::Error; };    // where memory lives, missing kernels
struct AutogradError : Error { using Error::Error; };  // history, versions, gradients
struct IOError : Error { using Error::Error; };        // files
struct ValueError : Error { using Error::Error; };     // an argument outside its domain

// What error messages are made of; other types add overloads beside themselves.
inline void append_text(std::string& s, std::string_view v) { s += v; }
inline void append_text(std::string& s, const char* v) { s += v; }
inline void append_text(std::string& s, char v) { s += v; }
inline void append_text(std::string& s, bool v) { s += v ? "true" : "false"; }
inline void append_text(std::string& s, int v) { s += std::to_string(v); }
inline void append_text(std::string& s, unsigned v) { s += std::to_string(v); }
inline void append_text(std::string& s, long v) { s += std::to_string(v); }
inline void append_text(std::string& s, long long v) { s += std::to_string(v); }
inline void append_text(std::string& s, unsigned long v) { s += std::to_string(v); }
inline void append_text(std::string& s, unsigned long long v) { s += std::to_string(v); }
void append_text(std::string& s, double v);  // shortest form that reads back

/// Concatenates its arguments: strings, numbers, shapes, dtypes.
template <class... Args>
std::string str(const Args&... args) {
  std::string s;
  (append_text(s, args), ...);
  return s;
}

/// Throws E with the concatenated text.
template <class E = ShapeError, class... Args>
[[noreturn, gnu::noinline, gnu::cold]] void fail(const Args&... args) {
  throw E(str(args...));
}

}  // namespace sluice
