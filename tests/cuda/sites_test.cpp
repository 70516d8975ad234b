// Every barrier, wait and fence in the kernels that these programs reach is needed. Each is left out in turn, in two
// schedules; the emulator must report an error, or the results must change. A call that nobody misses costs time for
// nothing, or guards against what the emulator does not see.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/cuda/device.h>
#include <sluice/cuda/runtime.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/scan/delta_scan.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>

using namespace sluice;
using namespace sluice::testing;
using cuda::emulator::Site;

namespace {

struct Program {
  const char* name;
  std::function<std::vector<Tensor>()> run;
};

Tensor numbers(const Shape& shape, uint64_t seed, DType dtype = f32) {
  Rand rand(seed);
  return to(to(random_tensor(shape, f32, rand, -1, 1), dtype), Device::cuda());
}

/// f of leaves of these shapes, and their gradients.
template <class F> std::vector<Tensor> with_gradients(const std::vector<Shape>& shapes, DType dtype, F f) {
  std::vector<Tensor> xs;
  for (const Shape& shape : shapes) xs.push_back(numbers(shape, xs.size() + 1, dtype).requires_grad_());
  const Tensor y = f(xs);
  std::vector<Tensor> out = grad({y}, xs, {.grad_outputs = {numbers(y.shape(), 99, y.dtype())}});
  out.push_back(y.detach());
  return out;
}

/// Attention on tensor cores; `poisoned`: values of a key in the first tile and of one in the last are NaN, and hidden;
/// and a query of the first tile, which is not.
Program attention_bf16(const char* name, int64_t m, int64_t d, bool poisoned) {
  return {name, [=] {
            const PrecisionScope scope(Precision::bf16);
            const Shape s{1, 1, m, d};
            AttentionOptions o{.scale = 0.2, .mask = {.causal = true}};
            const Tensor at = arange(m), bad = logical_or(at == 9.0, at == static_cast<double>(m - 3));
            if (poisoned) o.mask.keys = to(reshape(logical_not(bad), {1, m}), Device::cuda());
            const Tensor rows = to(reshape(bad, {m, 1}), Device::cuda());
            const Tensor query = to(reshape(at == 12.0, {m, 1}), Device::cuda());
            return with_gradients({s, s, s}, f32, [&](auto& x) {
              if (!poisoned) return attention(x[0], x[1], x[2], o);
              return attention(masked_fill(x[0], query, std::nan("")), x[1], masked_fill(x[2], rows, std::nan("")), o);
            });
          }};
}

Program attention_f32(const char* name, const Shape& q, const Shape& k) {
  return {name, [=] {
            return with_gradients({q, k, k}, f32,
                                  [&](auto& x) { return attention(x[0], x[1], x[2], {.mask = {.causal = true}}); });
          }};
}

/// decay: 0 none, 1 of each head, 2 of each key channel, 3 of each value channel. m: key channels.
Program scan(const char* name, int decay, Precision precision, int64_t m) {
  return {name, [=] {
            const PrecisionScope scope(precision);
            const Shape heads{1, 1, 130}, k{1, 1, 130, m}, v{1, 1, 130, 24};
            std::vector<Shape> shapes{k, k, v};
            if (decay) shapes.push_back(decay == 1 ? heads : decay == 2 ? k : v);
            return with_gradients(shapes, f32, [&](auto& x) {
              return linear_scan(x[0], x[1], x[2], decay ? -square(x[3]) : Tensor(), {.decay_on_values = decay == 3});
            });
          }};
}

/// Two heads of values share the keys' head.
Program delta(const char* name, int decay, Precision precision, int64_t dk) {
  return {name, [=] {
            const PrecisionScope scope(precision);
            const Shape heads{1, 2, 130}, k{1, 1, 130, dk}, of_values{1, 2, 130, dk};
            std::vector<Shape> shapes{k, k, of_values, {1, 2, 130, 24}};
            if (decay) shapes.push_back(decay == 1 ? heads : of_values);
            return with_gradients(shapes, f32, [&](auto& x) {
              return delta_scan(x[0], 0.1 * x[1], 0.1 * x[2], x[3], decay ? -square(x[4]) : Tensor()).out;
            });
          }};
}

std::vector<Program> programs() {
  std::vector<Program> all{
      attention_bf16("attention of 64 columns, bf16", 260, 64, false),
      attention_bf16("attention of 128 columns, bf16", 260, 128, false),
      attention_bf16("attention that hides NaN, bf16", 260, 64, true),
      attention_f32("attention, f32", {1, 2, 70, 40}, {1, 1, 70, 40}),
      attention_f32("attention of few queries, f32", {1, 1, 1, 40}, {1, 1, 700, 40}),
  };
  for (const int decay : {0, 1, 2, 3})
    for (const int64_t channels : {20, 70}) {
      all.push_back(scan("linear_scan, f32", decay, Precision::f32, channels));
      all.push_back(scan("linear_scan, bf16", decay, Precision::bf16, channels));
      if (decay == 3) continue;
      all.push_back(delta("delta_scan, f32", decay, Precision::f32, channels));
      all.push_back(delta("delta_scan, bf16", decay, Precision::bf16, channels));
    }
  all.push_back({"rows", [] {
                   std::vector<Tensor> out;
                   for (const int64_t width : {70, 5000})
                     for (Tensor& y : with_gradients({{9, width}, {width}, {width}}, f32,
                                                     [](auto& x) { return softmax(layer_norm(x[0], x[1], x[2]), -1); }))
                       out.push_back(y);
                   return out;
                 }});
  all.push_back({"losses", [] {
                   const Tensor target = to(arange(9), Device::cuda());
                   return with_gradients({{9, 3000}}, f32, [&](auto& x) { return cross_entropy(x[0], target); });
                 }});
  all.push_back({"sums", [] {
                   const Tensor x = numbers({40, 3000}, 1);
                   return std::vector{sum(x), sum(x, 0), sum(x, 1), max(x, 1), argmax(x, 1), norm(x)};
                 }});
  all.push_back({"running sums", [] {
                   const Tensor x = numbers({3, 9000}, 1);
                   return std::vector{cumsum(x, 1), cumsum(x, 0)};
                 }});
  all.push_back({"order", [] {
                   const auto [values, places] = sort(numbers({2, 3000}, 1), 1);
                   return std::vector{values, places};
                 }});
  all.push_back({"products", [] {
                   return std::vector{matmul(numbers({70, 70}, 1), numbers({70, 70}, 2)),
                                      contiguous(transpose(numbers({200, 200}, 1), 0, 1))};
                 }});
  return all;
}

std::vector<std::vector<unsigned char>> bits_of(const Program& p) {
  *cuda::work_counter() = 0;  // a kernel that failed may have left it
  std::vector<std::vector<unsigned char>> all;
  for (const Tensor& y : p.run()) {
    const Tensor x = contiguous(to(y, cpu));
    const auto* const first = reinterpret_cast<const unsigned char*>(x.raw());
    all.emplace_back(first, first + x.numel() * size_of(x.dtype()));
  }
  return all;
}

/// Calls that results do not need, by a part of their lines.
bool excused(const Site& site) {
  constexpr const char* parts[] = {
      "await_turn",  // sets which of two warpgroups starts its products first, for speed
      "only a grid of 2^31 blocks comes here twice",
  };
  std::ifstream file(site.file);
  std::string line;
  for (int i = 0; i < site.line && std::getline(file, line); ++i) {}
  REQUIRE(file);
  return std::any_of(std::begin(parts), std::end(parts),
                     [&](const char* p) { return line.find(p) != std::string::npos; });
}

}  // namespace

