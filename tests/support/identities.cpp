#include "support/identities.h"

#include "support/approx.h"
#include "support/catch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace sluice::testing {

namespace {

const char* const kIdentities[] = {
    // GAU
    "GAU: A = I gives GLU",
    "GAU: U = 1 and softmax is single-head attention",
    "GAU: su is relu^2(T)/(n s)",
    "GAU: padded = truncated, 5 kinds",
    "GAU: cache step = full row, 5 kinds",
    "GAU: lambda^7 homogeneity with relu",
    "GAU: tiled = whole",
    "GAU: top-k with k = n is GAU",
    // positions and norms
    "RoPE: layouts are a permutation of channels",
    "RoPE: scores depend on j - i only",
    "RoPE: norm preserved",
    "Toeplitz: b depends on j - i only",
    "T5: matrix of buckets = bucket of offset",
    "ScaleNorm(g = 1) = RMSNorm without affine",
    // FLASH
    "FLASH: chunked = dense, 2 x 4 kinds x 6 C",
    "FLASH: causal one chunk = GAU",
    "FLASH: non-causal one chunk = GAU + linear term",
    "FLASH: linear term independent of C",
    "FLASH: causal C = 1, eq: strictly causal linear attention",
    "FLASH: stream = chunked, 6",
    "FLASH: no leakage from later tokens",
    "FLASH: padded = truncated",
    "FLASH: segment mask row-normalised = su",
    "FLASH: documents do not mix",
    // sparse
    "sparse: neighbour list = masked dense",
    "sparse: window >= n is full",
    "sparse: window 0 is V",
    "sparse: dilation 1 is sliding",
    "sparse: random k = n is full",
    "sparse: all global is full",
    "sparse: no global is sliding",
    "sparse: all blocks is full",
    "sparse: threshold -inf is dense",
    "sparse: soft threshold T -> 0 is hard",
    "sparse: top-k with k = n is dense",
    "sparse: top-1 is v[argmax]",
    // Sinkhorn
    "Sinkhorn: rows sum to 1",
    "Sinkhorn: columns sum to 1 in the limit",
    "Sinkhorn: invariant to row shifts",
    "Sinkhorn: invariant to column shifts",
    "Sinkhorn: log domain = plain",
    "Sinkhorn: one row step is softmax",
    "Sinkhorn: lambda -> 0 is uniform",
    "Sinkhorn: lambda -> inf is the optimal permutation",
    "Sinkhorn: literal forgets A at small lambda",
    "Sinkhorn: causal tends to the identity matrix",
    // linear attention
    "linear: associative = quadratic",
    "linear: recurrent = quadratic, 5 maps x 2 gammas",
    "linear: chunked = quadratic, 5 maps x 2 gammas x 4 C",
    "linear: bidirectional = forward + backward - diagonal",
    "linear: state hand-over",
    "linear: gamma = 1 is no forgetting",
    "linear: gamma -> 0 is v_t",
    "linear: padded = truncated",
    "GLA: recurrent = parallel = chunked",
    "GLA: alpha = 1 is causal linear attention",
    "GLA: alpha = gamma is retention",
    "delta: orthonormal keys are linear attention of beta v",
    "delta: one chunk = P (I + A)^-1 diag(beta) V",
    "delta: GDN-2 with erase = write = beta is KDA",
    "delta: DeltaProduct with m = 1 has the bits of Gated DeltaNet",
    "delta: an update under the key 0 is none",
    "RWKV-7: two rows of the delta scan = the recurrence",
    "RWKV-7: a = 0 is GLA",
    "kernel: exp(x).exp(y) = sum_c exp(x_c + y_c)",
    "kernel: poly_kernel = (x.y + c)^p + s",
    "kernel: poly_elem = sum_r sum_c (x_c y_c)^r",
    "kernel: elu+1 with its +1",
    "kernel: favor tends to exp(x.y)",
    "kernel: Fourier tends to the Gaussian kernel",
    "kernel: a cyclic pattern is representable with m >= n",
    // attention engine
    "sliding decode with a ring buffer = causal sliding",
    "softmax-off-by-one = one zero key and value",
    "flash: 6 tilings x causal x FA-1 = naive",
    "flash: 6 tilings x causal x FA-2 = naive",
    "flash: engine, 6 tilings x causal = naive",
    "flash: fully masked rows are 0",
    "flash: skipped blocks = masked dense",
    "flash: split-KV merge = full",
    "flash: backward = dense backward",
    "flash: finite at scores of 1e4",
    // shared heads
    "GQA: g = h is MHA",
    "GQA: g = 1 is MQA",
    "GQA: = MHA with repeated K and V weights",
    "GQA: cache size is 2 g n dk",
    "GQA: mean-pooling identical heads is exact",
    // gates
    "gates: output gate 1 is the ungated layer",
    "gates: output gate 1/2 is half the ungated layer",
    "gates: Q/K/V gates 1 are the ungated layer",
    "gates: per-query cross gate = g * Attn(g * Q, K, V)",
    "gates: residual gate 0 is x",
    "gates: residual gate 1 is x + Attn(x)",
    "gates: fused 1 is softmax attention",
    "gates: fused 0 is linear attention",
    "gates: doubled W_V with g = 1/2 is the ungated layer",
    "gates: dL/dg = dL/dy * Attn(x)",
    // Qwen
    "Qwen: gate = 1 is the baseline, G1-G5",
    "Qwen: W = 0 is half the baseline, G1 G2 G5",
    "Qwen: headwise = elementwise with repeated columns",
    "Qwen: head-shared = head-specific with equal weights",
    "Qwen: n = 1 and g = h: G1 = G2",
    "Qwen: QK-norm cancels a headwise G3/G4 gate",
    "Qwen: G1 leaves the attention map unchanged",
    "Qwen: prefix property",
    "Qwen: packing per KV group",
    "Qwen: packing per head",
    "Qwen: added parameters of Table 1",
};

struct Measured {
  double difference = 0, tolerance = 0;
  int64_t count = 0;
  std::string test;
};
std::map<std::string, Measured>& measured() {
  static std::map<std::string, Measured> m;
  return m;
}

}  // namespace

