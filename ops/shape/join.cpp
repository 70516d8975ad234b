// split, cat, pad, fold and related ops: pieces of a tensor, and tensors made of pieces.
#include <sluice/ops/shape/join.h>

#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

// (y_1, …, y_k) = split(x). Backward: dx = cat(g_1, …, g_k), zeros where no gradient came.
struct Split final : Op<"split"> {
  int dim;
  TensorOptions options;
  Split(int d, TensorOptions o) : dim(d), options(o) {}
  Tensors vjp_all(const Tensors& gs) override {
    std::vector<Tensor> pieces;
    for (std::size_t i = 0; i < gs.size(); ++i)
      pieces.push_back(gs[i].defined() ? gs[i] : zeros(outputs[i].shape, options));
    return {cat(pieces, dim)};
  }
};

}  // namespace

Tensor detail::embed(const Tensor& x, const Shape& full_shape, const Shape& starts, const Shape& steps, double value) {
  Tensor y = filled("pad", full_shape, value, x.options());
  Tensor target = alias(y, y.layout().box(starts, x.shape(), steps));
  copy_elements(x, target);
  return record("pad", std::move(y), {x}, {},
                [starts, sizes = x.shape(), steps](const Tensor& g) { return region(g, starts, sizes, steps); });
}

Tensor detail::in_blocks(const Tensor& x, int64_t dim, int64_t block, double value) {
  const int64_t n = x.dim(dim);
  block = std::min(block, std::max<int64_t>(1, n));  // a longer block would hold filling alone behind x
  const int64_t blocks = ceil_div(n, block);
  return unflatten(blocks * block == n ? x : pad(x, dim, 0, blocks * block - n, value), dim, {blocks, block});
}

void detail::check_rank(const char* op, int rank, const Tensor& x) {
  if (rank > kMaxRank) fail(op, ": a result would have ", rank, " dims; at most ", kMaxRank, " — got x=", x);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int64_t dim) {
  detail::check_defined("split", x);
  int d = dim_of("split", dim, x);
  int64_t total = 0;
  for (int64_t s : sizes) {
    if (s < 0) fail("split: negative size ", s, " for x=", x);
    total = checked_add("split", total, s);
  }
  if (total != x.shape()[d]) fail("split: sizes sum to ", total, ", dim ", dim, " of x=", x, " is ", x.shape()[d]);
  std::vector<Tensor> pieces;
  int64_t start = 0;
  for (int64_t s : sizes) {
    pieces.push_back(alias(x, x.layout().narrowed(d, start, s)));
    start += s;
  }
  if (grad_enabled() && x.requires_grad() && !pieces.empty()) {
    Node* node = new Split(d, x.options());
    node->edges.push_back(edge_of(x));
    for (Tensor& p : pieces) node->add_output(p);
    if (detail::observed()) [[unlikely]]
      for (const Tensor& p : pieces) detail::note_op(Split::op_name(), p, node);
  }
  return pieces;
}

/// A piece is a Tensor of some 300 bytes: more pieces than this are a mistake.
constexpr int64_t kMaxPieces = int64_t{1} << 24;

std::vector<Tensor> chunk(const Tensor& x, int64_t n, int64_t dim) {
  detail::check_defined("chunk", x);
  if (n < 1) fail<ValueError>("chunk: needs n >= 1 — got ", n);
  const int64_t total = x.shape()[dim_of("chunk", dim, x)], size = total / n + (total % n != 0);
  if (size > 0 && total / size > kMaxPieces) fail<ValueError>("chunk: ", n, " pieces of x=", x, " are too many");
  std::vector<int64_t> sizes;
  for (int64_t left = total; left > 0; left -= size) sizes.push_back(std::min(size, left));
  if (total == 0) sizes.push_back(0);
  return split(x, sizes, dim);
}

std::vector<Tensor> unbind(const Tensor& x, int64_t dim) {
  detail::check_defined("unbind", x);
  const int d = dim_of("unbind", dim, x);
  if (x.shape()[d] == 0) return {};
  if (x.shape()[d] > kMaxPieces) fail("unbind: ", x.shape()[d], " tensors are too many — got x=", x);
  std::vector<Tensor> entries = chunk(x, x.shape()[d], d);
  for (Tensor& e : entries) e = squeeze(e, d);
  return entries;
}

