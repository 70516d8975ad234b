// Rows: ops/attention/relative_bias.h; merge_attention.
#include "support/op_cases.h"

#include <sluice/ops/attention/attention.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/elementwise/elementwise.h>

#include <algorithm>
#include <cmath>

// clang-format off
namespace sluice::testing {

void add_bias_cases(Cases& c) {
  struct Span {
    const char* name;
    int64_t m, n;
  };
  const Span spans[] = {{"square", 3, 3}, {"more keys", 2, 5}, {"more queries", 4, 1}};
  // Entry i of a table belongs to the distance p_j − p_i = i − (n − 1).
  for (const Span& k : spans)
    for (const Dims& table : {Dims{9}, Dims{1, 9}, Dims{2, 11}}) {
      const int64_t centre = (table.back() - 1) / 2, heads = table.size() == 2 ? table[0] : 1;
      c.push_back({.op = "relative_toeplitz", .variant = k.name, .inputs = {real(table)},
                   .call = [k](const In& x) { return relative_toeplitz(x[0], k.m, k.n); },
                   .reference = picked({heads, k.n + k.m - 1}, [=](const Dims& i) {
                     const int64_t at = centre + i[1] - (k.n - 1);
                     return table.size() == 2 ? Dims{i[0], at} : Dims{at};
                   }),
                   .exact = true});
    }
  for (const Span& k : spans) {
    c.push_back({.op = "relative_alibi", .variant = k.name, .inputs = {real({2})},
                 .call = [k](const In& x) { return relative_alibi(x[0], k.m, k.n); },
                 .reference = [k](const Arrays& xs) {
                   Array y({2, k.n + k.m - 1});
                   each_index(y.shape, [&](const Dims& i) {
                     y(i) = -xs[0]({i[0]}) * std::abs(static_cast<double>(i[1] - (k.n - 1)));
                   });
                   return y;
                 }});
    for (bool causal : {false, true})
      c.push_back({.op = "relative_t5",
                   .variant = k.name,
                   .inputs = {real({4, 2})},
                   .call =
                       [=](const In& x) {
                         return relative_t5(x[0], k.m, k.n, {.causal = causal, .buckets = 4, .max_distance = 4});
                       },
                   .reference =
                       [=](const Arrays& xs) {
                         // Causal: 0, 1, then 2 and 3 until 4. Both ways: 0 and 1 for each direction.
                         Array y({2, k.n + k.m - 1});
                         each_index(y.shape, [&](const Dims& i) {
                           const int64_t ahead = i[1] - (k.n - 1), behind = -ahead;
                           int64_t bucket = causal ? std::max<int64_t>(behind, 0) : std::abs(ahead) > 0 ? 1 : 0;
                           if (causal && behind >= 2) bucket = behind < 3 ? 2 : 3;
                           if (!causal && ahead > 0) bucket += 2;
                           y(i) = xs[0]({bucket, i[0]});
                         });
                         return y;
                       },
                   .exact = true});
    for (RopePairing pairing : {RopePairing::half, RopePairing::interleaved}) {
      const RopeOptions plain{.base = 50, .pairing = pairing, .offset = 7}, grown{.base = 50, .pairing = pairing, .factor = 1.3, .xpos = 9};
      const RopeOptions o = pairing == RopePairing::half ? plain : grown;
      c.push_back({.op = "relative_rope",
                   .variant = k.name,
                   .inputs = {real({4}), real({4})},
                   .call =
                       [=](const In& x) {
                         return relative_rope(x[0], x[1], k.m, k.n, o);
                       },
                   .reference =
                       [=](const Arrays& xs) {
                         Array y({1, k.n + k.m - 1});
                         each_index(y.shape, [&](const Dims& i) {
                           // ⟨R_p a, R_r b⟩ for one pair of channels: rotations by p·θ and r·θ.
                           const double p = 20, r = p + static_cast<double>(i[1] - (k.n - 1));
                           for (int64_t pair : {0, 1}) {
                             const double theta = std::pow(50.0, -static_cast<double>(pair) / 2);
                             const bool half = pairing == RopePairing::half;
                             const int64_t f = half ? pair : 2 * pair, g = half ? pair + 2 : 2 * pair + 1;
                             auto turned = [&](const Array& x, double at) {
                               return std::pair(x({f}) * std::cos(at * theta) - x({g}) * std::sin(at * theta),
                                                x({g}) * std::cos(at * theta) + x({f}) * std::sin(at * theta));
                             };
                             const auto a = turned(xs[0], p), b = turned(xs[1], r);
                             const double zeta = (pair / 2.0 + 0.4) / 1.4;
                             const double by = half ? 1 : 1.3 * 1.3 * std::pow(zeta, (p - r) / 9);
                             y(i) += by * (a.first * b.first + a.second * b.second);
                           }
                         });
                         return y;
                       },
                   .ulps = 16,
                   .bitwise = false});
    }
    for (int64_t heads : {1, 2})
      c.push_back({.op = "relative_matrix", .variant = k.name, .inputs = {real({heads, k.n + k.m - 1})},
                   .call = [k](const In& x) { return relative_matrix(x[0], k.m, k.n); },
                   .reference = picked({heads, k.m, k.n}, [k](const Dims& i) {
                     const int64_t position = i[1] + k.n - k.m;
                     return Dims{i[0], k.n - 1 + i[2] - position};
                   }),
                   .exact = true});
  }
  for (int64_t heads : {1, 2, 6, 8, 12})
    c.push_back({.op = "alibi_slopes", .variant = "", .inputs = {real({})},
                 .call = [=](const In& x) { return alibi_slopes(heads, x[0].options()); },
                 .reference = [=](const Arrays&) {
                   Array y({heads});
                   auto& s = y.v;
                   if (heads == 1) s = {1.0 / 256};
                   if (heads == 2) s = {1.0 / 16, 1.0 / 256};
                   if (heads == 6) s = {1.0 / 4, 1.0 / 16, 1.0 / 64, 1.0 / 256, 1.0 / 2, 1.0 / 8};
                   if (heads >= 8)
                     for (int64_t h = 0; h < 8; ++h) s[static_cast<std::size_t>(h)] = std::pow(0.5, h + 1);
                   if (heads == 12)
                     for (int64_t h = 0; h < 4; ++h) s[static_cast<std::size_t>(8 + h)] = std::pow(0.5, h + 0.5);
                   return y;
                 },
                 .flat = "constants"});

  // Two parts of one attention, joined.
  auto ref_merge = [](const Arrays& xs) {
    Array out = xs[0], lse = xs[1];
    const int64_t width = out.shape.back();
    for (std::size_t r = 0; r < lse.v.size(); ++r) {
      const double a = xs[1].v[r], b = xs[3].v[r], top = std::max(a, b);
      lse.v[r] = top == -INFINITY ? top : top + std::log(std::exp(a - top) + std::exp(b - top));
      for (int64_t j = 0; j < width; ++j) {
        const std::size_t at = r * static_cast<std::size_t>(width) + static_cast<std::size_t>(j);
        auto share = [&](double part) { return part == -INFINITY ? 0 : std::exp(part - lse.v[r]); };
        out.v[at] = share(a) * xs[0].v[at] + share(b) * xs[2].v[at];
      }
    }
    return Arrays{out, lse};
  };
  auto merge = [](const Tensor& a, const Tensor& la, const Tensor& b, const Tensor& lb) {
    const AttentionAndLse y = merge_attention({a, la}, {b, lb});
    return Outputs(std::vector<Tensor>{y.out, y.lse});
  };
  OpCase merged{.op = "merge_attention", .reference = ref_merge, .ulps = 16};
  merged.inputs = {real({1, 2, 2, 1}), real({1, 2, 2}), real({1, 2, 2, 1}), real({1, 2, 2})};
  merged.call = [=](const In& x) { return merge(x[0], x[1], x[2], x[3]); };
  merged.shapes = {{{2, 3, 5, 4}, {2, 3, 5}, {2, 3, 5, 4}, {2, 3, 5}},
                   {{1, 1, 0, 2}, {1, 1, 0}, {1, 1, 0, 2}, {1, 1, 0}}};
  merged.large = {{2, 3, 129, 33}, {2, 3, 129}, {2, 3, 129, 33}, {2, 3, 129}};
  c.push_back(merged);
  merged.variant = "large", merged.gradient_ulps = 400, merged.shapes = {}, merged.large = {};
  merged.inputs = {real({3, 2}), real({3}, 100, 103), real({3, 2}), real({3}, 100, 103)};
  c.push_back(merged);
  merged.variant = "parts that see nothing", merged.flat = "the log of 0";
  merged.inputs = {real({8, 2}), real({8}), real({8, 2}), real({8}), mask({8}), mask({8})};
  merged.call = [=](const In& x) {
    return merge(x[0], masked_fill(x[1], x[4], -INFINITY), x[2], masked_fill(x[3], x[5], -INFINITY));
  };
  merged.reference = [=](const Arrays& xs) {
    Arrays y = xs;
    for (std::size_t r = 0; r < 8; ++r)
      for (std::size_t part : {1, 3}) y[part].v[r] = xs[4 + part / 2].v[r] != 0 ? -INFINITY : y[part].v[r];
    return ref_merge(y);
  };
  c.push_back(merged);
}

}  // namespace sluice::testing
