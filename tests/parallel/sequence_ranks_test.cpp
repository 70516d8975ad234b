// Cut sequences on ranks of either kind, threads or processes: each rank also computes the whole, and compares its
// piece.
#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/train/data_parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/sequence.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

void expect_close(const Tensor& got, const Tensor& want, const std::string& what) {
  expect(max_abs_diff(got, want) <= 1e-11 * (1 + max_abs(want)), what);
}

template <class Layer> void compare(Layer layer, const Communicator& c) {
  to(layer, test_device());
  constexpr int64_t n = 23;
  Rand rand(3);
  const Tensor x = random_tensor({2, n, 8}, f64, rand).requires_grad_(), weight = random_tensor({2, n, 8}, f64, rand);
  std::vector<Tensor> wanted{x};
  for (const NamedTensor& p : parameters(layer)) wanted.push_back(p.tensor);
  const Tensor y = layer(x);
  const std::vector<Tensor> want = grad({sum(y * weight)}, wanted);

  const std::vector<int64_t> lengths = even_pieces(n, c.size());
  const auto self = static_cast<std::size_t>(c.rank());
  int64_t first = 0;
  for (std::size_t r = 0; r < self; ++r) first += lengths[r];
  wanted[0] = clone(narrow(x.detach(), 1, first, lengths[self])).requires_grad_();
  Tensor piece;
  {
    SequenceScope scope(c);
    piece = layer(wanted[0]);
  }
  expect_close(piece.detach(), narrow(y.detach(), 1, first, lengths[self]), "the output is the uncut one");
  const std::vector<Tensor> got = grad({sum(piece * narrow(weight, 1, first, lengths[self]))}, wanted);
  expect_close(got[0], narrow(want[0], 1, first, lengths[self]), "the gradient of x is the uncut one");
  for (std::size_t i = 1; i < got.size(); ++i)
    expect_close(all_reduce(got[i], c), want[i], "gradients of parameters add up to the uncut ones");
}

FlashModelOptions flash_options() {
  FlashModelOptions o;
  o.layers = 2, o.layer.dim = 8, o.layer.key_dim = 4, o.layer.chunk = 4, o.layer.causal = o.layer.token_shift = true;
  o.layer.dtype = f64;
  return o;
}

}  // namespace

TEST_CASE("sequence: ranks of every kind compute their pieces", "[sequence]") {
  on_ranks([](const Communicator& c) {
    Rng rng(1);
    compare(FlashModel(flash_options(), rng), c);
    compare(Gla({.dim = 8, .heads = 2, .chunk = 4, .dtype = f64}, rng), c);
    compare(GatedAttention({.heads = {.dim = 8, .heads = 2, .causal = true, .use_rope = true, .dtype = f64}}, rng), c);
  });
}

// Groups of two ranks share a sequence, or all ranks do; DataParallel averages over all. A checkpoint runs its part of
// the forward pass, with what is sent, once more.
TEST_CASE("sequence: cut sequences and DataParallel go together", "[sequence]") {
  on_ranks([](const Communicator& all) {
    for (const bool pairs : {true, false})
      for (const bool checkpointed : {true, false}) {
        constexpr int64_t n = 13;
        Rng rng(1);
        FlashModel model(flash_options(), rng);
        to(model, test_device());
        const Communicator cut = pairs ? all.split(all.rank() / 2) : all;
        const int64_t sequences = pairs ? (all.size() + 1) / 2 : 1, mine = pairs ? all.rank() / 2 : 0;
        Rand rand(3);
        const Tensor x = random_tensor({sequences, n, 8}, f64, rand);
        backward(mean(square(model(x))));
        std::vector<Tensor> want;
        for (const NamedTensor& p : parameters(model)) want.push_back(p.tensor.grad());
        zero_grad(model);

        DataParallel parallel(model, all, {.bucket_bytes = 256});
        const std::vector<int64_t> lengths = even_pieces(n, cut.size());
        const int64_t rows = lengths[static_cast<std::size_t>(cut.rank())];
        int64_t first = 0;
        for (int r = 0; r < cut.rank(); ++r) first += lengths[static_cast<std::size_t>(r)];
        const Tensor piece = narrow(narrow(x, 0, mine, 1), 1, first, rows);
        {
          SequenceScope scope(cut);
          const Tensor y = checkpointed
                               ? checkpoint([&](const std::vector<Tensor>& in) { return model(in[0]); }, {piece})
                               : model(piece);
          parallel.backward(mean(square(y)), static_cast<double>(rows));
        }
        std::size_t i = 0;
        for (const NamedTensor& p : parameters(model))
          expect_close(p.tensor.grad(), want[i++], "the gradient of " + p.name);
      }
  });
}

TEST_CASE("sequence: lengths whose sum is too large are refused as often as they come", "[parallel]") {
  run_ranks(3, [](const Communicator& all) {
    const SequenceScope scope(all);
    for (int i = 0; i < 3; ++i) {
      std::string said;
      try {
        sequence_piece(int64_t{1} << 55);
      } catch (const Error& e) { said = e.what(); }
      expect(said.find("sizes are too large") != std::string::npos, said.c_str());
    }
    expect(sequence_piece(2).first == 2 * all.rank(), "and lengths that fit are taken");
  });
}

TEST_CASE("collectives: one rank refuses what several refuse, and has gradients where they have", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    Tensor w = ones({2}).requires_grad_();
    expect(!all_reduce(w * w, all, ReduceOp::max).requires_grad(), "no gradient of a maximum");
    expect(all_reduce(w * w, all).requires_grad(), "a gradient of a sum");
    const Tensor x = zeros({2}, {i32});
    const std::function<void()> calls[] = {[&] { all_reduce(x, all); },     [&] { reduce(x, 0, all); },
                                           [&] { all_gather(x, 0, all); },  [&] { ring_shift(x, 1, all); },
                                           [&] { exclusive_scan(x, all); }, [&] { reduce_scatter(x, 0, all, {2}); }};
    for (std::size_t i = 0; i < std::size(calls); ++i) {
      if (i == 5 && all.size() > 1) continue;  // whose lengths are refused first
      std::string said;
      try {
        calls[i]();
      } catch (const DTypeError& e) { said = e.what(); }
      expect(said.find("needs f32, f64, bf16 or i64 — got i32") != std::string::npos, "other dtypes are refused");
    }
  }));
}