constexpr int64_t kJoined = 1 << 16;  // numbers of a result that each thread writes at a time
/// xs joined along dim `d`, counted from the front; `dim` is how the caller counted it.
static Tensor joined(const char* op, const std::vector<Tensor>& xs, int d, int64_t dim) {
  Shape shape = xs[0].shape();
  std::vector<int64_t> sizes;
  shape[d] = 0;
  for (const Tensor& x : xs) {
    bool ok = x.rank() == shape.rank();
    for (int i = 0; ok && i < shape.rank(); ++i) ok = i == d || x.shape()[i] == shape[i];
    if (!ok) fail(op, ": shapes differ outside dim ", dim, " — got ", xs[0], " and ", x);
    if (x.dtype() != xs[0].dtype())
      fail<DTypeError>(op, ": dtypes differ — got ", xs[0].dtype(), xs[0], " and ", x.dtype(), x,
                       "; convert with to(x, dtype)");
    detail::check_devices(op, {xs[0], x});
    sizes.push_back(x.shape()[d]);
    shape[d] = checked_add(op, shape[d], sizes.back());
  }
  Tensor y = empty(shape, xs[0].options(), op);
  // Some rows of all xs at a time, so that their lines, and new pages, are still in cache when the next x adds to them.
  const bool at_once = d == 0 || y.numel() <= kJoined || y.device() != cpu;
  const int64_t most = at_once ? shape[0] : ceil_div(kJoined * num_threads(), y.numel() / shape[0]);
  for (int64_t row = 0, start = 0, rows; row < shape[0]; row += rows, start = 0) {
    rows = std::min(most, shape[0] - row);
    const auto part = [&](const Tensor& x) { return at_once ? x : alias(x, x.layout().narrowed(0, row, rows)); };
    const Tensor to = part(y);
    for (const Tensor& x : xs) {
      Tensor piece = alias(to, to.layout().narrowed(d, start, x.shape()[d]));
      detail::copy_elements(part(x), piece);
      start += x.shape()[d];
    }
  }
  std::vector<TensorRef> inputs(xs.begin(), xs.end());
  auto slices = [d, sizes = std::move(sizes)](const Node& node, const Tensor& g) {
    Tensors grads;  // for each operand its slice of g
    int64_t start = 0;
    for (std::size_t i = 0; i < sizes.size(); start += sizes[i++])
      grads.push_back(node.needs(i) ? narrow(g, d, start, sizes[i]) : Tensor());
    return grads;
  };
  return record(op, std::move(y), TensorRefs(inputs), TensorRefs(), std::move(slices));
}

Tensor cat(const std::vector<Tensor>& xs, int64_t dim) {
  if (xs.empty()) fail<ValueError>("cat: needs at least one tensor");
  detail::check_defined("cat", xs);
  const int d = wrap_dim("cat", dim, xs[0].rank());
  if (xs[0].rank() == 0) fail("cat: scalars have no dims; use stack");
  return joined("cat", xs, d, dim);
}

Tensor stack(const std::vector<Tensor>& xs, int64_t dim) {
  if (xs.empty()) fail<ValueError>("stack: needs at least one tensor");
  detail::check_defined("stack", xs);
  const int d = wrap_dim("stack", dim, xs[0].rank() + 1);
  detail::check_rank("stack", xs[0].rank() + 1, xs[0]);
  std::vector<Tensor> raised;
  for (const Tensor& x : xs) {
    if (x.shape() != xs[0].shape()) fail("stack: shapes differ — got ", xs[0], " and ", x);
    raised.push_back(unsqueeze(x, d));
  }
  return joined("stack", raised, d, dim);
}

Tensor pad(const Tensor& x, int64_t dim, int64_t before, int64_t after, double value) {
  detail::check_defined("pad", x);
  int d = dim_of("pad", dim, x);
  if (before < 0 || after < 0) fail<ValueError>("pad: negative padding ", before, ", ", after, "; use slice to remove");
  if ((is_integer(x.dtype()) && value != std::floor(value)) || (x.dtype() == boolean && value != 0 && value != 1))
    fail<DTypeError>("pad: an ", x.dtype(), " tensor ", x, " and the number ", value, "; convert with to(x, f32)");
  detail::check_exact("pad", x.dtype(), value);
  if (before == 0 && after == 0) return clone(x);
  Shape full_shape = x.shape(), starts = Shape::filled(x.rank(), 0);
  full_shape[d] = checked_add("pad", full_shape[d], checked_add("pad", before, after));
  starts[d] = before;
  return detail::embed(x, full_shape, starts, Shape::filled(x.rank(), 1), value);
}

Tensor roll(const Tensor& x, int64_t shift, int64_t dim) {
  detail::check_defined("roll", x);
  const int64_t n = x.shape()[dim_of("roll", dim, x)];
  const int64_t k = n == 0 ? 0 : ((shift % n) + n) % n;
  if (k == 0) return clone(x);
  const Tensor plain = x.detach();
  Tensor y = cat({narrow(plain, dim, n - k, k), narrow(plain, dim, 0, n - k)}, dim);
  return record("roll", std::move(y), {x}, {}, [k, dim](const Tensor& g) { return roll(g, -k, dim); });
}