void check_identity(const std::string& name, double difference, double tolerance) {
  INFO("identity \"" << name << "\": difference " << difference << ", tolerance " << tolerance);
  CHECK(std::find(std::begin(kIdentities), std::end(kIdentities), name) != std::end(kIdentities));
  CHECK(difference <= tolerance);
  Measured& m = measured()[name];
  m.difference = m.count == 0 || !(difference <= m.difference) ? difference : m.difference;
  m.tolerance = std::max(m.tolerance, tolerance);
  ++m.count;
  m.test = Catch::getResultCapture().getCurrentTestName();
}

void check_identity(const std::string& name, const Tensor& a, const Tensor& b, double tolerance) {
  REQUIRE(a.shape() == b.shape());
  check_identity(name, max_abs_diff(a, b), tolerance);
}

void write_identity_table(const std::string& folder) {
  if (measured().empty()) return;
  std::ostringstream out;
  out << "identity -> test: largest difference (tolerance), measurements\n";
  for (const char* name : kIdentities) {
    const auto found = measured().find(name);
    if (found == measured().end()) {
      out << name << " -> NOT MEASURED\n";
      continue;
    }
    const Measured& m = found->second;
    char line[64];
    std::snprintf(line, sizeof line, "%.2g (%.0g), %lld", m.difference, m.tolerance, static_cast<long long>(m.count));
    out << name << " -> " << m.test << ": " << line << "\n";
  }
  std::ofstream(std::filesystem::path(folder) / "identity_table.txt") << out.str();
  if (std::getenv("SLUICE_PRINT_TABLES")) std::fputs(out.str().c_str(), stdout);
}

}  // namespace sluice::testing
