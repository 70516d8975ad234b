// Attention over chosen blocks of keys on rung 4: what its kernels are given (chosen_blocks.cuh). The launches before a
// kernel read the mask once, test each query and tile of a slab of bits, m·n/64 or half as many, and read once what the
// kernel multiplies with weights, to know whether it has a NaN.
#include <sluice/cuda/attention/chosen_blocks.h>

#include <sluice/cuda/attention/mask.cuh>

namespace sluice::cuda {

namespace {

constexpr int64_t kMostInts = std::numeric_limits<int>::max();  // places in bits and lists are int
constexpr int kOwnRows = WgmmaTile<64>::rows;                   // of a block, in all kernels of rung 4
constexpr int kQueriesOfTile = WgmmaBackwardTile<64, true>::cols;
static_assert(kOwnRows == WgmmaBackwardTile<128, true>::rows && kQueriesOfTile == WgmmaBackwardTile<128, true>::cols);

/// The lists of blocks of 128 queries, whose tiles have `cols` keys, or with by_keys of 128 keys: then the tiles have
/// 64 queries, and a list has those of all query heads that share the keys.
struct ListExtents {
  int64_t batches, heads, blocks, tiles, members;
  int64_t length() const { return 1 + tiles * members; }
  int64_t lists() const { return batches * heads * blocks; }

