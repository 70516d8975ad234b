#include <sluice/layers/attention/sparse_masks.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/basic.h>

#include <algorithm>

namespace sluice {

namespace {

/// The window of AttentionMask that reaches w positions back.
int64_t window_of(int64_t w) { return std::min(w, INT64_MAX - 1) + 1; }

/// A host vector with as many entries as a tensor of this shape. Throws MemoryError if there is no memory for it.
template <class T> std::vector<T> host_values(const char* op, const Shape& shape) {
  const int64_t n = checked_numel(op, shape);
  try {
    return std::vector<T>(static_cast<std::size_t>(n));
  } catch (const std::exception&) { fail<MemoryError>(op, ": no memory for ", shape); }
}

/// `count` distinct uniform values of [0, range), ascending; all values if range < count. Floyd's algorithm (Bentley &
/// Floyd 1987): for each t = range − count … range − 1, draw from [0, t]; insert the draw, or t if the draw is already
/// there.
std::vector<int64_t> distinct(int64_t count, int64_t range, uint64_t seed, uint64_t stream, uint64_t row) {
  std::vector<int64_t> chosen;
  for (int64_t t = std::max<int64_t>(0, range - count); t < range; ++t) {
    const auto i = static_cast<uint32_t>(chosen.size());
    const auto words =
        philox4x32({i, static_cast<uint32_t>(stream), static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32)},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t bits = static_cast<uint64_t>(words[1]) << 32 | words[0];
    const auto draw = static_cast<int64_t>(bits % static_cast<uint64_t>(t + 1));
    const auto at = std::lower_bound(chosen.begin(), chosen.end(), draw);
    if (at != chosen.end() && *at == draw) chosen.push_back(t);  // t is larger than all earlier values
    else chosen.insert(at, draw);
  }
  return chosen;
}

/// The lists as a tensor [heads, m, width], padded with −1; `y` provides its memory.
Tensor lists_of(const std::vector<std::vector<int64_t>>& rows, std::vector<int64_t> y, int64_t heads, int64_t m,
                int64_t width) {
  std::fill(y.begin(), y.end(), -1);
  for (std::size_t r = 0; r < rows.size(); ++r)
    std::copy(rows[r].begin(), rows[r].end(), y.begin() + static_cast<std::ptrdiff_t>(r) * width);
  return Tensor::from(y, {heads, m, width});
}

}  // namespace

AttentionMask sliding_mask(int64_t w, bool causal) {
  if (w < 0) fail<ValueError>("sliding_mask: w must not be negative — got ", w);
  return {.causal = causal, .window = window_of(w)};
}

AttentionMask dilated_mask(int64_t w, int64_t dilation, bool causal) {
  if (w < 0 || dilation < 1)
    fail<ValueError>("dilated_mask: need w >= 0 and dilation >= 1 — got w=", w, ", dilation=", dilation);
  return {.causal = causal, .window = window_of(w), .dilation = dilation};
}

AttentionMask residue_mask(int64_t dilation, bool causal) {
  if (dilation < 1) fail<ValueError>("residue_mask: dilation must be positive — got ", dilation);
  return {.causal = causal, .dilation = dilation};
}

AttentionMask global_local_mask(int64_t w, std::vector<int64_t> global, bool causal) {
  if (w < 0) fail<ValueError>("global_local_mask: w must not be negative — got ", w);
  return {.causal = causal, .window = window_of(w), .global = std::move(global)};
}

AttentionMask block_mask(const Tensor& blocks, int64_t block) { return {.blocks = blocks, .block = block}; }

Tensor bigbird_blocks(int64_t n, BigBirdOptions o) {
  if (n < 0 || o.block < 1 || o.window < 1 || o.window % 2 == 0 || o.random < 0 || o.heads < 1)
    fail<ValueError>("bigbird_blocks: need n >= 0, block >= 1, an odd window, random >= 0, heads >= 1 — got n=", n,
                     ", block=", o.block, ", window=", o.window, ", random=", o.random, ", heads=", o.heads);
  const int64_t g = ceil_div(n, o.block), reach = o.window / 2;
  std::vector<bool> blocks = host_values<bool>("bigbird_blocks", {o.heads, g, g});
  auto out = blocks.begin();
  auto is_global = [&](int64_t b) { return (o.first_global && b == 0) || (o.last_global && b == g - 1); };
  for (int64_t h = 0; h < o.heads; ++h)
    for (int64_t row = 0; row < g; ++row, out += g) {
      const int64_t end = o.causal ? row + 1 : g;
      std::vector<int64_t> rest;  // blocks that the row may draw
      for (int64_t col = 0; col < end; ++col) {
        out[col] = is_global(row) || is_global(col) || std::abs(row - col) <= reach;
        if (!out[col]) rest.push_back(col);
      }
      for (int64_t i : distinct(o.random, static_cast<int64_t>(rest.size()), o.seed, static_cast<uint64_t>(h),
                                static_cast<uint64_t>(row)))
        out[rest[static_cast<std::size_t>(i)]] = true;
    }
  return Tensor::from(blocks, {o.heads, g, g});
}

AttentionMask bigbird_mask(int64_t n, BigBirdOptions o) {
  return {.causal = o.causal, .blocks = bigbird_blocks(n, o), .block = o.block};
}

Tensor expand_blocks(const Tensor& blocks, int64_t block, int64_t m, int64_t n) {
  if (block < 1) fail<ValueError>("expand_blocks: block must be positive — got ", block);
  if (m < 0 || n < 0 || blocks.rank() < 2 || blocks.dim(-2) != ceil_div(m, block) ||
      blocks.dim(-1) != ceil_div(n, block))
    fail("expand_blocks: blocks=", blocks, " does not fit; need [..., ", ceil_div(m, block), ",", ceil_div(n, block),
         "] for ", m, " queries and ", n, " keys in blocks of ", block);
  Shape shape = blocks.shape();
  shape[blocks.rank() - 2] = m, shape[blocks.rank() - 1] = n;
  checked_numel("expand_blocks", shape);
  block = std::clamp<int64_t>(std::max(m, n), 1, block);
  const Tensor tall = narrow(repeat_interleave(blocks, block, -2), -2, 0, m);
  return contiguous(narrow(repeat_interleave(tall, block, -1), -1, 0, n));
}

Tensor dense_mask(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads) {
  return select(visible_pairs(mask, 1, heads, m, n), 0, 0);
}

Tensor neighbours_of(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads) {
  if (m < 0 || n < 0 || heads < 1)
    fail("neighbours_of: got m=", m, ", n=", n, ", heads=", heads, "; need sizes >= 0 and at least one head");
  detail::check_mask("neighbours_of", mask, 1, heads, m, n);
  const int64_t lists = detail::varies_by_head(mask) ? heads : 1;
  const detail::Visibility visible(mask, 1, heads, m, n);
  auto rows = host_values<std::vector<int64_t>>("neighbours_of", {lists, m});
  parallel_for(lists * m, 64, [&](int64_t begin, int64_t end) {
    auto line = host_values<uint8_t>("neighbours_of", {n});
    for (int64_t r = begin; r < end; ++r) {
      visible.fill_row(0, r / m, r % m, 0, n, line.data());
      for (int64_t j = 0; j < n; ++j)
        if (line[static_cast<std::size_t>(j)]) rows[static_cast<std::size_t>(r)].push_back(j);
    }
  });
  std::size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  const auto width = static_cast<int64_t>(longest);
  return lists_of(rows, host_values<int64_t>("neighbours_of", {lists, m, width}), lists, m, width);
}

Tensor random_neighbours(int64_t m, int64_t n, RandomNeighbours o) {
  if (m < 0 || n < 0 || o.k < 0 || o.heads < 1)
    fail<ValueError>("random_neighbours: need m, n, k >= 0 and heads >= 1 — got m=", m, ", n=", n, ", k=", o.k,
                     ", heads=", o.heads);
  checked_add("random_neighbours", m, n);
  const int64_t width = std::min(o.k, n) + (o.self && o.k < n ? 1 : 0);
  auto lists = host_values<int64_t>("random_neighbours", {o.heads, m, width});
  auto rows = host_values<std::vector<int64_t>>("random_neighbours", {o.heads, m});
  parallel_for(o.heads * m, 256, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t p = r % m + n - m;  // position of query r % m
      const int64_t range = o.causal ? std::clamp<int64_t>(p + 1, 0, n) : n;
      std::vector<int64_t>& row = rows[static_cast<std::size_t>(r)];
      row = distinct(o.k, range, o.seed, static_cast<uint64_t>(r / m), static_cast<uint64_t>(p));
      const auto at = std::lower_bound(row.begin(), row.end(), p);
      if (o.self && p >= 0 && (at == row.end() || *at != p)) row.insert(at, p);
    }
  });
  return lists_of(rows, std::move(lists), o.heads, m, width);
}

