// Rows: ops/attention/relative_bias.h.
#include "support/op_cases.h"

#include <sluice/ops/attention/relative_bias.h>

#include <cmath>

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
    for (RopePairing pairing : {RopePairing::half, RopePairing::interleaved})
      c.push_back({.op = "relative_rope",
                   .variant = k.name,
                   .inputs = {real({4}), real({4})},
                   .call =
                       [=](const In& x) {
                         return relative_rope(x[0], x[1], k.m, k.n, {.base = 50, .pairing = pairing, .offset = 7});
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
                             y(i) += a.first * b.first + a.second * b.second;
                           }
                         });
                         return y;
                       },
                   .ulps = 16,
                   .bitwise = false});
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
}

}  // namespace sluice::testing
