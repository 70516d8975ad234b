// Rotary positions and additive biases that depend on distance.
#include "shared.h"
#include "registry.h"

#include <sluice/layers/gau/flash_model.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/elementwise.h>

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
const Values sizes{{"m", 5}, {"n", 6}};

void add_rope(std::vector<Layer>& all) {
  all.push_back({
      .name = "rope",
      .family = "positions",
      .formula = "pair c of row p is rotated by the angle (p + offset) * base^(-c/(dim/2)), dim = rot_dim or d",
      .source = "Su et al. 2021",
      .inputs = {{.name = "x", .shape = "[..., n, d]"},
                 {.name = "positions", .shape = "[n]", .meaning = "positions of the rows in place of 0 … n - 1",
                  .kind = Kind::integer, .optional = true, .sample = Sample::index, .below = "50"}},
      .outputs = {{"", "[..., n, d]"}},
      .examples = {{{"pairing", "interleaved"}}, {{"rot_dim", 2}, {"base", 1e6}, {"offset", 9}}},
      .draft = function_layer<RopeOptions>(
          [](const RopeOptions& o, const Inputs& in) {
            return in["positions"].defined() ? rope_at(in["x"], in["positions"], o) : rope(in["x"], o);
          }),
  });
  all.push_back({
      .name = "scaled_sinusoidal",
      .family = "positions",
      .formula = "x + scale * [sin(p w_c), cos(p w_c)], w_c = base^(-2c/dim)",
      .source = "Hua et al. 2022 (FLASH's absolute positions)",
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"}},
      .parameters = {{.name = "scale", .shape = "[1]"}},
      .outputs = {{"", "[batch, n, dim]"}},
  });
}

}  // namespace

void add_positions(std::vector<Layer>& all) {
  add_rope(all);
  all.push_back({
      .name = "toeplitz_bias",
      .family = "positions",
      .formula = "b_ij = w[c + p_j - p_i], c = n_max - 1, p_i = i + n - m",
      .source = "Hua et al. 2022, appendix (n <= 512)",
      .notes = "Built for n_max positions, cropped to m and n.",
      .inputs = {{.name = "w", .shape = "[heads, 2*n_max - 1]"}},
      .outputs = {{"", "[heads, m, n]"}},
      .required = {{"m", 5}, {"n", 6}, {"n_max", 9}},
      .draft = function_layer<ToeplitzBias>(
          [](const ToeplitzBias& o, const Inputs& in) {
            return relative_matrix(relative_toeplitz(in["w"], o.m, o.n), o.m, o.n);
          }),
  });
  all.push_back({
      .name = "t5_bias",
      .family = "positions",
      .formula = "b_ij = w[bucket(p_j - p_i), h]",
      .source = "Raffel et al. 2020",
      .inputs = {{.name = "w", .shape = "[buckets, heads]"}},
      .outputs = {{"", "[heads, m, n]"}, {"buckets", "[m, n]", "i64, the bucket of every pair"}},
      .required = sizes,
      .examples = {{{"causal", true}}, {{"buckets", 8}, {"max_distance", 16}}},
      .draft = function_layer<T5Bias>(
          [](const T5Bias& o, const Inputs& in) -> Results {
            return {{"", relative_matrix(relative_t5(in["w"], o.m, o.n, o.t5), o.m, o.n)},
                    {"buckets", t5_buckets(o.m, o.n, o.t5, o.n - o.m)}};
          }),
  });
  all.push_back({
      .name = "alibi_bias",
      .family = "positions",
      .formula = "b_ij = -slope_h |p_i - p_j|, slopes 2^(-8(h+1)/heads)",
      .source = "Press et al. 2022",
      .inputs = {{.name = "slopes", .shape = "[heads]", .meaning = "in place of the published ones", .optional = true}},
      .outputs = {{"", "[heads, m, n]"}},
      .required = sizes,
      .examples = {{{"heads", 6}}},
      .draft = function_layer<AlibiBias>(
          [](const AlibiBias& o, const Inputs& in) {
            const Tensor slopes = in["slopes"].defined() ? in["slopes"] : alibi_slopes(o.heads, {in.dtype});
            return relative_matrix(relative_alibi(slopes, o.m, o.n), o.m, o.n);
          }),
  });
  all.push_back({
      .name = "rope_bias",
      .family = "positions",
      .formula = "b_ij = <rope_p_i(a), rope_p_j(b)>, which depends on p_j - p_i only",
      .source = "Hua et al. 2022, appendix (n > 512)",
      .inputs = {{.name = "a", .shape = "[s]"}, {.name = "b", .shape = "[s]"}},
      .outputs = {{"", "[1, m, n]"}},
      .required = sizes,
      .examples = {{{"rope_pairing", "interleaved"}}},
      .sizes = {{"s", 4}},
      .draft = function_layer<RopeBias>(
          [](const RopeBias& o, const Inputs& in) {
            return relative_matrix(relative_rope(in["a"], in["b"], o.m, o.n, o.rope), o.m, o.n);
          }),
  });
}

}  // namespace layer_check
