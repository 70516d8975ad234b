// Every rung of the attention ladder, on the emulator, against double loops: one query or one key beyond every tile,
// groups of heads, masks, rows that see nothing, NaN behind the key mask; and the same bits in every schedule.
#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/cuda/attention/mma.cuh>
#include <sluice/cuda/attention/ladder/naive.cuh>
#include <sluice/cuda/attention/ladder/simt.cuh>
#include <sluice/cuda/attention/wgmma.cuh>

#include <array>
#include <cmath>
#include <cstring>

using namespace sluice;
using namespace sluice::cuda;
using namespace sluice::testing;

namespace {

// -- rungs ---------------------------------------------------------------------------------------------------
template <int D, int DV> struct Naive {
  using T = float;
  static constexpr const char* name = "naive";
  static constexpr int d = D, dv = DV, rows = 24, cols = 24;  // of a tile; here any
  static constexpr double each = 2e-6, all = 1e-6;            // allowed error: of a number, of all of them in L2
  template <class W, class G, class M> static void run(const AttentionProblem<T>& p, M mask) {
    run_attention_naive<D, DV, W, M, G>(p, mask);
  }
};
template <int D, int DV> struct Simt {
  using T = float;
  static constexpr const char* name = "simt";
  static constexpr int d = D, dv = DV, rows = 64, cols = 32;
  static constexpr double each = 2e-6, all = 1e-6;
  template <class W, class G, class M> static void run(const AttentionProblem<T>& p, M mask) {
    run_attention_simt<D, DV, W, M, G>(p, mask);
  }
};
template <int D> struct Mma {
  using T = BFloat16;
  static constexpr const char* name = "mma";
  static constexpr int d = D, dv = D, rows = 64, cols = 64;
  static constexpr double each = 0x1.01p-7, all = 4e-3;  // the weights and the result are rounded to 8 bits
  template <class W, class G, class M> static void run(const AttentionProblem<T>& p, M mask) {
    run_attention_mma<D, W, M, G, T>(p, mask);
  }
};

template <int D> struct Wgmma {
  using T = BFloat16;
  static constexpr const char* name = "wgmma";
  static constexpr int d = D, dv = D, rows = 128, cols = 128;
  static constexpr double each = 0x1.01p-7, all = 4e-3;
  template <class W, class G, class M> static void run(const AttentionProblem<T>& p, M mask) {
    run_attention_wgmma<D, W, M, G, T>(p, mask);
  }
};

// -- what the loops call the policies --------------------------------------------------------------------------
Weighting named(Softmax) { return Weighting::softmax; }
Weighting named(Relu2) { return Weighting::relu2; }
Weighting named(Laplace) { return Weighting::laplace; }
Weighting named(LinearWeight) { return Weighting::linear; }
AttentionMask named(Full) { return {}; }
AttentionMask named(Causal) { return {.causal = true}; }
AttentionMask named(Window w) { return {.causal = w.causal, .window = w.width}; }

template <class T> constexpr bool headwise_gate = false;
template <> constexpr bool headwise_gate<SigmoidGate<true>> = true;

/// Numbers of a kernel and the same as doubles, 16-byte aligned, with other numbers before and behind.
template <class T> struct Buffer {
  static constexpr std::size_t guard = 64 * 128;  // the rest of a tile
  Array values;
  std::vector<T> memory;
  std::size_t begin;

  Buffer(Dims shape, Rand* rand, double range)
      : values(std::move(shape)), memory(values.v.size() + 2 * guard + 8, T(77.0f)) {
    begin = guard;
    while (reinterpret_cast<std::uintptr_t>(memory.data() + begin) % 16) ++begin;
    for (std::size_t i = 0; i < values.v.size(); ++i) {
      data()[i] = T(static_cast<float>(rand ? rand->uniform(-range, range) : NAN));
      values.v[i] = static_cast<double>(float(data()[i]));
    }
  }
  T* data() { return memory.data() + begin; }
  bool guards_whole() {
    for (std::size_t i = 0; i < memory.size(); ++i)
      if ((i < begin || i >= begin + values.v.size()) && float(memory[i]) != 77.0f) return false;
    return true;
  }
};

struct Sizes {
  int batch, heads, kv_heads, m, n;
  bool keys = false, sink = false;
  int64_t cache = kCacheOfKeys;
};

template <class Rung, class W, class G, class M> void check(Sizes z, M mask, uint64_t seed = 1) {
  using T = typename Rung::T;
  INFO(Rung::name << " D " << Rung::d << ", m " << z.m << ", n " << z.n << ", keys " << z.keys << ", sink " << z.sink);
  Rand rand(seed);
  Buffer<T> q({z.batch, z.heads, z.m, Rung::d}, &rand, 3), k({z.batch, z.kv_heads, z.n, Rung::d}, &rand, 1),
      v({z.batch, z.kv_heads, z.n, Rung::dv}, &rand, 1);
  Buffer<T> gate(headwise_gate<G> ? Dims{z.batch, z.heads, z.m} : Dims{z.batch, z.heads, z.m, Rung::dv}, &rand, 2);
  Buffer<float> sink({z.heads}, &rand, 3);

  AttentionOptions options{.weighting = named(W{}), .scale = 0.25, .mask = named(mask)};
  std::vector<uint8_t> keys(static_cast<std::size_t>(z.batch * z.n), 1);
  if (z.keys) {  // batch 0 loses every third key, and the next all of them; what is there then is NaN
    std::vector<double> real;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t j = i % static_cast<std::size_t>(z.n), b = i / static_cast<std::size_t>(z.n);
      keys[i] = b == 0 && j % 3 != 1;
      real.push_back(keys[i]);
      if (keys[i]) continue;
      for (std::size_t h = 0; h < static_cast<std::size_t>(z.kv_heads); ++h) {
        const std::size_t row = (b * static_cast<std::size_t>(z.kv_heads) + h) * static_cast<std::size_t>(z.n) + j;
        for (std::size_t c = 0; c < Rung::d; ++c) k.data()[row * Rung::d + c] = T(NAN);
        for (std::size_t c = 0; c < Rung::dv; ++c) v.data()[row * Rung::dv + c] = T(NAN);
      }
    }
    options.mask.keys = tensor_of(real, {z.batch, z.n}, boolean);
  }
  if (z.sink) options.sink = tensor_of(sink.values.v, {z.heads}, f64);
  const NaiveAttention want = naive_attention(q.values, k.values, v.values, options);