TEST_CASE("cuda emulator: each barrier, wait and fence of the kernels is missed where it is left out", "[cuda]") {
  std::map<std::string, std::string> unnoticed;  // by site
  std::map<std::string, int> caught;
  for (const Program& p : programs()) {
    cuda::emulator::sites_met();
    const auto want = bits_of(p);
    for (const Site& site : cuda::emulator::sites_met()) {
      const std::string file = site.file,
                        name = str(file.substr(file.rfind("/cuda/") + 1), ":", site.line, " ", site.what);
      if (caught.contains(name) || excused(site)) continue;
      int noticed = 0;
      for (const uint64_t seed : {0, 3}) {
        cuda::emulator::set_schedule(seed), cuda::emulator::leave_out(site);
        try {
          noticed += bits_of(p) != want;
        } catch (const Error&) { ++noticed; }
        cuda::emulator::set_schedule(0), cuda::emulator::leave_out({});
      }
      if (noticed == 2) ++caught[name], unnoticed.erase(name);
      else unnoticed[name] += str(" (", p.name, ": ", noticed, " of 2)");
    }
    CHECK(bits_of(p) == want);
  }
  for (const auto& [site, where] : unnoticed) FAIL_CHECK(site << " is not missed" << where);
  CHECK(caught.size() >= 120);
}
