// Rows: ops/matmul/matmul.h.
#include "support/op_cases.h"

#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/view.h>

#include <numeric>

// clang-format off
namespace sluice::testing {

namespace {

/// c[.., i, j] = Σ_k a[.., i, k]·b[.., k, j]; a rank-1 operand is a row or a column.
Expected ref_matmul(const Arrays& xs) {
  Array a = xs[0], b = xs[1];
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) a.shape.insert(a.shape.begin(), 1);
  if (column) b.shape.push_back(1);
  const Dims lead_a(a.shape.begin(), a.shape.end() - 2), lead_b(b.shape.begin(), b.shape.end() - 2);
  Dims shape = broadcast_shape({Array(lead_a), Array(lead_b)});
  const int64_t n = a.shape.end()[-2], k = a.shape.end()[-1], m = b.shape.end()[-1];
  Array first_a(lead_a), first_b(lead_b);  // of each matrix, its number
  std::iota(first_a.v.begin(), first_a.v.end(), 0.0), std::iota(first_b.v.begin(), first_b.v.end(), 0.0);
  Dims all = shape;
  all.push_back(n), all.push_back(m);
  Array y(all);
  double* to = y.v.data();
  each_index(shape, [&](const Dims& i) {
    const double* pa = a.v.data() + static_cast<int64_t>(first_a.stretched(i)) * n * k;
    const double* pb = b.v.data() + static_cast<int64_t>(first_b.stretched(i)) * k * m;
    for (int64_t r = 0; r < n; ++r, to += m)
      for (int64_t j = 0; j < k; ++j)
        for (int64_t col = 0; col < m; ++col) to[col] += pa[r * k + j] * pb[j * m + col];
  });
  if (column) y.shape.pop_back();
  if (row) y.shape.erase(y.shape.end() - (column ? 1 : 2));
  return y;
}

Expected ref_linear(const Arrays& xs) {
  Array y = ref_matmul({xs[0], xs[1]})[0];
  if (xs.size() > 2) each_index(y.shape, [&](const Dims& i) { y(i) += xs[2]({i.back()}); });
  return y;
}

}  // namespace

