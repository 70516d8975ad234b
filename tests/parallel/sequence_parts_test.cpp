// The functions that everything along a cut sequence is made of, each against its plain op on the whole, first and
// second derivatives included; what a scope refuses; what it sends.
#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/sequence_attention.h>

#include <array>
#include <optional>

using namespace sluice;
using namespace sluice::testing;

namespace {

using Inputs = std::vector<Tensor>;
/// `cut` says of each input along which dim it is cut; −1: every rank has all of it.
struct Case {
  Inputs inputs;
  std::vector<int64_t> dims;
  int64_t out_dim;
};

/// Σ y ⊙ w, and the gradients of it and of Σ of those squared.
struct Both {
  Tensor y;
  Inputs first, second;
};
Both derive(const std::function<Tensor(const Inputs&)>& f, const Inputs& in, const Tensor& weight) {
  Both b;
  const Tensor y = f(in);
  b.y = y.detach();
  Inputs wanted;
  for (const Tensor& x : in)
    if (x.requires_grad()) wanted.push_back(x);
  b.first = grad({sum(y * y * weight)}, wanted, {.create_graph = true});
  Tensor slope = sum(b.first[0] * b.first[0]);
  for (std::size_t i = 1; i < b.first.size(); ++i) slope = slope + sum(b.first[i] * b.first[i]);
  b.second = grad({slope}, wanted, {.allow_unused = true});
  for (Tensor& g : b.first) g = g.detach();
  for (std::size_t i = 0; i < wanted.size(); ++i)
    b.second[i] = b.second[i].defined() ? b.second[i].detach() : zeros_like(wanted[i]);
  return b;
}

void check_close(const Tensor& got, const Tensor& want) {
  REQUIRE(got.shape() == want.shape());
  CHECK(max_abs_diff(got, want) <= 1e-11 * (1 + max_abs(want)));
}

/// f on the pieces of c, joined, is f on the whole. Every input that requires a gradient is cut: a slope of what all
/// ranks hold would be each rank's own.
void check_cut(const Case& c, const std::function<Tensor(const Inputs&)>& f) {
  Rand rand(23);
  const Tensor weight = random_tensor(f(c.inputs).shape(), f64, rand);
  const Both want = derive(f, c.inputs, weight);
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{6, 5}, {1, 7, 3}, {3, 0, 7, 1}}) {
    std::vector<Both> got(lengths.size());
    run_ranks(static_cast<int>(lengths.size()), [&](const Communicator& ranks) {
      const auto self = static_cast<std::size_t>(ranks.rank());
      int64_t first = 0;
      for (std::size_t r = 0; r < self; ++r) first += lengths[r];
      Inputs in;
      for (std::size_t i = 0; i < c.inputs.size(); ++i) {
        const Tensor& x = c.inputs[i];
        const Tensor own = c.dims[i] >= 0 ? narrow(x.detach(), c.dims[i], first, lengths[self]) : x.detach();
        in.push_back(x.requires_grad() ? clone(own).requires_grad_() : own);
      }
      SequenceScope scope(ranks);
      got[self] = derive(f, in, narrow(weight, c.out_dim, first, lengths[self]));
    });
    auto joined = [&](auto part, int64_t dim) {
      Inputs all;
      for (const Both& b : got) all.push_back(part(b));
      return cat(all, dim);
    };
    check_close(joined([](const Both& b) { return b.y; }, c.out_dim), want.y);
    std::size_t leaf = 0;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      if (!c.inputs[i].requires_grad()) continue;
      check_close(joined([&](const Both& b) { return b.first[leaf]; }, c.dims[i]), want.first[leaf]);
      check_close(joined([&](const Both& b) { return b.second[leaf]; }, c.dims[i]), want.second[leaf]);
      ++leaf;
    }
  }
}

Tensor values(const Shape& shape, uint64_t seed, double lo = -1, double hi = 1) {
  Rand rand(seed);
  return random_tensor(shape, f64, rand, lo, hi).requires_grad_();
}
Tensor fixed(const Shape& shape, uint64_t seed) { return values(shape, seed).detach(); }

constexpr int64_t kRows = 11;

}  // namespace

