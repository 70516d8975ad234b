// Rows: ops/shape/view.h, splitting, joining and padding.
#include "support/op_cases.h"

#include <sluice/ops/shape/view.h>

// clang-format off
namespace sluice::testing {

namespace {

std::size_t wrap(int64_t d, int rank) { return static_cast<std::size_t>(d < 0 ? d + rank : d); }

Expected ref_split(const Array& x, const Dims& sizes, int64_t dim) {
  Arrays out;
  int64_t start = 0;
  for (int64_t n : sizes) {
    Dims shape = x.shape;
    const std::size_t d = wrap(dim, x.rank());
    shape[d] = n;
    out.emplace_back(shape);
    each_index(shape, [&](Dims i) {
      Dims from = i;
      from[d] += start;
      out.back()(i) = x(from);
    });
    start += n;
  }
  return out;
}

Reference ref_cat(int64_t dim) {
  return [=](const Arrays& xs) {
    const std::size_t d = wrap(dim, xs[0].rank());
    Dims shape = xs[0].shape;
    shape[d] = 0;
    for (const Array& x : xs) shape[d] += x.shape[d];
    Array y(shape);
    int64_t start = 0;
    for (const Array& x : xs) {
      each_index(x.shape, [&](const Dims& i) {
        Dims to = i;
        to[d] += start;
        y(to) = x(i);
      });
      start += x.shape[d];
    }
    return y;
  };
}

Reference ref_pad(int64_t dim, int64_t before, int64_t after, double value) {
  return [=](const Arrays& xs) {
    Dims shape = xs[0].shape;
    const std::size_t d = wrap(dim, xs[0].rank());
    shape[d] += before + after;
    Array y(shape, value);
    each_index(xs[0].shape, [&](const Dims& i) {
      Dims to = i;
      to[d] += before;
      y(to) = xs[0](i);
    });
    return y;
  };
}

/// windows [.., count at dim, .., size] added into a dim of `length`.
Reference ref_fold(std::size_t dim, int64_t length, int64_t step) {
  return [=](const Arrays& xs) {
    Dims shape(xs[0].shape.begin(), xs[0].shape.end() - 1);
    shape[dim] = length;
    Array y(shape);
    each_index(xs[0].shape, [&](const Dims& i) {
      Dims to(i.begin(), i.end() - 1);
      to[dim] = i[dim] * step + i.back();
      y(to) += xs[0](i);
    });
    return y;
  };
}

}  // namespace

void add_join_cases(Cases& c) {
  c.push_back({.op = "split", .inputs = {real({6, 2})}, .call = [](const In& x) { return split(x[0], {1, 3, 2}); },
               .reference = [](const Arrays& x) { return ref_split(x[0], {1, 3, 2}, 0); }, .exact = true});
  c.push_back({.op = "split", .variant = "last dim, an empty piece", .inputs = {real({2, 5})},
               .call = [](const In& x) { return split(x[0], {4, 0, 1}, -1); },
               .reference = [](const Arrays& x) { return ref_split(x[0], {4, 0, 1}, -1); }, .exact = true});
  c.push_back({.op = "split", .variant = "only one piece used", .inputs = {real({6, 2})},
               .call = [](const In& x) { return split(x[0], {1, 3, 2})[1]; },
               .reference = [](const Arrays& x) { return ref_split(x[0], {1, 3, 2}, 0)[1]; }, .exact = true});
  c.push_back({.op = "chunk", .variant = "equal", .inputs = {real({2, 6})},
               .call = [](const In& x) { return chunk(x[0], 3, 1); },
               .reference = [](const Arrays& x) { return ref_split(x[0], {2, 2, 2}, 1); }, .exact = true});
  c.push_back({.op = "chunk", .variant = "the last is shorter", .inputs = {real({7})},
               .call = [](const In& x) { return chunk(x[0], 3); },
               .reference = [](const Arrays& x) { return ref_split(x[0], {3, 3, 1}, 0); }, .exact = true});

  for (int64_t dim : {0, 1, -1})
    c.push_back({.op = "unbind", .variant = dim == 0 ? "first dim" : dim == 1 ? "middle" : "last", .inputs = {real({2, 3, 4})},
                 .call = [dim](const In& x) { return unbind(x[0], dim); },
                 .reference = [dim](const Arrays& xs) {
                   const Array& x = xs[0];
                   const auto d = static_cast<std::size_t>(dim < 0 ? dim + 3 : dim);
                   Dims rest = x.shape;
                   rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(d));
                   Arrays ys(static_cast<std::size_t>(x.shape[d]), Array(rest));
                   each_index(x.shape, [&](const Dims& i) {
                     Dims at = i;
                     at.erase(at.begin() + static_cast<std::ptrdiff_t>(d));
                     ys[static_cast<std::size_t>(i[d])](at) = x(i);
                   });
                   return ys;
                 },
                 .exact = true, .large = {{3, 40, 129}}});

