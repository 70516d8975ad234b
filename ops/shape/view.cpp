#include <sluice/ops/shape/view.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/shape/region_node.h>

#include <algorithm>

namespace sluice {

/// A view of all of x. Its gradient and its hooks are its own: a handle of x itself would have those of x.
static Tensor whole(const char* op, const Tensor& x) {
  return record(op, alias(x, x.layout()), {x}, {}, [](const Tensor& g) { return g; });
}

Tensor detail::region(const Tensor& x, const Shape& starts, const Shape& sizes, const Shape& steps) {
  if (sizes == x.shape()) return whole("slice", x);
  return record<RegionNode>(alias(x, x.layout().box(starts, sizes, steps)), {x}, {}, x.shape(), starts, steps);
}
Tensors detail::RegionNode::vjp(const Tensor& g) { return {embed(g, full, starts, steps, 0)}; }
void detail::RegionNode::add_vjp(const Tensor& g, Tensor& sum) const {
  Tensor box = alias(sum, sum.layout().box(starts, g.shape(), steps));
  add_(box, g);
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  detail::check_defined("reshape", x);
  Shape to = shape;
  int infer = -1;
  for (int i = 0; i < to.rank(); ++i) {
    if (to[i] == -1 && infer < 0) infer = i, to[i] = 1;
    else if (to[i] < 0)
      fail("reshape: got ", shape, " for x=", x, "; one size may be -1, the others must not be negative");
  }
  const int64_t known = checked_numel("reshape", to);
  if (infer >= 0) {
    if (known == 0 || x.numel() % known != 0) fail("reshape: ", x.numel(), " elements of x=", x, " do not fit ", shape);
    to[infer] = x.numel() / known;
  } else if (known != x.numel()) {
    fail("reshape: x=", x, " has ", x.numel(), " elements, ", shape, " needs ", known);
  }
  if (to == x.shape()) return whole("reshape", x);
  const auto back = [from = x.shape()](const Tensor& g) { return reshape(g, from); };
  if (auto l = x.layout().reshaped(to)) return record("reshape", alias(x, *l), {x}, {}, back);
  Tensor copy = clone(x);
  return record("reshape", alias(copy, Layout(to)), {copy}, {}, back);
}

Tensor flatten(const Tensor& x, int64_t first, int64_t last) {
  detail::check_defined("flatten", x);
  int a = wrap_dim("flatten", first, x.rank()), b = wrap_dim("flatten", last, x.rank());
  if (a > b) fail("flatten: first dim ", first, " lies after last dim ", last, " of ", x);
  if (x.rank() == 0) return reshape(x, {1});
  Shape to;
  for (int d = 0; d < x.rank(); ++d) {
    if (d <= a || d > b) to.push_back(x.shape()[d]);
    else to[a] *= x.shape()[d];
  }
  return reshape(x, to);
}

Tensor unflatten(const Tensor& x, int64_t dim, const Shape& sizes) {
  detail::check_defined("unflatten", x);
  int d = dim_of("unflatten", dim, x);
  detail::check_rank("unflatten", x.rank() - 1 + sizes.rank(), x);
  Shape to;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != d) to.push_back(x.shape()[i]);
    else
      for (int64_t s : sizes) to.push_back(s);
  }
  const bool infer = std::count(sizes.begin(), sizes.end(), -1) == 1;
  if (infer && x.numel() == 0) fail("unflatten: cannot infer −1 in ", sizes, " for the empty x=", x);
  Shape known = sizes;
  for (int64_t& s : known) s = infer && s == -1 ? 1 : s;
  const int64_t n = checked_numel("unflatten", known), whole = x.dim(d);
  if (infer ? n == 0 || whole % n != 0 : n != whole)
    fail("unflatten: dim ", dim, " of x=", x, " cannot be split into ", sizes);
  if (!infer) checked_numel("unflatten", to);
  return reshape(x, to);
}

