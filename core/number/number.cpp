#include <sluice/core/number/number.h>

#include <cmath>
#include <cstdarg>
#include <cstdio>

#include <locale.h>
#include <stdlib.h>
#if __has_include(<xlocale.h>)
#include <xlocale.h>  // macOS has strtod_l and uselocale there
#endif

namespace sluice {

static locale_t c_locale() {
  static const locale_t c = newlocale(LC_ALL_MASK, "C", nullptr);
  return c;
}

// Not std::from_chars: libc++ 19 has none for double, and libstdc++'s does not tell too small from too large numbers.
std::optional<double> parse_double(std::string_view text) {
  // strtod also skips spaces and takes "+1", "0x10" and "nan(7)".
  if (text.empty() || text.find_first_not_of("0123456789.-+aefintyAEFINTY") != text.npos || text[0] == '+') return {};
  const std::string ended(text);
  char* end = nullptr;
  const double value = strtod_l(ended.c_str(), &end, c_locale());
  if (end != ended.c_str() + ended.size()) return {};
  const bool spelt_infinity = text.find_first_of("iI") != text.npos;
  if (std::isinf(value) && !spelt_infinity) return {};
  return value;
}

std::string detail::format(const char* pattern, ...) {
  char text[512];
  std::va_list numbers;
  va_start(numbers, pattern);
  const locale_t before = uselocale(c_locale());  // of this thread
  std::vsnprintf(text, sizeof text, pattern, numbers);
  uselocale(before);
  va_end(numbers);
  return text;
}

}  // namespace sluice