TEST_CASE("sequence: shift, running sums and rows", "[sequence]") {
  const Case rows{{values({2, kRows, 3}, 1)}, {1}, 1};
  check_cut(rows, [](const Inputs& x) { return sequence_shift(x[0], 1); });
  for (const bool exclusive : {false, true})
    for (const bool reverse : {false, true})
      check_cut(rows, [=](const Inputs& x) { return sequence_cumsum(x[0], 1, {exclusive, reverse}); });
  check_cut(rows, [](const Inputs& x) { return x[0] * sequence_sum(sum(x[0], {1}, keep)); });
  check_cut(rows, [](const Inputs& x) {  // each rank its rows and two on both sides
    const auto [first, total] = sequence_piece(x[0].dim(1));
    const RowRange near{std::max<int64_t>(0, first - 2), std::min(total, first + x[0].dim(1) + 2)};
    return x[0] * sum(sequence_rows(x[0], 1, {0, total}), {1}, keep) +
           narrow(sequence_rows(x[0], 1, near), 1, first - near.begin, x[0].dim(1));
  });
}

TEST_CASE("sequence: scans with every decay, both ways", "[sequence]") {
  const Tensor q = values({2, 2, kRows, 3}, 1), k = values({2, 2, kRows, 3}, 2), v = values({2, 2, kRows, 4}, 3);
  for (const bool reverse : {false, true}) {
    const LinearScanOptions o{.chunk = 2, .reverse = reverse};
    check_cut({{q, k, v}, {2, 2, 2}, 2}, [&](const Inputs& x) { return sequence_scan(x[0], x[1], x[2], {}, o); });
    check_cut({{q, k, v, values({2, 2, kRows}, 4, -1, 0)}, {2, 2, 2, 2}, 2},
              [&](const Inputs& x) { return sequence_scan(x[0], x[1], x[2], x[3], o); });
    check_cut({{q, k, v, values({2, 2, kRows, 3}, 5, -1, 0)}, {2, 2, 2, 2}, 2},
              [&](const Inputs& x) { return sequence_scan(x[0], x[1], x[2], x[3], o); });
    check_cut({{q, k, v, values({2, 2, kRows, 4}, 7, -1, 0)}, {2, 2, 2, 2}, 2}, [&](const Inputs& x) {
      return sequence_scan(x[0], x[1], x[2], x[3], {.chunk = 2, .reverse = reverse, .decay_on_values = true});
    });
    const Tensor fixed_decay = values({1, 2, 1}, 6, -1, 0).detach();
    check_cut({{q, k, v}, {2, 2, 2}, 2},
              [&](const Inputs& x) { return sequence_scan(x[0], x[1], x[2], fixed_decay, o); });
  }
}

