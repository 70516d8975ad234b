// The SIMT emulator: every primitive against its definition, the layouts of fragments against the PTX manual's
// formulas, and an error for each mistake it is there to find.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/cuda/warpgroup.h>

#include <numeric>

using namespace sluice;
using namespace sluice::cuda;
using sluice::testing::Rand;

namespace {

/// The message of the DeviceError that f throws, or "".
template <class F> std::string error_of(F f) {
  try {
    f();
  } catch (const DeviceError& e) { return e.what(); }
  return "";
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

template <class F> void over_schedules(F f) {
  for (uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7}) {
    INFO("schedule " << seed);
    emulator::set_schedule(seed);
    f();
  }
  emulator::set_schedule(0);
}

// -- kernels -----------------------------------------------------------------------------------------------

__global__ void number_threads(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(1000 * block + thread);
}

/// Each thread of one block adds the numbers of all, through shared memory, twice.
__global__ void sum_all(const int* x, int* out) {
  const Shared<int> s = dynamic_shared<int>();
  const int n = static_cast<int>(blockDim.x), i = static_cast<int>(threadIdx.x);
  int v = x[i];
  for (int round = 0; round < 2; ++round) {
    s[i] = v;
    __syncthreads();
    int sum = 0;
    for (int k = 0; k < n; ++k) sum += s[k];
    v = sum;
    __syncthreads();
  }
  out[i] = v;
}

struct First {};
struct Second {};
__global__ void static_places(int* out) {
  const Shared<int> a = static_shared<int, 32, First>(), b = static_shared<int, 32, Second>(),
                    c = dynamic_shared<int>();
  const int i = static_cast<int>(threadIdx.x);
  a[i] = i, b[i] = 100 + i, c[i] = 10000 + i;
  __syncwarp();
  out[i] = a[31 - i] + b[31 - i] + c[31 - i];
}

__global__ void shuffles(int* out) {
  const int i = static_cast<int>(threadIdx.x);
  int* row = out + 7 * i;
  row[0] = __shfl_sync(kAllLanes, i, (i + 5) % 32);
  row[1] = __shfl_up_sync(kAllLanes, i, 3);
  row[2] = __shfl_xor_sync(kAllLanes, i, 9);
  row[3] = static_cast<int>(__ballot_sync(kAllLanes, i % 3 == 0));
  row[4] = __any_sync(kAllLanes, i == 31) + 2 * __any_sync(kAllLanes, i == 32);
  row[5] = __shfl_sync(i < 8 ? 0xffu : 0xffffff00u, i, i < 8 ? 7 - i : 8);  // two groups of lanes
  row[6] = static_cast<int>(sum_over_lanes(static_cast<float>(i)) + 1000 * max_over_lanes<8>(static_cast<float>(i)));
}

__global__ void multiply(const BFloat16* a, const BFloat16* b,
                         float* d) {  // a [16, 16], b [16, 8] in fragments made by hand
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const auto two = [](BFloat16 x, BFloat16 y) { return x.bits | uint32_t{y.bits} << 16; };
  uint32_t fa[4], fb[2];
  for (int r = 0; r < 4; ++r) {
    const int row = r % 2 ? g + 8 : g, col = 2 * t + (r < 2 ? 0 : 8);
    fa[r] = two(a[16 * row + col], a[16 * row + col + 1]);
  }
  for (int r = 0; r < 2; ++r) fb[r] = two(b[8 * (2 * t + 8 * r) + g], b[8 * (2 * t + 8 * r + 1) + g]);
  float c[4];
  for (int e = 0; e < 4; ++e) c[e] = d[8 * (e < 2 ? g : g + 8) + 2 * t + e % 2];
  mma_m16n8k16(c, fa, fb[0], fb[1]);
  for (int e = 0; e < 4; ++e) d[8 * (e < 2 ? g : g + 8) + 2 * t + e % 2] = c[e];
}

template <int n, bool transposed>
__global__ void load_matrices(uint32_t* out) {  // rows 8n of 8 numbers, entry 8·row + column
  const Shared<BFloat16> s = dynamic_shared<BFloat16>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 64 * n; i += 32) {
    BFloat16 x;
    x.bits = static_cast<uint16_t>(i);
    s[i] = x;
  }
  __syncwarp();
  uint32_t f[n];
  ldmatrix<transposed>(f, s + 8 * (lane % (8 * n)));
  for (int i = 0; i < n; ++i) out[n * lane + i] = f[i];
}