Tensor permute(const Tensor& x, const Shape& order) {
  detail::check_defined("permute", x);
  if (order.rank() != x.rank()) fail("permute: order ", order, " does not list every dim of x=", x);
  Layout l = x.layout();
  Shape inverse = Shape::filled(x.rank(), -1);
  for (int i = 0; i < x.rank(); ++i) {
    int d = wrap_dim("permute", order[i], x.rank());
    if (inverse[d] != -1) fail("permute: dim ", d, " is listed twice in ", order);
    inverse[d] = i;
    l.shape[i] = x.shape()[d];
    l.strides[i] = x.strides()[d];
  }
  return record("permute", alias(x, l), {x}, {}, [inverse](const Tensor& g) { return permute(g, inverse); });
}

Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
  detail::check_defined("transpose", x);
  Shape order;
  for (int i = 0; i < x.rank(); ++i) order.push_back(i);
  if (x.rank() > 0) std::swap(order[wrap_dim("transpose", a, x.rank())], order[wrap_dim("transpose", b, x.rank())]);
  return permute(x, order);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  detail::check_defined("expand", x);
  int shift = shape.rank() - x.rank();
  Shape to = shape;
  bool ok = shift >= 0;
  for (int i = 0; ok && i < to.rank(); ++i) {
    int64_t have = i < shift ? 1 : x.shape()[i - shift];
    if (to[i] == -1 && i >= shift) to[i] = have;
    ok = to[i] >= 0 && (have == to[i] || have == 1);
  }
  if (!ok) fail("expand: x=", x, " cannot be stretched to ", shape);
  checked_numel("expand", to);
  // Backward: the engine sums g down to x's shape.
  return record("expand", alias(x, x.layout().expanded(to)), {x}, {}, [](const Tensor& g) { return g; });
}

Tensor unsqueeze(const Tensor& x, int64_t dim) {
  detail::check_defined("unsqueeze", x);
  int d = wrap_dim("unsqueeze", dim, x.rank() + 1);
  detail::check_rank("unsqueeze", x.rank() + 1, x);
  Shape to = x.shape();
  to.insert(d, 1);
  return reshape(x, to);
}

Tensor squeeze(const Tensor& x, int64_t dim) {
  detail::check_defined("squeeze", x);
  int d = wrap_dim("squeeze", dim, x.rank());
  if (x.rank() > 0 && x.shape()[d] != 1) fail("squeeze: dim ", dim, " of x=", x, " is not 1");
  Shape to = x.shape();
  if (x.rank() > 0) to.erase(d);
  return reshape(x, to);
}
Tensor squeeze(const Tensor& x) {
  detail::check_defined("squeeze", x);
  Shape to;
  for (int64_t s : x.shape())
    if (s != 1) to.push_back(s);
  return reshape(x, to);
}

Tensor narrow(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  detail::check_defined("narrow", x);
  int d = dim_of("narrow", dim, x);
  const int64_t n = x.shape()[d], first = start < 0 ? start + n : start;
  if (first < 0 || length < 0 || first > n - length)
    fail("narrow: ", length, " entries from ", start, " are out of range for dim ", dim, " of x=", x);
  Shape starts = Shape::filled(x.rank(), 0), sizes = x.shape(), steps = Shape::filled(x.rank(), 1);
  starts[d] = first, sizes[d] = length;
  return detail::region(x, starts, sizes, steps);
}

Tensor slice(const Tensor& x, int64_t dim, std::optional<int64_t> start, std::optional<int64_t> end, int64_t step) {
  detail::check_defined("slice", x);
  int d = dim_of("slice", dim, x);
  if (step <= 0) fail<ValueError>("slice: needs step > 0 — got ", step, "; see flip()");
  int64_t n = x.shape()[d];
  auto clamp = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  int64_t a = clamp(start.value_or(0)), b = std::max(a, clamp(end.value_or(n)));
  Shape starts = Shape::filled(x.rank(), 0), sizes = x.shape(), steps = Shape::filled(x.rank(), 1);
  step = std::min(step, std::max<int64_t>(n, 1));  // one entry is left anyway, and strides must not overflow
  starts[d] = a, sizes[d] = ceil_div(b - a, step), steps[d] = step;
  return detail::region(x, starts, sizes, steps);
}

