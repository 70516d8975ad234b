// Optimisers: SGD, RMSprop, Adam(W), LAMB, Lion and Muon.
//
//   Adam adam(parameters(model), {.lr = 3e-4, .weight_decay = 0.1});
//   adam.zero_grad(); backward(loss); clip_grad_norm(adam.parameters(), 1); adam.step();
//
// An update is one pass over memory that reads gradients, parameters and moments, and writes parameters and moments.
// LAMB needs a second pass for its norms. On a GPU few launches update all parameters; only Muon's matrices take some
// ops each. Scalars are computed in f64 and rounded once to the parameter's dtype. Results do not depend on the number
// of threads. Parameters of bf16 have masters in f32 (optimizer.h).
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/layers/train/optimizer.h>

#include <limits>
#include <vector>

namespace sluice {

struct SgdOptions {
  double lr = std::numeric_limits<double>::quiet_NaN();  // must be given
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  ParameterFilter decay = {};   // which parameters decay; empty: all
  ParameterGroups groups = {};  // parameters with their own rates

  static void describe(auto& o, auto& f) {
    f("lr", o.lr, at_least(0), "learning rate; must be given");
    f("momentum", o.momentum, probability(), "of the mean of gradients");
    f("nesterov", o.nesterov, "step along d + momentum*b");
    f("weight_decay", o.weight_decay, at_least(0), "pulls weights to 0");
  }
};

/// Stochastic gradient descent: d = g + weight_decay·w; b ← momentum·b + d; w ← w − lr·b. With nesterov the step is
/// along d + momentum·b (Sutskever et al. 2013). Throws ValueError unless 0 <= momentum < 1, weight_decay >= 0, and
/// momentum > 0 with nesterov.
class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<NamedTensor> parameters, SgdOptions options);
  Sgd(std::vector<Tensor> parameters, SgdOptions options) : Sgd(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  bool recordable() const override { return true; }
  SgdOptions options_;
};

struct RmsPropOptions {
  double lr = 1e-2;
  double alpha = 0.99;  // of both means
  double eps = 1e-8;
  double momentum = 0;
  bool centered = false;  // divide by the deviation of gradients from their mean
  double weight_decay = 0;
  ParameterFilter decay = {};   // which parameters decay; empty: all
  ParameterGroups groups = {};  // parameters with their own rates

  static void describe(auto& o, auto& f) {
    f("lr", o.lr, at_least(0), "learning rate");
    f("alpha", o.alpha, probability(), "of the means of gradients and of their squares");
    f("eps", o.eps, at_least(0), "added to the root");
    f("momentum", o.momentum, probability(), "of the mean of updates");
    f("centered", o.centered, "divide by the deviation of gradients from their mean");
    f("weight_decay", o.weight_decay, at_least(0), "pulls weights to 0");
  }
};

/// RMSprop (Tieleman & Hinton 2012) as PyTorch has it:
///   d = g + weight_decay·w;  v ← alpha·v + (1−alpha)·d²;  u = d/(√v + eps);  b ← momentum·b + u;  w ← w − lr·b
/// If centered, m ← alpha·m + (1−alpha)·d, and √(v − m²) is in place of √v. Throws ValueError unless 0 <= alpha < 1,
/// 0 <= momentum < 1, eps >= 0 and weight_decay >= 0.
class RmsProp final : public Optimizer {
 public:
  RmsProp(std::vector<NamedTensor> parameters, RmsPropOptions options = {});
  RmsProp(std::vector<Tensor> parameters, RmsPropOptions options = {})
      : RmsProp(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  bool recordable() const override { return true; }
  RmsPropOptions options_;
};

namespace detail {
/// The options that Adam, LAMB and Muon share.
void describe_moments(auto& o, auto& f) {
  f("lr", o.lr, at_least(0), "learning rate");
  f("beta1", o.beta1, probability(), "of the mean of gradients");
  f("beta2", o.beta2, probability(), "of the mean of their squares");
  f("eps", o.eps, at_least(0), "added to the root");
  f("weight_decay", o.weight_decay, at_least(0), "pulls weights to 0");
}
}  // namespace detail

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;              // AdamW; false adds weight_decay·w to the gradient
  ParameterFilter decay = is_matrix;  // which parameters decay
  ParameterGroups groups = {};        // parameters with their own rates

  static void describe(auto& o, auto& f) {
    detail::describe_moments(o, f);
    f("decoupled", o.decoupled, "AdamW; false adds weight_decay*w to the gradient");
  }
};

/// Adam (Kingma & Ba 2015), by default with decoupled weight decay (AdamW, Loshchilov & Hutter 2019):
///   m ← β1·m + (1−β1)·g;  v ← β2·v + (1−β2)·g²;  t: number of updates of this parameter
///   w ← (1 − lr·weight_decay)·w − lr · m/(1−β1^t) / (√(v/(1−β2^t)) + eps)
/// Throws ValueError unless 0 <= beta < 1, eps >= 0 and weight_decay >= 0.
class Adam final : public Optimizer {
 public:
  Adam(std::vector<NamedTensor> parameters, AdamOptions options = {});
  Adam(std::vector<Tensor> parameters, AdamOptions options = {})
      : Adam(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  bool recordable() const override { return true; }
  AdamOptions options_;
};

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0;
  bool bias_correction = true;
  ParameterFilter decay = is_matrix;  // which parameters decay
  ParameterGroups groups = {};        // parameters with their own rates
  ParameterFilter adapt = {};         // which parameters use the trust ratio; empty: all

