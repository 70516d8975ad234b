// Classes that are neither copied nor moved, and values for a scope.
#pragma once

#include <utility>

namespace sluice {

/// Base of classes that are neither copied nor moved: owners of something that others use too, and scopes.
struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

namespace detail {
/// Gives `place` another value for a scope.
template <class T> class Restored : private NoCopy {
 public:
  Restored(T& place, T now) : place_(place), before_(std::exchange(place, std::move(now))) {}
  ~Restored() { place_ = std::move(before_); }

 private:
  T& place_;
  T before_;
};
}  // namespace detail

}  // namespace sluice
