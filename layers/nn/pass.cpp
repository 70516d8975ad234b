#include <sluice/layers/nn/pass.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/join.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <string_view>

namespace sluice {

// -- streams --------------------------------------------------------------------------------------------------

void Stream::each_tensor(const std::function<void(const Tensor&)>& f) const {
  for (const Kept& k : kept_)
    if (k.tensor.defined()) f(k.tensor);
}

int64_t Stream::numel() const {
  int64_t numbers = 0;
  each_tensor([&](const Tensor& x) { numbers += x.numel(); });
  return numbers;
}

StreamStep::StreamStep(Stream& stream) : stream_(stream), before_(stream.kept_) {
  detail::not_cut("step", "a stream has its tokens to itself; call the layer with a piece of the sequence");
  stream.next_ = 0;
}

StreamStep::~StreamStep() {
  if (!ended_) stream_.kept_ = std::move(before_);
}

void StreamStep::end(int64_t tokens) {
  if (stream_.next_ != stream_.kept_.size()) {
    const Stream::Kept& k = stream_.kept_[stream_.next_];
    fail<ValueError>("step: a stream of another model: this one ends before the ", k.what, " of a layer ", k.layer);
  }
  stream_.length_ += tokens, ended_ = true;
}

// -- a call -----------------------------------------------------------------------------------------------------

Call::Call(const void* module, const char* type, const char* layer, const Tensor& given, int64_t dim, const Pass& pass)
    : x(checked_input(layer, given, dim, pass.key_mask)), scope_(module, type), layer_(layer), pass_(pass) {
  if (streams() && key_mask().defined()) fail<ValueError>(layer, ": every token of a stream is real; got a key_mask");
}

int64_t Call::first() const { return streams() ? pass_.stream->length_ : sequence_piece(x.dim(1)).first; }

void Call::check_causal(bool causal) const {
  if (streams()) check_stream(layer_, causal);
}

Stream::Kept& Call::kept(const char* what) {
  Stream& s = *pass_.stream;
  const bool knows = s.next_ < s.kept_.size();
  if (!knows && s.length_ == 0) s.kept_.push_back({layer_, what});
  if (s.next_ == s.kept_.size() || std::string_view(s.kept_[s.next_].layer) != layer_ ||
      std::string_view(s.kept_[s.next_].what) != what)
    fail<ValueError>("step: ", ModuleScope::path(),
                     ": a stream of another model, or of layers in another order; here it has ",
                     knows ? str("the ", s.kept_[s.next_].what, " of a layer ", s.kept_[s.next_].layer) : "nothing",
                     ", not the ", what, " of a layer ", layer_);
  return s.kept_[s.next_++];
}

Tensor Call::before(const Tensor& y, int64_t count) {
  if (streams()) {
    Tensor& last = kept("last rows").tensor;
    const Shape shape{y.dim(0), count, y.dim(2)};
    if (!last.defined()) last = zeros(shape, y.options());
    if (last.shape() != shape) fail(layer_, ": a stream that keeps ", last, " does not continue with x=", y);
    const Tensor rows = last;
    last = clone(narrow(cat({rows, y}, 1), 1, y.dim(1), count));
    return rows;
  }
  if (!in_sequence()) return {};
  const int64_t begin = std::max<int64_t>(0, first() - count);
  return pad(sequence_rows(y, 1, {begin, first()}), 1, count - (first() - begin), 0);
}

Tensor Call::scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                  const LinearScanOptions& o) {
  if (!streams()) return sequence_scan(q, k, v, log_decay, o);
  Tensor& state = kept("state").tensor;
  const Shape shape{k.dim(0), k.dim(1), k.dim(3), v.dim(3)};
  if (state.defined() && (state.shape() != shape || state.dtype() != v.dtype()))
    fail(layer_, ": a stream with a state of ", state.dtype(), state, " does not continue with k=", k, ", v=", v);
  return detail::continued_scan(q, k, v, log_decay, o, state);
}

Tensor detail::continued_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                              const LinearScanOptions& o, Tensor& state) {
  const Tensor before = state;
  if (k.dim(2) != 1) {
    const Tensor y = linear_scan(q, k, v, log_decay, o);
    state = linear_scan_state(k, v, log_decay, before);
    return before.defined() ? y + linear_scan_carry(q, before, log_decay) : y;
  }
  state = matmul(transpose(k, -2, -1), v);  // S ← e^g S + kᵀ v, y = q S
  if (before.defined() && log_decay.defined()) {
    const Tensor kept = exp(log_decay);  // [batch, heads, 1] or [batch, heads, 1, m]
    state = state + unsqueeze(kept.rank() == 4 ? squeeze(kept, 2) : kept, -1) * before;
  } else if (before.defined()) {
    state = state + before;
  }
  return matmul(q, state);
}

}  // namespace sluice
