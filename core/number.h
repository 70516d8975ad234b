// A number as text, read the same way on every machine.
#pragma once

#include <optional>
#include <string_view>

namespace sluice {

/// The number that all of `text` spells — "-1.5e3", "inf", "nan" in any case — or nothing. A '+', a space, a hexadecimal number
/// and a finite one beyond the largest double are none. Rounded to nearest, what is too small to a denormal or ±0; '.' is
/// the decimal point in every locale.
std::optional<double> parse_double(std::string_view text);

}  // namespace sluice