void add_matmul_cases(Cases& c) {
  auto row = [&](const char* variant, Dims a, Dims b, std::vector<std::vector<Dims>> shapes = {}, std::vector<Dims> large = {}) {
    c.push_back({.op = "matmul", .variant = variant, .inputs = {real(a), real(b)},
                 .call = [](const In& x) { return matmul(x[0], x[1]); }, .reference = ref_matmul, .ulps = 8,
                 .shapes = std::move(shapes), .large = std::move(large), .bitwise = false});
  };
  row("", {3, 4}, {4, 2},
      {{{1, 1}, {1, 1}}, {{1, 5}, {5, 1}}, {{5, 1}, {1, 4}}, {{33, 65}, {65, 17}}, {{130, 7}, {7, 129}},
       {{0, 3}, {3, 2}}, {{2, 3}, {3, 0}}, {{2, 0}, {0, 3}}, {{0, 0}, {0, 0}}, {{1, 300}, {300, 1}}},
      {{273, 461}, {461, 401}});  // 2 × 2 tiles
  row("row times column", {5}, {5}, {{{1}, {1}}, {{0}, {0}}, {{1025}, {1025}}});
  row("row times matrix", {4}, {4, 3});
  row("matrix times column", {3, 4}, {4});
  row("batched times column", {2, 3, 4}, {4});
  row("row times batched", {4}, {2, 4, 3});
  row("batch", {2, 3, 4}, {2, 4, 2}, {{{1, 1, 1}, {1, 1, 1}}, {{0, 2, 3}, {0, 3, 2}}, {{70, 9, 5}, {70, 5, 11}}},
      {{2, 257, 256}, {2, 256, 511}});
  row("batch, rank-2 right", {2, 3, 4}, {4, 2}, {{{0, 3, 4}, {4, 2}}, {{2, 0, 4}, {4, 2}}, {{2, 2, 3, 4}, {4, 5}}, {{2, 3, 0}, {0, 2}}, {{2, 3, 4}, {4, 0}}},
      {{3, 43, 33}, {33, 65}});
  row("rank-2 left, batch right", {3, 4}, {2, 4, 2}, {{{3, 4}, {0, 4, 2}}}, {{65, 33}, {3, 33, 65}});
  row("batch dims broadcast", {2, 1, 3, 4}, {3, 4, 2}, {{{1, 1, 3, 4}, {2, 3, 4, 2}}, {{2, 3, 1, 4}, {1, 1, 4, 2}}});
  const auto ref_outer = [](const Arrays& xs) {
    Array y({xs[0].shape[0], xs[1].shape[0]});
    each_index(y.shape, [&](const Dims& i) { y(i) = xs[0]({i[0]}) * xs[1]({i[1]}); });
    return y;
  };
  c.push_back({.op = "outer", .inputs = {real({3}), real({4})}, .call = [](const In& x) { return outer(x[0], x[1]); },
               .reference = ref_outer, .shapes = {{{0}, {4}}, {{3}, {0}}, {{1}, {1}}}, .large = {{127}, {257}}});
  c.push_back({.op = "outer", .variant = "of integers", .inputs = {index({3}, 9), index({4}, 9)},
               .call = [](const In& x) { return outer(x[0], x[1]); }, .reference = ref_outer, .flat = "integers", .exact = true});
  c.push_back({.op = "matmul", .variant = "a·aᵀ", .inputs = {real({3, 4})},
               .call = [](const In& x) { return matmul(x[0], transpose(x[0], 0, 1)); },
               .reference = [](const Arrays& xs) {
                 const Array& a = xs[0];
                 Array y({a.shape[0], a.shape[0]});
                 each_index(y.shape, [&](const Dims& i) {
                   for (int64_t k = 0; k < a.shape[1]; ++k) y(i) += a({i[0], k}) * a({i[1], k});
                 });
                 return y;
               },
               .ulps = 8, .large = {{129, 65}}, .bitwise = false});
  c.push_back({.op = "matmul", .variant = "aᵀ·bᵀ", .inputs = {real({4, 3}), real({2, 4})},
               .call = [](const In& x) { return matmul(transpose(x[0], 0, 1), transpose(x[1], 0, 1)); },
               .reference = [](const Arrays& xs) {
                 const Array &a = xs[0], &b = xs[1];
                 Array y({a.shape[1], b.shape[0]});
                 each_index(y.shape, [&](const Dims& i) {
                   for (int64_t k = 0; k < a.shape[0]; ++k) y(i) += a({k, i[0]}) * b({i[1], k});
                 });
                 return y;
               },
               .ulps = 8, .shapes = {{{65, 33}, {17, 65}}}, .large = {{129, 65}, {33, 129}}, .bitwise = false});

  auto linear_row = [&](const char* variant, Dims x, Dims w, bool bias, std::vector<std::vector<Dims>> shapes = {}, std::vector<Dims> large = {}) {
    std::vector<Input> in{real(x), real(w)};
    if (bias) in.push_back(real({w[1]}));
    c.push_back({.op = "linear", .variant = variant, .inputs = in,
                 .call = [](const In& v) { return v.size() > 2 ? linear(v[0], v[1], v[2]) : linear(v[0], v[1]); },
                 .reference = ref_linear, .ulps = 8, .shapes = std::move(shapes), .large = std::move(large), .bitwise = false});
  };
  linear_row("", {3, 4}, {4, 2}, true,
             {{{1, 1}, {1, 1}, {1}}, {{0, 4}, {4, 2}, {2}}, {{3, 4}, {4, 0}, {0}}, {{3, 0}, {0, 2}, {2}}, {{129, 33}, {33, 65}, {65}}},
             {{129, 953}, {953, 273}, {273}});
  linear_row("no bias", {3, 4}, {4, 2}, false, {{{3, 0}, {0, 2}}, {{0, 4}, {4, 0}}});
  linear_row("leading dims", {2, 2, 3}, {3, 4}, true, {{{2, 0, 3}, {3, 4}, {4}}});
  linear_row("one vector", {3}, {3, 4}, true);
  linear_row("one vector, no bias", {3}, {3, 4}, false);
}

}  // namespace sluice::testing