  AttentionProblem<T> p{.q = q.data(),
                        .k = k.data(),
                        .v = v.data(),
                        .out = nullptr,
                        .batch = z.batch,
                        .heads = z.heads,
                        .kv_heads = z.kv_heads,
                        .m = z.m,
                        .n = z.n,
                        .scale = 0.25f};
  p.cache = z.cache;
  if (z.keys) p.keys = keys.data();
  if (z.sink) p.sink = sink.data();
  if (G::any) p.gate = gate.data();
  std::vector<T> first;
  for (uint64_t schedule : {2 * seed, 2 * seed + 1}) {
    Buffer<T> out({z.batch, z.heads, z.m, Rung::dv}, nullptr, 0);
    Buffer<float> lse({z.batch, z.heads, z.m}, nullptr, 0);
    p.out = out.data();
    p.lse = W::online ? lse.data() : nullptr;
    emulator::set_schedule(schedule);
    Rung::template run<W, G>(p, mask);
    emulator::set_schedule(0);
    CHECK(out.guards_whole());
    CHECK(lse.guards_whole());

    double worst = 0, error2 = 0, size2 = 0, lse_error = 0;
    for (std::size_t row = 0; row < want.lse.v.size(); ++row) {
      double weights = 0;  // |out| is at most this
      for (std::size_t j = 0; j < static_cast<std::size_t>(z.n); ++j)
        weights += std::fabs(want.weights.v[row * static_cast<std::size_t>(z.n) + j]);
      for (std::size_t c = 0; c < Rung::dv; ++c) {
        const std::size_t at = row * Rung::dv + c;
        const double g = gate.values.v[headwise_gate<G> ? row : at], factor = G::any ? 1 / (1 + std::exp(-g)) : 1;
        const double y = want.out.v[at] * factor, error = std::fabs(static_cast<double>(float(out.data()[at])) - y);
        const double used = weights == 0 ? (error == 0 ? 0 : INFINITY) : error / (Rung::each * weights * factor);
        worst = used <= worst ? worst : used;  // NaN too
        error2 += error * error, size2 += y * y;
      }
      if (!W::online) continue;
      const double got = lse.data()[row], expected = want.lse.v[row];
      const double error = std::isinf(expected) ? (got == expected ? 0 : INFINITY) : std::fabs(got - expected);
      lse_error = error <= lse_error ? lse_error : error;
    }
    CHECK(worst <= 1);
    CHECK(std::sqrt(error2) <= Rung::all * std::sqrt(size2));
    CHECK(lse_error <= 1e-5);
    if (first.empty()) first.assign(out.data(), out.data() + out.values.v.size());
    CHECK(std::memcmp(first.data(), out.data(), first.size() * sizeof(T)) == 0);
  }
}

