// Every collective against the same thing computed in one process, with gradients of two orders.
#include <sluice/parallel/collectives.h>

#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/kernel.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/sequence_attention.h>

#include <limits>
#include <new>
#include <string_view>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// One collective: on the operand of one rank, and on those of all ranks at once.
struct Case {
  std::string name;
  std::function<Shape(int rank, int size)> shape;
  std::function<Tensor(const Tensor& x, const Communicator&)> run;
  std::function<std::vector<Tensor>(const std::vector<Tensor>& xs)> reference;
  std::vector<DType> dtypes = {f64, f32};
};

Tensor sum_of(const std::vector<Tensor>& xs) {
  Tensor y = xs[0];
  for (std::size_t r = 1; r < xs.size(); ++r) y = y + xs[r];
  return y;
}

Shape same_shape(int, int) { return {3, 5}; }
Shape ragged_rows(int rank, int size) { return {(rank * 2 + size) % 4, 5}; }  // some ranks have none
Shape ragged_columns(int rank, int) { return {3, 1 + 2 * rank}; }

std::vector<Tensor> everywhere(Tensor y, std::size_t n) { return std::vector<Tensor>(n, y); }

Case shifted(int by, bool cyclic, int64_t dim, std::function<Shape(int, int)> shape) {
  return {str("ring_shift by ", by, cyclic ? " cyclic" : " with ends", ", dim ", dim), std::move(shape),
          [=](const Tensor& x, const Communicator& c) {
            return ring_shift(x, by, c, {cyclic, dim});
          },
          [=](const std::vector<Tensor>& xs) {
            const int n = static_cast<int>(xs.size());
            std::vector<Tensor> ys;
            for (int r = 0; r < n; ++r) {
              const int64_t from = int64_t{r} - by;
              if (cyclic) ys.push_back(xs[static_cast<std::size_t>(((from % n) + n) % n)]);
              else
                ys.push_back(from < 0 || from >= n ? xs[static_cast<std::size_t>(r)] * 0
                                                   : xs[static_cast<std::size_t>(from)]);
            }
            return ys;
          }};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Shape& shape : {Shape{3, 5}, Shape{}, Shape{0, 4}, Shape{2053}, Shape{7, 1, 3}})
    all.push_back({str("all_reduce ", shape), [=](int, int) { return shape; },
                   [](const Tensor& x, const Communicator& c) { return all_reduce(x, c); },
                   [](const auto& xs) { return everywhere(sum_of(xs), xs.size()); }});
  for (const bool last : {false, true}) {
    all.push_back({"broadcast", same_shape,
                   [=](const Tensor& x, const Communicator& c) { return broadcast(x, last ? c.size() - 1 : 0, c); },
                   [=](const auto& xs) { return everywhere(last ? xs.back() : xs[0], xs.size()); }});
    all.push_back({"reduce", same_shape,
                   [=](const Tensor& x, const Communicator& c) { return reduce(x, last ? c.size() - 1 : 0, c); },
                   [=](const auto& xs) {
                     auto ys = everywhere(zeros_like(xs[0]), xs.size());
                     (last ? ys.back() : ys[0]) = sum_of(xs);
                     return ys;
                   }});
  }
  for (auto [shape, dim] : {std::pair{&ragged_rows, 0}, {&ragged_columns, 1}, {&ragged_columns, -1}, {&same_shape, 0}})
    all.push_back({str("all_gather dim ", dim), shape,
                   [dim = dim](const Tensor& x, const Communicator& c) { return all_gather(x, dim, c); },
                   [dim = dim](const auto& xs) { return everywhere(cat(xs, dim), xs.size()); }});
  for (const int64_t n : {0, 3, 11})
    for (const int64_t dim : {0, 1})
      all.push_back(
          {str("reduce_scatter of ", n, ", dim ", dim),
           [=](int, int) {
             return dim ? Shape{2, n} : Shape{n, 2};
           },
           [=](const Tensor& x, const Communicator& c) { return reduce_scatter(x, dim, c); },
           [=](const auto& xs) { return split(sum_of(xs), even_pieces(n, static_cast<int>(xs.size())), dim); }});
  all.push_back({"reduce_scatter, given lengths",
                 [](int, int size) {
                   return Shape{size * (size + 1) / 2, 3};
                 },
                 [](const Tensor& x, const Communicator& c) {
                   std::vector<int64_t> lengths;
                   for (int r = c.size(); r > 0; --r) lengths.push_back(r);
                   return reduce_scatter(x, 0, c, lengths);
                 },
                 [](const auto& xs) {
                   std::vector<int64_t> lengths;
                   for (std::size_t r = xs.size(); r > 0; --r) lengths.push_back(static_cast<int64_t>(r));
                   return split(sum_of(xs), lengths, 0);
                 }});
  for (const int by : {1, -1, 2, 5, -7, 0, std::numeric_limits<int>::min()}) {
    all.push_back(shifted(by, true, 0, ragged_rows));
    all.push_back(shifted(by, true, -1, ragged_columns));
    all.push_back(shifted(by, false, 0, same_shape));
  }
  all.push_back({"exclusive_scan", same_shape,
                 [](const Tensor& x, const Communicator& c) { return exclusive_scan(x, c); },
                 [](const auto& xs) {
                   std::vector<Tensor> ys{zeros_like(xs[0])};
                   for (std::size_t r = 1; r < xs.size(); ++r) ys.push_back(ys.back() + xs[r - 1]);
                   return ys;
                 }});
  // The operand holds decay [1, 5] and state [3, 5].
  all.push_back(
      {"exclusive_scan of a recurrence",
       [](int, int) {
         return Shape{4, 5};
       },
       [](const Tensor& x, const Communicator& c) { return exclusive_scan(narrow(x, 0, 0, 1), narrow(x, 0, 1, 3), c); },
       [](const auto& xs) {
         std::vector<Tensor> ys{zeros({3, 5}, xs[0].options())};
         for (std::size_t r = 1; r < xs.size(); ++r)
           ys.push_back(narrow(xs[r - 1], 0, 0, 1) * ys.back() + narrow(xs[r - 1], 0, 1, 3));
         return ys;
       }});
  return all;
}