  auto cat_row = [&](const char* variant, std::vector<Input> in, int64_t dim) {
    c.push_back({.op = "cat", .variant = variant, .inputs = std::move(in), .call = [dim](const In& x) { return cat(x, dim); },
                 .reference = ref_cat(dim), .exact = true});
  };
  cat_row("", {real({2, 3}), real({1, 3}), real({4, 3})}, 0);
  cat_row("last dim", {real({2, 3}), real({2, 1})}, -1);
  cat_row("middle of three", {real({2, 1, 3}), real({2, 2, 3})}, 1);
  cat_row("one", {real({3})}, 0);
  cat_row("an empty one", {real({2, 3}), real({0, 3}), real({1, 3})}, 0);
  c.push_back({.op = "cat", .variant = "a tensor with itself", .inputs = {real({2, 3})},
               .call = [](const In& x) { return cat({x[0], x[0]}, 1); },
               .reference = picked({2, 6}, [](const Dims& i) { return Dims{i[0], i[1] % 3}; }), .exact = true});
  auto stack_row = [&](const char* variant, int64_t dim, std::size_t at) {
    c.push_back({.op = "stack", .variant = variant, .inputs = {real({2, 3}), real({2, 3}), real({2, 3})},
                 .call = [dim](const In& x) { return stack(x, dim); },
                 .reference = [at](const Arrays& xs) {
                   Dims shape = xs[0].shape;
                   shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(at), 3);
                   Array y(shape);
                   each_index(shape, [&](const Dims& i) {
                     Dims from = i;
                     from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
                     y(i) = xs[static_cast<std::size_t>(i[at])](from);
                   });
                   return y;
                 },
                 .exact = true});
  };
  stack_row("front", 0, 0);
  stack_row("middle", 1, 1);
  stack_row("back", -1, 2);

  auto pad_row = [&](const char* variant, Dims shape, int64_t dim, int64_t before, int64_t after, double value) {
    c.push_back({.op = "pad", .variant = variant, .inputs = {real(shape)},
                 .call = [=](const In& x) { return pad(x[0], dim, before, after, value); },
                 .reference = ref_pad(dim, before, after, value), .exact = true});
  };
  pad_row("both sides", {2, 3}, 1, 2, 1, 0);
  pad_row("a value", {3, 2}, 0, 0, 2, -1.5);
  pad_row("nothing", {3}, 0, 0, 0, 9);
  pad_row("an empty tensor", {0, 2}, 0, 1, 2, 4);

  auto roll_row = [&](const char* variant, int64_t shift) {
    c.push_back({.op = "roll", .variant = variant, .inputs = {real({2, 5})},
                 .call = [=](const In& x) { return roll(x[0], shift, 1); },
                 .reference = picked({2, 5}, [=](const Dims& i) { return Dims{i[0], (((i[1] - shift) % 5) + 5) % 5}; }),
                 .exact = true});
  };
  roll_row("forward", 2);
  roll_row("back", -1);
  roll_row("more than once around", 12);
  roll_row("not at all", 0);
  c.push_back({.op = "roll", .variant = "an empty dim", .inputs = {real({2, 0})},
               .call = [](const In& x) { return roll(x[0], 3, 1); },
               .reference = [](const Arrays&) { return Array({2, 0}); }, .exact = true});

  c.push_back({.op = "fold", .variant = "overlapping", .inputs = {real({3, 2, 3})},
               .call = [](const In& x) { return fold(x[0], 0, 7, 2); }, .reference = ref_fold(0, 7, 2)});
  c.push_back({.op = "fold", .variant = "apart, a tail left over", .inputs = {real({2, 2, 2})},
               .call = [](const In& x) { return fold(x[0], 1, 7, 3); }, .reference = ref_fold(1, 7, 3)});
  c.push_back({.op = "repeat_interleave", .inputs = {real({3, 2})},
               .call = [](const In& x) { return repeat_interleave(x[0], 3, 0); },
               .reference = picked({9, 2}, [](const Dims& i) { return Dims{i[0] / 3, i[1]}; }), .exact = true});
  c.push_back({.op = "repeat_interleave", .variant = "last dim", .inputs = {real({3, 2})},
               .call = [](const In& x) { return repeat_interleave(x[0], 2, -1); },
               .reference = picked({3, 4}, [](const Dims& i) { return Dims{i[0], i[1] / 2}; }), .exact = true});
  c.push_back({.op = "repeat", .inputs = {real({3, 2})}, .call = [](const In& x) { return repeat(x[0], 2, 0); },
               .reference = picked({6, 2}, [](const Dims& i) { return Dims{i[0] % 3, i[1]}; }), .exact = true});
  c.push_back({.op = "repeat", .variant = "last dim, none", .inputs = {real({3, 2})},
               .call = [](const In& x) { return repeat(x[0], 0, -1); },
               .reference = [](const Arrays&) { return Array({3, 0}); }, .exact = true});
}

}  // namespace sluice::testing
