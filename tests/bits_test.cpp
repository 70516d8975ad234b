// Not run by itself: what the library computes, as a hash of its bits, one line for each row of the op table, golden
// case and sample of a layer. tests/same_bits.sh compares the lines of two commits.
#include "../examples/layer_check/run.h"
#include "golden/golden.h"
#include "support/catch.h"
#include "support/op_cases.h"
#include "support/small_run.h"
#include "support/table_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cstdio>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// FNV-1a of shapes, dtypes and bits; of an error, its text.
class Hash {
 public:
  void add(const Tensor& x) {
    if (!x.defined()) return add("none");
    std::string bytes = str(x.shape(), x.dtype());
    append_bytes(bytes, x);
    add(bytes);
  }
  void add(const std::vector<Tensor>& xs) {
    for (const Tensor& x : xs) add(x);
  }
  void add(std::string_view bytes) {
    for (const char c : bytes) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

template <class F> void line(const std::string& name, F compute) {
  Hash hash;
  try {
    compute(hash);
  } catch (const std::exception& e) { hash.add(e.what()); }
  std::printf("%016llx %s\n", static_cast<unsigned long long>(hash.value()), name.c_str());
}

constexpr DType kFloats[] = {f64, f32, bf16};

void ops() {
  for (const OpCase& row : all_cases()) {
    std::vector<std::vector<Dims>> shapes = shapes_of(row);
    if (!row.large.empty()) shapes.push_back(row.large);
    for (const DType dtype : kFloats)
      line(str("op ", row.name(), " ", dtype), [&](Hash& hash) {
        for (const std::vector<Dims>& s : shapes) {
          const In x = input_tensors(row, input_values(row, s), dtype, !row.flat);
          const Outputs y = row.call(x);
          hash.add(y);
          if (row.flat) continue;
          Rand rand(1);
          std::vector<Tensor> c = random_cotangents(y, rand);
          for (Tensor& t : c) t = to(t, dtype);
          hash.add(library_gradient(row.call, x, c, false));
          hash.add(library_gradient(row.call, x, c, true));
        }
      });
  }
}

void golden() {
  for (const GoldenRun& run : golden_runs())
    for (const DType dtype : {f64, f32})
      line(str("golden ", run.name, ", ", run.results[0].array, run.label, " ", dtype), [&](Hash& hash) {
        for (const auto& [name, got] : layer_check::run_case(run.file, {.dtype = dtype}).tensors)
          hash.add(name), hash.add(got);
      });
}

/// A mask of tokens, bool [2, n]: the second half of the first sequence, and holes in both, are padding.
Tensor holes(int64_t n) {
  std::vector<bool> real;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < n; ++i) real.push_back(b == 0 ? i < n / 2 && i % 5 != 0 : i % 7 != 3);
  return Tensor::from(real, {2, n});
}

void layer(Hash& hash, const LayerSample& s, const LayerInputs& in) {
  const Tensor y = call(*s.layer, in);
  hash.add(y);
  if (y.requires_grad()) hash.add(grad({sum(square(y))}, s.leaves(in), {.allow_unused = true}));
}

void layers() {
  constexpr int64_t n = 33;
  for (const LayerRow& row : layer_table())
    for (const Json& sample : row.samples)
      for (const DType dtype : kFloats) {
        const std::string name = str(row.name, " ", to_text(sample), " ", dtype);
        line("layer " + name, [&](Hash& hash) {
          const LayerSample s = make_sample(row, sample, dtype);
          layer(hash, s, s.inputs(2, n, 1, true));
          if (!s.masks_keys()) return;
          LayerInputs in = s.inputs(2, n, 1, true);
          s.mask_of_keys(in) = holes(n);
          layer(hash, s, in);
        });
        if (row.streams)
          line("stream " + name, [&](Hash& hash) {
            const LayerSample s = make_sample(row, sample, dtype);
            const LayerInputs in = s.inputs(2, n, 1);
            Stream stream;
            for (const Tensor& piece : split(in.x, {1, 1, 1, 2, 1, 7, 1, 19}, 1))
              hash.add(step(*s.layer, piece, stream, stream.length() == 0 ? in.pass() : Pass{}));
          });
      }
}

}  // namespace

TEST_CASE("bits of everything", "[.same_bits]") {
  ops();
  golden();
  layers();
}
