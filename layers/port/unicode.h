// Sets of characters by their properties, and normal form C: what reading a tokenizer needs of Unicode.
#pragma once

#include <sluice/core/text/utf8.h>

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice::detail {

/// A set of code points.
using CharSet = std::bitset<0x110000>;

/// Adds the characters that have a property: "Lu" or another general category, "L" or another group of these, "Han",
/// "White_Space". Returns false for a name that is none of these.
bool add_property(CharSet& set, std::string_view name);

/// Normal form C of valid UTF-8.
std::string nfc(std::string_view text);

/// The numbers in unicode_tables.cpp, which says what they mean.
struct UnicodeTables {
  std::span<const uint32_t> categories, combining, pairs;
};
const UnicodeTables& unicode_tables();

}  // namespace sluice::detail
