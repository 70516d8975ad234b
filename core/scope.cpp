#include <sluice/core/scope.h>

#include <vector>

namespace sluice {

constinit thread_local ModuleScope* ModuleScope::top_ = nullptr;

namespace detail {
std::string (*module_name)(const void*, const char*) = nullptr;
}

std::string ModuleScope::path() {
  std::vector<const ModuleScope*> scopes;
  for (const ModuleScope* s = top_; s; s = s->outer_) scopes.push_back(s);
  std::string path;
  for (auto it = scopes.rbegin(); it != scopes.rend(); ++it) {
    std::string name = detail::module_name ? detail::module_name((*it)->object_, (*it)->type_) : "";
    // A registered name is the whole path from the model down; a type only adds one level.
    if (!name.empty()) path = name + " (" + (*it)->type_ + ")";
    else path += (path.empty() ? "" : " / ") + std::string((*it)->type_);
  }
  return path;
}

}  // namespace sluice
