// The running module: layers open a scope, so that observers can name the module that produced a NaN or took time.
#pragma once

#include <sluice/core/memory/no_copy.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace sluice {

/// Paths of modules by address and type, because a struct and its first member have one address.
using ModuleNames = std::map<std::pair<const void*, std::string>, std::string>;

/// For its lifetime, `object` of kind `type` is the innermost module of this thread. Costs two stores.
class ModuleScope : private NoCopy {
 public:
  ModuleScope(const void* object, const char* type) : object_(object), type_(type), outer_(top_) { top_ = this; }
  ~ModuleScope() { top_ = outer_; }

  /// The running modules, outermost first. A module is named by its path in `names`, or, if `names` is null, in what
  /// observers know (profiler, anomaly mode); a module without a path by its type.
  static std::string path(const ModuleNames* names = nullptr);
  /// The innermost running module of this thread, or null.
  static const ModuleScope* innermost() { return top_; }

 private:
  const void* object_;
  const char* type_;
  ModuleScope* outer_;
  static constinit thread_local ModuleScope* top_;
};

namespace detail {
struct Sequence;
/// The sequence split over ranks of which this thread's tensors are pieces (SequenceScope); null if nothing is split.
/// Defined in core so that checkpoint() can run again in the sequence of its first run.
std::shared_ptr<Sequence>& this_sequence();
}  // namespace detail

}  // namespace sluice
