// The rungs of cuda/attention on a GPU, one after the other:
//
//   bench_ladder [n [batch·heads]]
//
// TFLOP/s as the field counts them: 4·batch·heads·n²·D forward, half of that under causality, 2.5 times that backward.
// Random numbers: zeros take less power. Each row says how far it is from the first of its kind.
#include <sluice/cuda/attention/mma.cuh>
#include <sluice/cuda/attention/wgmma_backward.cuh>
#include <sluice/cuda/attention/ladder/naive.cuh>
#include <sluice/cuda/attention/ladder/simt.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

using namespace sluice;
using namespace sluice::cuda;

namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) std::fprintf(stderr, "bench_ladder: %s\n", cudaGetErrorString(status)), std::exit(1);
}

template <class T> struct Numbers {
  T* data = nullptr;
  std::size_t count;
  explicit Numbers(std::size_t n, bool random = false) : count(n) {
    check(cudaMalloc(&data, n * sizeof(T)));
    if (!random) return;
    static std::mt19937 source(1);
    std::normal_distribution<float> normal;
    std::vector<T> host(n);
    for (T& x : host) x = T(normal(source));
    fill(host);
  }
  explicit Numbers(const std::vector<T>& host) : Numbers(host.size()) { fill(host); }
  Numbers(const Numbers&) = delete;
  ~Numbers() { cudaFree(data); }
  std::vector<float> values() const {
    std::vector<T> host(count);
    check(cudaMemcpyAsync(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost, stream()));
    check(cudaStreamSynchronize(stream()));
    return {host.begin(), host.end()};
  }

 private:
  /// On the stream of the kernels, which waits for no other.
  void fill(const std::vector<T>& host) {
    check(cudaMemcpyAsync(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice, stream()));
    check(cudaStreamSynchronize(stream()));
  }
};

/// Of a call: median of samples of about 3 ms, in which the host prepares a launch while an earlier one runs.
double seconds(const std::function<void()>& run) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
  const auto sample = [&](int calls) {
    check(cudaEventRecord(begin, stream()));
    for (int i = 0; i < calls; ++i) run();
    check(cudaEventRecord(end, stream())), check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    return ms / static_cast<float>(calls);
  };
  sample(1);
  const float once = sample(3);
  const int calls = std::clamp(static_cast<int>(3 / once), 1, 30);
  std::vector<float> times(once > 10 ? 3 : 20);
  for (float& t : times) t = sample(calls);
  check(cudaEventDestroy(begin)), check(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3;
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    error += (got[i] - want[i]) * static_cast<double>(got[i] - want[i]), size += want[i] * static_cast<double>(want[i]);
  return std::sqrt(error / size);
}

template <int D, class W> void rows(const char* what, int heads, int n, Window mask, bool half) {
  using M = Window;
  const std::size_t numbers = static_cast<std::size_t>(heads) * n * D, queries = static_cast<std::size_t>(heads) * n;
  const Numbers<BFloat16> q(numbers, true), k(numbers, true), v(numbers, true), gate(numbers, true);
  const Numbers<BFloat16> out(numbers);
  const Numbers<float> lse(queries), delta(queries), dq(numbers), dk(numbers), dv(numbers), exact(numbers);
  AttentionProblem<BFloat16> p{.q = q.data,
                               .k = k.data,
                               .v = v.data,
                               .out = out.data,
                               .batch = 1,
                               .heads = heads,
                               .kv_heads = heads,
                               .m = n,
                               .n = n,
                               .scale = 1 / std::sqrt(float(D)),
                               .lse = lse.data,
                               .gate = gate.data};
  const double flops = 4.0 * heads * n * static_cast<double>(n) * D / (half ? 2 : 1);
  std::vector<float> want;
  const auto row = [&](const char* rung, double work, const auto& result, const std::function<void()>& run) {
    run();
    check(cudaDeviceSynchronize());
    const std::vector<float> got = result.values();
    if (want.empty()) want = got;
    const double error = relative_error(got, want), time = seconds(run);
    std::printf("%-16s D %-4d n %-6d %-14s %9.3f ms %8.1f TFLOP/s   off by %.1e%s\n", what, D, n, rung, time * 1e3,
                work / time * 1e-12, error, error < 1e-2 ? "" : "   WRONG");
  };
  const Numbers<float> q32(q.values()), k32(k.values()), v32(v.values());
  AttentionProblem<float> f{.q = q32.data,
                            .k = k32.data,
                            .v = v32.data,
                            .out = exact.data,
                            .batch = 1,
                            .heads = heads,
                            .kv_heads = heads,
                            .m = n,
                            .n = n,
                            .scale = p.scale};
  row("simt, f32", flops, exact, [&] { run_attention_simt<D, D, W, M, NoGate>(f, mask); });
  row("mma", flops, out, [&] { run_attention_mma<D, W, M, NoGate, BFloat16>(p, mask); });
  row("wgmma", flops, out, [&] { run_attention_wgmma<D, W, M, NoGate, BFloat16>(p, mask); });
  want.clear();
  row("mma, gated", flops, out, [&] { run_attention_mma<D, W, M, SigmoidGate<false>, BFloat16>(p, mask); });
  row("wgmma, gated", flops, out, [&] { run_attention_wgmma<D, W, M, SigmoidGate<false>, BFloat16>(p, mask); });

  {
    const auto heads_of = [&](const Numbers<float>& x) {
      return HeadRows<float>(x.data, static_cast<int64_t>(numbers), int64_t{n} * D, D);
    };
    const AttentionBackwardProblem back{.q = q.data,
                                        .k = k.data,
                                        .v = v.data,
                                        .g = gate.data,
                                        .lse = lse.data,
                                        .delta = delta.data,
                                        .dq = heads_of(dq),
                                        .dk = heads_of(dk),
                                        .dv = heads_of(dv),
                                        .batch = 1,
                                        .heads = heads,
                                        .kv_heads = heads,
                                        .m = n,
                                        .n = n,
                                        .scale = p.scale};
    check(cudaMemsetAsync(delta.data, 0, queries * sizeof(float), stream()));
    run_attention_mma<D, W, M, NoGate, BFloat16>(p, mask);  // for lse
    want.clear();
    const auto mma = [&]<bool by_keys>() { run_attention_mma_backward<by_keys, D, W, M>(back, mask); };
    const auto wgmma = [&]<bool by_keys>() { run_attention_wgmma_backward<by_keys, D, W, M>(back, mask); };
    const auto both = [](const auto& rung) {
      return [&] { rung.template operator()<false>(), rung.template operator()<true>(); };
    };
    row("mma, backward", 2.5 * flops, dq, both(mma));
    row("wgmma, backward", 2.5 * flops, dq, both(wgmma));
    want.clear();
    row("mma, dK, dV", 2 * flops, dk,
        [&] { mma.template operator()<true>(); });  // the four products that this role does
    row("wgmma, dK, dV", 2 * flops, dk, [&] { wgmma.template operator()<true>(); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int n = argc > 1 ? std::atoi(argv[1]) : 8192, heads = argc > 2 ? std::atoi(argv[2]) : 32;
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, bf16, %d heads\n", device.name, heads);
  const Window causal{1 << 30, true}, full{1 << 30, false};
  rows<128, Softmax>("softmax, causal", heads, n, causal, true);
  rows<128, Softmax>("softmax, full", heads, n, full, false);
  rows<128, Relu2>("relu2, causal", heads, n, causal, true);
  rows<64, Softmax>("softmax, causal", heads, n, causal, true);
}