Tensor Tensor::operator[](int64_t i) const { return select(*this, 0, i); }
Tensor select(const Tensor& x, int64_t dim, int64_t index) {
  detail::check_defined("select", x);
  int d = dim_of("select", dim, x);
  int64_t n = x.shape()[d], i = index < 0 ? index + n : index;
  if (i < 0 || i >= n) fail("select: index ", index, " is out of range for dim ", dim, " of x=", x);
  return squeeze(narrow(x, d, i, 1), d);
}

/// fold(), whose result lies in the order in which g does, so that its sums go along memory.
static Tensor folded(const Tensor& g, int d, int64_t length, int64_t step) {
  Layout others = g.layout();
  others.shape.erase(g.rank() - 1), others.strides.erase(g.rank() - 1);
  Shape order = others.order_in_memory();
  if (std::is_sorted(order.begin(), order.end())) return fold(g, d, length, step);
  Shape back = order;
  for (int i = 0; i < order.rank(); ++i) back[static_cast<int>(order[i])] = i;
  const int64_t at = back[d];
  order.push_back(order.rank());
  return permute(fold(permute(g, order), at, length, step), back);
}

Tensor unfold(const Tensor& x, int64_t dim, int64_t size, int64_t step) {
  detail::check_defined("unfold", x);
  int d = wrap_dim("unfold", dim, x.rank());
  if (x.rank() == 0 || size < 1 || step < 1 || size > x.shape()[d])
    fail("unfold: size ", size, ", step ", step, " do not fit dim ", dim, " of x=", x);
  detail::check_rank("unfold", x.rank() + 1, x);
  step = std::min(step, x.shape()[d]);  // one window is left anyway
  Layout l = x.layout();
  l.shape[d] = (x.shape()[d] - size) / step + 1;
  l.strides[d] *= step;
  l.shape.push_back(size);
  l.strides.push_back(x.strides()[d]);
  checked_numel("unfold", l.shape);
  return record("unfold", alias(x, l), {x}, {},
                [d, length = x.shape()[d], step](const Tensor& g) { return folded(g, d, length, step); });
}

Tensor flip(const Tensor& x, const Shape& dims) {
  detail::check_defined("flip", x);
  Layout l = x.layout();
  for (int64_t d : wrap_dims("flip", dims, x.rank())) {
    int i = static_cast<int>(d);
    if (l.shape[i] > 0) l.offset += (l.shape[i] - 1) * l.strides[i];
    l.strides[i] = -l.strides[i];
  }
  return record("flip", alias(x, l), {x}, {}, [dims](const Tensor& g) { return flip(g, dims); });
}

/// The last two dims, of one size, become one: that of their diagonal.
static Layout diagonal_of(Layout l) {
  const int last = l.rank() - 1;
  l.strides[last - 1] += l.strides[last];
  l.shape.erase(last), l.strides.erase(last);
  return l;
}

/// Matrices with x on their diagonals and 0 elsewhere: y_ij = x_i [i = j].
static Tensor on_diagonal(const Tensor& x) {
  Shape shape = x.shape();
  shape.push_back(x.dim(-1));
  Tensor y = zeros(shape, x.options()), target = alias(y, diagonal_of(y.layout()));
  detail::copy_elements(x, target);
  return record("diagonal", std::move(y), {x}, {}, [](const Tensor& g) { return diagonal(g, -2, -1); });
}

Tensor diagonal(const Tensor& x, int64_t a, int64_t b) {
  detail::check_defined("diagonal", x);
  int i = wrap_dim("diagonal", a, x.rank()), j = wrap_dim("diagonal", b, x.rank());
  if (x.rank() < 2 || i == j) fail("diagonal: needs two distinct dims — got ", a, ", ", b, " of x=", x);
  const int64_t n = std::min(x.shape()[i], x.shape()[j]);
  if (x.shape()[i] != x.shape()[j]) return diagonal(narrow(narrow(x, i, 0, n), j, 0, n), i, j);
  Shape order;
  for (int d = 0; d < x.rank(); ++d)
    if (d != i && d != j) order.push_back(d);
  order.push_back(i), order.push_back(j);
  Tensor p = permute(x, order);
  return record("diagonal", alias(p, diagonal_of(p.layout())), {p}, {}, [](const Tensor& g) { return on_diagonal(g); });
}

}  // namespace sluice