/// A stream of tiles of 8·threads numbers, two at a time on their way; each thread reads what another one brought.
template <int left, bool barrier> __global__ void stream_tiles(const BFloat16* in, BFloat16* out, int tiles) {
  const Shared<BFloat16> s = dynamic_shared<BFloat16>();
  const int n = static_cast<int>(blockDim.x), i = static_cast<int>(threadIdx.x), size = 8 * n;
  cp_async_16(s + 8 * i, in + 8 * i, true);
  cp_async_commit();
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) cp_async_16(s + (tile + 1) % 2 * size + 8 * i, in + (tile + 1) * size + 8 * i, i != 1);
    cp_async_commit();
    cp_async_wait<left>();
    if (barrier) __syncthreads();
    for (int k = 0; k < 8; ++k) out[tile * size + k * n + i] = s[tile % 2 * size + k * n + i];
    __syncthreads();
  }
}

// -- mistakes: each thread of 64 does `what` ------------------------------------------------------------------
// clang-format off
enum Mistake {
  none, write_read, write_write, write_in_warp, one_reads_one_writes, one_reads_one_writes_in_warp, first_reader_writes,
  first_reader_writes_before_other_warp, unwritten, beyond, below, two_barriers, left_before_barrier,
  left_before_shuffle, shuffle_and_ballot, shuffle_outside, other_lane, barrier_and_shuffle, misaligned_row, misaligned_copy, misaligned_16, no_commit
};
// clang-format on
__global__ void mistake(Mistake what, float* out, const BFloat16* in) {
  const Shared<float> s = dynamic_shared<float>();
  const Shared<BFloat16> h = dynamic_shared<BFloat16>();
  const int i = static_cast<int>(threadIdx.x), across = 63 - i;
  uint32_t f[1];
  s[i] = 1;
  if (what != write_read) __syncthreads();
  float x = what == write_read ? s[across] : 0.0f;
  if (what == write_write) s[i / 33] = 2;
  if (what == write_in_warp) s[i % 32 ? i : i + 1] = 2;
  const int writer = what == one_reads_one_writes ? 40 : what == one_reads_one_writes_in_warp ? 7 : -1;
  if (writer > 0 && i == 0) x = s[writer];
  if (i == writer) s[i] = 2;
  if (what == first_reader_writes || what == first_reader_writes_before_other_warp) {  // a shuffle orders no memory
    if (i == 3) x = s[0];
    for (int turn = 0; turn < 8; ++turn) x = sum_over_lanes(x);
    if (what == first_reader_writes ? i < 32 : i == 40) x += s[0];
    for (int turn = 0; turn < 8; ++turn) x = sum_over_lanes(x);
    if (i == 3) s[0] = 2;
  }
  __syncthreads();
  if (what == unwritten) x += s[64 + i / 2];
  if (what == beyond) s[100] = 1;
  if (what == below) x += s[-1];
  if (what == two_barriers) {
    if (i < 32) __syncthreads();
    else __syncthreads();
  }
  if ((what == left_before_barrier && i == 5) || (what == left_before_shuffle && i == 40)) return;
  if (what == left_before_barrier || (what == barrier_and_shuffle && i < 3)) __syncthreads();
  if (what == left_before_shuffle || what == barrier_and_shuffle) x = sum_over_lanes(x);
  if (what == shuffle_and_ballot)
    x += i == 3 ? __shfl_xor_sync(kAllLanes, x, 1) : static_cast<float>(__ballot_sync(kAllLanes, 1));
  if (what == shuffle_outside && i < 16) x = __shfl_xor_sync(0xffffu, x, 16);
  if (what == other_lane) x = __shfl_xor_sync(0xffffu, x, 1);
  if (what == misaligned_row) ldmatrix(f, h + 4);
  if (what == misaligned_16) {
    const float four[4] = {};
    store_16(dynamic_shared<float>() + (i * 4 + 1), four);
  }
  if (what == misaligned_copy) cp_async_16(h + 8 * (i % 8) + 1, in, true);
  if (what == no_commit) {
    if (i < 16) cp_async_16(h + 8 * i, in, true);
    cp_async_wait<0>();
    __syncthreads();
    x += s[i];
  }
  __syncthreads();
  out[i] = x;
}

}  // namespace

TEST_CASE("cuda emulator: every thread of every block runs once", "[cuda]") {
  over_schedules([] {
    std::vector<int> out(2 * 3 * 2 * 5 * 3 * 3, 0);
    launch(number_threads, dim3(2, 3, 2), dim3(5, 3, 3), 0, out.data());
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == static_cast<int>(1000 * (i / 45) + i % 45));
  });
}

