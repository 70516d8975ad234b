// A call of a layer: its arguments besides x, and the place of its tokens. They are the whole sequence, a piece of a
// sequence that is split over ranks (parallel/sequence.h), or the continuation of a stream.
//
//   Tensor y = layer(x, {.key_mask = mask, .rng = &rng});
//
//   Stream stream;                             // empty: nothing has been read
//   Tensor y = step(layer, x_t, stream);       // the same forward pass for the next tokens, without history
//
// A layer is written once for all three. It makes a Call of its arguments and asks it for all that crosses tokens.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/core/operands.h>
#include <sluice/core/scope.h>
#include <sluice/layers/nn/parts.h>
#include <sluice/layers/nn/stream.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/scan/delta_scan.h>
#include <sluice/ops/scan/linear_scan.h>

#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice {

/// A field of a Pass: a T that knows whether it was read. A copy stands for the same field: reading one reads both, so
/// that a model may build passes for its layers, {.context = pass.context}.
template <class T> class Given {
 public:
  Given() = default;
  /// Implicit: a field is given by its value.
  Given(T value) : value_(std::move(value)), read_(defined() ? std::make_shared<bool>(false) : nullptr) {}
  /// From a list: {0, 3}.
  template <class E>
  requires std::is_constructible_v<T, const E*, const E*> Given(std::initializer_list<E> list)
      : Given(T(list.begin(), list.end())) {}
  Given(const Given& o) : value_(o.value_), read_(o.read_), copy_(true) {}
  /// The value that is replaced counts as read.
  Given& operator=(const Given& o) {
    mark(true);
    value_ = o.value_, read_ = o.read_, copy_ = true;
    return *this;
  }
  /// Returns the value and marks it as read.
  const T& get() const {
    mark(true);
    return value_;
  }
  operator const T&() const { return get(); }
  /// Returns the value without marking it as read, for code that does not act on it.
  const T& peek() const { return value_; }
  /// True if a tensor, or a list that is not empty, was given. Asking does not read it.
  bool defined() const {
    if constexpr (requires { value_.defined(); }) return value_.defined();
    else return !value_.empty();
  }
  /// True if it was given and never read.
  bool unread() const { return read_ && !*read_; }
  /// True for a field that was given by its value, and of which there is no copy that may still be read.
  bool last_original() const { return !copy_ && read_.use_count() == 1; }
  /// Sets whether it was read; returns whether it had been.
  bool mark(bool read) const { return !read_ || std::exchange(*read_, read); }
  /// Marks it, and its copies, as read; then becomes a field of its own that is not read yet.
  void renew() {
    mark(true);
    if (defined()) read_ = std::make_shared<bool>(false), copy_ = false;
  }
  /// Becomes a field of its own that counts as read; what it was a copy of stays as it is.
  void part() {
    if (read_) read_ = std::make_shared<bool>(true);
  }

 private:
  T value_ = {};
  std::shared_ptr<bool> read_;  // null: nothing was given
  bool copy_ = false;
};

/// The optional arguments of a call. A layer reads the fields that it needs; a model hands its pass on. A pass belongs
/// on the stack. Its end throws ValueError if a field was given but never read, neither here nor in a copy. get() reads
/// a field, as does its use as a `const Tensor&`. The end of a copy is silent, and so is the end of an assigned field.
struct Pass {
  Given<Tensor> key_mask = {};          // bool [batch, n]: true for real tokens of x, false for padding (may hold NaN)
  Given<Tensor> context = {};           // [batch, k, context_dim], what cross attention reads; already normalised
  Given<Tensor> context_mask = {};      // bool [batch, k], as key_mask
  Given<Tensor> segments = {};          // i64 [batch, n]: documents, which do not see each other; chunked layers: the
                                        // linear term of Flash and McTfm mixes documents that share a chunk
  Given<Tensor> context_segments = {};  // i64 [batch, k]
  Given<Tensor> mask = {};              // bool, broadcasts to [batch, heads, n, keys]: true may attend
  Given<Tensor> bias = {};              // added to the scores; broadcasts to [batch, heads, n, keys]
  Given<Tensor> blocks = {};            // bool, whole blocks of queries × keys, see AttentionMask
  int64_t block = 0;                    // rows and columns of a block of `blocks`
  Given<std::vector<int64_t>> positions = {};  // global positions, see MultiHeadAttention
  Rng* rng = nullptr;                          // switches dropout on
  Stream* stream = nullptr;                    // x continues it; see step()

