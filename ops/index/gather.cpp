// gather and index_select copy, scatter_add and index_add sum; each pair is adjoint:
//   y = gather(x, index)           dx = scatter_add(0, index, g)
//   y = scatter_add(x, index, s)   dx = g,  ds = gather(g, index)
// and likewise for index_select and index_add. The index has no gradient.
#include <sluice/ops/index/gather.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/shape/region_node.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace sluice {

namespace {

/// The index as kernels read it: contiguous i64.
Tensor checked_index(const char* op, const Tensor& index) {
  detail::check_defined(op, {{"index", index}});
  if (!is_integer(index.dtype()))
    fail<DTypeError>(op, ": the index must be i64 or i32 — got ", index.dtype(), " of shape ", index);
  return contiguous(to(index, i64));
}

void check_source(const char* op, const Tensor& x, const Tensor& src) {
  if (x.dtype() != src.dtype() || x.dtype() == boolean)
    fail<DTypeError>(op, ": needs x and src of one dtype, f32, f64, bf16, i64 or i32 — got x=", x.dtype(), x,
                     ", src=", src.dtype(), src);
}

void check_fits(const char* op, const Tensor& x, int dim, const Tensor& index) {
  bool ok = index.rank() == x.rank();
  for (int d = 0; ok && d < x.rank(); ++d) ok = d == dim || index.shape()[d] <= x.shape()[d];
  if (!ok)
    fail(op, ": the index does not fit — got x=", x, ", index=", index, ", dim ", dim,
         "; need index.rank()==x.rank() and index.dim(d)<=x.dim(d) outside dim");
}

Tensor select_slices(const char* op, const Tensor& x, int dim, const Tensor& index);

enum class Places { elements, slices };  // what an index names: scatter_add, index_add

/// y plus src at index; y holds the values of x, or zeros where x, the operand, is undefined. Backward: dx = g, dsrc =
/// g read at index.
Tensor added(Places places, Tensor y, const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
  const bool elements = places == Places::elements, alone = elements && !x.defined() && index.shape()[dim] == 1;
  // One number a lane beside zeros is not added but written: in bf16, too, as it is.
  (alone      ? kernel::scatter
   : elements ? kernel::scatter_add
              : kernel::index_add)(y, dim, index, contiguous(src.detach()));
  const auto rule = [elements, dim](const Node& node, const Tensor& g) {
    const auto read = [&](const Tensor& at) {
      return elements ? gather(g, dim, at) : select_slices("index_add", g, dim, at);
    };
    return Tensors{g, node.needs(1) ? read(node.saved(0)) : Tensor()};
  };
  return record(elements ? "scatter_add" : "index_add", std::move(y), {x, src}, {index}, rule);
}

/// index: rank 1, contiguous i64.
Tensor select_slices(const char* op, const Tensor& x, int dim, const Tensor& index) {
  Shape shape = x.shape();
  shape[dim] = index.numel();
  Tensor y = empty(shape, x.options(), op);
  kernel::index_select(op, x.detach(), dim, index, y);
  return detail::record_as<detail::SlicesNode>(op, std::move(y), {x}, {index}, op, x.shape(), dim);
}

Tensor triangle(const char* op, bool upper, const Tensor& x, int64_t k) {
  detail::check_defined(op, x);
  if (x.rank() < 2) fail(op, ": needs a matrix in the last two dims — got x=", x);
  Tensor y = empty(x.shape(), x.options(), op);
  detail::copy_elements(x, y);
  kernel::zero_triangle(y, upper, k);
  return record(op, std::move(y), {x}, {}, [upper, k](const Tensor& g) { return upper ? triu(g, k) : tril(g, k); });
}

}  // namespace

