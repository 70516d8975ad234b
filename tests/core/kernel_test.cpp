// A slot finds its device from its arguments, whatever holds the tensors; errors name the op.
#include <sluice/core/kernel/kernel.h>

#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <array>
#include <span>
#include <utility>

using namespace sluice;

namespace {

int calls = 0;

struct Pair {
  Tensor a, b;
  void each_tensor(auto f) const { f(a), f(b); }
};
struct Nested {
  const Pair& pair;
  Tensor c;
  void each_tensor(auto f) const { f(pair), f(c); }
};

const Kernel<void(const Tensor&, Tensor&)> plain{"plain", [](const Tensor&, Tensor&) { ++calls; }};
const Kernel<void(const Nested&, int)> nested{"nested", [](const Nested&, int) { ++calls; }};
const Kernel<void(std::span<const Tensor>, const Tensor*)> ranges{
    "ranges", [](std::span<const Tensor>, const Tensor*) { ++calls; }};
const Kernel<void(Device, const Tensor&)> placed{"placed", [](Device, const Tensor&) { ++calls; }};
Shape read_strides, written_strides;
const Kernel<void(const Tensor&, Tensor&)> copied{"copied", [](const Tensor& x, Tensor& y) {
                                                    read_strides = x.strides(), written_strides = y.strides();
                                                    detail::copy_elements(x, y);
                                                  }};
const Kernel<double(const Tensor&)> value{"value", [](const Tensor& x) { return static_cast<double>(x.numel()); }};

/// Whether f reaches the CPU kernel.
template <class F> bool runs(F f) {
  const int before = calls;
  f();
  return calls == before + 1;
}

}  // namespace

TEST_CASE("kernel: the device comes from tensors, pointers, ranges and structs", "[kernel]") {
  Tensor x = ones({2}), m = ones({2}, {f32, meta}), none;
  CHECK(runs([&] { plain(x, x); }));
  CHECK(runs([&] { plain(none, x); }));
  CHECK_FALSE(runs([&] { plain(none, m); }));
  CHECK(runs([&] { nested({Pair{none, x}, none}, 1); }));
  CHECK_FALSE(runs([&] { nested({Pair{none, m}, none}, 1); }));
  const std::array<Tensor, 2> here{x, x}, there{m, m};
  CHECK(runs([&] { ranges(here, nullptr); }));
  CHECK_FALSE(runs([&] { ranges(there, &m); }));
  CHECK(runs([&] { placed(cpu, m); }));  // the device that is named decides
  CHECK(value(x) == 2);

  CHECK_THROWS_WITH(plain(x, m), "plain: operands on cpu and meta; move them with to(x, device)");
  CHECK_THROWS_AS(nested({Pair{none, x}, m}, 1), DeviceError);
  CHECK_THROWS_AS(ranges(here, &m), DeviceError);
  CHECK_THROWS_WITH(value(m), "value: a tensor on meta has no values");
}

TEST_CASE("kernel: an empty slot names op and device; a backend fills it", "[kernel]") {
  Kernel<void(Device, const Tensor&)> slot{"rotate", nullptr};
  const Tensor x = ones({2});
  CHECK_THROWS_WITH(slot(cpu, x), "rotate: no kernel for cpu");
  CHECK_THROWS_WITH(slot({DeviceKind::cuda, 1}, x), "rotate: no kernel for cuda:1");
  slot.install(DeviceKind::cuda, [](Device, const Tensor&) { ++calls; });
  CHECK(runs([&] { slot({DeviceKind::cuda, 1}, x); }));
}

TEST_CASE("kernel: denormals are flushed in all of a kernel, and the caller's mode comes back", "[kernel]") {
  static volatile float tiny = 1e-30f;
  const Kernel<void(Tensor&)> product{"product", [](Tensor& y) { *y.mutable_data<float>() = tiny * 1e-10f; }};
  Tensor y = ones({});
  product(y);
  CHECK(y.item() == 0);
  CHECK(tiny * 1e-10f > 0);
  set_flush_denormals(false);
  product(y);
  set_flush_denormals(true);
  CHECK(y.item() > 0);
}

TEST_CASE("kernel: f32 copies of bf16 lie in the order of the operands", "[kernel][bf16]") {
  const Tensor x = to(reshape(arange(192), {2, 3, 4, 8}), bf16);
  const auto heads = [](const Tensor& rows) { return transpose(rows, 1, 2); };
  const Tensor repeated = expand(narrow(x, 0, 0, 1), x.shape());
  const std::pair<Tensor, Shape> cases[] = {{heads(x), {96, 8, 32, 1}},
                                            {heads(narrow(x, 3, 2, 5)), {60, 5, 20, 1}},  // rows without gaps
                                            {narrow(x, 2, 1, 2), {48, 16, 8, 1}},
                                            {transpose(x, 2, 3), {96, 32, 4, 1}},  // its rows are not contiguous
                                            {repeated, {96, 32, 8, 1}}};
  for (const auto& [given, strides] : cases) {
    Tensor into = heads(full({2, given.dim(2), given.dim(1), given.dim(3)}, 7.0, {bf16}));
    copied(given, into);
    CHECK(read_strides == strides);
    CHECK(written_strides == into.strides());
    CHECK(into.to_vector() == given.to_vector());
  }
}
