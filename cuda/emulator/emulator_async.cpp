// Asynchronous work: TMA and wgmma, and the barriers that wait for them.
#include <sluice/cuda/emulator/emulator_state.h>

#include <sluice/core/dtype.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace sluice::cuda::emulator {

namespace {

constexpr std::size_t kRow = 128;  // bytes of a row of a matrix; the swizzle repeats every 8 rows

std::size_t swizzle(std::size_t at) { return at ^ (at >> 7 & 7) << 4; }

Mbarrier& mbarrier_at(const void* b) {
  const std::size_t at = offset_of(b, 8, "an mbarrier lies at");
  if (at % 8) bad("an mbarrier must lie at a multiple of 8 bytes");
  const auto found = block->mbarriers.find(at);
  if (found == block->mbarriers.end()) bad("there is no mbarrier at byte ", at, " of shared memory");
  return found->second;
}

/// Ends the phase if nothing is missing.
void advance(std::size_t at) {
  Mbarrier& b = block->mbarriers.at(at);
  if (b.missing > 0 || b.bytes != 0) return;
  ++b.phase, b.missing = b.arrivals;
  ++block->interval;  // separates earlier touches from later ones
  for (int i = 0; i < block->count; ++i)
    if (Thread& t = *block->threads[static_cast<std::size_t>(i)]; t.state == Thread::at_mbarrier && t.place == at)
      make_ready(t);
}

}  // namespace

uint64_t shared_offset(const void* p) { return offset_of(p, 1, "encodes"); }

// -- barriers -------------------------------------------------------------------------------------------------

void mbarrier_init(void* b, unsigned arrivals) {
  const std::size_t at = offset_of(b, 8, "an mbarrier lies at");
  block->mbarriers[at] = {arrivals, arrivals};
}

void mbarrier_arrive(void* b, unsigned bytes) {
  Mbarrier& m = mbarrier_at(b);
  if (m.missing == 0) bad("arrives at an mbarrier whose phase has had all its arrivals");
  --m.missing, m.bytes += bytes;
  advance(offset_of(b, 8, "an mbarrier lies at"));
}

void mbarrier_wait(void* b, unsigned parity) {
  const std::size_t at = offset_of(b, 8, "an mbarrier lies at");
  while (mbarrier_at(b).phase % 2 == parity) {
    block->current->place = at;
    wait_as(Thread::at_mbarrier);
  }
}

bool named_barrier(int id, int threads, bool waits, bool x) {
  Block& b = *block;
  if (id < 1 || id > 15 || threads % 32)
    bad("named barrier ", id, " of ", threads, " threads: need 1 to 15, and whole warps");
  NamedBarrier& barrier = b.named_barriers[id];
  if (barrier.arrived && barrier.threads != threads)
    bad("named barrier ", id, " waits for ", barrier.threads, " and for ", threads, " threads");
  barrier.threads = threads, barrier.any |= x;
  const auto place = static_cast<std::size_t>(id);
  if (++barrier.arrived < threads) {
    if (waits) b.current->place = place, wait_as(Thread::at_named_barrier);
    return barrier.result;  // no thread of the next phase has come before all have read it
  }
  barrier.arrived = 0, barrier.result = std::exchange(barrier.any, false), ++b.interval;
  for (int i = 0; i < b.count; ++i)
    if (Thread& t = *b.threads[static_cast<std::size_t>(i)]; t.state == Thread::at_named_barrier && t.place == place)
      make_ready(t);
  return barrier.result;
}

// -- TMA --------------------------------------------------------------------------------------------------------

