// Rotary positions and additive biases that depend on distance.
#include "registry.h"

#include <sluice/layers/gau/flash_model.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/elementwise/elementwise.h>

namespace layer_check {

using namespace sluice;

namespace {

/// Biases are matrices over m queries and n keys aligned at the end: p_i = i + n − m, p_j = j.
struct BiasOptions {
  int64_t m = 0, n = 0;
  static void describe(auto& o, auto& f) {
    f.required("m", o.m, at_least(1), "number of queries");
    f.required("n", o.n, at_least(1), "number of keys; query i stands at i + n - m");
  }
};
struct ToeplitzBias : BiasOptions {
  int64_t n_max = 0;
  static void describe(auto& o, auto& f) {
    BiasOptions::describe(o, f);
    f.required("n_max", o.n_max, at_least(1), "positions of the table");
  }
};
struct T5Bias : BiasOptions {
  T5BucketOptions t5 = {};
  static void describe(auto& o, auto& f) {
    BiasOptions::describe(o, f);
    f("causal", o.t5.causal, "all buckets for keys before the query");
    f.nested("", o.t5);
  }
};
struct AlibiBias : BiasOptions {
  int64_t heads = 1;
  static void describe(auto& o, auto& f) {
    BiasOptions::describe(o, f);
    f("heads", o.heads, at_least(1), "number of heads");
  }
};
struct RopeBias : BiasOptions {
  RopeOptions rope = {};
  static void describe(auto& o, auto& f) {
    BiasOptions::describe(o, f);
    f.nested("rope_", o.rope);
  }
};
const Values kSizes{{"m", 5}, {"n", 6}};

/// b [heads, m, n] of a bias by distance.
Tensor matrix(const char* layer, const Tensor& relative, const BiasOptions& o) {
  check_memory(layer, static_cast<double>(relative.dim(0)) * static_cast<double>(o.m) * static_cast<double>(o.n));
  return relative_matrix(relative, o.m, o.n);
}

}  // namespace

void add_positions(std::vector<Layer>& all) {
  add(all, "rope", "positions",
      "pair c of row p is rotated by the angle (p + offset) * base^(-c/(dim/2)), dim = rot_dim or d", "Su et al. 2021")
      .input("x [..., n, d]")
      .input(Kind::integer, "positions? [n]", "positions of the rows in place of 0 … n - 1")
      .output("[..., n, d]")
      .samples({{{"pairing", "interleaved"}}, {{"rot_dim", 2}, {"base", 1e6}, {"offset", 9}}})
      .runs<RopeOptions>([](const RopeOptions& o, const Inputs& in) {
        return in["positions"].defined() ? rope_at(in["x"], in["positions"], o) : rope(in["x"], o);
      });
  add(all, "scaled_sinusoidal", "positions", "x + scale * [sin(p w_c), cos(p w_c)], w_c = base^(-2c/dim)",
      "Hua et al. 2022 (FLASH's absolute positions)")
      .input("x [batch, n, dim]")
      .parameter("scale [1]")
      .output("[batch, n, dim]");
  add(all, "toeplitz_bias", "positions", "b_ij = w[c + p_j - p_i], c = n_max - 1, p_i = i + n - m",
      "Hua et al. 2022, appendix (n <= 512)")
      .note("Built for n_max positions, cropped to m and n.")
      .input("w [heads, 2*n_max - 1]")
      .output("[heads, m, n]")
      .require({{"m", 5}, {"n", 6}, {"n_max", 9}})
      .runs<ToeplitzBias>([](const ToeplitzBias& o, const Inputs& in) {
        const Tensor w = in["w"];
        if (w.dim(1) != 2 * o.n_max - 1)
          fail("toeplitz_bias: input.w has shape ", w, ", must be [heads, 2*n_max - 1] = [", w.dim(0), ", ",
               2 * o.n_max - 1, "]");
        return matrix("toeplitz_bias", relative_toeplitz(w, o.m, o.n), o);
      });
  add(all, "t5_bias", "positions", "b_ij = w[bucket(p_j - p_i), h]", "Raffel et al. 2020")
      .input("w [buckets, heads]")
      .output("[heads, m, n]")
      .output("buckets [m, n]", "i64, the bucket of every pair")
      .require(kSizes)
      .samples({{{"causal", true}}, {{"buckets", 8}, {"max_distance", 16}}})
      .runs<T5Bias>([](const T5Bias& o, const Inputs& in) -> Results {
        return {{"", matrix("t5_bias", relative_t5(in["w"], o.m, o.n, o.t5), o)},
                {"buckets", t5_buckets(o.m, o.n, o.t5, o.n - o.m)}};
      });
  add(all, "alibi_bias", "positions", "b_ij = -slope_h |p_i - p_j|, slopes 2^(-8(h+1)/heads) for a power of two heads",
      "Press et al. 2022")
      .input("slopes? [heads]", "in place of the published ones")
      .output("[heads, m, n]")
      .require(kSizes)
      .samples({{{"heads", 6}}})
      .runs<AlibiBias>([](const AlibiBias& o, const Inputs& in) {
        const Tensor slopes = in["slopes"].defined() ? in["slopes"] : alibi_slopes(o.heads, {in.dtype});
        return matrix("alibi_bias", relative_alibi(slopes, o.m, o.n), o);
      });
  add(all, "rope_bias", "positions", "b_ij = <rope_p_i(a), rope_p_j(b)>, which depends on p_j - p_i only",
      "Hua et al. 2022, appendix (n > 512)")
      .input("a [s]")
      .input("b [s]")
      .output("[1, m, n]")
      .require(kSizes)
      .samples({{{"rope_pairing", "interleaved"}}})
      .runs<RopeBias>([](const RopeBias& o, const Inputs& in) {
        return matrix("rope_bias", relative_rope(in["a"], in["b"], o.m, o.n, o.rope), o);
      });
}

}  // namespace layer_check