template <class Rung, class W, class G = NoGate> void check_masks() {
  constexpr int rows = Rung::rows, cols = Rung::cols;
  check<Rung, W, G>({1, 2, 1, rows + 1, cols + 1}, Full{});
  check<Rung, W, G>({1, 1, 1, rows + 1, 2 * cols + 1}, Causal{});
  check<Rung, W, G>({1, 1, 1, 2 * rows + 1, cols + 1}, Causal{});  // the first queries see nothing
  check<Rung, W, G>({1, 1, 1, rows + 33, 3 * cols + 1}, Window{cols / 2 + 3, true});
}
template <class Rung> void check_rung() {
  check_masks<Rung, Softmax>();
  check_masks<Rung, Relu2>();
  check<Rung, Softmax, SigmoidGate<false>>({1, 2, 2, 65, 33, false, true}, Full{}, 3);
  check<Rung, Softmax, SigmoidGate<true>>({2, 2, 1, 33, 65, true, true}, Causal{}, 4);
  check<Rung, Softmax, NoGate>({2, 1, 1, 17, 65, true, false}, Full{}, 5);  // batch 1 sees nothing at all
  check<Rung, Relu2, SigmoidGate<false>>({2, 2, 1, 33, 65, true}, Causal{}, 6);
  check<Rung, Laplace, NoGate>({1, 1, 1, 65, 129}, Window{20, false}, 7);
  check<Rung, LinearWeight, NoGate>({1, 1, 1, 1, 129}, Causal{}, 8);
  check<Rung, Softmax, NoGate>({1, 2, 1, 1, 1}, Full{}, 9);
  check<Rung, Softmax, NoGate>({1, 1, 1, Rung::rows + 33, 3 * Rung::cols + 1}, Window{2 * Rung::cols - 3, true},
                               10);  // a tile cut at the left only
}
template <class Rung> void check_no_keys() {
  check<Rung, Softmax, SigmoidGate<false>>({1, 2, 1, 3, 0, false, true}, Causal{}, 11);
}

/// Results that cannot be stored 16 bytes at once have the same bits as others, and nothing beside them is written.
template <class Rung> void check_outputs() {
  constexpr int D = Rung::d, m = Rung::rows + 3, heads = 2;
  INFO(Rung::name);
  Rand rand(19);
  Buffer<BFloat16> q({1, heads, m, D}, &rand, 3), k({1, heads, 70, D}, &rand, 1), v({1, heads, 70, D}, &rand, 1),
      gate({1, heads, m, D}, &rand, 2);
  AttentionProblem<BFloat16> p{.q = q.data(),
                               .k = k.data(),
                               .v = v.data(),
                               .out = nullptr,
                               .batch = 1,
                               .heads = heads,
                               .kv_heads = heads,
                               .m = m,
                               .n = 70,
                               .scale = 0.25f,
                               .gate = gate.data()};
  std::vector<uint16_t> want;
  for (const auto& [shift, row, columns] : std::vector<std::array<int, 3>>{
           {0, D, 1 << 30}, {2, D, D}, {0, D + 2, D}, {8, D + 8, D}, {0, D, D - 2}, {0, 2 * D, D}}) {
    INFO("from " << shift << ", rows of " << row << ", " << columns << " columns");
    Buffer<BFloat16> out({shift + heads * m * row}, nullptr, 0);
    p.out = out.data() + shift, p.out_head = m * row, p.out_row = row, p.columns = columns;
    Rung::template run<Softmax, SigmoidGate<false>>(p, Causal{});
    CHECK(out.guards_whole());
    int wrong = 0;
    for (int i = 0; i < shift; ++i) wrong += float(out.data()[i]) == float(out.data()[i]);
    for (int i = 0; i < heads * m * row; ++i) {
      const int line = i / row, column = i % row;
      const BFloat16 got = p.out[i];
      if (want.size() < static_cast<std::size_t>(heads * m * D)) want.push_back(got.bits);
      const bool written = column < D && column < columns;
      wrong += written ? got.bits != want[static_cast<std::size_t>(line * D + column)] : float(got) == float(got);
    }
    CHECK(wrong == 0);
  }
}