void tma_load(void* to, const TensorMap& map, void* b, int column, int row, int head, int batch) {
  const std::size_t bytes = static_cast<std::size_t>(map.box) * kRow;
  if (offset_of(to, bytes, "TMA writes") % (8 * kRow))
    bad("TMA: a swizzled box must begin at a multiple of 1024 bytes");
  if (column % 64 || column < 0 || column + 64 > map.columns || head < 0 || head >= map.heads || batch < 0 ||
      batch >= map.batch || map.box < 1 || map.box > 256)
    bad("TMA: there is no such box");
  for (const int64_t stride : {map.batch_stride, map.head_stride, map.row_stride})
    if (stride < 1 || stride % 8 || reinterpret_cast<std::uintptr_t>(map.data) % 16)
      bad("TMA: addresses and strides must be multiples of 16 bytes, and strides above 0");
  mbarrier_at(b);
  std::memset(to, 0xff, bytes);  // NaN until the copy arrives
  block->bulks.push_back({static_cast<unsigned char*>(to), map, offset_of(b, 8, ""), column, row, head, batch});
}

bool deliver() {
  Block& b = *block;
  if (b.bulks.empty()) return false;
  const auto chosen = b.bulks.begin() + static_cast<std::ptrdiff_t>(draw(*b.random) % b.bulks.size());
  const Bulk bulk = *chosen;
  b.bulks.erase(chosen);
  const std::size_t at = offset_of(bulk.to, 1, "");
  for (int r = 0; r < bulk.map.box; ++r)
    for (int c = 0; c < 64; ++c) {
      const int row = bulk.row + r;
      const bool inside = row >= 0 && row < bulk.map.rows;
      const std::ptrdiff_t from = bulk.batch * bulk.map.batch_stride + bulk.head * bulk.map.head_stride +
                                  row * bulk.map.row_stride + bulk.column + c;
      const BFloat16 x = inside ? bulk.map.data[from] : BFloat16(0.0f);
      std::memcpy(b.shared + swizzle(at + static_cast<std::size_t>(r) * kRow + static_cast<std::size_t>(c) * 2), &x, 2);
    }
  for (std::size_t i = at / kAtom; i < (at + static_cast<std::size_t>(bulk.map.box) * kRow) / kAtom; ++i) {
    b.atoms[i] = {};
    b.atoms[i].write.interval = b.first_interval;  // counts as written, by no thread
    b.atoms[i].write.thread = -1;
  }
  b.mbarriers.at(bulk.barrier).bytes -= static_cast<int64_t>(bulk.map.box) * int64_t{kRow};
  ++b.interval;
  advance(bulk.barrier);
  return true;
}

// -- wgmma ------------------------------------------------------------------------------------------------------

namespace {

/// The 64-bit descriptor of a matrix, decoded; only the 128-byte swizzle is supported.
struct Encoded {
  std::size_t at, leading, stride;
  explicit Encoded(uint64_t bits)
      : at((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4) {
    if (bits >> 62 != 1 || (bits >> 49 & 7) != 0)
      bad("wgmma: a matrix must be swizzled by 128 bytes, its pattern without an offset");
  }
  float at_byte(std::size_t byte) const {
    BFloat16 x;
    std::memcpy(&x, block->shared + swizzle(at + byte), 2);
    return float(x);
  }
  /// Number k < 16 of row i.
  float row(std::size_t i, std::size_t k) const { return at_byte(i / 8 * stride + i % 8 * kRow + 2 * k); }
  /// Number k < 16 of column i.
  float column(std::size_t i, std::size_t k) const {
    return at_byte(i / 64 * leading + k / 8 * stride + k % 8 * kRow + i % 64 * 2);
  }
};

void multiply(Warp& warp, const Product& p, std::size_t warp_in_group) {
  const auto half = [](uint32_t pair, int e) { return std::bit_cast<float>(e ? pair & 0xffff0000u : pair << 16); };
  float a[16][16];
  if (p.from_registers) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e) a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8 + e] = half(p.a[lane][i], e);
  } else {
    const Encoded left(p.encoded_a);
    for (std::size_t r = 0; r < 16; ++r)
      for (std::size_t k = 0; k < 16; ++k) a[r][k] = left.row(16 * warp_in_group + r, k);
  }
  const Encoded right(p.b);
  for (std::size_t col = 0; col < static_cast<std::size_t>(p.n); ++col) {
    float b[16];
    for (std::size_t k = 0; k < 16; ++k) b[k] = p.by_columns ? right.column(col, k) : right.row(col, k);
    for (std::size_t r = 0; r < 16; ++r) {
      float sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += a[r][k] * b[k];
      const std::size_t lane = r % 8 * 4 + col % 8 / 2;
      float& d = warp.sums.at(p.d[lane])[col / 8 * 4 + r / 8 * 2 + col % 2];
      d = p.add ? d + sum : sum;
    }
  }
}

