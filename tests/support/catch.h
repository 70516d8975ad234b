// Catch2, version 2 or 3: the macros are the same; the headers, and the names of the matchers of text, are not.
#pragma once

#include <string>

#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#define SLUICE_CATCH_CONTAINS Catch::Contains
using Catch::EndsWith;
using Catch::StartsWith;
#else
#include <catch2/catch_all.hpp>
#define SLUICE_CATCH_CONTAINS Catch::Matchers::ContainsSubstring
using Catch::Approx;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
#endif

/// Matches a text that contains `part`.
inline auto Contains(const std::string& part) { return SLUICE_CATCH_CONTAINS(part); }
