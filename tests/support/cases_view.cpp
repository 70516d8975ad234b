// Rows: ops/shape/view.h, the views. Each reference is a map of indices: y[i] = x[from(i)].
#include "support/op_cases.h"

#include <sluice/ops/shape/view.h>

// clang-format off
namespace sluice::testing {

void add_view_cases(Cases& c) {
  auto row = [&](const char* op, const char* variant, Dims shape, std::function<Outputs(const In&)> call, Dims out,
                 std::function<Dims(const Dims&)> from) {
    c.push_back({.op = op, .variant = variant, .inputs = {real(shape)}, .call = std::move(call),
                 .reference = picked(out, std::move(from)), .exact = true});
  };
  /// Index of the k-th element in row-major order.
  auto unravel = [](int64_t k, const Dims& shape) {
    Dims i(shape.size());
    for (std::size_t d = shape.size(); d-- > 0; k /= shape[d]) i[d] = k % shape[d];
    return i;
  };
  auto reshaped = [&](const char* op, const char* variant, Dims from, Dims to, std::function<Outputs(const In&)> call) {
    row(op, variant, from, std::move(call), to, [=](const Dims& i) {
      return unravel(static_cast<int64_t>(Array(to).at(i)), from);
    });
  };
  reshaped("reshape", "", {2, 6}, {3, 4}, [](const In& x) { return reshape(x[0], {3, 4}); });
  reshaped("reshape", "inferred", {2, 3, 4}, {4, 6}, [](const In& x) { return reshape(x[0], {4, -1}); });
  reshaped("reshape", "to and from scalars", {1}, {}, [](const In& x) { return reshape(x[0], {}); });
  reshaped("reshape", "empty", {0, 3}, {2, 0, 5}, [](const In& x) { return reshape(x[0], {2, 0, 5}); });
  reshaped("reshape", "of a transpose copies", {4, 3}, {6, 2},
           [](const In& x) { return reshape(transpose(transpose(x[0], 0, 1), 0, 1), {6, 2}); });
  row("reshape", "of a transpose", {3, 4}, [](const In& x) { return reshape(transpose(x[0], 0, 1), {2, 6}); },
      {2, 6}, [](const Dims& i) { return Dims{(i[0] * 6 + i[1]) % 3, (i[0] * 6 + i[1]) / 3}; });
  reshaped("flatten", "", {2, 3, 2}, {12}, [](const In& x) { return flatten(x[0]); });
  reshaped("flatten", "1 to -1", {2, 3, 2}, {2, 6}, [](const In& x) { return flatten(x[0], 1, -1); });
  reshaped("flatten", "a scalar", {}, {1}, [](const In& x) { return flatten(x[0]); });
  reshaped("unflatten", "", {2, 6}, {2, 3, 2}, [](const In& x) { return unflatten(x[0], 1, {3, 2}); });
  reshaped("unflatten", "inferred", {6, 2}, {2, 3, 2}, [](const In& x) { return unflatten(x[0], 0, {-1, 3}); });
  reshaped("unsqueeze", "front", {2, 3}, {1, 2, 3}, [](const In& x) { return unsqueeze(x[0], 0); });
  reshaped("unsqueeze", "back", {2, 3}, {2, 3, 1}, [](const In& x) { return unsqueeze(x[0], -1); });
  reshaped("squeeze", "one", {2, 1, 3, 1}, {2, 3, 1}, [](const In& x) { return squeeze(x[0], 1); });
  reshaped("squeeze", "all", {1, 2, 1, 3}, {2, 3}, [](const In& x) { return squeeze(x[0]); });

  row("transpose", "", {2, 3}, [](const In& x) { return transpose(x[0], 0, 1); }, {3, 2},
      [](const Dims& i) { return Dims{i[1], i[0]}; });
  row("transpose", "outer dims of three", {2, 3, 4}, [](const In& x) { return transpose(x[0], 0, -1); }, {4, 3, 2},
      [](const Dims& i) { return Dims{i[2], i[1], i[0]}; });
  row("transpose", "empty", {0, 3}, [](const In& x) { return transpose(x[0], 0, 1); }, {3, 0},
      [](const Dims& i) { return Dims{i[1], i[0]}; });
  row("permute", "", {2, 3, 4}, [](const In& x) { return permute(x[0], {2, 0, -2}); }, {4, 2, 3},
      [](const Dims& i) { return Dims{i[1], i[2], i[0]}; });
  row("permute", "twice", {2, 3, 2, 2}, [](const In& x) { return permute(permute(x[0], {1, 3, 0, 2}), {3, 0, 1, 2}); },
      {2, 3, 2, 2}, [](const Dims& i) { return Dims{i[3], i[1], i[0], i[2]}; });
  row("expand", "", {3, 1}, [](const In& x) { return expand(x[0], {2, 3, 4}); }, {2, 3, 4},
      [](const Dims& i) { return Dims{i[1], 0}; });
  row("expand", "-1 keeps", {1, 3}, [](const In& x) { return expand(x[0], {4, -1}); }, {4, 3},
      [](const Dims& i) { return Dims{0, i[1]}; });
  row("expand", "to nothing", {1, 3}, [](const In& x) { return expand(x[0], {0, 3}); }, {0, 3},
      [](const Dims& i) { return i; });

  row("select", "first dim", {3, 4}, [](const In& x) { return select(x[0], 0, 1); }, {4},
      [](const Dims& i) { return Dims{1, i[0]}; });
  row("select", "negative", {3, 4, 2}, [](const In& x) { return select(x[0], -2, -1); }, {3, 2},
      [](const Dims& i) { return Dims{i[0], 3, i[1]}; });
  row("select", "of a size-1 dim", {3, 1}, [](const In& x) { return select(x[0], 1, 0); }, {3},
      [](const Dims& i) { return Dims{i[0], 0}; });
  row("slice", "", {5, 3}, [](const In& x) { return slice(x[0], 0, 1, 4); }, {3, 3},
      [](const Dims& i) { return Dims{i[0] + 1, i[1]}; });
  row("slice", "step 2", {2, 7}, [](const In& x) { return slice(x[0], 1, 1, std::nullopt, 2); }, {2, 3},
      [](const Dims& i) { return Dims{i[0], 1 + 2 * i[1]}; });
  row("slice", "negative bounds", {6}, [](const In& x) { return slice(x[0], 0, -4, -1); }, {3},
      [](const Dims& i) { return Dims{i[0] + 2}; });
  row("slice", "clamped", {4}, [](const In& x) { return slice(x[0], 0, -9, 9); }, {4}, [](const Dims& i) { return i; });
  row("slice", "clamped, just before the beginning", {4}, [](const In& x) { return slice(x[0], 0, -5, -1); }, {3},
      [](const Dims& i) { return i; });
  row("slice", "empty", {4, 2}, [](const In& x) { return slice(x[0], 0, 3, 1); }, {0, 2},
      [](const Dims& i) { return i; });
  row("slice", "of a slice, step 2 of step 3", {20}, [](const In& x) { return slice(slice(x[0], 0, 1, 20, 3), 0, 1, 6, 2); },
      {3}, [](const Dims& i) { return Dims{4 + 6 * i[0]}; });
  row("narrow", "", {5, 2}, [](const In& x) { return narrow(x[0], 0, 2, 3); }, {3, 2},
      [](const Dims& i) { return Dims{i[0] + 2, i[1]}; });
  row("narrow", "length 0 at the end", {5, 2}, [](const In& x) { return narrow(x[0], 0, 5, 0); }, {0, 2},
      [](const Dims& i) { return i; });

  row("unfold", "overlapping", {7, 2}, [](const In& x) { return unfold(x[0], 0, 3, 2); }, {3, 2, 3},
      [](const Dims& i) { return Dims{2 * i[0] + i[2], i[1]}; });
  row("unfold", "apart", {2, 8}, [](const In& x) { return unfold(x[0], -1, 2, 3); }, {2, 3, 2},
      [](const Dims& i) { return Dims{i[0], 3 * i[1] + i[2]}; });
  row("unfold", "step 1, whole", {5}, [](const In& x) { return unfold(x[0], 0, 5, 1); }, {1, 5},
      [](const Dims& i) { return Dims{i[1]}; });
  row("flip", "one", {2, 4}, [](const In& x) { return flip(x[0], {1}); }, {2, 4},
      [](const Dims& i) { return Dims{i[0], 3 - i[1]}; });
  row("flip", "all", {2, 3}, [](const In& x) { return flip(x[0], {0, -1}); }, {2, 3},
      [](const Dims& i) { return Dims{1 - i[0], 2 - i[1]}; });
  row("flip", "no dims: all", {2, 3}, [](const In& x) { return flip(x[0], {}); }, {2, 3},
      [](const Dims& i) { return Dims{1 - i[0], 2 - i[1]}; });
  row("flip", "empty", {2, 0}, [](const In& x) { return flip(x[0], {0, 1}); }, {2, 0}, [](const Dims& i) { return i; });
  row("diagonal", "", {4, 4}, [](const In& x) { return diagonal(x[0]); }, {4},
      [](const Dims& i) { return Dims{i[0], i[0]}; });
  row("diagonal", "of outer dims", {3, 2, 3}, [](const In& x) { return diagonal(x[0], 0, 2); }, {2, 3},
      [](const Dims& i) { return Dims{i[1], i[0], i[1]}; });
  row("diagonal", "of a tall matrix", {2, 5, 3}, [](const In& x) { return diagonal(x[0]); }, {2, 3},
      [](const Dims& i) { return Dims{i[0], i[1], i[1]}; });
  row("diagonal", "of a wide one, dims exchanged", {2, 5}, [](const In& x) { return diagonal(x[0], 1, 0); }, {2},
      [](const Dims& i) { return Dims{i[0], i[0]}; });
  row("diagonal", "1 by 1", {2, 1, 1}, [](const In& x) { return diagonal(x[0]); }, {2, 1},
      [](const Dims& i) { return Dims{i[0], 0, 0}; });
}

}  // namespace sluice::testing