/// y, d Σ_r loss_r / dx, and the gradient of <that, v> for a loss that is cubic in y.
struct Result {
  Tensor y, first, second;
};
Tensor loss_of(const Tensor& y, const Tensor& weight) { return sum(y * y * y * weight); }

/// The same numbers on every rank.
std::vector<Tensor> draw(uint64_t seed, DType dtype, const std::vector<Shape>& shapes) {
  Rand rand(seed);
  std::vector<Tensor> xs;
  for (const Shape& s : shapes) xs.push_back(random_tensor(s, dtype, rand));
  return xs;
}

void check_case(const Case& c, DType dtype, const Communicator& all) {
  const int n = all.size();
  std::vector<Shape> shapes, y_shapes;
  for (int r = 0; r < n; ++r) shapes.push_back(c.shape(r, n));
  const auto mine = [&](const auto& list) { return list[static_cast<std::size_t>(all.rank())]; };
  std::vector<Tensor> xs = draw(7, dtype, shapes), vs = draw(8, dtype, shapes);
  for (Tensor& x : xs) x.requires_grad_();
  const std::vector<Tensor> ys = c.reference(xs);
  for (const Tensor& y : ys) y_shapes.push_back(y.shape());
  const std::vector<Tensor> weights = draw(9, dtype, y_shapes);

  Tensor total = zeros({}, {dtype, test_device()}), slope = total;
  for (std::size_t r = 0; r < ys.size(); ++r) total = total + loss_of(ys[r], weights[r]);
  const auto firsts = grad({total}, xs, {.create_graph = true, .allow_unused = true});
  for (std::size_t r = 0; r < ys.size(); ++r)
    if (firsts[r].defined()) slope = slope + sum(firsts[r] * vs[r]);
  const auto seconds = grad({slope}, xs, {.allow_unused = true});
  const auto zeros_if_undefined = [&](const Tensor& g) { return g.defined() ? g : zeros_like(mine(xs)); };

  Tensor x = mine(xs).detach().requires_grad_();
  Tensor y = c.run(x, all);
  // What is compared is computed in the same order, so that the result has the same bits.
  expect(same_bits(y.detach(), contiguous(mine(ys).detach())) || max_abs_diff(y, mine(ys)) == 0, c.name + ": values");
  const Tensor first = grad(loss_of(y, mine(weights)), x, {.create_graph = true, .allow_unused = true});
  const double tolerance = dtype == f64 ? 1e-12 : 2e-4;
  expect(max_abs_diff(zeros_if_undefined(first), zeros_if_undefined(mine(firsts))) <= tolerance, c.name + ": gradient");
  if (!first.defined()) return;
  const Tensor second = grad(sum(first * mine(vs)), x, {.allow_unused = true});
  expect(max_abs_diff(zeros_if_undefined(second), zeros_if_undefined(mine(seconds))) <= tolerance,
         c.name + ": second gradient");
}

}  // namespace