  /// The same for the next tokens of a stream.
  Pass of_stream(Stream& stream) const;
  /// Throws ValueError for a field that was given and that nothing has read.
  void check_read() const;
  /// Marks all fields as read.
  void mark_read() const;
  /// A copy for later, whose fields count as read: that it lives and what reads it says nothing about this pass.
  Pass for_later() const;
  ~Pass() noexcept(false);
};

/// The pass with its tensors on another device, where what was given counts as unread.
Pass to(const Pass& pass, Device device);

/// Position of the first of `tokens` tokens in the whole sequence. ValueError in a step of a stream with another number
/// of tokens.
int64_t first_position(int64_t tokens, const Pass& pass, const char* layer = "first_position");

/// A model or layer that is called with a Pass.
template <class M>
concept TakesPass = requires(const M& m, const Tensor& x, const Pass& pass) {
  m(x, pass);
};

/// Runs the model on the next m tokens of a stream, x [batch, m, …], and returns their rows of its full causal pass.
/// Records no history. The stream begins empty, and reads a context in its first step only. A key_mask [batch, m] marks
/// the real ones of these tokens; without one all are real. Throws ValueError for a layer that is not causal, for a
/// stream of other layers, and for other masks. Throws ShapeError for another batch. After an error the stream is as it
/// was.
template <class M> Tensor step(const M& model, const Tensor& x, Stream& stream, const Pass& pass = {}) {
  static_assert(TakesPass<M>, "what streams takes a pass: Tensor operator()(const Tensor& x, const Pass& = {}) const");
  const Pass next = pass.of_stream(stream);
  StreamStep running(stream, detail::step_tokens(x));
  Tensor y = model(x, next);
  next.check_read();
  running.end();
  return y;
}

namespace detail {
/// linear_scan() that continues from `state` [batch, heads, dk, dv] and replaces it; undefined: nothing came before.
/// One token is one step of the recurrence. Differentiable, the state included.
Tensor continued_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                      const LinearScanOptions& options, Tensor& state);
/// t [batch, n, …] with `value` at the tokens that are `marked`, bool [batch or 1, n]. t itself if either is undefined.
/// The tokens of t may also lie along another dim; a t of lower rank broadcasts to one that has it.
Tensor filled_tokens(const Tensor& t, const Tensor& marked, double value, int64_t dim = 1);
/// The tokens that `keys` does not mark as real; undefined if it is undefined.
Tensor padding_of(const Tensor& keys);
template <class M> constexpr const char* type_of() {
  static_assert(HasType<M>, "a layer that makes a Call needs: static constexpr const char* type = \"Name\";");
  return M::type;
}
}  // namespace detail

/// The call of one layer. It checks x and the mask, and provides all that crosses tokens, wherever the tokens are. Its
/// end throws ValueError for segments that neither the layer nor a layer inside it has read: such a layer would mix
/// documents that other layers of the model keep apart.
class Call {
 public:
  /// `given` must be x [batch, n, dim]. Throws ShapeError or DTypeError naming `layer` unless it and the mask fit.
  template <class M>
  Call(const M& module, const char* layer, const Tensor& given, int64_t dim, const Pass& pass)
      : Call(&module, detail::type_of<M>(), layer, given, dim, pass) {}
  Call(const void* module, const char* type, const char* layer, const Tensor& given, int64_t dim, const Pass& pass);
  /// The pass must outlive the call.
  template <class M> Call(const M&, const char*, const Tensor&, int64_t, Pass&&) = delete;
  ~Call() noexcept(false);

  /// The tokens. In padding (key_mask false) 0 replaces NaN and infinities.
  const Tensor x;
  const Tensor& key_mask() const { return pass_.key_mask; }
  /// True where key_mask is false; undefined without one.
  Tensor padding() const;
  /// i64 [batch, n], checked; undefined if none were given.
  const Tensor& segments() const;
  /// True where a token's segment is not that of the token before it, bool [batch, n]; undefined without segments. For
  /// layers in which a document is a run of equal segments.
  Tensor starts() const;
  /// The generator of the pass; null: no dropout.
  Rng* rng() const { return pass_.rng; }
  /// The pass for the call of a layer inside this one.
  const Pass& pass() const { return pass_; }
  /// The masks of the pass, for self attention: keys, documents, pairs, blocks. The keys are x, or the rows that rows()
  /// has returned in this call, of which a stream has more: ask behind it, or let attend() set the keys.
  AttentionMask mask() const;
  /// mask().keys, without reading the other masks.
  const Tensor& mask_of_keys() const;
  /// The context [batch, k, dim] with its padding finite. Throws ValueError without a context.
  Tensor context(int64_t dim) const;

