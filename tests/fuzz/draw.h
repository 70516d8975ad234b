// Hostile arguments. One Draw serves one call of an op: what it draws fits together more often than not, so that calls
// get past the first check, and each argument can still be anything its type allows.
#pragma once

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/scan/scan.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

namespace sluice::testing {

class Draw {
 public:
  explicit Draw(uint64_t seed);

  /// What was drawn so far, for the report of a failure.
  const std::string& log() const { return log_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }

  double real(double lo, double hi) { return std::uniform_real_distribution<double>(lo, hi)(random_); }
  bool chance(double p) { return real(0, 1) < p; }
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  template <class T> T one_of(std::initializer_list<T> xs) {
    return xs.begin()[below(static_cast<int64_t>(xs.size()))];
  }

  int64_t size();     // 0 … 5, now and then some tens
  int64_t hostile();  // at the edges of int64
  DType dtype();

  /// A tensor of that shape, or rarely another one; of any layout, now and then with NaN, and undefined once in a
  /// while.
  Tensor tensor(Shape shape, std::optional<DType> dtype = std::nullopt);

  // An argument by its type: `auto x = draw.get<Shape>();`
  template <class T> T get() {
    T x{};
    fill(x);
    return x;
  }

 private:
  void fill(Tensor& x);
  void fill(Shape& x);
  void fill(int64_t& x);
  void fill(double& x);
  void fill(bool& x) { note("bool", x = chance(0.5)); }
  template <class T> void fill(std::optional<T>& x) {
    if (chance(0.7)) x = get<T>();
  }
  void fill(std::vector<int64_t>& x);
  void fill(std::vector<Tensor>& x);
  void fill(Device& x) { note("device", x = chance(0.9) ? cpu : meta); }
  void fill(DType& x) { note("dtype", x = dtype()); }
  void fill(TensorOptions& x);
  void fill(Act& x) { x = static_cast<Act>(below(15)); }
  void fill(Reduction& x) { x = static_cast<Reduction>(below(3)); }
  void fill(ScaleNormForm& x) { x = static_cast<ScaleNormForm>(below(2)); }
  void fill(CrossEntropyOptions& x);
  void fill(RopeOptions& x);
  void fill(T5BucketOptions& x);
  void fill(CumsumOptions& x) { x = {chance(0.5), chance(0.5)}; }
  void fill(LinearScanOptions& x);

  Shape shape();
  Tensor values(const Shape& shape, DType dtype);
  template <class T> void note(const char* what, const T& x) { log_ += str(log_.empty() ? "" : ", ", what, " ", x); }

  std::mt19937_64 random_;
  std::string log_;
  std::vector<Tensor> tensors_;
  DType family_;  // the dtype most tensors of this call have
};

/// The operands of an attention call: sizes that belong together.
struct DrawnAttention {
  int64_t batch, heads, kv_heads, m, n, d, dv;
  Tensor q, k, v;
  AttentionOptions options;
  AttentionMask mask;
  explicit DrawnAttention(Draw& draw);
};

}  // namespace sluice::testing