Tensors detail::SlicesNode::vjp(const Tensor& g) {
  return {added(Places::slices, zeros(full, g.options()), {}, dim, saved(0), g)};
}
void detail::SlicesNode::add_vjp(const Tensor& g, Tensor& sum) const {
  kernel::index_add(sum, dim, saved(0), contiguous(g));
  sum.bump_version();
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index_in) {
  detail::check_defined("gather", x);
  const int d = dim_of("gather", dim, x);
  Tensor index = checked_index("gather", index_in);
  check_fits("gather", x, d, index);
  Tensor y = empty(index.shape(), x.options(), "gather");
  kernel::gather(x.detach(), d, index, y);
  return record("gather", std::move(y), {x}, {index}, [from = x.shape(), d](const Node& node, const Tensor& g) {
    return added(Places::elements, zeros(from, g.options()), {}, d, node.saved(0), g);
  });
}

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index_in, const Tensor& src) {
  detail::check_defined("scatter_add", {{"x", x}, {"index", index_in}, {"src", src}});
  const int d = dim_of("scatter_add", dim, x);
  Tensor index = checked_index("scatter_add", index_in);
  check_source("scatter_add", x, src);
  check_fits("scatter_add", x, d, index);
  if (src.shape() != index.shape())
    fail("scatter_add: needs a source of the shape of the index — got index=", index, ", src=", src);
  return added(Places::elements, clone(x.detach()), x, d, index, src);
}

/// bool, of the shape of the index: true where no later entry along dim names the same place of [0, size).
static Tensor last_writers(const Tensor& index, int dim, int64_t size) {
  if (index.device() == meta) return empty(index.shape(), {boolean, meta});
  Shape places = index.shape(), line = Shape::filled(index.rank(), 1);
  line[dim] = index.shape()[dim], places[dim] = size;
  const TensorOptions numbers{i64, index.device()};
  const Tensor own = contiguous(expand(reshape(arange(line[dim], numbers), line), index.shape()));
  Tensor writer = zeros(places, numbers);
  kernel::scatter(writer, dim, index, own);
  return eq(gather(writer, dim, index), own);
}

Tensor scatter(const Tensor& x, int64_t dim, const Tensor& index_in, const Tensor& src) {
  detail::check_defined("scatter", {{"x", x}, {"index", index_in}, {"src", src}});
  const int d = dim_of("scatter", dim, x);
  const Tensor index = checked_index("scatter", index_in);
  if (x.dtype() != src.dtype())
    fail<DTypeError>("scatter: needs x and src of one dtype — got x=", x.dtype(), x, ", src=", src.dtype(), src);
  check_fits("scatter", x, d, index);
  if (src.shape() != index.shape())
    fail("scatter: needs a source of the shape of the index — got index=", index, ", src=", src);
  Tensor y = clone(x.detach());
  kernel::scatter(y, d, index, contiguous(src.detach()));
  // Backward: dx = g, dsrc = g read at index, both 0 where the number was written over.
  return record("scatter", std::move(y), {x, src}, {index}, [d, size = x.shape()[d]](const Node& n, const Tensor& g) {
    const Tensor at = n.saved(0);
    return Tensors{n.needs(0) ? scatter(g, d, at, zeros(at.shape(), g.options())) : Tensor(),
                   n.needs(1) ? where(last_writers(at, d, size), gather(g, d, at), 0.0) : Tensor()};
  });
}

/// Writes the places [count, rank] of the numbers that are not false among elements [at, end) of a tensor.
static void write_places(const bool* hit, const Shape& shape, int64_t at, int64_t end, int64_t* out) {
  const int rank = shape.rank(), last = rank - 1;
  Shape place = shape;  // of element `at`
  for (int64_t d = last, rest = at; d >= 0; rest /= shape[static_cast<int>(d--)])
    place[static_cast<int>(d)] = rest % shape[static_cast<int>(d)];
  for (int64_t n; at < end; at += n) {
    int64_t steps[256], count = 0;
    n = std::min({end - at, shape[last] - place[last], int64_t{256}});
    for (int64_t i = 0; i < n; ++i) steps[count] = i, count += hit[at + i];  // a branch would be mispredicted
    for (int64_t k = 0; k < count; ++k, out += rank) {
      for (int d = 0; d < last; ++d) out[d] = place[d];
      out[last] = place[last] + steps[k];
    }
    place[last] += n;
    for (int d = last; d > 0 && place[d] == shape[d]; --d) place[d] = 0, ++place[d - 1];
  }
}