Tensor mask_of_neighbours(const Tensor& neighbours, int64_t n) {
  if (neighbours.dtype() != i64)
    fail<DTypeError>("mask_of_neighbours: need i64 — got ", neighbours.dtype(), neighbours);
  if (neighbours.rank() < 2 || neighbours.rank() > 3)
    fail("mask_of_neighbours: got neighbours=", neighbours, "; need [heads, m, K] or [m, K]");
  const Tensor lists = contiguous(neighbours.rank() == 2 ? unsqueeze(neighbours, 0) : neighbours);
  const std::vector<int64_t> in = lists.to_vector<int64_t>();
  const std::size_t width = static_cast<std::size_t>(lists.dim(2));
  Tensor y = detail::filled("mask_of_neighbours", {lists.dim(0), lists.dim(1), n}, 0, {boolean});
  bool* const seen = y.mutable_data<bool>();
  for (std::size_t i = 0; i < in.size(); ++i) {
    const int64_t j = in[i];
    if (j < -1 || j >= n) fail<ValueError>("mask_of_neighbours: entry ", j, " is outside [−1, ", n, ")");
    if (j >= 0) seen[i / width * static_cast<std::size_t>(n) + static_cast<std::size_t>(j)] = true;
  }
  return to(y, neighbours.device());
}

}  // namespace sluice