/// out[warp]: whether the warp finds `cols` rows of x finite.
template <int D, int cols> __global__ void ask_finite(const BFloat16* x, uint8_t* out) {
  const Shared<BFloat16> tile = dynamic_shared<BFloat16>();
  MmaRows<D>::template copy<cols>(tile, x, 0, [](int) { return true; });
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  const bool finite = mma_finite<D, cols>(tile);
  if (threadIdx.x % kWarp == 0) out[threadIdx.x / kWarp] = finite;
}
template <int D, int cols> void check_finite() {
  INFO("D " << D << ", " << cols << " rows");
  using Warps = std::array<uint8_t, kMmaWarps>;
  Rand rand(14);
  Buffer<BFloat16> x({cols, D}, &rand, 3);
  const auto found = [&] {
    Warps out;
    out.fill(9);
    launch(ask_finite<D, cols>, dim3(1), dim3(kMmaThreads), cols * D * sizeof(BFloat16), x.data(), out.data());
    return out;
  };
  const auto bits = [](uint16_t of) {
    BFloat16 y;
    y.bits = of;
    return y;
  };
  CHECK(found() == Warps{1, 1, 1, 1});
  int i = 0;
  for (int at = 0; at < cols * D; at += 37) {  // every row, and every column
    const BFloat16 before = x.data()[at];
    INFO("row " << at / D << ", column " << at % D);
    x.data()[at] = bits(++i % 2 ? 0x7f7f : 0xff7f);  // the largest number
    CHECK(found() == Warps{1, 1, 1, 1});
    x.data()[at] = bits(std::array<uint16_t, 4>{0x7f80, 0xff80, 0x7f81, 0xffc0}[static_cast<std::size_t>(i % 4)]);
    CHECK(found() == Warps{0, 0, 0, 0});
    x.data()[at] = before;
  }
}

}  // namespace

TEST_CASE("cuda attention: naive", "[cuda]") {
  check_rung<Naive<33, 65>>();
  check_no_keys<Naive<33, 65>>();
  check<Naive<1, 1>, Softmax, NoGate>({1, 2, 1, 5, 7, false, true}, Full{});
}

TEST_CASE("cuda attention: simt", "[cuda]") {
  check_rung<Simt<33, 17>>();
  check_no_keys<Simt<33, 17>>();
  check<Simt<128, 65>, Softmax, NoGate>({1, 1, 1, 65, 33}, Causal{});
}

TEST_CASE("cuda attention: mma", "[cuda]") {
  check_rung<Mma<64>>();
  check_no_keys<Mma<64>>();
  check<Mma<128>, Softmax, SigmoidGate<false>>({1, 1, 1, 65, 129}, Causal{});
  check<Mma<128>, Relu2, NoGate>({1, 1, 1, 129, 65}, Window{30, false});
}

TEST_CASE("cuda attention: sets of heads that do not divide them", "[cuda]") {
  constexpr int64_t head = 70 * 64 * 4;  // bytes of the keys and values of one
  check<Wgmma<64>, Softmax, NoGate>({1, 5, 5, 129, 70, false, true, 2 * head}, Causal{}, 15);  // 1 + 2 + 2
  check<Wgmma<64>, Relu2, NoGate>({2, 2, 1, 129, 70, true, false, head}, Window{40, true}, 16);
}

TEST_CASE("cuda attention: results at every alignment and stride", "[cuda]") {
  check_outputs<Mma<64>>();
  check_outputs<Mma<128>>();
  check_outputs<Wgmma<128>>();
}

TEST_CASE("cuda attention: a tile with one number that is not finite", "[cuda]") {
  check_finite<64, 64>();
  check_finite<128, 32>();
}

TEST_CASE("cuda attention: wgmma", "[cuda]") {
  check_rung<Wgmma<64>>();
  check<Wgmma<64>, Softmax, NoGate>({2, 1, 1, 129, 517, true}, Full{},
                                    12);  // the ring goes round, NaN in hidden keys of every tile
  check<Wgmma<64>, Softmax, NoGate>({1, 1, 1, 65, 641}, Full{}, 13);
  check<Wgmma<128>, Softmax, SigmoidGate<false>>({1, 1, 1, 65, 257}, Causal{});
  check<Wgmma<128>, Relu2, NoGate>({1, 2, 1, 129, 129, true}, Window{30, false});
}
