// A call of a layer: what it brings besides x, and where its tokens stand. They are the whole sequence, a piece of one
// that is split over ranks (parallel/sequence.h), or the continuation of a stream.
//
//   Tensor y = layer(x, {.key_mask = mask, .rng = &rng});
//
//   Stream stream;                             // empty: nothing has been read
//   Tensor y = step(layer, x_t, stream);       // the same forward pass for the next tokens, without history
//
// A layer is written once. It makes a Call of its arguments and asks it for whatever crosses tokens.
#pragma once

#include <sluice/core/node.h>
#include <sluice/core/random.h>
#include <sluice/core/scope.h>
#include <sluice/core/tensor.h>
#include <sluice/ops/scan/linear_scan.h>

#include <functional>
#include <vector>

namespace sluice {

class Stream;

/// What a call may bring; every field is optional. A layer reads the fields that it needs. A model hands its pass on.
struct Pass {
  Tensor key_mask = {};      // bool [batch, n]: true for real tokens of x, false for padding, which may hold NaN
  Rng* rng = nullptr;        // switches dropout on
  Stream* stream = nullptr;  // x continues it; see step()
};

/// What a stream keeps of earlier tokens, for all layers of one model in the order in which they run. It is a value: a
/// copy goes on by itself (beam search).
class Stream {
 public:
  /// Tokens so far.
  int64_t length() const { return length_; }
  /// Numbers that it keeps, all sequences of the batch together.
  int64_t numel() const;
  /// Calls f with each tensor that it keeps.
  void each_tensor(const std::function<void(const Tensor&)>& f) const;

  /// What one place of one layer keeps.
  struct Kept {
    const char* layer;   // "gla"
    const char* what;    // "state": what the layer keeps here
    Tensor tensor = {};  // sums over the tokens, or the last rows
  };

 private:
  friend class Call;
  friend class StreamStep;
  std::vector<Kept> kept_;
  std::size_t next_ = 0;  // the place that comes next in this step
  int64_t length_ = 0;
};

/// One step of a stream while its forward pass runs; see step(). A step that does not come to its end changes nothing.
class StreamStep {
 public:
  explicit StreamStep(Stream& stream);
  ~StreamStep();
  StreamStep(const StreamStep&) = delete;
  StreamStep& operator=(const StreamStep&) = delete;
  /// Ends a step of so many tokens. ValueError if layers of earlier steps did not run in this one.
  void end(int64_t tokens);

 private:
  NoGrad without_history_;
  Stream& stream_;
  std::vector<Stream::Kept> before_;
  bool ended_ = false;
};

/// The next m tokens of a stream, x [batch, m, …] → what the model gives for them: the rows of its full causal pass.
/// Records no history. The stream begins empty. ValueError for a layer that is not causal, and for a stream of another
/// model; ShapeError for another batch. After an error the stream is as it was.
template <class M>
Tensor step(const M& model, const Tensor& x, Stream& stream, Pass pass = {}) {
  StreamStep running(stream);
  pass.stream = &stream;
  Tensor y = model(x, pass);
  running.end(x.dim(1));
  return y;
}

namespace detail {
/// linear_scan() that continues from `state` [batch, heads, dk, dv] and replaces it; undefined: nothing came before.
/// One token is one step of the recurrence. Differentiable, the state included.
Tensor continued_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                      const LinearScanOptions& options, Tensor& state);
}  // namespace detail

/// A model or layer that is called with a Pass.
template <class M>
concept TakesPass = requires(const M& m, const Tensor& x, const Pass& pass) { m(x, pass); };

/// The call of one layer. It checks x and the mask, and gives what crosses tokens, wherever these stand.
class Call {
 public:
  /// `given` is x [batch, n, dim]; ShapeError or DTypeError, beginning with `layer`, unless it and the mask fit.
  template <class M>
  Call(const M& module, const char* layer, const Tensor& given, int64_t dim, const Pass& pass)
      : Call(&module, M::type, layer, given, dim, pass) {}

  /// Its tokens. Where key_mask marks padding, NaN and infinities are 0.
  const Tensor x;
  const Tensor& key_mask() const { return pass_.key_mask; }
  Rng* rng() const { return pass_.rng; }
  /// What a layer inside this one is called with.
  const Pass& pass() const { return pass_; }
  /// Position of the first token of x in the whole sequence.
  int64_t first() const;
  bool streams() const { return pass_.stream != nullptr; }
  /// ValueError in a stream unless the layer is causal.
  void check_causal(bool causal) const;

  /// The `count` rows before those of y [batch, n, d], [batch, count, d]: zeros where nothing precedes. Undefined where
  /// nothing precedes any of them.
  Tensor before(const Tensor& y, int64_t count);
  /// linear_scan() over all tokens so far.
  Tensor scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
              const LinearScanOptions& options);

 private:
  Call(const void* module, const char* type, const char* layer, const Tensor& given, int64_t dim, const Pass& pass);
  Stream::Kept& kept(const char* what);

  ModuleScope scope_;
  const char* layer_;
  const Pass& pass_;
};

}  // namespace sluice
