// Numbers as text, read and written the same way on every machine and in every locale.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

/// The number that the whole of `text` spells: "-1.5e3", "inf", "nan" (in upper or lower case). Nothing for a leading
/// '+', a space, a hexadecimal number, and a finite number beyond the largest double. Rounds to nearest; a number too
/// small becomes a denormal or ±0. The decimal point is '.' in every locale.
std::optional<double> parse_double(std::string_view text);

namespace detail {
/// printf's text, the first 511 bytes of it. The decimal point is '.' in every locale.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);
}  // namespace detail

}  // namespace sluice
