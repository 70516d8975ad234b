// Errors. Every failure that Sluice finds is an exception of one of these types, or of one derived from them beside its
// code: no op aborts or prints. The text has the form "op: what is wrong — got a=[8,64,32], b=[8,48,64]; need …".
#pragma once

#if __cplusplus < 202002L
#error "Sluice needs C++20: compile with -std=c++20"
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace sluice {

/// Base of everything that Sluice throws. The text names the op, what it got and what it needs. A lack of memory for a
/// tensor or a thread is a MemoryError; smaller allocations throw std::bad_alloc from the standard library.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// clang-format off
struct ShapeError : Error { using Error::Error; };     // ranks, sizes, dims, strides
struct DTypeError : Error { using Error::Error; };     // element types
struct DeviceError : Error { using Error::Error; };    // where memory lives, missing kernels
struct AutogradError : Error { using Error::Error; };  // history, versions, gradients
struct IOError : Error { using Error::Error; };        // files
struct MemoryError : Error { using Error::Error; };    // the system has no memory left
struct ValueError : Error { using Error::Error; };     // an argument outside its domain
// clang-format on

/// append_text() adds a value to an error message. Other types declare overloads beside themselves.
void append_text(std::string& s, std::string_view v);
inline void append_text(std::string& s, const char* v) { append_text(s, std::string_view(v)); }
void append_text(std::string& s, char v);
void append_text(std::string& s, bool v);
void append_text(std::string& s, std::integral auto v) { s += std::to_string(v); }
template <class E>
requires(std::is_enum_v<E>&& std::is_convertible_v<E, int64_t>) void append_text(std::string& s, E v) {
  append_text(s, int64_t{v});
}
void append_text(std::string& s, double v);  // the first of 6, 9 and 17 digits that reads back

/// A string to append to. As an argument it makes the overloads of this namespace known for other namespaces' types.
struct TextSink {
  std::string& text;                              // what overloads append to
  operator std::string&() const { return text; }  // so that they take it as their first argument
};

namespace detail {
/// One argument of a message and its printer, without the type: joining a message costs its caller an array, not a
/// function for each list of types.
struct TextPart {
  const void* value;
  void (*append)(std::string&, const void*);

  TextPart(const char* text) : value(text), append(&append_literal) {}
  template <class T>
  TextPart(const T& v)
      : value(&v), append([](std::string& s, const void* p) {
          const T& x = *static_cast<const T*>(p);
          if constexpr (requires { append_text(s, x); }) append_text(s, x);
          else append_text(TextSink{s}, x);
        }) {}
  static void append_literal(std::string& s, const void* text);
};
std::string join(std::initializer_list<TextPart> parts);
/// The joined parts, then the place where they were thrown unless the text names it already (running_module.h).
std::string error_text(std::initializer_list<TextPart> parts);
}  // namespace detail

/// Concatenates its arguments: strings, numbers, shapes, dtypes.
template <class... Args> std::string str(const Args&... args) { return detail::join({detail::TextPart(args)...}); }

namespace detail {
/// The items of a range as str() writes them, with `separator` between them.
std::string joined(const auto& items, std::string_view separator = ", ") {
  std::string text;
  std::string_view before;
  for (const auto& item : items) text += str(before, item), before = separator;
  return text;
}
}  // namespace detail

/// Throws E with the concatenated text. Inside modules the text ends with them, " — in blocks.3.feed (Mlp) / Linear",
/// and in a backward pass with the op whose vjp runs.
template <class E = ShapeError, class... Args> [[noreturn, gnu::noinline, gnu::cold]] void fail(const Args&... args) {
  throw E(detail::error_text({detail::TextPart(args)...}));
}

}  // namespace sluice
