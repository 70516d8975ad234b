#include <sluice/ops/attention/attention_mask.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/kernels.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

namespace sluice {

namespace detail {

void check_mask(const char* op, const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n) {
  if (mask.window < 0) fail<ValueError>(op, ": mask.window must not be negative — got ", mask.window);
  if (mask.dilation < 1) fail<ValueError>(op, ": mask.dilation must be positive — got ", mask.dilation);
  for (int64_t g : mask.global)
    if (g < 0) fail<ValueError>(op, ": mask.global holds the negative position ", g);
  auto need = [&](const char* name, const Tensor& x, DType dtype, const char* hint = "") {
    if (x.dtype() != dtype) fail<DTypeError>(op, ": mask.", name, " must be ", dtype, " — got ", x.dtype(), x, hint);
  };
  auto rows_of = [&](const char* name, const Tensor& x, int64_t length, DType dtype) {
    need(name, x, dtype);
    if (x.rank() != 2 || (x.dim(0) != batch && x.dim(0) != 1) || x.dim(1) != length)
      fail(op, ": mask.", name, "=", x, " does not fit; need [", batch, " or 1, ", length, "]");
  };
  const Tensor& keys = mask.keys;
  if (keys.defined() && keys.rank() != 3) rows_of("keys", keys, n, boolean);
  if (keys.defined() && keys.rank() == 3) {
    need("keys", keys, boolean);
    if ((keys.dim(0) != batch && keys.dim(0) != 1) || (keys.dim(1) != heads && keys.dim(1) != 1) || keys.dim(2) != n)
      fail(op, ": mask.keys=", keys, " does not fit; need [", batch, " or 1, ", heads, " or 1, ", n, "]");
  }
  if (mask.query_segments.defined() != mask.key_segments.defined())
    fail<ValueError>(op, ": mask.query_segments and mask.key_segments come together");
  if (mask.query_segments.defined()) {
    rows_of("query_segments", mask.query_segments, m, i64);
    rows_of("key_segments", mask.key_segments, n, i64);
  }
  if (mask.blocks.defined()) {
    if (mask.block < 1) fail<ValueError>(op, ": mask.blocks needs a positive mask.block — got ", mask.block);
    need("blocks", mask.blocks, boolean);
    const int64_t rows = ceil_div(m, mask.block), cols = ceil_div(n, mask.block);
    const Tensor& b = mask.blocks;
    if (b.rank() == 4) {
      const bool grouped = b.dim(1) > 0 ? heads % b.dim(1) == 0 : heads == 0;
      const bool fits = (b.dim(0) == batch || b.dim(0) == 1) && grouped;
      if (!fits || b.dim(2) != m || b.dim(3) != cols)
        fail(op, ": mask.blocks=", b, " does not fit; need [", batch, " or 1, a divisor of ", heads, ",", m, ",", cols,
             "] for the blocks of ", mask.block, " keys of each query");
    } else if ((b.rank() != 2 && !(b.rank() == 3 && (b.dim(0) == heads || b.dim(0) == 1))) || b.dim(-2) != rows ||
               b.dim(-1) != cols)
      fail(op, ": mask.blocks=", b, " does not fit; need [", rows, ",", cols, "] or [", heads, ",", rows, ",", cols,
           "] for ", m, " queries and ", n, " keys in blocks of ", mask.block);
  }
  if (mask.dense.defined()) {
    need("dense", mask.dense, boolean, "; a float mask is a bias");
    if (!stretches_to(mask.dense.shape(), {batch, heads, m, n}))
      fail(op, ": mask.dense=", mask.dense, " does not broadcast to ", Shape{batch, heads, m, n});
  }
}

bool varies_by_head(const AttentionMask& mask) {
  return (mask.keys.defined() && mask.keys.rank() == 3 && mask.keys.dim(1) > 1) ||
         (mask.blocks.defined() && mask.blocks.rank() >= 3 && mask.blocks.dim(-3) > 1) ||
         (mask.dense.defined() && mask.dense.rank() >= 3 && mask.dense.dim(-3) > 1);
}

DistanceRules::DistanceRules(const AttentionMask& mask)
    : reach(4 * kMaxElements), banded(mask.window > 0 || mask.dilation > 1), globals(banded && !mask.global.empty()),
      only_span(mask.dilation == 1 && !globals) {
  if (mask.window > 0 && mask.window - 1 <= reach / mask.dilation) reach = (mask.window - 1) * mask.dilation;
  each_tensor(mask, [this](const Tensor&) { only_span = false; });
}

Visibility::Visibility(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n)
    : mask_(mask), rules_(mask), m_(m), n_(n), by_query_(mask.blocks.defined() && mask.blocks.rank() == 4) {
  if (rules_.globals) {
    const int64_t positions = std::max(n, m);
    is_global_.assign(static_cast<std::size_t>(positions), 0);
    for (int64_t g : mask_.global)
      if (g < positions) is_global_[static_cast<std::size_t>(g)] = 1;
    global_before_.assign(static_cast<std::size_t>(positions + 1), 0);
    for (int64_t p = 0; p < positions; ++p)
      global_before_[static_cast<std::size_t>(p + 1)] =
          global_before_[static_cast<std::size_t>(p)] + is_global_[static_cast<std::size_t>(p)];
  }
  for (Tensor* x : {&mask_.keys, &mask_.query_segments, &mask_.key_segments, &mask_.blocks})
    if (x->defined()) *x = contiguous(*x);
  auto per_batch = [&](const Tensor& x) { return x.defined() && x.dim(0) == batch && batch > 1 ? x.strides()[0] : 0; };
  keys_batch_ = per_batch(mask_.keys);
  if (mask.keys.defined() && mask.keys.rank() == 3 && mask.keys.dim(1) > 1) keys_head_ = n;
  query_batch_ = per_batch(mask_.query_segments);
  key_batch_ = per_batch(mask_.key_segments);
  if (mask_.blocks.defined()) {
    const Tensor& b = mask_.blocks;
    const int64_t groups = b.rank() == 2 ? 1 : b.dim(-3);
    block_rows_ = by_query_ ? 1 : mask.block, block_heads_ = std::max<int64_t>(1, heads / std::max<int64_t>(1, groups));
    blocks_row_ = b.dim(-1), blocks_head_ = groups > 1 ? b.dim(-2) * blocks_row_ : 0;
    if (by_query_) blocks_batch_ = per_batch(b);
  }
  if (mask_.dense.defined()) {
    const Layout l = mask_.dense.layout().expanded({batch, heads, m, n});
    for (int d = 0; d < 4; ++d) dense_stride_[d] = l.strides[d];
  }
}

const uint8_t* Visibility::blocks_of(int64_t batch, int64_t head, int64_t row) const {
  return reinterpret_cast<const uint8_t*>(mask_.blocks.raw()) + batch * blocks_batch_ +
         head / block_heads_ * blocks_head_ + row / block_rows_ * blocks_row_;
}

Visibility::Span Visibility::span(int64_t row) const {
  const int64_t p = row + n_ - m_;
  Span s{0, n_};
  if (mask_.causal) s.end = std::min(n_, p + 1);
  if (mask_.window > 0 && is_global_.empty()) {
    s.begin = std::max<int64_t>(0, p - rules_.reach);
    s.end = std::min(s.end, p + rules_.reach + 1);
  }
  s.begin = std::min(s.begin, n_);
  s.end = std::max(s.end, s.begin);
  return s;
}

Visibility::Sees Visibility::classify(int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t col,
                                      int64_t cols) const {
  return classify(batch, head, row, rows, col, cols, mask_.blocks.defined());
}

int64_t Visibility::rows_with(int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t col, int64_t cols,
                              int32_t* out, bool& masked) const {
  const int64_t from = col / mask_.block, to = (col + cols - 1) / mask_.block;
  int64_t count = 0;
  for (int64_t r = row; r < row + rows; ++r) {
    const uint8_t* b = blocks_of(batch, head, r);
    if (std::any_of(b + from, b + to + 1, [](uint8_t v) { return v != 0; }) && span(r).end > col)
      out[count++] = static_cast<int32_t>(r);
  }
  masked = from != to || classify(batch, head, row, rows, col, cols, false) != Sees::all;
  return count;
}

Visibility::Sees Visibility::classify(int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t col, int64_t cols,
                                      bool blocks) const {
  bool all = true;
  const int64_t first = row + n_ - m_, last = first + rows - 1, end = col + cols - 1;  // positions, inclusive
  if (mask_.causal) {
    if (col > last) return Sees::none;
    if (end > first) all = false;
  }
  if (rules_.banded) {
    bool in_band = true, band_full = mask_.dilation == 1;
    if (mask_.window > 0) {
      if (col - last > rules_.reach || first - end > rules_.reach) in_band = false;
      if (end - first > rules_.reach || last - col > rules_.reach) band_full = false;
    }
    if (!in_band) {
      if (is_global_.empty()) return Sees::none;
      const auto positions = static_cast<int64_t>(is_global_.size());
      auto globals = [&](int64_t a, int64_t b) {  // positions a … b
        a = std::clamp<int64_t>(a, 0, positions), b = std::clamp<int64_t>(b + 1, a, positions);
        return global_before_[static_cast<std::size_t>(b)] - global_before_[static_cast<std::size_t>(a)];
      };
      if (globals(first, last) + globals(col, end) == 0) return Sees::none;
    }
    all = all && in_band && band_full;
  }
  if (blocks) {
    bool any = false;
    for (int64_t r = row; r < row + rows; r += block_rows_ - r % block_rows_) {
      const uint8_t* b = blocks_of(batch, head, r);
      for (int64_t c = col / mask_.block; c <= end / mask_.block; ++c) (b[c] ? any : all) = b[c] != 0;
    }
    if (!any) return Sees::none;
  }
  if (mask_.keys.defined()) {
    const auto* k = reinterpret_cast<const uint8_t*>(mask_.keys.raw()) + batch * keys_batch_ + head * keys_head_ + col;
    const auto real = std::count_if(k, k + cols, [](uint8_t v) { return v != 0; });
    if (real == 0) return Sees::none;
    if (real < cols) all = false;
  }
  if (mask_.query_segments.defined()) {
    const int64_t* q = mask_.query_segments.data<int64_t>() + batch * query_batch_ + row;
    const int64_t* k = mask_.key_segments.data<int64_t>() + batch * key_batch_ + col;
    const auto [q_lo, q_hi] = std::minmax_element(q, q + rows);
    const auto [k_lo, k_hi] = std::minmax_element(k, k + cols);
    if (*q_lo > *k_hi || *k_lo > *q_hi) return Sees::none;
    if (*q_lo != *q_hi || *k_lo != *k_hi) all = false;
  }
  if (mask_.dense.defined()) {
    bool any = false;
    const auto* base = reinterpret_cast<const uint8_t*>(mask_.dense.raw());
    for (int64_t r = row; r < row + rows && (all || !any); ++r) {
      const uint8_t* p =
          base + batch * dense_stride_[0] + head * dense_stride_[1] + r * dense_stride_[2] + col * dense_stride_[3];
      int64_t count = 0;
      for (int64_t c = 0; c < cols; ++c) count += p[c * dense_stride_[3]] != 0;
      any = any || count > 0;
      all = all && count == cols;
    }
    if (!any) return Sees::none;
  }
  return all ? Sees::all : Sees::some;
}

void Visibility::fill_row(int64_t batch, int64_t head, int64_t row, int64_t col, int64_t cols, uint8_t* out) const {
  if (cols == 0) return;
  const int64_t p = row + n_ - m_;
  const Span s = span(row);
  const int64_t begin = std::clamp<int64_t>(s.begin - col, 0, cols),
                end = std::clamp<int64_t>(s.end - col, begin, cols);
  std::memset(out, 0, static_cast<std::size_t>(cols));
  std::memset(out + begin, 1, static_cast<std::size_t>(end - begin));
  if (rules_.only_span) return;
  const bool row_global = !is_global_.empty() && p >= 0 && is_global_[static_cast<std::size_t>(p)];
  if (rules_.banded && !row_global && (mask_.dilation > 1 || !is_global_.empty())) {
    std::memset(out + begin, 0, static_cast<std::size_t>(end - begin));
    // Of the columns p + k·dilation within reach, the first that is not before `begin`.
    const int64_t low = std::max(p - rules_.reach, col + begin), high = std::min(p + rules_.reach, col + end - 1);
    const int64_t step = std::min(mask_.dilation, kMaxElements), past = (low - p) % step;
    for (int64_t c = low + (past > 0 ? step - past : -past); c <= high; c += step) out[c - col] = 1;
    for (int64_t j = begin; !is_global_.empty() && j < end; ++j)
      out[j] |= is_global_[static_cast<std::size_t>(col + j)];
  }
  auto restrict_to = [&](auto allowed) {
    for (int64_t j = begin; j < end; ++j) out[j] = static_cast<uint8_t>(out[j] & static_cast<uint8_t>(allowed(j)));
  };
  if (mask_.blocks.defined()) {
    const uint8_t* b = blocks_of(batch, head, row);
    restrict_to([&](int64_t j) { return b[(col + j) / mask_.block] != 0; });
  }
  if (mask_.keys.defined()) {
    const auto* k = reinterpret_cast<const uint8_t*>(mask_.keys.raw()) + batch * keys_batch_ + head * keys_head_ + col;
    restrict_to([&](int64_t j) { return k[j] != 0; });
  }
  if (mask_.query_segments.defined()) {
    const int64_t mine = mask_.query_segments.data<int64_t>()[batch * query_batch_ + row];
    const int64_t* k = mask_.key_segments.data<int64_t>() + batch * key_batch_ + col;
    restrict_to([&](int64_t j) { return k[j] == mine; });
  }
  if (mask_.dense.defined()) {
    const auto* d = reinterpret_cast<const uint8_t*>(mask_.dense.raw()) + batch * dense_stride_[0] +
                    head * dense_stride_[1] + row * dense_stride_[2] + col * dense_stride_[3];
    restrict_to([&](int64_t j) { return d[j * dense_stride_[3]] != 0; });
  }
}

int64_t counted_pairs(const AttentionCall& c) {
  const AttentionMask& mask = c.options.mask;
  const int64_t m = c.q.dim(2), n = c.k.dim(2);
  int64_t seen = n > 0 ? (n - 1) / mask.dilation + 1 : 0, global = 0;
  if (mask.window > 0 && mask.window <= n) seen = std::min(seen, mask.causal ? mask.window : 2 * mask.window - 1);
  if (DistanceRules(mask).globals) {
    const std::set<int64_t> positions(mask.global.begin(), mask.global.end());  // each once
    global = std::distance(positions.begin(), positions.lower_bound(n));
  }
  const int64_t all = std::min(global, m);  // queries that see everything
  const int64_t rows = checked_add("attention", checked_mul("attention", m - all, std::min(seen + global, n)),
                                   checked_mul("attention", all, n));
  return checked_mul("attention", c.q.dim(0) * c.q.dim(1), rows);
}

}  // namespace detail

namespace {

void visible_pairs_cpu(const AttentionMask& mask, int64_t batch, int64_t heads, Tensor& y) {
  const int64_t h = y.dim(1), m = y.dim(2), n = y.dim(3);
  const detail::Visibility visibility(mask, batch, heads, m, n);
  auto* out = reinterpret_cast<uint8_t*>(y.raw());
  parallel_for(y.dim(0) * h * m, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) visibility.fill_row(r / m / h, r / m % h, r % m, 0, n, out + r * n);
  });
}