TEST_CASE("collectives: values and two gradients as in one process", "[parallel]") {
  for (const Case& c : cases())
    for (const DType dtype : c.dtypes) {
      INFO(c.name << " " << name_of(dtype));
      CHECK_NOTHROW(on_ranks([&](const Communicator& all) { check_case(c, dtype, all); }));
    }
}

TEST_CASE("collectives: large, beyond every cut, in all dtypes; sums go by rank", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    const auto n = static_cast<std::size_t>(all.size()), me = static_cast<std::size_t>(all.rank());
    for (const int64_t length : {1, 4095, 4097, 70001})
      for (const DType dtype : {f32, f64, bf16, i64}) {
        std::vector<Tensor> xs;
        for (std::size_t r = 0; r < n; ++r) {
          Rand rand(r);
          const Tensor x = random_tensor({length}, f32, rand, -1000, 1000);
          xs.push_back(to(x, dtype));
        }
        std::vector<double> sums(static_cast<std::size_t>(length), 0), most(sums.size(), -1e300),
            least(sums.size(), 1e300);
        for (std::size_t r = 0; r < n; ++r) {
          const auto v = xs[r].to_vector<double>();
          for (std::size_t i = 0; i < v.size(); ++i) {
            sums[i] = dtype == f32 || dtype == bf16 ? static_cast<float>(sums[i] + v[i]) : sums[i] + v[i];
            most[i] = std::max(most[i], v[i]), least[i] = std::min(least[i], v[i]);
          }
        }
        const std::string what = str(length, " of ", dtype, ", ", all.size(), " ranks");
        expect(same_bits(all_reduce(xs[me], all), tensor_of(sums, {length}, dtype, cpu)), "sum " + what);
        expect(same_bits(all_reduce(xs[me], all, ReduceOp::max), tensor_of(most, {length}, dtype, cpu)), "max " + what);
        expect(same_bits(all_reduce(xs[me], all, ReduceOp::min), tensor_of(least, {length}, dtype, cpu)),
               "min " + what);
        expect(same_bits(all_gather(xs[me], 0, all), cat(xs)), "all_gather " + what);
        expect(same_bits(broadcast(xs[me], all.size() - 1, all), xs.back()), "broadcast " + what);
        Tensor here = clone(xs[me]);
        Tensor gathered = empty({length * all.size()}, {dtype});
        Pending first = start_all_reduce(here, all), second = start_all_gather(xs[me], gathered, all);
        const Tensor third = all_reduce(xs[me], all);  // after both
        expect(first.done() && second.done(), "what was started before has ended: " + what);
        second.wait(), first.wait(), first.wait();
        expect(same_bits(here, third) && same_bits(gathered, cat(xs)), "in the background " + what);
      }
  }));
}

