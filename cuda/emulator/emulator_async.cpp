// Asynchronous work: TMA, and wgmma with the registers that it uses.
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

}  // namespace

uint64_t shared_offset(const void* p) { return offset_of(p, 1, "encodes"); }

// -- TMA --------------------------------------------------------------------------------------------------------

TensorMap checked(const TensorMap& map) {
  const auto refuse = [](const auto&... text) { throw DeviceError(str("cuda emulator: tensor map: ", text...)); };
  if (reinterpret_cast<std::uintptr_t>(map.data) % 16) refuse("the address must be a multiple of 16 bytes");
  for (const int64_t stride : {map.batch_stride, map.head_stride, map.row_stride})
    if (stride < 1 || stride % 8 || stride >= int64_t{1} << 39)
      refuse("a stride of ", stride, " bf16: need a multiple of 8 above 0 and below 2^39");
  if (map.batch < 1 || map.heads < 1 || map.rows < 1 || map.columns < 1)
    refuse("no numbers in [", map.batch, ", ", map.heads, ", ", map.rows, ", ", map.columns, "]");
  if (map.box < 1 || map.box > 256) refuse("a box of ", map.box, " rows: need 1 to 256");
  return map;
}

void tma_load(void* to, const TensorMap& map, void* b, int column, int row, int head, int batch) {
  const std::size_t bytes = static_cast<std::size_t>(map.box) * kRow;
  if (offset_of(to, bytes, "TMA writes") % (8 * kRow))
    bad("TMA: a swizzled box must begin at a multiple of 1024 bytes");
  if (column % 64 || column < 0 || column + 64 > map.columns || head < 0 || head >= map.heads || batch < 0 ||
      batch >= map.batch)
    bad("TMA: there is no such box");
  const uint32_t write = add_write({kNever, static_cast<int16_t>(mbarrier_at(b, true).actor)});
  note_write(to, bytes, write);
  std::memset(to, 0xff, bytes);  // NaN until the copy arrives
  block->bulks.push_back({static_cast<unsigned char*>(to), map, offset_of(b, 8, ""), write, column, row, head, batch});
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
  Mbarrier& barrier = b.mbarriers.at(bulk.barrier);
  b.write(bulk.write).time = ++b.time;
  barrier.bytes -= static_cast<int64_t>(bulk.map.box) * int64_t{kRow};
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
  /// Notes that the numbers k < 16 of `count` rows from row `first` on, or of `count` columns, are read.
  void note_rows(std::size_t first, std::size_t count) const {
    for (std::size_t i = first; i < first + count; ++i)
      for (std::size_t half = 0; half < 32; half += 16)
        note_operand(swizzle(at + i / 8 * stride + i % 8 * kRow + half));
  }
  void note_columns(std::size_t count) const {
    for (std::size_t k = 0; k < 16; ++k)
      for (std::size_t i = 0; i < count; i += 8)
        note_operand(swizzle(at + i / 64 * leading + k / 8 * stride + k % 8 * kRow + i % 64 * 2));
  }
  /// Number k < 16 of row i.
  float row(std::size_t i, std::size_t k) const { return at_byte(i / 8 * stride + i % 8 * kRow + 2 * k); }
  /// Number k < 16 of column i.
  float column(std::size_t i, std::size_t k) const {
    return at_byte(i / 64 * leading + k / 8 * stride + k % 8 * kRow + i % 64 * 2);
  }
};

void multiply(const Product& p, std::size_t warp_in_group) {
  const auto half = [](uint32_t pair, int e) { return std::bit_cast<float>(e ? pair & 0xffff0000u : pair << 16); };
  float a[16][16];  // by columns: the sums of the 16 rows are computed side by side
  if (p.from_registers) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e) a[lane % 4 * 2 + i / 2 * 8 + e][lane / 4 + i % 2 * 8] = half(p.a[lane][i], e);
  } else {
    const Encoded left(p.encoded_a);
    for (std::size_t r = 0; r < 16; ++r)
      for (std::size_t k = 0; k < 16; ++k) a[k][r] = left.row(16 * warp_in_group + r, k);
  }
  const Encoded right(p.b);
  for (std::size_t col = 0; col < static_cast<std::size_t>(p.n); ++col) {
    float sums[16] = {};
    for (std::size_t k = 0; k < 16; ++k) {
      const float b = p.by_columns ? right.column(col, k) : right.row(col, k);
      for (std::size_t r = 0; r < 16; ++r) sums[r] += a[k][r] * b;
    }
    for (std::size_t r = 0; r < 16; ++r) {
      const std::size_t lane = r % 8 * 4 + col % 8 / 2;
      float& d = p.sums[lane][col / 8 * 4 + r / 8 * 2 + col % 2];
      d = p.add ? d + sums[r] : sums[r];
    }
  }
}