  ListExtents(const sluice::detail::AttentionCall& c, const BlockExtents& e, bool by_keys, int64_t cols)
      : batches(e.batches), heads(by_keys && e.groups > 1 ? c.k.dim(1) : e.groups),
        blocks(ceil_div((by_keys ? c.k : c.q).dim(2), kOwnRows)), tiles(ceil_div((by_keys ? c.q : c.k).dim(2), cols)),
        members(by_keys ? c.q.dim(1) / c.k.dim(1) : 1) {}
};

void make_bits(const MaskView& mask, const BlockExtents& e, uint32_t* to) {
  const int64_t of_bit = mask.block / kKeysOfBit, blocks = ceil_div(mask.n, mask.block);
  for_each(e.bits(), [=] __device__(int64_t i) {
    const int64_t query = i % e.rows << e.shift, word = i / e.rows % e.words, slab = i / e.rows / e.words;
    uint32_t bits = 0;
    if (query < mask.m) {
      const bool* const row = mask.blocks.at + slab / e.groups * mask.blocks.strides[0] +
                              slab % e.groups * mask.blocks.strides[1] +
                              query / mask.block_rows * mask.blocks.strides[2];
      for (int bit = 0; bit < 32; ++bit) {
        const int64_t block = (32 * word + bit) / of_bit;
        if (block < blocks && row[block * mask.blocks.strides[3]]) bits |= 1u << bit;
      }
    }
    to[i] = bits;
  });
}

__device__ int ones(uint32_t bits) {
  int count = 0;
  for (; bits; bits &= bits - 1) ++count;
  return count;
}

/// A block of one warp for each list; a lane looks at one tile of 32 at a time. cols: keys of a tile.
template <bool by_keys, int cols>
__global__ void __launch_bounds__(kWarp) chosen_tiles(ChosenBlocks mask, ListExtents e, int m, int n, int* lists) {
  constexpr int keys = by_keys ? kOwnRows : cols, queries = by_keys ? kQueriesOfTile : kOwnRows;
  const int lane = static_cast<int>(threadIdx.x), index = static_cast<int>(blockIdx.x);
  const int own = index % mask.blocks, slab = index / mask.blocks, heads = static_cast<int>(e.heads);
  int* const list = lists + std::ptrdiff_t{index} * mask.length;
  int count = 0;
  for (int member = 0; member < e.members; ++member) {
    const int head = slab % heads * mask.heads_of_list * static_cast<int>(e.members) + member;  // of queries
    const int bits = mask.bits_of(slab / heads, head);
    for (int first = 0; first < e.tiles; first += kWarp) {
      const int tile = first + lane, query = (by_keys ? tile : own) * queries, key = (by_keys ? own : tile) * keys;
      // Beyond the last key there are columns to hide, but rows that nobody reads.
      const int end = by_keys && key + keys > n ? n : key + keys;
      bool seen = false, cut = by_keys && query + queries > m;
      for (int i = query; tile < e.tiles && i < query + queries && i < m; ++i) {
        const KeySpan span = common(mask.of(i + n - m, n), ChosenBlocks::seen<keys>(mask.chosen(bits, i, key), key));
        if (span.begin < span.end) seen = true;
        if (span.begin > key || span.end < end) cut = true;
      }
      const uint32_t all = __ballot_sync(kAllLanes, seen);
      if (seen) list[1 + count + ones(all & ((1u << lane) - 1))] = (by_keys ? query : key) + 2 * member + cut;
      count += ones(all);
    }
  }
  if (lane == 0) list[0] = count;
}

/// Sets *flag if a number of x [batch, heads, rows, D] is a NaN or an infinity.
template <int D>
void look_for_nan(const HeadRows<const BFloat16>& x, int64_t batch, int64_t heads, int64_t rows, int* flag) {
  constexpr int pieces = D / 8;
  for_each(batch * heads * rows * pieces, [=] __device__(int64_t i) {
    const int64_t row = i / pieces;
    const BFloat16* const from = x.at(row / rows / heads, row / rows % heads, row % rows) + 8 * (i % pieces);
    const auto pairs = *reinterpret_cast<const Bytes16<uint32_t>*>(from);
    uint32_t bad = 0;
    for (const uint32_t pair : pairs.x) bad |= has_exponent_of_ones(pair);
    if (bad) *flag = 1;
  });
}

}  // namespace

BlockExtents::BlockExtents(const sluice::detail::AttentionCall& c) {
  const Tensor& blocks = c.options.mask.blocks;
  const bool by_query = blocks.rank() == 4;
  batches = by_query ? blocks.dim(0) : 1, groups = blocks.rank() == 2 ? 1 : blocks.dim(-3);
  shift = by_query ? 0 : 6, rows = round_up(c.q.dim(2), kOwnRows) >> shift;
  words = ceil_div(c.k.dim(2), kKeysOfWord);
}

ChosenTiles::ChosenTiles(const sluice::detail::AttentionCall& c, Window span)
    : call_(c), extents_(c), bits_(static_cast<std::size_t>(extents_.bits())), not_finite_(1) {
  make_bits(DeviceMask(c.options.mask, c.q.dim(0), c.q.dim(1), c.q.dim(2), c.k.dim(2)).view, extents_, bits_.get());
  static_cast<Window&>(mask_) = span;
  mask_.bits = bits_.get(), mask_.words = static_cast<int>(extents_.words);
  mask_.rows = static_cast<int>(extents_.rows), mask_.shift = static_cast<int>(extents_.shift);
  mask_.slabs_of_batch = extents_.batches > 1 ? static_cast<int>(extents_.groups) : 0;
  mask_.heads_of_slab = static_cast<int>(c.q.dim(1) / extents_.groups);
}

template <bool by_keys, int cols> ChosenBlocks ChosenTiles::lists() {
  const ListExtents e(call_, extents_, by_keys, cols);
  ChosenBlocks mask = mask_;
  mask.blocks = static_cast<int>(e.blocks), mask.length = static_cast<int>(e.length());
  mask.lists_of_batch = e.batches > 1 ? static_cast<int>(e.heads) : 0;
  mask.heads_of_list = static_cast<int>((by_keys ? call_.k : call_.q).dim(1) / e.heads);
  int* const to = lists_.emplace(static_cast<std::size_t>(e.lists() * e.length())).get();
  launch(chosen_tiles<by_keys, cols>, grid_of(e.lists()), dim3(kWarp), 0, mask, e, static_cast<int>(call_.q.dim(2)),
         static_cast<int>(call_.k.dim(2)), to);
  mask.lists = to, mask.not_finite = not_finite_.get();
  return mask;
}
template ChosenBlocks ChosenTiles::lists<false, 128>();
template ChosenBlocks ChosenTiles::lists<false, 64>();
template ChosenBlocks ChosenTiles::lists<true, 64>();

template <int D> void ChosenTiles::look(bool of_keys, std::initializer_list<HeadRows<const BFloat16>> operands) {
  const Tensor& like = of_keys ? call_.k : call_.q;
  int* const flag = not_finite_.get();
  for_each(1, [=] __device__(int64_t) { *flag = 0; });
  for (const HeadRows<const BFloat16>& x : operands) look_for_nan<D>(x, like.dim(0), like.dim(1), like.dim(2), flag);
}

bool serves_chosen_blocks(const sluice::detail::AttentionCall& c) {
  const int64_t m = c.q.dim(2), n = c.k.dim(2), heads = c.q.dim(1), kv_heads = c.k.dim(1);
  if (c.options.mask.block % kKeysOfBit != 0 || c.options.weighting != Weighting::softmax || m < kOwnRows ||
      n < kOwnRows || heads > kv_heads * ChosenBlocks::kMostMembers)
    return false;
  const BlockExtents e(c);
  const ListExtents by_queries(c, e, false, kKeysOfBit), by_keys(c, e, true, kQueriesOfTile);
  return e.bits() <= kMostInts && by_queries.lists() * by_queries.length() <= kMostInts &&
         by_keys.lists() * by_keys.length() <= kMostInts;
}

template <class Out>
void run_attention_chosen_blocks(const sluice::detail::AttentionCall& c, int64_t width, Window span,
                                 const AttentionProblem<BFloat16, Out>& p, const HeadRows<const BFloat16>& q,
                                 const HeadRows<const BFloat16>& k, const HeadRows<const BFloat16>& v) {
  ChosenTiles tiles(c, span);
  const auto with_width = [&]<int D>() {
    tiles.look<D>(true, {v});
    run_attention_wgmma<D, Softmax, ChosenBlocks, NoGate, Out>(p, tiles.lists<false, WgmmaTile<D>::cols>(), q, k, v);
  };
  width == 64 ? with_width.template operator()<64>() : with_width.template operator()<128>();
}
template void run_attention_chosen_blocks<float>(const sluice::detail::AttentionCall&, int64_t, Window,
                                                 const AttentionProblem<BFloat16, float>&,
                                                 const HeadRows<const BFloat16>&, const HeadRows<const BFloat16>&,
                                                 const HeadRows<const BFloat16>&);
template void run_attention_chosen_blocks<BFloat16>(const sluice::detail::AttentionCall&, int64_t, Window,
                                                    const AttentionProblem<BFloat16, BFloat16>&,
                                                    const HeadRows<const BFloat16>&, const HeadRows<const BFloat16>&,
                                                    const HeadRows<const BFloat16>&);

void run_attention_chosen_blocks_backward(const sluice::detail::AttentionCall& c, int64_t width, Window span,
                                          const AttentionBackwardProblem& p, const BackwardRows& rows) {
  ChosenTiles tiles(c, span);
  const auto with_width = [&]<int D>() {
    if (p.dq.base) {
      tiles.look<D>(true, {rows.k});
      run_attention_wgmma_backward<false, D, Softmax>(p, tiles.lists<false, WgmmaBackwardTile<D, false>::cols>(), rows);
    }
    if (p.dk.base || p.dv.base) {
      tiles.look<D>(false, {rows.q, rows.g});
      run_attention_wgmma_backward<true, D, Softmax>(p, tiles.lists<true, kQueriesOfTile>(), rows);
    }
  };
  width == 64 ? with_width.template operator()<64>() : with_width.template operator()<128>();
}

}  // namespace sluice::cuda