TEST_CASE("sequence: attention with every mask and bias", "[sequence]") {
  const Tensor q = values({2, 4, kRows, 3}, 1), k = values({2, 2, kRows, 3}, 2), v = values({2, 2, kRows, 5}, 3);
  const Tensor padding =
      tensor_of({1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {2, kRows}, boolean);
  const Tensor documents =
      tensor_of({0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2}, {2, kRows}, i64);
  const Tensor pairs = fixed({4, kRows, kRows}, 7) > -0.5, blocks = fixed({2, 4, 4}, 8) > -0.3;
  const Tensor bias = fixed({2, 1, kRows, kRows}, 9), table = fixed({4, 2 * kRows - 1}, 10),
               scale = fixed({2, 4, kRows}, 11);
  auto check = [&](const std::function<AttentionOptions(const Inputs&)>& options) {
    check_cut({{q, k, v, padding, documents, pairs, bias, scale}, {2, 2, 2, 1, 1, 1, 2, 2}, 2},
              [&](const Inputs& x) { return sequence_attention(x[0], x[1], x[2], options(x)); });
  };
  for (const bool causal : {false, true}) {
    for (const Weighting w :
         {Weighting::softmax, Weighting::relu2, Weighting::laplace, Weighting::sigmoid, Weighting::linear}) {
      check([=](const Inputs&) { return AttentionOptions{.weighting = w, .mask = {.causal = causal}}; });
      check([=](const Inputs& x) {
        return AttentionOptions{.weighting = w,
                                .scale = 0.7,
                                .mask = {.causal = causal, .keys = x[3], .query_segments = x[4], .key_segments = x[4]},
                                .row_scale = x[7]};
      });
    }
    const Tensor sink = fixed({4}, 12);
    check([=](const Inputs& x) { return AttentionOptions{.mask = {.causal = causal, .keys = x[3]}, .sink = sink}; });
    check([=](const Inputs&) { return AttentionOptions{.mask = {.causal = causal, .window = 3}}; });
    check([=](const Inputs& x) {
      return AttentionOptions{.mask = {.causal = causal, .window = 4, .keys = x[3]}, .relative_bias = table};
    });
    check([=](const Inputs& x) {
      return AttentionOptions{
          .mask = {.causal = causal, .window = 3, .query_segments = x[4], .key_segments = x[4], .dense = x[5]},
          .bias = x[6],
          .row_scale = x[7]};
    });
    check([=](const Inputs&) {
      return AttentionOptions{.mask = {.causal = causal, .window = 2, .dilation = 2}, .relative_bias = table};
    });
    check([=](const Inputs&) {
      return AttentionOptions{.mask = {.causal = causal, .window = 2, .dilation = 2, .global = {0, 5}}};
    });
    check([=](const Inputs&) { return AttentionOptions{.mask = {.causal = causal, .dilation = 3}}; });
    check([=](const Inputs& x) { return AttentionOptions{.mask = {.causal = causal, .dense = x[5]}, .bias = x[6]}; });
    check([=](const Inputs& x) {
      return AttentionOptions{.mask = {.causal = causal,
                                       .query_segments = x[4],
                                       .key_segments = x[4],
                                       .blocks = cat({blocks, blocks}, 0),
                                       .block = 3},
                              .relative_bias = table};
    });
  }
  // Without batch and heads.
  const Tensor flat = values({kRows, 3}, 13);
  check_cut({{flat}, {0}, 0},
            [](const Inputs& x) { return sequence_attention(x[0], x[0], x[0], {.mask = {.causal = true}}); });
}

TEST_CASE("sequence: gradients of a sink and of biases add up over ranks", "[sequence]") {
  const Tensor q = fixed({1, 2, kRows, 3}, 1), w = fixed({1, 2, kRows, 3}, 2);
  for (const bool causal : {false, true}) {
    auto call = [&](const Tensor& x, const Tensor& sink, const Tensor& table, bool biased) {
      AttentionOptions o{.mask = {.causal = causal}, .sink = sink};
      if (biased) o.relative_bias = table;
      return sequence_attention(x, x, x, o);
    };
    for (const bool biased : {false, true}) {
      const Tensor sink = values({2}, 3), table = values({2, 2 * kRows - 1}, 4);
      const Inputs want = grad({sum(call(q, sink, table, biased) * w)}, {sink, table}, {.allow_unused = true});
      std::vector<Inputs> got(3);
      run_ranks(3, [&](const Communicator& c) {
        const int64_t first[] = {0, 4, 5}, rows[] = {4, 1, 6}, at = c.rank();
        const Tensor my_sink = clone(sink.detach()).requires_grad_(), my_table = clone(table.detach()).requires_grad_();
        Tensor loss;
        {
          SequenceScope scope(c);
          loss = sum(call(narrow(q, 2, first[at], rows[at]), my_sink, my_table, biased) *
                     narrow(w, 2, first[at], rows[at]));
        }
        got[static_cast<std::size_t>(at)] =
            grad({loss}, {my_sink, my_table}, {.allow_unused = true});  // outside of the scope
      });
      check_close(got[0][0] + got[1][0] + got[2][0], want[0]);
      if (biased) check_close(got[0][1] + got[1][1] + got[2][1], want[1]);
    }
  }
}

TEST_CASE("sequence: the mean of losses is weighted by tokens", "[sequence]") {
  const Tensor losses = values({1, kRows}, 1), counted = fixed({1, kRows}, 2) > 0.0;
  check_close(sequence_mean(losses), mean(losses));
  check_close(sequence_mean(losses, counted),
              sum(where(counted, losses, zeros({}, losses.options()))) / sum(to(counted, f64)));
  std::vector<Tensor> shares(2), means(2);
  run_ranks(2, [&](const Communicator& c) {
    const int64_t first = c.rank() == 0 ? 0 : 3, rows = c.rank() == 0 ? 3 : kRows - 3;
    SequenceScope scope(c);
    shares[static_cast<std::size_t>(c.rank())] =
        sequence_mean(narrow(losses, 1, first, rows), narrow(counted, 1, first, rows));
    means[static_cast<std::size_t>(c.rank())] = sequence_sum(sequence_mean(narrow(losses.detach(), 1, first, rows)));
  });
  check_close(shares[0].detach() + shares[1].detach(), sequence_mean(losses, counted).detach());
  check_close(means[0], mean(losses).detach());
  CHECK(same_bits(means[0], means[1]));
}

TEST_CASE("sequence: nothing is cut outside of a scope, in that of one rank, and in an empty one", "[sequence]") {
  Rng rng(1);
  const GatedAttention layer({.heads = {.dim = 8, .heads = 2, .causal = true, .use_rope = true}}, rng);
  const Tensor x = normal({1, 9, 8}, 0, 1, rng);
  const Tensor y = layer(x).detach();
  {
    SequenceScope scope{Communicator()};
    CHECK_FALSE(in_sequence());
    CHECK(same_bits(layer(x).detach(), y));
  }
  run_ranks(2, [&](const Communicator& c) {
    SequenceScope scope(c);
    expect(in_sequence(), "a scope cuts");
    {
      SequenceScope uncut;
      expect(!in_sequence() && same_bits(layer(x).detach(), y), "an empty scope cuts nothing");
    }
    expect(in_sequence(), "the outer scope counts again");
  });
}

TEST_CASE("sequence: checkpoint runs again in the scopes of its first run", "[sequence]") {
  Rng rng(1);
  const GatedAttention encoder({.dim = 8, .heads = 2, .dtype = f64}, rng);
  const GatedAttention decoder({.dim = 8, .heads = 2, .causal = true, .dtype = f64}, rng);
  const Tensor x = normal({1, 12, 8}, 0, 1, rng, {f64}), source = normal({1, 6, 8}, 0, 1, rng, {f64});
  std::vector<Tensor> weights;
  for (const GatedAttention* part : {&encoder, &decoder})
    for (const NamedTensor& p : parameters(*part)) weights.push_back(p.tensor);
  run_ranks(2, [&](const Communicator& ranks) {
    const Tensor piece = narrow(x, 1, 6 * ranks.rank(), 6);
    // The source lies on every rank, and has as many tokens as a piece.
    const auto gradients = [&](bool again, bool inside) {
      const auto run = [&](const GatedAttention& layer, const Tensor& t) {
        return again ? checkpoint([&](const std::vector<Tensor>& in) { return layer(in[0]); }, {t}) : layer(t);
      };
      std::optional<SequenceScope> scope(std::in_place, ranks);
      Tensor memory;
      {
        const SequenceScope none;
        memory = run(encoder, source);
      }
      const Tensor loss = sum(square(run(decoder, piece + memory)));
      if (!inside) scope.reset();
      return grad({loss}, weights);
    };
    const std::vector<Tensor> plain = gradients(false, true);
    for (bool inside : {true, false}) {
      const std::vector<Tensor> now = gradients(true, inside);
      for (std::size_t i = 0; i < now.size(); ++i)
        expect(max_abs_diff(now[i], plain[i]) <= 1e-12 * (1 + max_abs(plain[i])), "the gradients without checkpoint");
    }
  });
}

TEST_CASE("sequence: what cannot be is said", "[sequence]") {
  Rng rng(1);
  const GatedAttention attends({.heads = {.dim = 4, .causal = true}}, rng);
  const LinearAttention linear({.dim = 4, .heads = 1, .direction = LinearDirection::causal}, rng);
  const Flash flash({.dim = 4, .key_dim = 4, .causal = true}, rng);
  const Tensor x = normal({1, 3, 4}, 0, 1, rng);
  const auto check_step = [&](const auto& layer) {
    for (const std::string& text : errors_on_ranks(2, [&](const Communicator& c) {
           SequenceScope scope(c);
           Stream stream;
           step(layer, x, stream);
         }))
      CHECK(text.find("step: cannot be cut over ranks") != std::string::npos);
  };
  check_step(attends), check_step(linear), check_step(flash);
  for (const std::string& text : errors_on_ranks(2, [&](const Communicator& c) {
         SequenceScope scope(c);
         attends(x);
         attends(narrow(x, 1, 0, 2));
       }))
    CHECK(text.find("a piece of 2 rows in the scope of a sequence of which this rank holds 3") != std::string::npos);
  // Each of these by itself: too few keys, too few values, dims that differ in number, too many of them.
  const Tensor fewer = narrow(x, 1, 0, 2), flat = select(x, 0, 0), deep = reshape(x, {1, 1, 1, 3, 4});
  const std::vector<std::array<Tensor, 3>> wrong = {
      {x, fewer, x}, {x, x, fewer}, {x, flat, x}, {x, x, flat}, {deep, deep, deep}};
  for (const std::array<Tensor, 3>& qkv : wrong)
    for (const std::string& text : errors_on_ranks(2, [&](const Communicator& c) {
           SequenceScope scope(c);
           sequence_attention(qkv[0], qkv[1], qkv[2]);
         }))
      CHECK(text.find("; need the rows of one piece of a sequence") != std::string::npos);
  const auto said = [&](const std::function<void()>& call, const std::string& want) {
    for (const std::string& text : errors_on_ranks(2, [&](const Communicator& c) {
           SequenceScope scope(c);
           call();
         }))
      CHECK(text == want);
  };
  said([&] { sequence_rows(x, 1, {2, 7}); }, "sequence_rows: rows 2 to 7 of a sequence of 6");
  said([&] { sequence_rows(x, 1, {-1, 2}); }, "sequence_rows: rows -1 to 2 of a sequence of 6");
  said([&] { sequence_rows(x, 1, {3, 2}); }, "sequence_rows: rows 3 to 2 of a sequence of 6");
  for (const Shape& shape : {Shape{1, 5}, Shape{11}})
    said([&] { sequence_attention(x, x, x, {.relative_bias = ones(shape)}); },
         str("sequence_attention: relative_bias=", ones(shape),
             " does not fit; need [heads or 1, 11] for a whole of 6"));
  for (const std::string& text : errors_on_ranks(3, [&](const Communicator& c) {
         SequenceScope scope(c);
         sequence_shift(c.rank() == 1 ? to(x, f64) : x, 1);
       }))
    CHECK(text.find("rank 1") != std::string::npos);
}

TEST_CASE("sequence: FLASH with a bias, cut where no chunk begins", "[sequence]") {
  for (const GauBias bias : {GauBias::toeplitz, GauBias::rope, GauBias::t5}) {
    Rng rng(1);
    const Flash layer(FlashOptions{.dim = 8, .key_dim = 4, .chunk = 16, .bias = bias, .dtype = f64}, rng);
    for (const int64_t n : {3, 10, 17}) {
      const Tensor x = normal({1, n, 8}, 0, 1, rng, {f64}), want = layer(x);
      run_ranks(2, [&](const Communicator& all) {
        const int64_t here = (n + 1 - all.rank()) / 2, first = all.rank() == 0 ? 0 : n - here;
        SequenceScope scope(all);
        const Tensor y = layer(narrow(x, 1, first, here));
        if (!(max_abs_diff(y, narrow(want, 1, first, here)) <= 1e-12))
          fail<ValueError>("rank ", all.rank(), " differs");
      });
    }
  }
}

TEST_CASE("sequence: on meta there are the shapes", "[sequence]") {
  run_ranks(2, [](const Communicator& all) {
    const SequenceScope scope(all);
    const Tensor x = empty({2, 3}, {f32, meta}).requires_grad_(), rows = empty({1, 2, 4, 3}, {f32, meta});
    expect(sequence_shift(x, 0).shape() == Shape{2, 3}, "shift");
    expect(sequence_sum(x).shape() == Shape{2, 3} && sequence_cumsum(x, 0).shape() == Shape{2, 3}, "sums");
    expect(sequence_rows(x, 0, {0, 4}).shape() == Shape{4, 3}, "rows");
    expect(grad(sum(sequence_rows(x, 0, {0, 4})), x).shape() == Shape{2, 3}, "the gradient of rows");
    const SequenceScope other(all);
    expect(sequence_scan(rows, rows, rows, full({1, 2, 4}, 0, rows.options())).shape() == rows.shape(), "a scan");
    for (const AttentionMask& mask : {AttentionMask{}, {.causal = true}, {.window = 2}, {.window = 2, .global = {0}}})
      expect(sequence_attention(rows, rows, rows, {.mask = mask}).shape() == rows.shape(), "attention");
  });
}

TEST_CASE("sequence: sums of bf16 over ranks are rounded once", "[sequence][bf16]") {
  run_ranks(4, [](const Communicator& all) {
    const SequenceScope scope(all);
    const bool first = all.rank() == 0;
    const Tensor x = ones({1}, {bf16}).requires_grad_(), weight = full({1}, first ? 256 : 1, {bf16});
    expect(grad(sum(sequence_sum(x) * weight), x).item() == 260, "256 + 1 + 1 + 1 is 259, which rounds to 260");
    expect(grad(sum(sequence_rows(x, 0, {0, 1}) * weight), x).item() == (first ? 260 : 0), "of the first row");
    const Tensor running = sequence_cumsum(ones({first ? 257 : 1}, {bf16}), 0);
    expect(running.dtype() == bf16, "as the operand");
    expect(running[-1].item() == cumsum(ones({257 + all.rank()}, {bf16}), 0)[-1].item(), "running sums");
  });
}