Tensor nonzero(const Tensor& x) {
  detail::check_defined("nonzero", x);
  const Tensor hit = contiguous(detail::on_cpu("nonzero", to(x, boolean)));  // denormals are not 0
  const bool* p = hit.data<bool>();
  constexpr int64_t piece = 1 << 14;
  const int64_t n = hit.numel();
  std::vector<int64_t> first(static_cast<std::size_t>(ceil_div(n, piece)) + 1);  // of each piece's places, and the end
  parallel_for(n, piece, [&](int64_t begin, int64_t end) {
    first[static_cast<std::size_t>(begin / piece) + 1] = std::count(p + begin, p + end, true);
  });
  std::partial_sum(first.begin(), first.end(), first.begin());
  Tensor y = empty({first.back(), x.rank()}, {i64});
  int64_t* out = y.mutable_data<int64_t>();
  if (x.rank() > 0)
    parallel_for(n, piece, [&](int64_t begin, int64_t end) {
      write_places(p, x.shape(), begin, end, out + first[static_cast<std::size_t>(begin / piece)] * x.rank());
    });
  return to(y, x.device());
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  detail::check_defined("masked_select", {{"x", x}, {"mask", mask}});
  if (mask.dtype() != boolean)
    fail<DTypeError>("masked_select: the mask must be bool — got ", mask.dtype(), " of shape ", mask);
  const Shape shape = broadcast("masked_select", x.shape(), mask.shape()), flat{checked_numel("masked_select", shape)};
  const Tensor chosen = to(nonzero(reshape(expand(detail::on_cpu("masked_select", mask), shape), flat)), x.device());
  return select_slices("masked_select", reshape(expand(x, shape), flat), 0, reshape(chosen, {chosen.numel()}));
}

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index_in) {
  detail::check_defined("index_select", x);
  const int d = dim_of("index_select", dim, x);
  const Tensor index = checked_index("index_select", index_in);
  if (index.rank() != 1) fail("index_select: needs an index of rank 1 — got index=", index, "; flatten() it");
  return select_slices("index_select", x, d, index);
}

Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index_in, const Tensor& src) {
  detail::check_defined("index_add", {{"x", x}, {"index", index_in}, {"src", src}});
  const int d = dim_of("index_add", dim, x);
  if (index_in.rank() != 1) fail("index_add: needs an index of rank 1 — got index=", index_in);
  Tensor index = checked_index("index_add", index_in);
  check_source("index_add", x, src);
  Shape shape = x.shape();
  shape[d] = index.numel();
  if (src.shape() != shape)
    fail("index_add: the source does not fit — got x=", x, ", index=", index, ", src=", src, "; need src ", shape);
  return added(Places::slices, clone(x.detach()), x, d, index, src);
}

Tensor embedding(const Tensor& weight, const Tensor& index) {
  detail::check_defined("embedding", {{"weight", weight}, {"index", index}});
  if (weight.rank() != 2) fail("embedding: needs weight [V, D] — got weight=", weight, ", index=", index);
  detail::check_devices("embedding", {weight, index});
  detail::check_rank("embedding", index.rank() + 1, index);
  Shape shape = index.shape();
  shape.push_back(weight.dim(1));
  checked_numel("embedding", shape);
  Tensor flat = reshape(checked_index("embedding", index), {index.numel()});
  return reshape(select_slices("embedding", weight, 0, flat), shape);
}

Tensor triu(const Tensor& x, int64_t k) { return triangle("triu", true, x, k); }
Tensor tril(const Tensor& x, int64_t k) { return triangle("tril", false, x, k); }

Tensor causal_mask(int64_t lq, int64_t lk, Device device) {
  if (lq < 0 || lk < 0) fail("causal_mask: needs lengths >= 0 — got lq=", lq, ", lk=", lk);
  Tensor mask = empty({lq, lk}, {boolean, device}, "causal_mask");
  if (mask.numel() > 0) kernel::causal_mask(mask);
  return mask;
}

}  // namespace sluice
