// The largest of many errors.
#pragma once

namespace sluice::testing {

/// The larger of two errors, or the NaN among them, which no bound admits: std::max(worst, NaN) is `worst`.
template <class T> T worse(T a, T b) { return a > b || a != a ? a : b; }

}  // namespace sluice::testing
