// Every row forward: against its reference in f64 and f32, for any memory layout, and leaving its inputs alone.
#include "support/catch.h"
#include "support/layouts.h"
#include "support/op_cases.h"
#include "support/op_table.h"

#include <sluice/autograd/engine.h>

#include <algorithm>
#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kEps32 = 0x1p-23;

std::string text_of(const std::vector<Dims>& shapes) {
  std::string s;
  for (const Dims& d : shapes) s += str(" ", shape_of(d));
  return s;
}

void check_against_reference(const OpCase& row, const std::vector<Dims>& shapes, DType dtype) {
  const double tolerance = dtype == f64 ? 1e-12 : row.ulps * kEps32;
  const Arrays values = input_values(row, shapes);
  const Expected expected = row.reference(values);
  const auto allowed = allowed_errors(row, values, expected, tolerance);
  const Outputs got = row.call(input_tensors(row, values, dtype));
  INFO(row.name() << " " << name_of(dtype) << text_of(shapes));
  REQUIRE(got.size() == expected.size());
  for (std::size_t o = 0; o < got.size(); ++o) {
    CHECK(str(got[o].shape()) == str(shape_of(expected[o].shape)));
    if (got[o].shape() != shape_of(expected[o].shape)) continue;
    const Closeness c = all_close(got[o].to_vector<double>(), expected[o].v, allowed[o]);
    INFO("output " << o << ", " << c.text);
    CHECK(c);
    double largest = 0, loosest = 0;
    for (double v : expected[o].v)
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
    for (double a : allowed[o])
      if (std::isfinite(a)) loosest = std::max(loosest, a);
    if (dtype == f64) {
      note_check(row.op, Column::reference, largest > 0 ? c.error / largest : c.error, bool(c));
    } else {
      note_check(row.op, Column::f32, c.used, bool(c));
      INFO("allowed " << loosest << " of " << largest);
      CHECK(loosest <= 1e-3 * largest);  // no tolerance may hide a wrong sign or factor
    }
  }
}

/// The row's outputs, then its first-order gradients, whose cotangents are stored as told.
std::vector<Tensor> run(const OpCase& row, const In& leaves, Storing how = Storing::plain) {
  std::vector<Tensor> all;
  const Outputs y = row.call(leaves);
  all.insert(all.end(), y.begin(), y.end());
  if (row.flat) return all;
  Rand rand(3);
  auto cotangents = random_cotangents(y, rand);
  for (Tensor& c : cotangents) c = stored(c, how);
  const auto g = library_gradient(row.call, leaves, cotangents);
  all.insert(all.end(), g.begin(), g.end());
  return all;
}

void check_same(const OpCase& row, const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("result " << i << ": " << max_abs_diff(got[i], want[i]) << " apart");
    if (row.bitwise) CHECK(same_bits(got[i], want[i]));
    else  // in f32 either of the two may be off by row.ulps
      CHECK(all_close(got[i], want[i],
                      got[i].dtype() == f64    ? 1e-14
                      : got[i].dtype() == bf16 ? 0x1p-7
                                               : 2 * row.ulps * kEps32,
                      max_abs(want[i])));
  }
}

}  // namespace

TEST_CASE("op cases: forward equals the reference", "[ops][cases]") {
  for_each_row([](const OpCase& row) {
    for (const auto& shapes : shapes_of(row)) {
      check_against_reference(row, shapes, f64);
      check_against_reference(row, shapes, f32);
    }
  });
}

TEST_CASE("op cases: results do not depend on the memory layout", "[ops][cases]") {
  for_each_row([](const OpCase& row) {
    auto shapes = shapes_of(row);
    std::erase_if(shapes, [](const auto& s) { return !s.empty() && count(s[0]) > 600; });
    for (DType dtype : {f32, f64, bf16})
      for (const auto& s : shapes) {
        const In plain = input_tensors(row, input_values(row, s), dtype, !row.flat);
        const auto want = run(row, plain);
        for (Storing how : {Storing::permuted, Storing::gapped, Storing::reversed, Storing::offset}) {
          INFO(name_of(how) << text_of(s));
          In other;
          for (const Tensor& x : plain) other.push_back(stored(x, how));
          check_same(row, run(row, other, how), want);
        }
      }
  });
}

TEST_CASE("op cases: expanded inputs equal their copies", "[ops][cases]") {
  for_each_row([](const OpCase& row) {
    for (DType dtype : {f32, f64, bf16}) {
      const In plain = input_tensors(row, input_values(row, {}), dtype, !row.flat);
      for (std::size_t k = 0; k < plain.size(); ++k)
        for (int d = 0; d < plain[k].rank(); ++d) {
          INFO("input " << k << " repeats along dim " << d);
          In expanded = fresh_leaves(plain), copies = fresh_leaves(plain);
          expanded[k] = repeated(plain[k], d);
          copies[k] = fresh_leaves({expanded[k]})[0];
          check_same(row, run(row, expanded), run(row, copies));
        }
    }
  });
}

TEST_CASE("op cases: inputs and their surroundings are left alone", "[ops][cases]") {
  for_each_row([](const OpCase& row) {
    for (DType dtype : {f32, f64, bf16}) {
      const In plain = input_tensors(row, input_values(row, {}), dtype, !row.flat);
      In guarded;
      for (const Tensor& x : plain) guarded.push_back(stored(x, Storing::offset));
      std::vector<std::vector<std::byte>> bytes;
      std::vector<uint32_t> versions;
      for (const Tensor& x : guarded) {
        bytes.push_back(storage_bytes(x));
        versions.push_back(x.version());
      }
      run(row, guarded);
      for (std::size_t k = 0; k < guarded.size(); ++k) {
        INFO("input " << k);
        CHECK(guarded[k].version() == versions[k]);
        CHECK(bool(storage_bytes(guarded[k]) == bytes[k]));
      }
    }
  });
}

TEST_CASE("op cases: NoGrad and plain inputs leave no history", "[ops][cases]") {
  for_each_row([](const OpCase& row) {
    const Arrays values = input_values(row, {});
    for (const Tensor& y : row.call(input_tensors(row, values, f32))) CHECK_FALSE(y.requires_grad());
    if (row.flat) return;
    const In leaves = input_tensors(row, values, f32, true);
    NoGrad guard;
    for (const Tensor& y : row.call(leaves)) {
      bool is_input = false;
      for (const Tensor& x : leaves) is_input |= x.ref() == y.ref();
      if (!is_input) CHECK_FALSE(y.requires_grad());
    }
  });
}
