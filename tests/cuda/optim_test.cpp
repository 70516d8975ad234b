// Optimisers and clipping on the device against the CPU: more tensors than a launch takes, one element more than a
// piece of one, gradients of bf16 with their masters.
#include "cuda/against_cpu.h"

#include <sluice/ops/optim_kernels.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("cuda: steps of the optimisers, and clipping") {
  const auto all_of = [](std::initializer_list<std::vector<Tensor>> lists) {
    std::vector<Tensor> all;
    for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
  };
  const auto each = [](const std::vector<int64_t>& sizes, DType t, Device d, uint64_t seed) {
    std::vector<Tensor> list;
    for (int64_t n : sizes) list.push_back(values({n}, t, d, ++seed * 7));
    return list;
  };
  std::vector<int64_t> many(67, 3);  // more than one launch takes
  many[5] = 0, many[63] = 4097, many[66] = 1;
  for (DType t : {f32, f64, bf16})
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {257, 4096, 1, 0}, {0, 8193, 12289}, many}) {
      INFO(str(t) << ", " << sizes.size() << " tensors");
      const DType wide = t == bf16 ? f32 : t;
      const auto state = [&](Device d) {  // gradients of bf16 belong to masters
        UpdatedTensors x{
            each(sizes, wide, d, 1), each(sizes, t, d, 2), each(sizes, wide, d, 3), each(sizes, wide, d, 4), {}, {}};
        for (Tensor& v : x.v) v = v + 1.5;
        if (t == bf16) x.rounded = each(sizes, bf16, d, 5);
        return x;
      };
      const auto agree = [&](auto step, double ulps) {
        check(
            [&](Device d) {
              UpdatedTensors x = state(d);
              step(x);
              return all_of({x.w, x.m, x.v, x.u});
            },
            ulps);
        if (t != bf16) return;
        for (Device d : {cpu, Device::cuda()}) {
          UpdatedTensors x = state(d);
          step(x);
          for (std::size_t i = 0; i < sizes.size(); ++i)
            CHECK(same_bits(to(x.rounded[i], cpu), to(to(x.w[i], cpu), bf16)));
        }
      };
      for (int form : {0, 1, 2})
        agree(
            [&](UpdatedTensors& x) {
              x.v.clear();
              if (form == 0) x.m.clear();
              kernel::sgd({0.1, 0.9, 0.01, form == 2}, x);
            },
            4);
      agree([](UpdatedTensors& x) { kernel::adam({0.9, 0.99, 1e-3, 0.1, 1.25, 1e-2, 1e-3}, x); }, 8);
      for (bool centered : {false, true})
        for (bool momentum : {false, true})
          agree(
              [&](UpdatedTensors& x) {
                if (!centered) x.m.clear();
                for (Tensor& v : x.v) v = v + 1.0;  // well above m²
                if (momentum) x.u = each(sizes, wide, x.w[0].device(), 10);
                kernel::rmsprop({0.9, 1e-3, momentum ? 0.5 : 0.0, 0.1, 1e-2, centered}, x);
              },
              12);
      agree(
          [](UpdatedTensors& x) {
            x.v.clear();
            kernel::lion({0.9, 0.99, 0.1, 1e-2}, x);
          },
          4);
      for (bool adapt : {false, true})
        agree([&](UpdatedTensors& x) { kernel::lamb({0.9, 0.99, 1e-3, 0.1, 1.5, 1.25, 1e-2, adapt}, x); }, 12);
      check(
          [&](Device d) {
            std::vector<Tensor> x = each(sizes, t, d, 6);
            x.push_back(values({5}, f64, d, 7));  // of any dtype, together
            Tensor total = full({}, 0.25, {f64, d});
            kernel::sum_squares(x, total);
            return std::vector{total};
          },
          1000);
      for (double other : {kNan, kInf, -kInf})
        check([&](Device d) {
          std::vector<Tensor> x = each(sizes, t, d, 8);
          x.push_back(values({300}, f32, d, 9, {{299, other}}));
          kernel::clip_grad(x, full({}, 16, {f64, d}), 3, 0.5);
          kernel::clip_grad(x, Tensor(), 0, 0.25);
          return x;
        });
      for (const double squares : {16.0, 9.0, kInf, kNan})  // a norm of 4 is brought to 3, others stay
        check([&](Device d) {
          std::vector<Tensor> x = each(sizes, t, d, 8);
          kernel::clip_grad(x, full({}, squares, {f64, d}), 3, kInf);
          const std::vector<Tensor> before = each(sizes, t, d, 8);
          for (std::size_t i = 0; i < x.size(); ++i)
            CHECK((x[i].numel() == 0 || same_bits(to(x[i], cpu), to(before[i], cpu))) ==
                  (x[i].numel() == 0 || squares != 16));
          return x;
        });
    }
  check(
      [&](Device d) {  // nothing to adapt to
        UpdatedTensors x{{zeros({40}, {f32, d})},
                         {values({40}, f32, d, 1)},
                         {zeros({40}, {f32, d})},
                         {zeros({40}, {f32, d})},
                         {},
                         {}};
        kernel::lamb({0.9, 0.99, 1e-3, 0.1, 1.5, 1.25, 1e-2, true}, x);
        return x.w;
      },
      8);
}
