// The running module: layers open a scope, so that anomaly mode can name the module that produced a NaN.
#pragma once

#include <map>
#include <string>
#include <utility>

namespace sluice {

/// Paths of modules by address and type, because a struct and its first member have one address.
using ModuleNames = std::map<std::pair<const void*, std::string>, std::string>;

/// For its lifetime, `object` of kind `type` is the innermost module of this thread. Costs two stores.
class ModuleScope {
 public:
  ModuleScope(const void* object, const char* type) : object_(object), type_(type), outer_(top_) { top_ = this; }
  ~ModuleScope() { top_ = outer_; }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  /// The running modules, outermost first: names that name_modules() registered, else types.
  static std::string path();

 private:
  const void* object_;
  const char* type_;
  ModuleScope* outer_;
  static constinit thread_local ModuleScope* top_;
};

namespace detail {
/// The registered path of an object; empty when unknown. Installed by anomaly mode or the profiler.
extern std::string (*module_name)(const void* object, const char* type);
}  // namespace detail

}  // namespace sluice