/// Computes the oldest group that is not done.
void do_group(Warp& warp) {
  const auto number = static_cast<std::size_t>(&warp - block->warps.data());
  for (const Product& p : warp.groups[warp.done++].products) multiply(p, number % 4);
}

/// The thread's registers at p, or null.
Registers* registers_at(Thread& t, const void* p) {
  const auto* const at = static_cast<const unsigned char*>(p);
  for (Registers& r : t.registers)
    if (at >= r.at && at < r.at + r.bytes) return &r;
  return nullptr;
}

/// Those that a product may use: held, then fenced, and the same since.
Registers& usable(Thread& t, const void* p, std::size_t bytes, bool read) {
  Registers* const r = registers_at(t, p);
  if (!r || r->state == Registers::own) bad("wgmma uses registers that no wgmma_hold named since they were touched");
  if (r->state == Registers::held) bad("wgmma uses registers with no wgmma.fence since they were touched");
  const auto from = static_cast<std::size_t>(static_cast<const unsigned char*>(p) - r->at);
  if (r->sums.empty() && read && std::memcmp(p, r->contents.data() + from, bytes) != 0)
    bad("wgmma uses registers that have changed since the wgmma.fence");
  return *r;
}

}  // namespace

void issue(const Instruction& what) {
  if ((block->current->number / 128 + 1) * 128 > block->count)
    bad(what.name, " needs a whole warpgroup of 128 threads");
  Warp& warp = warp_of(*block->current);
  auto& issued = block->warpgroups[static_cast<std::size_t>(block->current->number / 128)];
  const std::size_t place = warp.issued++;
  if (place == issued.size()) issued.push_back(what);
  else if (!(issued[place] == what))
    bad("warps of a warpgroup issue different instructions: ", what.name, " where another issued ", issued[place].name,
        ", or with other operands");
}

void wgmma_hold(void* registers, std::size_t bytes, Site at) {
  if (left_out("wgmma_hold", at)) return;
  Thread& me = *block->current;
  auto* const first = static_cast<unsigned char*>(registers);
  std::erase_if(me.registers, [&](const Registers& r) {  // of a scope that has ended
    return r.state != Registers::used && r.at < first + bytes && first < r.at + r.bytes &&
           (r.at != first || r.bytes != bytes);
  });
  Registers* r = registers_at(me, first);
  if (!r) r = &me.registers.emplace_back(Registers{.at = first, .bytes = bytes, .contents = {}, .sums = {}});
  if (r->state == Registers::used) bad("wgmma_hold of registers that a product still uses");
  if (!r->sums.empty()) std::memcpy(first, r->sums.data(), r->sums.size() * sizeof(float));
  r->sums.clear();
  r->contents.assign(first, first + bytes), r->state = Registers::held;
}

void wgmma_fence(Site at) {
  if (left_out("wgmma.fence", at)) return;
  collective("wgmma.fence", ~0u, nullptr, [](void* const*, unsigned) {
    issue({"wgmma.fence"});
    const int first = block->current->number / 32 * 32;
    for (int lane = 0; lane < 32; ++lane)
      for (Registers& r : block->threads[static_cast<std::size_t>(first + lane)]->registers)
        if (r.state == Registers::held) r.state = Registers::fenced;
  });
}

