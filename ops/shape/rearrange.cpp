// y[axes as on the right] = x[axes as on the left]. With one dim per name the operation is a permutation:
//   reshape to the names of the left → permute to the order of the right → expand new names → reshape
// rearrange has no arithmetic and no node of its own: the gradient is that of the four views.
#include <sluice/ops/shape/rearrange.h>

#include <sluice/core/operands.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace sluice {

namespace {

using Names = std::vector<std::string_view>;
using Sizes = std::initializer_list<std::pair<std::string_view, int64_t>>;
constexpr std::string_view kEllipsis = "...";

/// One dim of a side: "d" is {d}, "1" is {}, "(h d)" is {h, d}; a bare "..." is several dims.
struct Item {
  Names names;
  bool bare_ellipsis = false;
};

/// One dim per name. The dims of the ellipsis stand together under the name "...".
struct Axis {
  std::string_view name;
  int64_t size;
};

std::string spelt(const Item& item) {
  if (item.names.size() == 1) return std::string(item.names[0]);
  std::string s = "(";
  for (std::string_view n : item.names) s += (s.size() > 1 ? " " : "") + std::string(n);
  return s + ")";
}

class Rearrangement {
 public:
  Rearrangement(std::string_view pattern, const Tensor& x, Sizes sizes) : pattern_(pattern), x_(x), sizes_(sizes) {}

  Tensor run() {
    const std::size_t arrow = pattern_.find("->");
    if (arrow == pattern_.npos || pattern_.find("->", arrow + 2) != pattern_.npos) wrong("needs exactly one '->'");
    const std::vector<Item> left = parse(pattern_.substr(0, arrow), "left");
    const std::vector<Item> right = parse(pattern_.substr(arrow + 2), "right");
    check_sizes(left, right);
    solve(left);

    Shape split, order, stretched, merged;
    if (axes_.size() > kMaxRank) wrong("more than ", kMaxRank, " axes");
    for (const Axis& a : axes_) split.push_back(a.size);
    Shape with_new_axes;  // of size 1
    for (const Item& item : right) {
      int64_t product = 1;
      for (std::string_view name : item.names) {
        for (const Axis& a : placed(name)) {
          if (stretched.rank() == kMaxRank) wrong("more than ", kMaxRank, " axes");
          stretched.push_back(a.size);
          product = checked_mul("rearrange", product, a.size);
          if (item.bare_ellipsis) add_dim(merged, a.size);
          const bool is_new = find(name) < 0;
          with_new_axes.push_back(is_new ? 1 : a.size);
          if (!is_new) order.push_back(&a - axes_.data());
        }
      }
      if (!item.bare_ellipsis) add_dim(merged, product);
    }
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (std::count(order.begin(), order.end(), i) == 0)
        wrong("axis '", axes_[i].name, "' is missing on the right; a reduction such as sum removes axes");

    checked_numel("rearrange", stretched);
    Tensor y = reshape(x_, split);
    if (!std::is_sorted(order.begin(), order.end())) y = permute(y, order);
    return reshape(expand(reshape(y, with_new_axes), stretched), merged);
  }

 private:
  template <class... Args> [[noreturn]] void wrong(const Args&... what) const {
    fail("rearrange: ", what..., " in \"", pattern_, "\" — got x=", x_);
  }

  void add_dim(Shape& shape, int64_t size) const {
    if (shape.rank() == kMaxRank) wrong("more than ", kMaxRank, " axes");
    shape.push_back(size);
  }

  std::vector<Item> parse(std::string_view s, const char* side) const {
    std::vector<Item> items;
    Names seen;
    bool open = false;
    for (std::size_t i = 0; i < s.size();) {
      const char c = s[i];
      if (std::isspace(static_cast<unsigned char>(c))) {
        ++i;
      } else if (c == '(' || c == ')') {
        if (open == (c == '(')) wrong(open ? "parentheses inside parentheses" : "')' without '('");
        open = c == '(';
        if (open) items.emplace_back();
        ++i;
      } else {
        const std::string_view name = token(s, i);
        i += name.size();
        if (!open) items.emplace_back();
        if (name == "1") continue;
        if (std::count(seen.begin(), seen.end(), name))
          wrong(name == kEllipsis ? "" : "axis ", "'", name, "' appears twice on the ", side);
        seen.push_back(name);
        items.back().names.push_back(name);
        items.back().bare_ellipsis = name == kEllipsis && !open;
      }
    }
    if (open) wrong("'(' without ')'");
    return items;
  }

