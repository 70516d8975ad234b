// Rows: ops/index/gather.h, ops/scan/scan.h, ops/index/sort.h, ops/attention/key_selection.h.
#include "support/op_cases.h"

#include <sluice/core/number/random.h>
#include <sluice/ops/attention/key_selection.h>
#include <sluice/ops/attention/top_k.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/index/sampling.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

// clang-format off
namespace sluice::testing {

namespace {

/// The index i with entry d replaced by what `index` says.
Dims at(Dims i, std::size_t d, double index) {
  i[d] = static_cast<int64_t>(index);
  return i;
}

Reference ref_gather(std::size_t d) {
  return [d](const Arrays& xs) {
    Array y(xs[1].shape);
    each_index(y.shape, [&](const Dims& i) { y(i) = xs[0](at(i, d, xs[1](i))); });
    return y;
  };
}
Reference ref_scatter_add(std::size_t d) {
  return [d](const Arrays& xs) {
    Array y = xs[0];
    each_index(xs[1].shape, [&](const Dims& i) { y(at(i, d, xs[1](i))) += xs[2](i); });
    return y;
  };
}
Reference ref_scatter(std::size_t d) {
  return [d](const Arrays& xs) {
    Array y = xs[0];
    each_index(xs[1].shape, [&](const Dims& i) { y(at(i, d, xs[1](i))) = xs[2](i); });  // in order: the last stays
    return y;
  };
}
Reference ref_index_select(std::size_t d) {
  return [d](const Arrays& xs) {
    Dims shape = xs[0].shape;
    shape[d] = xs[1].shape[0];
    Array y(shape);
    each_index(shape, [&](const Dims& i) { y(i) = xs[0](at(i, d, xs[1]({i[d]}))); });
    return y;
  };
}
Reference ref_index_add(std::size_t d) {
  return [d](const Arrays& xs) {
    Array y = xs[0];
    each_index(xs[2].shape, [&](const Dims& i) { y(at(i, d, xs[1]({i[d]}))) += xs[2](i); });
    return y;
  };
}

}  // namespace

void add_index_cases(Cases& c) {
  auto row = [&](const char* op, const char* variant, std::vector<Input> in, std::function<Outputs(const In&)> call,
                 Reference reference, bool exact, std::vector<Dims> large = {}) {
    c.push_back({.op = op, .variant = variant, .inputs = std::move(in), .call = std::move(call),
                 .reference = std::move(reference), .exact = exact, .large = std::move(large)});
    return &c.back();
  };
  row("gather", "last dim", {real({3, 4}), index({3, 6}, 4)}, [](const In& x) { return gather(x[0], -1, x[1]); },
      ref_gather(1), true, {{127, 4}, {127, 257}});
  row("gather", "first dim, index smaller elsewhere", {real({3, 4, 2}), index({5, 2, 2}, 3)},
      [](const In& x) { return gather(x[0], 0, x[1]); }, ref_gather(0), true, {{3, 130, 130}, {4, 127, 129}});
  row("gather", "nothing", {real({3, 4}), index({3, 0}, 4)}, [](const In& x) { return gather(x[0], 1, x[1]); }, ref_gather(1), true);
  row("scatter_add", "last dim", {real({3, 4}), index({3, 6}, 4), real({3, 6})},
      [](const In& x) { return scatter_add(x[0], 1, x[1], x[2]); }, ref_scatter_add(1), false, {{127, 4}, {127, 257}, {127, 257}});
  row("scatter_add", "middle dim, index smaller elsewhere", {real({3, 4, 2}), index({2, 5, 1}, 4), real({2, 5, 1})},
      [](const In& x) { return scatter_add(x[0], -2, x[1], x[2]); }, ref_scatter_add(1), false,
      {{2, 4, 300}, {2, 70, 257}, {2, 70, 257}});
  row("scatter_add", "nothing", {real({3, 4}), index({0, 4}, 3), real({0, 4})},
      [](const In& x) { return scatter_add(x[0], 0, x[1], x[2]); }, ref_scatter_add(0), true);
  row("scatter", "last dim", {real({3, 4}), index({3, 6}, 4), real({3, 6})},
      [](const In& x) { return scatter(x[0], 1, x[1], x[2]); }, ref_scatter(1), true, {{127, 4}, {127, 257}, {127, 257}});
  row("scatter", "first dim, index smaller elsewhere", {real({4, 3, 2}), index({5, 2, 1}, 4), real({5, 2, 1})},
      [](const In& x) { return scatter(x[0], 0, x[1], x[2]); }, ref_scatter(0), true, {{4, 2, 300}, {70, 2, 257}, {70, 2, 257}});
  row("scatter", "nothing", {real({3, 4}), index({0, 4}, 3), real({0, 4})},
      [](const In& x) { return scatter(x[0], 0, x[1], x[2]); }, ref_scatter(0), true);
  row("scatter", "of bool", {mask({3, 4}), index({3, 2}, 4), mask({3, 2})},
      [](const In& x) { return scatter(x[0], 1, x[1], x[2]); }, ref_scatter(1), true)->flat = "bool";
  const auto ref_nonzero = [](const Arrays& xs) {
    std::vector<double> found;
    double count = 0;
    each_index(xs[0].shape, [&](const Dims& i) {
      if (xs[0](i) == 0) return;
      ++count;
      for (int64_t k : i) found.push_back(static_cast<double>(k));
    });
    Array y({static_cast<int64_t>(count), static_cast<int64_t>(xs[0].shape.size())});
    y.v = found;
    return y;
  };
  for (const Input& x : {mask({3, 4}), levels({2, 3, 2}), index({7}, 2), mask({})})
    row("nonzero", x.kind == Input::mask ? "of a mask" : x.kind == Input::index ? "of integers" : "", {x},
        [](const In& v) { return nonzero(v[0]); }, ref_nonzero, true)->flat = "indices";
  c[c.size() - 4].shapes = {{{0, 3}}, {{3, 0}}, {{5, 2}}}, c[c.size() - 4].large = {{129, 257}};
  const auto ref_masked_select = [](const Arrays& xs) {
    Array y(Dims{0});
    each_index(broadcast_shape(xs), [&](const Dims& i) {
      if (xs[1].stretched(i) != 0) y.v.push_back(xs[0].stretched(i));
    });
    y.shape[0] = static_cast<int64_t>(y.v.size());
    return y;
  };
  const auto chosen = [](const In& x) { return masked_select(x[0], x[1]); };
  row("masked_select", "", {real({3, 4}), mask({3, 4})}, chosen, ref_masked_select, true, {{129, 257}, {129, 257}})->shapes = {{{0}, {0}}, {{}, {}}};
  row("masked_select", "mask of a row", {real({3, 4}), mask({4})}, chosen, ref_masked_select, true);
  row("masked_select", "x of a row", {real({4}), mask({3, 4})}, chosen, ref_masked_select, true);
  row("index_select", "first dim", {real({4, 3}), index({6}, 4)}, [](const In& x) { return index_select(x[0], 0, x[1]); },
      ref_index_select(0), true, {{4, 129}, {257}});
  row("index_select", "last dim", {real({2, 4}), index({3}, 4)}, [](const In& x) { return index_select(x[0], -1, x[1]); },
      ref_index_select(1), true, {{129, 4}, {257}});
  row("index_select", "nothing", {real({2, 4}), index({0}, 4)}, [](const In& x) { return index_select(x[0], 1, x[1]); },
      ref_index_select(1), true);
  row("index_add", "first dim", {real({3, 2}), index({5}, 3), real({5, 2})},
      [](const In& x) { return index_add(x[0], 0, x[1], x[2]); }, ref_index_add(0), false, {{3, 257}, {131}, {131, 257}});
  row("index_add", "middle dim", {real({2, 3, 2}), index({4}, 3), real({2, 4, 2})},
      [](const In& x) { return index_add(x[0], 1, x[1], x[2]); }, ref_index_add(1), false, {{20, 3, 40}, {61}, {20, 61, 40}});
  row("index_add", "nothing", {real({3, 2}), index({0}, 3), real({0, 2})},
      [](const In& x) { return index_add(x[0], 0, x[1], x[2]); }, ref_index_add(0), true);
  auto ref_embedding = [](const Arrays& xs) {
    Dims shape = xs[1].shape;
    shape.push_back(xs[0].shape[1]);
    Array y(shape);
    each_index(shape, [&](const Dims& i) {
      y(i) = xs[0]({static_cast<int64_t>(xs[1](Dims(i.begin(), i.end() - 1))), i.back()});
    });
    return y;
  };
  row("embedding", "", {real({4, 3}), index({2, 3}, 4)}, [](const In& x) { return embedding(x[0], x[1]); }, ref_embedding, true,
      {{40, 65}, {50, 11}})->shapes = {{{4, 1}, {5}}, {{4, 3}, {0}}};
  row("embedding", "one token", {real({4, 3}), index({}, 4)}, [](const In& x) { return embedding(x[0], x[1]); }, ref_embedding, true);

  auto triangle = [&](const char* op, const char* variant, Dims shape, int64_t k) {
    const bool upper = op[3] == 'u';
    row(op, variant, {real(shape)}, [=](const In& x) { return upper ? triu(x[0], k) : tril(x[0], k); }, [=](const Arrays& xs) {
      Array y = xs[0];
      each_index(y.shape, [&](const Dims& i) {
        const int64_t r = i.end()[-2], col = i.end()[-1];
        if (upper ? col < r + k : col > r + k) y(i) = 0;
      });
      return y;
    }, true, {{3, 127, 129}});
  };
  triangle("triu", "", {3, 3}, 0);
  triangle("triu", "wide, above the diagonal", {2, 3, 5}, 1);
  triangle("triu", "all", {3, 2}, -5);
  triangle("tril", "", {3, 3}, 0);
  triangle("tril", "tall, below the diagonal", {2, 5, 3}, -1);
  triangle("tril", "none", {3, 2}, -9);
  for (const Dims& s : {Dims{4, 4}, {2, 5}, {5, 2}, {1, 1}, {0, 3}})
    c.push_back({.op = "causal_mask", .variant = s[0] == s[1] ? "square" : s[0] < s[1] ? "fewer queries" : "more queries",
                 .call = [s](const In&) { return causal_mask(s[0], s[1]); },
                 .reference = [s](const Arrays&) {
                   Array y(s);  // the last query sees every key, each earlier one a key less
                   each_index(s, [&](const Dims& i) { y(i) = s[1] - 1 - i[1] >= s[0] - 1 - i[0]; });
                   return y;
                 },
                 .flat = "a constant", .exact = true});

  for (bool exclusive : {false, true})
    for (bool reverse : {false, true}) {
      auto scanned = [=](const std::vector<double>& x) {
        const std::size_t n = x.size();
        std::vector<double> y(n);
        double total = 0;
        for (std::size_t k = 0; k < n; ++k) {
          const std::size_t i = reverse ? n - 1 - k : k;
          y[i] = exclusive ? total : total + x[i];
          total += x[i];
        }
        return y;
      };
      const char* name = exclusive ? (reverse ? "exclusive, reverse" : "exclusive") : reverse ? "reverse" : "";
      for (int64_t dim : {0, 1, 2}) {
        OpCase* r = row("cumsum", name, {real({2, 3, 2})},
                        [=](const In& x) { return cumsum(x[0], dim, {.exclusive = exclusive, .reverse = reverse}); },
                        along(dim, scanned), false, {{5, 130, 129}});
        r->shapes = {{{1, 1, 1}}, {{2, 0, 2}}, {{3, 5, 130}}, {{2, 300, 65}}};
        r->ulps = 8;
      }
    }
  const auto products = [](std::vector<double> x) {
    std::partial_sum(x.begin(), x.end(), x.begin(), std::multiplies<double>());
    return x;
  };
  for (int64_t dim : {0, 1, 2}) {
    OpCase* r = row("cumprod", "", {away({2, 3, 2}, {0}, -1.5, 1.5, 0.5)}, [=](const In& x) { return cumprod(x[0], dim); },
                    along(dim, products), false, {{5, 17, 13}});
    r->shapes = {{{1, 1, 1}}, {{2, 0, 2}}, {{3, 5, 4}}, {{2, 8, 3}}, {{9, 2, 7}}};
    r->ulps = 8;
  }
  row("cumprod", "zeros", {levels({3, 5})}, [](const In& x) { return cumprod(x[0], 1); }, along(1, products), true);
  row("cumprod", "of bool", {mask({5})}, [](const In& x) { return cumprod(x[0], 0); }, along(0, products), true)->flat = "integers";
  row("cumsum", "of bool", {mask({5})}, [](const In& x) { return cumsum(x[0], 0); }, along(0, [](std::vector<double> x) {
        std::partial_sum(x.begin(), x.end(), x.begin());
        return x;
      }), true)->flat = "counts";

  // Drawing, where chance has no choice; tests/ops/sampling_test.cpp counts.
  const auto argmax_of_rows = [](const Arrays& xs) {
    return reduced({-1}, false, [](const std::vector<double>& x) {
      return static_cast<double>(std::max_element(x.begin(), x.end()) - x.begin());
    })(xs);
  };
  for (bool replacement : {false, true})
    row("multinomial", replacement ? "one weight above 0, put back" : "one weight above 0", {distinct({3, 5})},
        [=](const In& x) {
          Rng rng(3);
          const Tensor only = to(x[0] >= max(x[0], -1, keep), x[0].dtype());
          return squeeze(multinomial(only, 1, rng, replacement), -1);
        },
        argmax_of_rows, true, {{129, 257}})->flat = "drawn";
  row("multinomial", "all, each once", {positive({3, 5})}, [](const In& x) {
        Rng rng(3);
        return sort(multinomial(x[0], x[0].dim(-1), rng)).values;
      },
      along(-1, [](std::vector<double> x) {
        std::iota(x.begin(), x.end(), 0.0);
        return x;
      }), true, {{129, 257}})->flat = "drawn";

  // Sorting: stable both ways, so equal values keep their order.
  auto order = [](const std::vector<double>& x, bool descending) {
    std::vector<double> i(x.size());
    std::iota(i.begin(), i.end(), 0.0);
    std::stable_sort(i.begin(), i.end(), [&](double a, double b) {
      const double u = x[static_cast<std::size_t>(a)], v = x[static_cast<std::size_t>(b)];
      return descending ? u > v : u < v;
    });
    return i;
  };
  auto sorted = [=](int64_t dim, bool descending, std::size_t k) -> Reference {
    auto first = [=](const std::vector<double>& x) {
      std::vector<double> i = order(x, descending);
      i.resize(std::min(k, i.size()));
      return i;
    };
    auto values = [=](const std::vector<double>& x) {
      std::vector<double> y;
      for (double i : first(x)) y.push_back(x[static_cast<std::size_t>(i)]);
      return y;
    };
    return [=](const Arrays& xs) { return Arrays{along(dim, values)(xs)[0], along(dim, first)(xs)[0]}; };
  };
  auto both = [](Sorted s) { return Outputs(std::vector<Tensor>{s.values, s.indices}); };
  for (bool descending : {false, true}) {
    const char* name = descending ? "descending" : "";
    row("sort", name, {distinct({3, 5})}, [=](const In& x) { return both(sort(x[0], -1, descending)); },
        sorted(-1, descending, 999), true, {{127, 257}})->shapes = {{{2, 0}}, {{0, 3}}, {{1, 1}}, {{2, 70}}};
    row("sort", "first dim", {distinct({5, 2})}, [=](const In& x) { return both(sort(x[0], 0, descending)); },
        sorted(0, descending, 999), true);
    row("sort", "ties keep their order", {levels({3, 8})}, [=](const In& x) { return both(sort(x[0], -1, descending)); },
        sorted(-1, descending, 999), true)->flat = "ties";
    row("argsort", name, {levels({3, 8})}, [=](const In& x) { return argsort(x[0], -1, descending); },
        [=](const Arrays& xs) { return Arrays{sorted(-1, descending, 999)(xs)[1]}; }, true)->flat = "the result is an index";
  }
  row("topk", "", {distinct({3, 6})}, [=](const In& x) { return both(topk(x[0], 2)); }, sorted(-1, true, 2), true, {{127, 257}});
  row("topk", "first dim", {distinct({6, 2})}, [=](const In& x) { return both(topk(x[0], 3, 0)); }, sorted(0, true, 3), true);
  row("topk", "all", {distinct({2, 4})}, [=](const In& x) { return both(topk(x[0], 4)); }, sorted(-1, true, 4), true);
  row("topk", "ties take the lower index", {levels({4, 9})}, [=](const In& x) { return both(topk(x[0], 4)); },
      sorted(-1, true, 4), true)->flat = "ties";
  row("topk_mask", "", {levels({4, 9})}, [=](const In& x) { return topk_mask(x[0], 4); },
      [=](const Arrays& xs) {
        const Array kept = sorted(-1, true, 4)(xs)[1];
        Array y(xs[0].shape);
        each_index(kept.shape, [&](const Dims& i) { y({i[0], static_cast<int64_t>(kept(i))}) = 1; });
        return Arrays{y};
      },
      true)->flat = "bool";

  row("choose_blocks", "", {levels({1, 2, 4, 3})},
      [](const In& x) { return choose_blocks(x[0], 2, {.block = 2, .count = 2}); },
      [](const Arrays& xs) {
        Array y(xs[0].shape);
        each_index({1, 2, 4}, [&](const Dims& i) {  // the own block, and the best of those before it
          const int64_t own = (2 + i[2]) / 2;
          int64_t best = 0;
          for (int64_t j = 1; j < own; ++j)
            if (xs[0]({i[0], i[1], i[2], j}) > xs[0]({i[0], i[1], i[2], best})) best = j;
          y({i[0], i[1], i[2], own}) = y({i[0], i[1], i[2], best}) = 1;
        });
        return Arrays{y};
      },
      true)->flat = "bool";
  row("block_means", "", {real({2, 2, 7, 3})}, [](const In& x) { return block_means(x[0], 4, 2).rows; },
      [](const Arrays& xs) {
        Array y({2, 2, 2, 3});
        each_index(y.shape, [&](const Dims& i) {
          for (int64_t j = 0; j < 4; ++j) y(i) += xs[0]({i[0], i[1], 2 * i[2] + j, i[3]}) / 4;
        });
        return Arrays{y};
      },
      false);
  OpCase* maxima = row("block_maxima", "", {real({2, 2, 1, 3}), real({2, 1, 5, 3})},
      [](const In& x) { return block_maxima(x[0], x[1], 2); },
      [](const Arrays& xs) {
        Array y({2, 2, 1, 3});
        each_index(y.shape, [&](const Dims& i) {
          y(i) = -INFINITY;
          for (int64_t j = 2 * i[3]; j < std::min<int64_t>(5, 2 * i[3] + 2); ++j) {
            double s = 0;
            for (int64_t e = 0; e < 3; ++e) s += xs[0]({i[0], i[1], 0, e}) * xs[1]({i[0], 0, j, e});
            y(i) = std::max(y(i), s);
          }
        });
        return Arrays{y};
      },
      false);
  maxima->flat = "a choice has no gradient", maxima->bitwise = false;
  const auto scores_of = [](const Arrays& xs) {
    Array y({2, 3, 4});
    each_index(y.shape, [&](const Dims& i) {
      for (int64_t h = 0; h < 2; ++h) {
        double s = 0;
        for (int64_t e = 0; e < 2; ++e) s += xs[0]({i[0], h, i[1], e}) * xs[1]({i[0], i[2], e});
        y(i) += xs[2]({i[0], i[1], h}) * std::max(0.0, s);
      }
    });
    return Arrays{y};
  };
  const std::vector<Input> operands{real({2, 2, 3, 2}), real({2, 4, 2}), real({2, 3, 2})};
  OpCase* scores =
      row("index_scores", "", operands, [](const In& x) { return index_scores({x[0], x[1], x[2]}); }, scores_of, false);
  scores->bitwise = false;
  row("index_keys", "", operands, [](const In& x) { return index_keys({x[0], x[1], x[2]}, 3, {.causal = true}); },
      [=](const Arrays& xs) {  // query i of 3 sees the first i + 2 of 4 keys
        const Array s = scores_of(xs)[0];
        Array y({2, 1, 3, 3});
        each_index({2, 3}, [&](const Dims& i) {
          std::vector<int64_t> best;
          for (int64_t j = 0; j < i[1] + 2; ++j) best.push_back(j);
          std::stable_sort(best.begin(), best.end(),
                           [&](int64_t a, int64_t b) { return s({i[0], i[1], a}) > s({i[0], i[1], b}); });
          best.resize(3, -1);
          for (int64_t r = 0; r < 3; ++r)
            y({i[0], 0, i[1], r}) = static_cast<double>(best[static_cast<std::size_t>(r)]);
        });
        return Arrays{y};
      },
      true)->flat = "whole numbers";
  row("index_mask", "", operands, [](const In& x) { return index_mask({x[0], x[1], x[2]}, 1, {}); },
      [=](const Arrays& xs) {
        const Array s = scores_of(xs)[0];
        Array y({2, 1, 3, 4});
        each_index({2, 3}, [&](const Dims& i) {
          int64_t best = 0;
          for (int64_t j = 1; j < 4; ++j)
            if (s({i[0], i[1], j}) > s({i[0], i[1], best})) best = j;
          y({i[0], 0, i[1], best}) = 1;
        });
        return Arrays{y};
      },
      true)->flat = "bool";
}

}  // namespace sluice::testing