/// Computes the oldest group of this warp.
void do_group(Warp& warp) {
  const auto number = static_cast<std::size_t>(&warp - block->warps.data());
  for (std::size_t i = 0; i < warp.groups.front(); ++i) multiply(warp, warp.products[i], number % 4);
  warp.products.erase(warp.products.begin(), warp.products.begin() + static_cast<std::ptrdiff_t>(warp.groups.front()));
  warp.groups.erase(warp.groups.begin());
}

}  // namespace

void wgmma(float* d, int n, const uint32_t* a, uint64_t encoded_a, uint64_t b, bool add, bool by_columns) {
  struct Slot {
    float* d;
    const uint32_t* a;
    uint64_t encoded_a, b;
    int n;
    bool add, by_columns;
  } mine{d, a, encoded_a, b, n, add, by_columns};
  if (block->count % 128) bad("wgmma needs whole warpgroups of 128 threads");
  collective("wgmma", ~0u, &mine, [](void* const* slots, unsigned all) {
    if (all != ~0u) bad("wgmma in a warp of fewer than 32 lanes");
    Warp& warp = warp_of(*block->current);
    const Slot& first = *static_cast<const Slot*>(slots[0]);
    Product p{{}, {}, first.encoded_a, first.b, first.n, first.a != nullptr, first.add, first.by_columns};
    for (int lane = 0; lane < 32; ++lane) {
      const Slot& s = *static_cast<const Slot*>(slots[lane]);
      if (s.b != p.b || s.encoded_a != p.encoded_a || s.n != p.n || s.add != p.add)
        bad("wgmma: lanes of a warp name different matrices");
      p.d[lane] = s.d;
      if (s.a) std::memcpy(p.a[lane], s.a, sizeof p.a[lane]);
      const auto numbers = static_cast<std::size_t>(p.n / 2);
      if (!warp.sums.contains(s.d)) warp.sums[s.d] = std::vector<float>(s.d, s.d + numbers);
      std::fill_n(s.d, numbers, std::nanf(""));  // until wgmma_wait
    }
    warp.products.push_back(p);
    ++warp.open;
  });
}

void wgmma_commit() {
  collective("wgmma.commit_group", ~0u, nullptr, [](void* const*, unsigned) {
    Warp& warp = warp_of(*block->current);
    warp.groups.push_back(std::exchange(warp.open, 0));
    while (!warp.groups.empty() && draw(*block->random) % 4 == 0) do_group(warp);  // some finish before the wait
  });
}

void wgmma_wait(int groups_left) {
  struct Slot {
    int left;
  } mine{groups_left};
  collective("wgmma.wait_group", ~0u, &mine, [](void* const* slots, unsigned) {
    Warp& warp = warp_of(*block->current);
    while (warp.groups.size() > static_cast<std::size_t>(static_cast<const Slot*>(slots[0])->left)) do_group(warp);
    for (auto sum = warp.sums.begin(); sum != warp.sums.end();) {
      bool under_way = false;
      for (const Product& p : warp.products)
        for (const float* d : p.d) under_way = under_way || d == sum->first;
      if (under_way) {
        ++sum;
      } else {
        std::copy(sum->second.begin(), sum->second.end(), sum->first);
        sum = warp.sums.erase(sum);
      }
    }
  });
}

}  // namespace sluice::cuda::emulator
