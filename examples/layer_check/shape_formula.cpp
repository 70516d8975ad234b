#include "expression.h"

#include <algorithm>

namespace layer_check {

using sluice::fail;
using sluice::Shape;
using sluice::str;

namespace {

constexpr std::string_view kBroadcast = "broadcast ";

bool is_name(std::string_view s) {
  return !s.empty() && !std::isdigit(static_cast<unsigned char>(s[0])) &&
         std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

}  // namespace

ShapeFormula::ShapeFormula(std::string_view text) : broadcast(text.starts_with(kBroadcast)) {
  const std::string_view whole = text;
  if (broadcast) text.remove_prefix(kBroadcast.size());
  if (text.size() < 2 || text.front() != '[' || text.back() != ']')
    fail<sluice::ValueError>("shape formula \"", whole, "\": needs the form [a, b]");
  text = text.substr(1, text.size() - 2);
  int depth = 0;
  std::string size;
  auto finish = [&] {
    while (!size.empty() && size.back() == ' ') size.pop_back();
    if (size == "...") ellipsis = true;
    else if (!size.empty()) sizes.push_back(size);
    size.clear();
  };
  for (char c : text) {
    depth += (c == '(') - (c == ')');
    if (c == ',' && depth == 0) finish();
    else if (c != ' ' || !size.empty()) size += c;
  }
  finish();
}

bool ShapeFormula::bind(const Shape& shape, Values& names) const {
  const int rank = static_cast<int>(sizes.size()), given = shape.rank();
  if (broadcast) return given <= rank;
  if (ellipsis ? given < rank : given != rank) return false;
  for (int i = 0; i < rank; ++i) {
    const std::string& size = sizes[static_cast<std::size_t>(i)];
    if (is_name(size) && !names.contains(size)) names[size] = shape[given - rank + i];
  }
  return true;
}

bool ShapeFormula::fits(const Shape& shape, const Values& names) const {
  const int rank = static_cast<int>(sizes.size()), given = shape.rank();
  if (broadcast ? given > rank : ellipsis ? given < rank : given != rank) return false;
  for (int i = 1; i <= std::min(rank, given); ++i) {
    const int64_t want = evaluate_size(sizes[static_cast<std::size_t>(rank - i)], names), got = shape[given - i];
    if (got != want && !(broadcast && got == 1)) return false;
  }
  return true;
}

Shape ShapeFormula::example(const Values& names) const {
  Shape shape;
  if (ellipsis) shape = {2, 3};
  for (const std::string& size : sizes) shape.push_back(evaluate_size(size, names));
  return shape;
}

std::string ShapeFormula::explain(std::string_view text, const Values& names) const {
  std::string filled = ellipsis ? "..." : "";
  for (const std::string& size : sizes) {
    std::string known = size;
    try {
      known = std::to_string(evaluate_size(size, names));
    } catch (const sluice::Error&) {  // a size of an input that is not known yet
    }
    filled += str(filled.empty() ? "" : ", ", known);
  }
  return str(text, " = [", filled, "]");
}

}  // namespace layer_check