TEST_CASE("collectives: strided operands, NaN in max, an operand that only one rank differentiates", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    const double me = all.rank(), n = all.size();
    const Tensor x = transpose(reshape(arange(0, 12, 1, {f64}) + me, {3, 4}), 0, 1);
    expect(max_abs_diff(all_reduce(x, all),
                        transpose(reshape(arange(0, 12, 1, {f64}), {3, 4}), 0, 1) * n + n * (n - 1) / 2) == 0,
           "strided");
    const Tensor nan = full({3}, all.rank() == all.size() - 1 ? std::nan("") : 1, {f64});
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      const double v = select(all_reduce(nan, all, op), 0, 1).item();
      expect(v != v, "max and min of NaN");
    }
    expect(!all_reduce(full({3}, 1, {f64}).requires_grad_(), all, ReduceOp::max).requires_grad() || all.size() == 1,
           "max has no gradient");

    for (int leaf = 0; leaf < all.size(); ++leaf) {  // one rank has a leaf, the others constants
      Tensor w = full({2}, 3 + me, {f64});
      if (all.rank() == leaf) w.requires_grad_();
      Tensor y = all_gather(w, 0, all);
      expect(y.requires_grad(), "a history everywhere");
      backward(sum(y * y) * (me + 1));
      if (all.rank() == leaf)
        expect(max_abs_diff(w.grad(), full({2}, 2 * (3 + me) * n * (n + 1) / 2, {f64})) < 1e-12,
               "gradient of the leaf");
      NoGrad guard;
      expect(!all_gather(w, 0, all).requires_grad() || all.size() == 1, "no history without recording");
    }
  }));
}

TEST_CASE("collectives: on meta nothing is sent", "[parallel][threads]") {
  CHECK_NOTHROW(run_ranks(3, [](const Communicator& all) {
    if (all.rank() != 1) return;  // alone: whoever waited for the others would fail
    const Tensor x = empty({4, 6}, {f32, meta});
    expect(all_reduce(x, all).shape() == Shape{4, 6}, "all_reduce");
    expect(all_gather(x, 1, all).shape() == Shape{4, 18}, "all_gather");
    expect(reduce_scatter(x, 1, all).shape() == Shape{4, 2}, "reduce_scatter");
    expect(ring_shift(x, 1, all).shape() == Shape{4, 6}, "ring_shift");
    expect(exclusive_scan(x, x, all).shape() == Shape{4, 6}, "exclusive_scan");
    expect(all.traffic().total().bytes == 0, "no traffic");
  }));
}

TEST_CASE("collectives: traffic is what the formulas say", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    const int64_t n = all.size();
    const auto sent = [&](const std::function<void()>& f) {
      all.reset_traffic();
      f();
      return all.traffic().total().bytes;
    };
    const Tensor big = zeros({static_cast<int64_t>(12 * 1000)}, {f64}), small = zeros({6}, {f64});
    expect(sent([&] { all_reduce(big, all); }) == 2 * (n - 1) * 12000 * 8 / n,
           "all_reduce, large: 2 (n−1)/n of the bytes");
    expect(sent([&] { all_reduce(small, all); }) == (n - 1) * 48, "all_reduce, small: to each other rank");
    expect(sent([&] { all_gather(big, 0, all); }) == (n - 1) * 96000, "all_gather");
    expect(sent([&] { reduce_scatter(big, 0, all); }) == (n - 1) * 96000 / n, "reduce_scatter");
    expect(sent([&] { ring_shift(big, 1, all); }) == (n > 1 ? 96000 : 0), "ring_shift");
    expect(sent([&] { exclusive_scan(small, small, all); }) == (n - 1) * 96, "exclusive_scan: one message to each");
    const int64_t broadcast_bytes = sent([&] { broadcast(big, 0, all); });
    expect(all_reduce(full({}, static_cast<double>(broadcast_bytes), {f64}), all).item() ==
               static_cast<double>((n - 1) * 96000),
           "broadcast");
    detail::WorkCounter counter;
    all_gather(big, 0, all);
    if (n > 1) expect(counter.work().bytes >= (n - 1) * 96000, "profiles see it");
  }));
}

TEST_CASE("collectives: other shapes and dtypes on another rank are errors", "[parallel]") {
  const auto refused = [](const std::function<void(const Communicator&, bool odd)>& f) {
    for (const std::string& what : errors_on_ranks(2, [&](const Communicator& all) { f(all, all.rank() == 1); }))
      CHECK_THAT(what, Contains("ranks disagree"));
  };
  refused([](const Communicator& all, bool odd) {
    odd ? exclusive_scan(ones({4}), ones({4}), all) : exclusive_scan(ones({2, 1}), ones({2, 3}), all);
  });
  refused([](const Communicator& all, bool odd) { broadcast(zeros({2}, {odd ? i32 : i64}), 0, all); });
  refused([](const Communicator& all, bool odd) { broadcast(zeros({2}, {odd ? boolean : i32}), 0, all); });
  refused([](const Communicator& all, bool odd) {  // pieces of equal shapes, whose windows want other rows
    const SequenceScope scope(all);
    const Tensor x = ones({1, 1, 4, 2}, {f64});
    sequence_attention(x, x, x, {.mask = {.causal = true, .window = odd ? 8 : 2}});
  });
}

