// Rotary positions and additive biases that depend on distance.
#include "choices.h"
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
  int64_t heads = 1;
  T5BucketOptions t5 = {};
  RopeOptions rope = {};
};

void sizes(Options& v, BiasOptions& o) {
  v.required("m", o.m, 5, "number of queries");
  v.required("n", o.n, 6, "number of keys; query i stands at i + n - m");
}

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
      .prepare = function_layer<RopeOptions>(
          [](Options& v, RopeOptions& o) { rope_options(v, o, ""); },
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
      .prepare = module_layer<ScaledSinusoidal, ScaledSinusoidalOptions>(
          [](Options& v, ScaledSinusoidalOptions& o) {
            v.required("dim", o.dim, 8, "even width");
            v("base", o.base, "of the frequencies");
          },
          [](const ScaledSinusoidal& l, const Inputs& in) { return in["x"] + l(in["x"].dim(1)); }),
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
      .sizes = {{"n_max", 9}},
      .prepare = function_layer<std::pair<BiasOptions, int64_t>>(
          [](Options& v, std::pair<BiasOptions, int64_t>& o) {
            sizes(v, o.first);
            v.required("n_max", o.second, 9, "positions of the table");
          },
          [](const std::pair<BiasOptions, int64_t>& o, const Inputs& in) {
            return relative_matrix(relative_toeplitz(in["w"], o.first.m, o.first.n), o.first.m, o.first.n);
          }),
  });
  all.push_back({
      .name = "t5_bias",
      .family = "positions",
      .formula = "b_ij = w[bucket(p_j - p_i), h]",
      .source = "Raffel et al. 2020",
      .inputs = {{.name = "w", .shape = "[buckets, heads]"}},
      .outputs = {{"", "[heads, m, n]"}, {"buckets", "[m, n]", "i64, the bucket of every pair"}},
      .examples = {{{"causal", true}}, {{"buckets", 8}, {"max_distance", 16}}},
      .prepare = function_layer<BiasOptions>(
          [](Options& v, BiasOptions& o) {
            sizes(v, o);
            v("causal", o.t5.causal, "all buckets for keys before the query");
            t5_options(v, o.t5);
          },
          [](const BiasOptions& o, const Inputs& in) -> Results {
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
      .examples = {{{"heads", 6}}},
      .prepare = function_layer<BiasOptions>(
          [](Options& v, BiasOptions& o) {
            sizes(v, o);
            v("heads", o.heads, "number of heads");
          },
          [](const BiasOptions& o, const Inputs& in) {
            const Tensor slopes = in["slopes"].defined() ? in["slopes"] : alibi_slopes(o.heads, {f64});
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
      .examples = {{{"rope_pairing", "interleaved"}}},
      .sizes = {{"s", 4}},
      .prepare = function_layer<BiasOptions>(
          [](Options& v, BiasOptions& o) {
            sizes(v, o);
            rope_options(v, o.rope);
          },
          [](const BiasOptions& o, const Inputs& in) {
            return relative_matrix(relative_rope(in["a"], in["b"], o.m, o.n, o.rope), o.m, o.n);
          }),
  });
}

}  // namespace layer_check