TEST_CASE("cuda emulator: barriers and shared memory", "[cuda]") {
  over_schedules([] {
    for (unsigned n : {1u, 31u, 33u, 256u}) {
      std::vector<int> x(n), out(n, 0);
      std::iota(x.begin(), x.end(), 1);
      launch(sum_all, dim3(1), dim3(n), n * sizeof(int), x.data(), out.data());
      const int sum = static_cast<int>(n * (n + 1) / 2);
      CHECK(out == std::vector<int>(n, sum * static_cast<int>(n)));
    }
    std::vector<int> out(32, 0);
    launch(static_places, dim3(2), dim3(32), 128, out.data());
    for (int i = 0; i < 32; ++i) CHECK(out[static_cast<std::size_t>(i)] == 10100 + 3 * (31 - i));
  });
}

TEST_CASE("cuda emulator: what lanes of a warp tell each other", "[cuda]") {
  over_schedules([] {
    std::vector<int> out(7 * 32, -1);
    launch(shuffles, dim3(1), dim3(32), 0, out.data());
    for (int i = 0; i < 32; ++i) {
      const int* row = out.data() + 7 * i;
      CHECK(row[0] == (i + 5) % 32);
      CHECK(row[1] == (i < 3 ? i : i - 3));
      CHECK(row[2] == (i ^ 9));
      CHECK(row[3] == 0x49249249);
      CHECK(row[4] == 1);
      CHECK(row[5] == (i < 8 ? 7 - i : 8));
      CHECK(row[6] == 496 + 1000 * (i | 7));
    }
  });
}

TEST_CASE("cuda emulator: mma.m16n8k16 multiplies and adds", "[cuda]") {
  Rand rand(5);
  std::vector<BFloat16> a(16 * 16), b(16 * 8);
  std::vector<float> d(16 * 8), want(16 * 8);
  for (auto* x : {&a, &b})
    for (BFloat16& v : *x) v = BFloat16(static_cast<float>(rand.below(17) - 8));  // sums are exact
  for (float& v : d) v = static_cast<float>(rand.below(9));
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      want[8 * i + j] = d[8 * i + j];
      for (std::size_t k = 0; k < 16; ++k) want[8 * i + j] += float(a[16 * i + k]) * float(b[8 * k + j]);
    }
  launch(multiply, dim3(1), dim3(32), 0, a.data(), b.data(), d.data());
  CHECK(d == want);
}

TEST_CASE("cuda emulator: ldmatrix hands out rows or columns", "[cuda]") {
  const auto check = [](auto kernel, int n, bool transposed) {
    INFO("x" << n << (transposed ? " transposed" : ""));
    std::vector<uint32_t> out(static_cast<std::size_t>(32 * n), 0);
    launch(kernel, dim3(1), dim3(32), static_cast<std::size_t>(128 * n), out.data());
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < n; ++i) {
        const int g = lane / 4, t = lane % 4, first = 64 * i + (transposed ? 8 * (2 * t) + g : 8 * g + 2 * t);
        CHECK(out[static_cast<std::size_t>(n * lane + i)] ==
              static_cast<uint32_t>(first | (first + (transposed ? 8 : 1)) << 16));
      }
  };
  over_schedules([&] {
    check(load_matrices<1, false>, 1, false), check(load_matrices<2, false>, 2, false),
        check(load_matrices<4, false>, 4, false);
    check(load_matrices<1, true>, 1, true), check(load_matrices<2, true>, 2, true),
        check(load_matrices<4, true>, 4, true);
  });
}

TEST_CASE("cuda emulator: asynchronous copies arrive when they are waited for", "[cuda]") {
  constexpr int threads = 40, tiles = 5, size = 8 * threads;
  std::vector<uint16_t> memory(size * tiles + 8);
  auto* in = reinterpret_cast<BFloat16*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 15) & ~std::uintptr_t{15});
  std::vector<BFloat16> out(size * tiles);
  for (int i = 0; i < size * tiles; ++i) in[i].bits = static_cast<uint16_t>(i + 1);
  over_schedules([&] {
    launch(stream_tiles<1, true>, dim3(1), dim3(threads), 2 * size * 2, in, out.data(), tiles);
    bool same = true;
    for (int i = 0; i < size * tiles; ++i) {
      const bool zero = i >= size && i % size / 8 == 1;  // thread 1 copied what is not valid
      same = same && out[static_cast<std::size_t>(i)].bits == (zero ? 0 : i + 1);
    }
    CHECK(same);
    CHECK(has(
        error_of([&] { launch(stream_tiles<2, true>, dim3(1), dim3(threads), 2 * size * 2, in, out.data(), tiles); }),
        "no thread has waited since its cp.async"));
    CHECK(error_of([&] {
            launch(stream_tiles<1, false>, dim3(1), dim3(threads), 2 * size * 2, in, out.data(), tiles);
          }) != "");
  });
}

