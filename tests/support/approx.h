// Comparing tensors, and derivatives by differences. Independent of the library's own gradcheck and
// random numbers.
#pragma once

#include <sluice/core/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace sluice::testing {

/// A tiny generator (splitmix64), so that tests do not depend on core/random.
class Rand {
 public:
  explicit Rand(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform(double lo, double hi) { return lo + (hi - lo) * (static_cast<double>(bits() >> 11) * 0x1p-53); }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

/// Where tests put their tensors: cpu, or the first GPU with SLUICE_TEST_DEVICE=cuda in the environment.
Device test_device();

/// Uniform values that f32 can represent, so that f32 and f64 runs see the same numbers.
Tensor random_tensor(const Shape& shape, DType dtype, Rand& rand, double lo = -1, double hi = 1);
/// Values in a new contiguous tensor of any dtype.
Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype, Device device = test_device());

/// Largest |a − b|, or |a|; NaN, which no bound admits, for a NaN, an infinite difference, or two shapes.
double max_abs_diff(const Tensor& a, const Tensor& b);
double max_abs(const Tensor& a);
/// ‖got − want‖ / ‖want‖ over all elements, in f64 on the CPU; ‖got‖ where `want` is 0. A tensor of which one head is
/// wrong is about 1 off, one with the wrong sign 2. NaN, which no bound admits, for a NaN or two shapes.
double relative_distance(const Tensor& got, const Tensor& want);
/// True when shape, dtype and every bit agree.
bool same_bits(const Tensor& a, const Tensor& b);
/// The same, but a NaN is like every other: its bits differ from device to device.
bool same_numbers(const Tensor& a, const Tensor& b);

/// How far `got` is from `want`, in units of what is allowed: <= 1 passes. `used` is the slack report.
struct Closeness {
  double used = 0;   // largest error / allowed
  double error = 0;  // largest error
  std::string text;  // where the worst error is
  explicit operator bool() const { return used <= 1; }
};
/// |got − want| <= tolerance · (|want| + scale), elementwise.
Closeness all_close(const Tensor& got, const Tensor& want, double tolerance, double scale = 1);
Closeness all_close(const std::vector<double>& got, const std::vector<double>& want,
                    const std::vector<double>& allowed);

using TensorFn = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Copies of xs as leaves: those float ones that require a gradient require it again.
std::vector<Tensor> fresh_leaves(const std::vector<Tensor>& xs);

/// d<f(xs), cotangents>/dx for every x that requires a gradient, by the library: zeros where the
/// outputs do not depend on it. `cotangents` has one entry per float output of f.
std::vector<Tensor> library_gradient(const TensorFn& f, const std::vector<Tensor>& xs,
                                     const std::vector<Tensor>& cotangents, bool create_graph = false);

/// The same by fourth-order central differences in f64, computed on cpu:
/// f' ≈ (f(x−2h) − 8f(x−h) + 8f(x+h) − f(x+2h)) / 12h, error O(h⁴) + O(ε/h).
std::vector<Tensor> central_difference(const TensorFn& f, const std::vector<Tensor>& xs,
                                       const std::vector<Tensor>& cotangents, double h = 1e-3);

/// A random cotangent for every float output.
std::vector<Tensor> random_cotangents(const std::vector<Tensor>& outputs, Rand& rand);

}  // namespace sluice::testing