void wgmma(float* d, int n, const uint32_t* a, uint64_t encoded_a, uint64_t b, bool add, bool by_columns) {
  struct Slot {
    float* d;
    const uint32_t* a;
    uint64_t encoded_a, b;
    int n;
    bool add, by_columns;
  } mine{d, a, encoded_a, b, n, add, by_columns};
  collective("wgmma", ~0u, &mine, [](void* const* slots, unsigned) {
    const int number = block->current->number / 32;
    Warp& warp = warp_of(*block->current);
    const Slot& first = *static_cast<const Slot*>(slots[0]);
    Product p{{}, {}, first.encoded_a, first.b, first.n, first.a != nullptr, first.add, first.by_columns};
    issue({"wgmma", p.encoded_a, p.b, p.n, p.add, p.by_columns});
    if (warp.open.products.empty()) warp.open.time = ++block->time;
    for (int lane = 0; lane < 32; ++lane) {
      const Slot& s = *static_cast<const Slot*>(slots[lane]);
      Thread& t = *block->threads[static_cast<std::size_t>(32 * number + lane)];
      if (s.b != p.b || s.encoded_a != p.encoded_a || s.n != p.n || s.add != p.add)
        bad("wgmma: lanes of a warp name different matrices");
      if (s.a) {
        Registers& left = usable(t, s.a, sizeof p.a[lane], true);
        std::memcpy(p.a[lane], s.a, sizeof p.a[lane]);
        left.state = Registers::used, left.until = warp.open.time;
      }
      const auto numbers = static_cast<std::size_t>(p.n / 2);
      Registers& sums = usable(t, s.d, numbers * sizeof(float), p.add);
      if (sums.sums.empty()) sums.sums.assign(s.d, s.d + numbers);
      std::fill_n(s.d, numbers, std::nanf(""));  // until they are held again
      sums.state = Registers::used, sums.until = warp.open.time;
      p.sums[lane] = sums.sums.data();
    }
    if (!p.from_registers) Encoded(p.encoded_a).note_rows(static_cast<std::size_t>(16 * (number % 4)), 16);
    if (p.by_columns) Encoded(p.b).note_columns(static_cast<std::size_t>(p.n));
    else Encoded(p.b).note_rows(0, static_cast<std::size_t>(p.n));
    warp.open.products.push_back(p);
  });
}

void wgmma_commit(Site at) {
  if (left_out("wgmma.commit_group", at)) return;
  collective("wgmma.commit_group", ~0u, nullptr, [](void* const*, unsigned) {
    issue({"wgmma.commit_group"});
    Warp& warp = warp_of(*block->current);
    if (warp.open.products.empty()) warp.open.time = ++block->time;
    warp.groups.push_back(std::exchange(warp.open, {}));
    while (warp.done < warp.groups.size() && draw(*block->random) % 4 == 0) do_group(warp);  // before the wait
  });
}

void wgmma_wait(int groups_left, Site at) {
  if (left_out("wgmma.wait_group", at)) return;
  struct Slot {
    int left;
  } mine{groups_left};
  collective("wgmma.wait_group", ~0u, &mine, [](void* const* slots, unsigned) {
    const int number = block->current->number / 32, left = static_cast<const Slot*>(slots[0])->left;
    issue({"wgmma.wait_group", 0, 0, left});
    Warp& warp = warp_of(*block->current);
    if (warp.groups.size() <= static_cast<std::size_t>(left)) return;
    const std::size_t ended = warp.groups.size() - static_cast<std::size_t>(left);
    while (warp.done < ended) do_group(warp);
    const uint32_t until = warp.groups[ended - 1].time;
    warp.groups.erase(warp.groups.begin(), warp.groups.begin() + static_cast<std::ptrdiff_t>(ended));
    warp.done -= ended;
    for (int lane = 0; lane < 32; ++lane) {
      Thread& t = *block->threads[static_cast<std::size_t>(32 * number + lane)];
      t.knowledge.done.learn(actor_of_products(number), until);
      for (Registers& r : t.registers)
        if (r.state == Registers::used && r.until <= until) {
          if (r.sums.empty() && std::memcmp(r.at, r.contents.data(), r.bytes) != 0)
            bad("registers that wgmma reads have changed before wgmma.wait_group");
          r.state = Registers::own;
        }
    }
  });
}

}  // namespace sluice::cuda::emulator