/// True if the dims [first, end) lie in row-major order without gaps.
static bool is_one_run(const Layout& layout, int first, int end) {
  Layout some;
  for (int d = first; d < end; ++d) some.shape.push_back(layout.shape[d]), some.strides.push_back(layout.strides[d]);
  return some.is_contiguous();
}

Tensor fold(const Tensor& windows, int64_t dim, int64_t length, int64_t step) {
  detail::check_defined("fold", {{"windows", windows}});
  int rank = windows.rank() - 1;
  if (rank < 1) fail("fold: needs windows in a last dim — got ", windows);
  int d = wrap_dim("fold", dim, rank);
  if (!is_integer(windows.dtype()) && !is_float(windows.dtype()))
    fail<DTypeError>("fold: needs f32, f64, bf16, i64 or i32 — got ", windows.dtype(), " of shape ", windows);
  int64_t count = windows.shape()[d], size = windows.shape()[rank];
  if (step < 1 || length < 0 || (length < size ? count != 0 : (length - size) / step != count - 1))
    fail("fold: ", count, " windows of ", size, " every ", step, " do not tile length ", length);
  Shape shape = windows.shape();
  shape.erase(rank);
  shape[d] = length;
  step = std::min(step, std::max<int64_t>(length, 1));  // larger steps mean one window; strides must not overflow
  const bool apart = step >= size;                      // no two windows share a place: nothing is added
  const DType dtype = windows.dtype() == bf16 && !apart ? f32 : windows.dtype();  // sums are rounded once
  Tensor y = detail::filled("fold", shape, 0, {dtype, windows.device()});
  if (windows.numel() > 0 && apart) {
    Layout places = y.layout();
    places.shape[d] = count, places.shape.push_back(size);
    places.strides.push_back(places.strides[d]), places.strides[d] *= step;
    Tensor target = alias(y, places);
    detail::copy_elements(windows, target);
  } else if (windows.numel() > 0 && is_one_run(windows.layout(), d + 1, rank) &&
             kernel::fold.installed(windows.device())) {
    kernel::fold(windows.detach(), y, d, step);
  } else if (windows.numel() > 0) {
    NoGrad guard;
    Shape order = Shape::filled(rank, 0);  // order of the dims of `whole`: windows with their entries along dim d + 1
    for (int i = 0; i < rank; ++i) order[i] = i;
    order.insert(d + 1, rank);
    const Tensor whole = permute(windows, order);
    const auto add_to = [&](Tensor target, const Tensor& x) {
      detail::copy_elements(add(target, to(x, dtype)), target);
    };
    // Whole windows, the last one first: the order in which the positions below add to a number.
    for (int64_t i = count - 1; count <= size && i >= 0; --i)
      add_to(alias(y, y.layout().narrowed(d, i * step, size)), select(whole, d, i));
    // Window position by window position: for a fixed k the targets i·step + k are distinct.
    for (int64_t k = 0; count > size && k < size; ++k)
      add_to(alias(y, y.layout().narrowed(d, k, count, step)), select(windows, rank, k));
  }
  y = to(y, windows.dtype());
  // y_p = Σ over the windows that contain p. fold and unfold are adjoint.
  return record("fold", std::move(y), {windows}, {}, [from = windows.shape(), d, size, step](const Tensor& g) {
    return from.numel() == 0 ? zeros(from, g.options()) : unfold(g, d, size, step);
  });
}

/// n copies of x along dim; if `each`, n copies of each of its entries there.
static Tensor repeated(const char* op, const Tensor& x, int64_t n, int64_t dim, bool each) {
  detail::check_defined(op, x);
  const int d = wrap_dim(op, dim, x.rank()), copies = d + each;  // a new dim, merged with d
  if (x.rank() == 0 || n < 0) fail(op, ": got n=", n, ", x=", x, "; need n >= 0 and a dim");
  detail::check_rank(op, x.rank() + 1, x);
  Shape stretched = x.shape(), merged = x.shape();
  stretched.insert(copies, n);
  checked_numel(op, stretched);
  merged[d] *= n;
  return n == 1 ? clone(x) : reshape(expand(unsqueeze(x, copies), stretched), merged);
}

Tensor repeat_interleave(const Tensor& x, int64_t n, int64_t dim) {
  return repeated("repeat_interleave", x, n, dim, true);
}
Tensor repeat(const Tensor& x, int64_t n, int64_t dim) { return repeated("repeat", x, n, dim, false); }

}  // namespace sluice