  std::string_view token(std::string_view s, std::size_t at) const {
    std::string_view rest = s.substr(at);
    if (rest.starts_with(kEllipsis)) return rest.substr(0, 3);
    std::size_t n = 0;
    while (n < rest.size() && (std::isalnum(static_cast<unsigned char>(rest[n])) || rest[n] == '_')) ++n;
    if (n == 0) wrong("unexpected '", rest[0], "'");
    const std::string_view name = rest.substr(0, n);
    if (std::isdigit(static_cast<unsigned char>(name[0])) && name != "1")
      wrong("'", name, "' is not a name; only 1 may stand for itself");
    return name;
  }

  void check_sizes(const std::vector<Item>& left, const std::vector<Item>& right) const {
    for (auto it = sizes_.begin(); it != sizes_.end(); ++it) {
      if (it->first == kEllipsis) wrong("a size is given for '...', which may be several axes");
      auto has = [&](const Item& i) { return std::count(i.names.begin(), i.names.end(), it->first) > 0; };
      if (std::none_of(left.begin(), left.end(), has) && std::none_of(right.begin(), right.end(), has))
        wrong("a size is given for '", it->first, "', which is not an axis");
      if (it->second < 0) wrong("axis '", it->first, "' has the negative size ", it->second);
      if (std::any_of(sizes_.begin(), it, [&](auto& s) { return s.first == it->first; }))
        wrong("axis '", it->first, "' is given two sizes");
    }
  }
  int64_t given(std::string_view name) const {
    for (const auto& [n, size] : sizes_)
      if (n == name) return size;
    return -1;
  }

  /// Matches the left side with the dims of x: fills axes_.
  void solve(const std::vector<Item>& left) {
    int named = 0;
    bool ellipsis = false;
    for (const Item& item : left) {
      if (item.bare_ellipsis) ellipsis = true;
      else ++named;
      if (!item.bare_ellipsis && std::count(item.names.begin(), item.names.end(), kEllipsis))
        wrong("'...' in parentheses can only stand on the right");
    }
    if (ellipsis ? named > x_.rank() : named != x_.rank())
      wrong("the left side names ", ellipsis ? "at least " : "", named, " dims but x has rank ", x_.rank());
    int dim = 0;
    for (const Item& item : left) {
      if (!item.bare_ellipsis) {
        split_dim(item, dim++);
        continue;
      }
      for (int k = x_.rank() - named; k > 0; --k) axes_.push_back({kEllipsis, x_.shape()[dim++]});
    }
  }

  void split_dim(const Item& item, int dim) {
    const int64_t size = x_.shape()[dim];
    int64_t known = 1;
    std::size_t inferred = axes_.size() + item.names.size();  // none
    for (std::string_view name : item.names) {
      const int64_t s = given(name);
      if (s >= 0) {
        known = checked_mul("rearrange", known, s);
      } else if (inferred < axes_.size()) {
        wrong("sizes of '", axes_[inferred].name, "' and '", name, "' cannot both be inferred; give one");
      } else {
        inferred = axes_.size();
      }
      axes_.push_back({name, s});
    }
    if (inferred < axes_.size()) {
      if (known == 0 || size % known != 0)
        wrong("dim ", dim, " of size ", size, " is not divisible by ", known, " to give '", axes_[inferred].name,
              "' of ", spelt(item));
      axes_[inferred].size = size / known;
    } else if (known != size) {
      wrong("dim ", dim, " has size ", size, ", ", item.names.empty() ? "1" : spelt(item), " asks for ", known);
    }
  }

  int find(std::string_view name) const {
    for (std::size_t i = 0; i < axes_.size(); ++i)
      if (axes_[i].name == name) return static_cast<int>(i);
    return -1;
  }

  /// The axes that a name on the right stands for: a run of axes_, or one that is new.
  std::span<const Axis> placed(std::string_view name) {
    const int first = find(name);
    if (first >= 0) {
      std::size_t n = 1;
      while (name == kEllipsis && first + n < axes_.size() && axes_[first + n].name == name) ++n;
      return {axes_.data() + first, n};
    }
    if (name == kEllipsis) {
      if (pattern_.find(kEllipsis) > pattern_.find("->")) wrong("'...' appears on the right only");
      return {};  // it stands for no axes
    }
    fresh_ = {name, given(name)};
    if (fresh_.size < 0) wrong("axis '", name, "' is unknown: it is not on the left and no size is given for it");
    return {&fresh_, 1};
  }

  std::string_view pattern_;
  const Tensor& x_;
  Sizes sizes_;
  std::vector<Axis> axes_;
  Axis fresh_{};
};

}  // namespace

Tensor rearrange(std::string_view pattern, const Tensor& x, Sizes sizes) {
  detail::check_defined("rearrange", x);
  return Rearrangement(pattern, x, sizes).run();
}

}  // namespace sluice