void visible_count_cpu(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t n, Tensor& y) {
  const int64_t h = y.dim(1), m = y.dim(2);
  const detail::Visibility visibility(mask, batch, heads, m, n);
  int64_t* out = y.mutable_data<int64_t>();
  parallel_for(y.numel(), 64, [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> line(static_cast<std::size_t>(visibility.only_span() ? 0 : n));
    for (int64_t r = begin; r < end; ++r) {
      const auto [first, last] = visibility.span(r % m);
      if (!visibility.only_span()) visibility.fill_row(r / m / h, r / m % h, r % m, 0, n, line.data());
      out[r] = visibility.only_span() ? last - first : std::count(line.begin(), line.end(), uint8_t{1});
    }
  });
}

/// Sizes of the results: 1 if all sequences, or all heads, have the same pairs.
struct Rows {
  int64_t batch, heads;
};
Rows rows_of(const char* op, const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n,
             Device device) {
  checked_numel(op, {batch, heads, m, n});
  empty({n}, {boolean, device}, op), empty({m}, {boolean, device}, op);  // a row of either kind is looked at as a whole
  detail::check_mask(op, mask, batch, heads, m, n);
  const bool by_batch =
      (mask.keys.defined() && mask.keys.dim(0) > 1) ||
      (mask.query_segments.defined() && (mask.query_segments.dim(0) > 1 || mask.key_segments.dim(0) > 1)) ||
      (mask.blocks.defined() && mask.blocks.rank() == 4 && mask.blocks.dim(0) > 1) ||
      (mask.dense.defined() && mask.dense.rank() == 4 && mask.dense.dim(0) > 1);
  return {by_batch ? batch : std::min<int64_t>(batch, 1),
          detail::varies_by_head(mask) ? heads : std::min<int64_t>(heads, 1)};
}

}  // namespace

constinit decltype(kernel::visible_pairs) kernel::visible_pairs{"visible_pairs", &visible_pairs_cpu};
constinit decltype(kernel::visible_count) kernel::visible_count{"visible_count", &visible_count_cpu};

AttentionMask to(AttentionMask mask, Device device) {
  detail::change_tensors(mask, [device](Tensor& x) { x = x.defined() ? to(x, device) : x; });
  return mask;
}

Tensor visible_pairs(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n, Device device) {
  const auto [b, h] = rows_of("visible_pairs", mask, batch, heads, m, n, device);
  Tensor y = empty({b, h, m, n}, {boolean, device}, "visible_pairs");
  if (y.numel() > 0) kernel::visible_pairs(mask, batch, heads, y);
  return y;
}

Tensor visible_count(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n, Device device) {
  const auto [b, h] = rows_of("visible_count", mask, batch, heads, m, n, device);
  Tensor y = empty({b, h, m}, {i64, device}, "visible_count");
  if (y.numel() > 0) kernel::visible_count(mask, batch, heads, n, y);
  return y;
}

}  // namespace sluice