TEST_CASE("cuda emulator: mistakes are errors in every schedule", "[cuda]") {
  alignas(16) static BFloat16 in[8];
  const auto error = [](Mistake what) {
    float out[64];
    return error_of([&] { launch(mistake, dim3(2), dim3(64), 256 + 128, what, out, in); });
  };
  int read_came_second = 0, write_came_second = 0;
  over_schedules([&] {
    CHECK(error(none) == "");
    CHECK(error(write_read) != "");  // has another thread not written yet, or written with no barrier between
    CHECK(has(error(write_write), "with no barrier between"));
    CHECK(has(error(write_in_warp), "with no barrier between"));
    CHECK(has(error(first_reader_writes), "has read, with no barrier between"));
    CHECK(has(error(first_reader_writes_before_other_warp), "with no barrier between"));
    for (Mistake what : {one_reads_one_writes, one_reads_one_writes_in_warp}) {
      const std::string text = error(what);
      CHECK(has(text, "with no barrier between"));
      ++(has(text, "has read") ? write_came_second : read_came_second);
    }
    CHECK(has(error(unwritten), "which nobody has written"));
    CHECK(has(error(beyond), "the block has 384"));
    CHECK(has(error(below), "byte -4 of shared memory"));
    CHECK(has(error(two_barriers), "while others wait at that of line"));
    CHECK(has(error(left_before_barrier), "threads 5 have left"));
    CHECK(has(error(left_before_shuffle), "threads 40 have left"));
    CHECK(has(error(shuffle_and_ballot), "__ballot_sync"));
    CHECK(has(error(shuffle_outside), "reads lane 16, which its mask leaves out"));
    CHECK(has(error(other_lane), "which leaves out its own lane"));
    CHECK(has(error(barrier_and_shuffle), "__syncthreads"));
    CHECK(has(error(misaligned_row), "multiple of 16"));
    CHECK(has(error(misaligned_copy), "multiples of 16"));
    CHECK(has(error(misaligned_16), "need a multiple of 16"));
    CHECK(has(error(no_commit), "no thread has waited since its cp.async"));
    CHECK(error(none) == "");  // nothing is left of the blocks that failed
  });
  CHECK(read_came_second > 0);
  CHECK(write_came_second > 0);
  const auto refused = [](dim3 grid, dim3 block, std::size_t bytes) {
    int out = 0;
    return has(error_of([&] { launch(number_threads, grid, block, bytes, &out); }), "cannot launch");
  };
  CHECK(refused(dim3(0), dim3(1), 0));
  CHECK(refused(dim3(1, 65536), dim3(1), 0));
  CHECK(refused(dim3(1), dim3(1025), 0));
  CHECK(refused(dim3(1), dim3(1), 227 * 1024 + 1));
}

TEST_CASE("cuda emulator: what no tensor map may be", "[cuda]") {
  constexpr int64_t size = 64 * 64;
  const std::vector<BFloat16> zeros(size + 8, BFloat16(0.0f));
  const auto refused = [&](const HeadRows<const BFloat16>& x, int rows, int box, const char* part) {
    try {
      tensor_map(x, 1, 1, rows, 64, box);
    } catch (const DeviceError& e) { return std::string(e.what()).find(part) != std::string::npos; }
    return false;
  };
  const BFloat16* const at = zeros.data();
  CHECK(refused({at + 1, size, size, 64}, 64, 64, "multiple of 16 bytes"));
  CHECK(refused({at, size, 0, 64}, 64, 64, "stride of 0"));
  CHECK(refused({at, size, size, 68}, 32, 32, "stride of 68"));
  CHECK(refused({at, size, size, int64_t{1} << 40}, 1, 1, "below 2^39"));
  CHECK(refused({at, size, size, 64}, 64, 0, "box of 0"));
  CHECK(refused({at, size, size, 64}, 64, 257, "box of 257"));
  CHECK(refused({at, size, size, 64}, 0, 64, "no numbers"));
}
