// A residual connection of several streams: a block reads a mixture of them, and each takes the block's result with a
// weight of its own. For H_i, i < s, the rows [dim] of h [..., s·dim],
//
//   x = Σ_i pre_i ⊙ H_i      y = F(x)      H_i ← post_i·y + Σ_j M_ji H_j
//
// `doubly_stochastic`: hyper-connections (Zhu et al. 2024) whose M has rows and columns that sum to 1, so that streams
// neither grow nor vanish with depth (Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections"; DeepSeek-V4):
//
//   u = RMS(h)·F [2s + s²]      pre = σ(a_0·u_0 + b_0) + ε      post = 2σ(a_1·u_1 + b_1)
//   M = softmax of the rows of a_2·u_2 + b_2, + ε; then columns, rows, columns, … are divided by their sums + ε
//
// `gated`: M = 1, and a stream's part is gated by channels (Qwen4):
//
//   u_i = RMS(H_i) ⊙ w_i      x = mean_i σ(silu(u·W↓/s)·W↑)_i ⊙ u_i      post = 2σ(u·W/s)
//
// Weights that stay f32 beside h of bf16, as in DeepSeek-V4, mix in f32.
//
// To begin a model, repeat one stream s times: repeat(x, s, -1). The mean of the streams, or a connection that only
// reads, ends it.
#pragma once

#include <sluice/layers/nn/linear.h>

#include <concepts>
#include <string_view>
#include <utility>

namespace sluice {

enum class HyperKind { doubly_stochastic, gated };
constexpr const char* choices(HyperKind) { return "doubly_stochastic gated"; }

struct HyperConnectionOptions {
  using Layer = struct HyperConnection;
  int64_t dim;          // of a stream
  int64_t streams = 4;  // s
  HyperKind kind = HyperKind::doubly_stochastic;
  int64_t iterations = 20;  // number of divisions by the sums of columns
  double eps = 1e-6;        // ε
  double norm_eps = 1e-6;
  int64_t rank = 0;  // of W↓; 0 means dim/4, at least 1
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of a stream");
    f("streams", o.streams, at_least(1), "s");
    f("kind", o.kind, "how streams are read and mixed");
    f("iterations", o.iterations, between(1, 100000), "of doubly_stochastic: divisions by the sums of columns");
    f("eps", o.eps, at_least(0), "added to pre, M and its sums");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("rank", o.rank, at_least(0), "of gated: the width between its maps; 0: dim/4");
    describe_parameters(o, f);
  }
};

/// Initially doubly_stochastic is close to the ordinary residual: x is the mean of the streams, post is 1 and M near 1.
struct HyperConnection {
  static constexpr const char* type = "HyperConnection";
  static constexpr bool keeps_f32(std::string_view part) { return part == "base" || part == "scale"; }

  HyperConnectionOptions options{};
  Linear map;  // F, s·dim → 2s + s², after read_only() → s; of gated W, s·dim → s, absent after read_only()
  Tensor base, scale;  // b [2s + s²], a [3], after read_only() [s], [1], of dtype exact(dtype); absent in gated
  Tensor weight;       // w [s·dim] of gated
  Linear down, up;     // W↓ and W↑ of gated, s·dim → rank → s·dim

  HyperConnection() = default;
  HyperConnection(HyperConnectionOptions o, Rng& rng);
  /// Removes what only write() needs.
  void read_only();

  /// The input of a block, and what write() needs to add the block's result.
  struct Reading {
    Tensor x;     // [..., dim]
    Tensor kept;  // Σ_j M_ji H_j, [..., s, dim]
    Tensor post;  // [..., s, 1]; undefined after read_only()
  };
  /// For h [..., s·dim]. Throws ShapeError for another width.
  Reading read(const Tensor& h) const;
  /// The streams [..., s·dim] after a block whose result is y [..., dim].
  Tensor write(const Reading& reading, const Tensor& y) const;
  /// read(), the branch and write() in one: connection(h, [&](const Tensor& x) { return attention(norm(x)); }).
  template <std::invocable<const Tensor&> Branch> Tensor operator()(const Tensor& h, Branch&& branch) const {
    ModuleScope scope(this, type);
    const Reading reading = read(h);
    return write(reading, Tensor(std::forward<Branch>(branch)(reading.x)));
  }
  SLUICE_PARTS(map, base, scale, weight, down, up);
};

}  // namespace sluice
