// A slot finds its device from its arguments, whatever holds the tensors; errors name the op.
#include <sluice/core/kernel/kernel.h>

#include "support/catch.h"

#include <sluice/ops/shape/create.h>

#include <array>
#include <span>

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
