// What an option can be.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace layer_check {

struct Objects;
/// null, bool, int, float, text, list of numbers, list of objects.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>,
                           std::shared_ptr<const Objects>>;
/// Options by name; also the variables of a formula.
using Values = std::map<std::string, Value>;
struct Objects {
  std::vector<Values> list;
};
inline Value objects(std::vector<Values> list) { return std::make_shared<const Objects>(Objects{std::move(list)}); }

/// As JSON would write it.
std::string text_of(const Value& v);

}  // namespace layer_check