  /// Position of the first token of x in the whole sequence, for a layer that `reads` it, as RoPE does. ValueError in a
  /// step of a stream that has another number of tokens.
  int64_t first(bool reads = true) const { return reads ? first_position(x.dim(1), pass_, layer_) : 0; }
  /// True in a step of a stream.
  bool streams() const { return pass_.stream != nullptr; }
  /// Throws ValueError with the reason `why` in a stream unless the layer is causal.
  void check_causal(bool causal, const char* why =
                                     "only a causal layer can be streamed; else earlier outputs would "
                                     "change") const;

  /// Rows [batch, heads, n, ·] by token: in a stream those of earlier tokens (with `window` > 0 the last W − 1), then
  /// `fresh`, see KvCache::append(). Otherwise `fresh` itself. ValueError in a stream with a key mask if the layer has
  /// asked for the mask of these keys before.
  std::vector<Tensor> rows(const std::vector<Tensor>& fresh, int64_t window = 0);
  /// Queries and keys that a table of relative positions must cover, where `keys` are among what rows() gave.
  std::pair<int64_t, int64_t> extent(const Tensor& keys) const;
  /// Number of last rows that later queries see under these rules: (window − 1)·dilation + 1; 0 for all.
  static int64_t rows_seen(int64_t window, int64_t dilation, const std::vector<int64_t>& global);
  /// attention() of q over all tokens so far; k and v are those of x. mask.keys is set here.
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options);

  /// The `count` rows before those of y [batch, n, d], [batch, count, d]: zeros where nothing precedes. Undefined where
  /// nothing precedes any of them.
  Tensor before(const Tensor& y, int64_t count);
  /// y [batch, n, d] one token later; zeros before the first.
  Tensor shift(const Tensor& y);
  /// cumsum() along dim over all tokens so far; a stream keeps the sum of floats in f64.
  Tensor running_sum(const Tensor& y, int64_t dim);
  /// m_t = max(m_{t−1} + decay_t, y_t) over all tokens so far, with m = 0 before them. y and decay are [batch, n, d].
  Tensor running_max(const Tensor& y, const Tensor& decay);
  /// linear_scan() over all tokens so far. ValueError in a stream if `options.reverse`.
  Tensor scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
              const LinearScanOptions& options);
  /// delta_scan() over all tokens so far.
  Tensor delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& log_decay,
                    const DeltaScanOptions& options);
  /// The `count` tensors that `make` computes from the context. A stream computes them in its first step and keeps
  /// them. `make` must keep nothing in the stream itself. ValueError for a stream that keeps another number of tensors.
  std::vector<Tensor> of_context(std::size_t count, const std::function<std::vector<Tensor>()>& make);
  /// What a stream keeps here, for layers that the functions above do not serve; valid until the step ends. ShapeError
  /// for a stream of another batch, DeviceError for a stream on another device.
  Stream::Kept& kept(const char* what);

 private:
  Tensor& kept_tensor(const char* what);
  /// Which of the last `count` tokens are real, bool [batch, count]; undefined as long as no step had a mask. `kept`
  /// must hold the mask of the earlier tokens, or nothing; afterwards it holds the mask of the last `stored` tokens.
  Tensor kept_mask(std::vector<Tensor>& kept, int64_t count, int64_t stored) const;
  /// The state of a scan. ShapeError, naming `rows` of the call, for a stream with another state.
  Tensor& kept_state(const Shape& shape, DType dtype, const Tensor& rows);

  ModuleScope scope_;
  const char* layer_;
  const Pass& pass_;
  std::optional<Tensor> rows_mask_ = {};  // of what rows() gave in a stream
  mutable bool asked_early_ = false;      // for the mask of keys, before rows()
  int exceptions_ = std::uncaught_exceptions();
  bool others_read_;  // the segments, before this call
};

}  // namespace sluice