TEST_CASE("collectives: in the background, too, edits are noticed", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    if (all.size() == 1) return;
    Tensor w = ones({2}).requires_grad_(), x = full({2}, 1.0 + all.rank()), y = zeros({2 * all.size()});
    const Tensor of_x = sum(w * x), of_y = sum(w * narrow(y, 0, 0, 2));
    start_all_reduce(x, all).wait();
    start_all_gather(x, y, all).wait();
    for (const Tensor& loss : {of_x, of_y}) {
      std::string said;
      try {
        backward(loss);
      } catch (const AutogradError& e) { said = e.what(); }
      expect(said.find("edited in place") != std::string::npos, "an edit of what backward needs");
    }
  }));
}

TEST_CASE("run_ranks: every rank computes as the caller would", "[parallel][threads]") {
  const NoGrad guard;
  const PrecisionScope products(Precision::bf16);
  run_ranks(2, [](const Communicator& outer) {
    const SequenceScope scope(outer);
    expect(!grad_enabled(), "no history");
    expect(precision() == Precision::bf16, "the caller's precision");
    run_ranks(2, [](const Communicator&) { expect(!in_sequence(), "ranks within ranks have sequences of their own"); });
    expect(in_sequence(), "the scope goes on");
  });
}

TEST_CASE("collectives: bf16 over ranks is rounded once, and a rank of 8 has a scan", "[parallel][bf16][threads]") {
  CHECK_NOTHROW(run_ranks(5, [](const Communicator& all) {
    const Shape eight = Shape::filled(8, 1);
    const Tensor x = full(eight, all.rank() == 0 ? 256 : 1, {bf16}), one = ones(eight, {bf16});
    const double want[] = {0, 256, 256, 258, 260};  // bf16 has the even numbers from 256 on
    for (const Tensor& y : {exclusive_scan(x, all), exclusive_scan(one, x, all)}) {
      expect(y.shape() == eight && y.dtype() == bf16, "as the operand");
      expect(y.item() == want[all.rank()], str("rank ", all.rank(), " has ", y.item()));
    }
  }));
}

TEST_CASE("collectives: a decay that does not stretch to the state, and other dtypes, are refused on every rank",
          "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    std::string said;
    try {
      exclusive_scan(ones({3}), ones({2, 2}), all);
    } catch (const ShapeError& e) { said = e.what(); }
    expect(said == "exclusive_scan: decay=[3] does not broadcast to state=[2,2]", "a ShapeError, not: " + said);
    said.clear();
    try {
      exclusive_scan(ones({2}, {i32}), ones({2}, {i32}), all);
    } catch (const DTypeError& e) { said = e.what(); }
    expect(said == "exclusive_scan: needs f32, f64, bf16 or i64 — got i32", "a DTypeError, not: " + said);
    const Tensor x = ones({2}).requires_grad_();
    const Tensor y = sum(ring_shift(x, 1, all, {.cyclic = false}));  // with one rank, too, there is a history
    expect(grad(y, x).to_vector() == std::vector<float>(2, all.rank() + 1 < all.size() ? 1 : 0), "its gradient");
  }));
}

TEST_CASE("collectives: what an observer throws is thrown by the call", "[parallel][threads]") {
  CHECK_NOTHROW(run_ranks(2, [](const Communicator& all) {
    struct Full final : detail::Observer {
      void on_call(const detail::KernelCall& call) override {
        if (std::string_view(call.op) == "all_reduce") throw std::bad_alloc();
      }
    };
    bool thrown = false;
    try {
      const Full observer;
      all_reduce(ones({2}), all);
    } catch (const std::bad_alloc&) { thrown = true; }
    expect(thrown, "bad_alloc");
    expect(all_reduce(ones({}), all).item() == 2, "the next call works");
  }));
}