  static void describe(auto& o, auto& f) {
    detail::describe_moments(o, f);
    f("bias_correction", o.bias_correction, "of both means");
  }
};

/// LAMB (You et al. 2020, algorithm 2), one trust ratio per tensor:
///   u = m̂ / (√v̂ + eps) + weight_decay·w;  w ← w − lr · ‖w‖/‖u‖ · u
/// m̂ and v̂ are those of Adam; without bias correction m and v. The ratio is 1 where a norm is 0 or not finite. Throws
/// ValueError as Adam does.
class Lamb final : public Optimizer {
 public:
  Lamb(std::vector<NamedTensor> parameters, LambOptions options = {});
  Lamb(std::vector<Tensor> parameters, LambOptions options = {})
      : Lamb(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  bool recordable() const override { return true; }
  LambOptions options_;
  std::vector<bool> adapted_;
};

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;   // of the update
  double beta2 = 0.99;  // of the mean of gradients
  double weight_decay = 0;
  ParameterFilter decay = is_matrix;  // which parameters decay
  ParameterGroups groups = {};        // parameters with their own rates

  static void describe(auto& o, auto& f) {
    f("lr", o.lr, at_least(0), "learning rate");
    f("beta1", o.beta1, probability(), "of the update");
    f("beta2", o.beta2, probability(), "of the mean of gradients");
    f("weight_decay", o.weight_decay, at_least(0), "pulls weights to 0");
  }
};

/// Lion (Chen et al. 2023), whose updates are signs, so that its lr is a third to a tenth of Adam's:
///   u = sign(β1·m + (1−β1)·g);  w ← (1 − lr·weight_decay)·w − lr·u;  m ← β2·m + (1−β2)·g
/// Throws ValueError unless 0 <= beta < 1 and weight_decay >= 0.
class Lion final : public Optimizer {
 public:
  Lion(std::vector<NamedTensor> parameters, LionOptions options = {});
  Lion(std::vector<Tensor> parameters, LionOptions options = {})
      : Lion(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  bool recordable() const override { return true; }
  LionOptions options_;
};

struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;  // of matrices
  bool nesterov = true;
  double rms = 0.2;        // of an update of a matrix, in units of lr; Adam's is about 0.2
  int64_t iterations = 5;  // of Newton and Schulz
  double beta1 = 0.9;      // beta1, beta2, eps: of Adam, for all that is no matrix
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  ParameterFilter matrices = is_matrix;  // which parameters get orthogonal updates; empty: none
  ParameterFilter decay = is_matrix;     // which parameters decay
  ParameterGroups groups = {};           // parameters with their own rates

  static void describe(auto& o, auto& f) {
    detail::describe_moments(o, f);
    f("momentum", o.momentum, probability(), "of the mean of a matrix's gradients");
    f("nesterov", o.nesterov, "orthogonalise g + momentum*b");
    f("rms", o.rms, at_least(0), "of an update of a matrix, in units of lr");
    f("iterations", o.iterations, at_least(1), "of Newton and Schulz");
  }
};

/// Muon (Jordan et al. 2024, with the scale of Liu et al. 2025, "Muon is scalable for LLM training"): the update of a
/// matrix [n, m] is its momentum with all singular values near 1,
///   b ← momentum·b + g;  u = g + momentum·b (nesterov; else b)
///   w ← (1 − lr·weight_decay)·w − lr · rms·√max(n, m) · newton_schulz(u)
/// and all other parameters follow Adam with the same lr. `matrices` should leave out embeddings and the output head:
///
///   Muon muon(parameters(model), {.matrices = [](const NamedTensor& p) {
///     return is_matrix(p) && !p.name.starts_with("embed") && !p.name.starts_with("head"); }});
///
/// Of more than two dims (experts) the last two are the matrix. Throws ValueError as Adam does, and for a matrix of
/// rank below 2. A GraphedStep makes its steps outside the recording.
class Muon final : public Optimizer {
 public:
  Muon(std::vector<NamedTensor> parameters, MuonOptions options = {});
  Muon(std::vector<Tensor> parameters, MuonOptions options = {})
      : Muon(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  MuonOptions options_;
  std::vector<bool> orthogonal_;
};

/// U·Vᵀ of g = U·Σ·Vᵀ, nearly: singular values above 0.002 of g's Frobenius norm become 0.68 to 1.21 after five
/// iterations of x ← 3.4445·x + (−4.775·a + 2.0315·a²)·x, a = x·xᵀ, from x = g/‖g‖. g [..., n, m] with a norm of
/// 10⁻⁷ to 10¹⁹; zero stays zero.
Tensor newton_schulz(const Tensor& g, int64_t iterations = 5);

}  // namespace sluice
