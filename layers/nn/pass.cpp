#include <sluice/layers/nn/pass.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <type_traits>

namespace sluice {

/// Calls f(name, field) for each field that a layer reads.
template <class P, class F> static void each_field(P& p, F f) {
  f("key_mask", p.key_mask), f("context", p.context), f("context_mask", p.context_mask), f("segments", p.segments);
  f("context_segments", p.context_segments), f("mask", p.mask), f("bias", p.bias), f("blocks", p.blocks);
  f("positions", p.positions);
}

/// Throws ValueError for the first field of the pass that nothing has read and that `counts`.
static void check_fields(const Pass& pass, const auto& counts) {
  each_field(pass, [&](const char* name, const auto& field) {
    if (field.unread() && counts(field)) fail<ValueError>("pass: nothing in the model has read ", name);
  });
}

Pass::~Pass() noexcept(false) {
  // After an error the call had no time to read everything.
  if (std::uncaught_exceptions() == 0) check_fields(*this, [](const auto& field) { return field.last_original(); });
}

void Pass::check_read() const {
  check_fields(*this, [](const auto&) { return true; });
}

void Pass::mark_read() const {
  each_field(*this, [](const char*, const auto& field) { field.mark(true); });
}

Pass Pass::for_later() const {
  Pass made = *this;
  each_field(made, [](const char*, auto& field) { field.part(); });
  return made;
}

Pass Pass::of_stream(Stream& s) const {
  Pass next = *this;
  next.stream = &s;
  each_field(next, [](const char*, auto& field) { field.renew(); });
  return next;
}

Pass to(const Pass& pass, Device device) {
  Pass moved = pass;
  each_field(moved, [device](const char*, auto& field) {
    if constexpr (std::is_same_v<decltype(field.peek()), const Tensor&>)
      if (field.defined()) field = to(field.peek(), device);
    field.renew();
  });
  return moved;
}

int64_t first_position(int64_t tokens, const Pass& pass, const char* layer) {
  return pass.stream ? pass.stream->position(tokens, layer) : sequence_piece(tokens).first;
}

/// Checks the segments and leaves them unread for the layer; returns whether they had been read. After an error they
/// count as read: one error is enough.
static bool take_segments(const char* layer, const Pass& pass, const Tensor& x) {
  const bool read = pass.segments.mark(true);
  detail::check_rows(layer, "segments", pass.segments.peek(), i64, "x", x);
  pass.segments.mark(false);
  return read;
}

Call::Call(const void* module, const char* type, const char* layer, const Tensor& given, int64_t dim, const Pass& pass)
    : x(checked_input(layer, given, dim, pass.key_mask)), scope_(module, type), layer_(layer), pass_(pass),
      others_read_(take_segments(layer, pass, x)) {
  if (!streams()) return;
  each_field(pass, [&](std::string_view name, const auto& field) {
    if (field.defined() && name != "key_mask" && !name.starts_with("context"))
      fail<ValueError>(layer, ": a stream is one document, which has no masks but key_mask; got ", name);
  });
}

Call::~Call() noexcept(false) {
  const bool unread = pass_.segments.unread();
  if (unread) pass_.segments.mark(others_read_);
  if (unread && std::uncaught_exceptions() == exceptions_)
    fail<ValueError>(layer_, ": cannot keep documents apart, and reads no segments");
}

Tensor Call::padding() const { return detail::padding_of(key_mask()); }

const Tensor& Call::segments() const { return pass_.segments; }

Tensor Call::starts() const {
  const Tensor& s = segments();
  return s.defined() ? s != sequence_shift(s, 1) : Tensor();
}

const Tensor& Call::mask_of_keys() const {
  const Tensor& own = key_mask();  // read in any case
  asked_early_ |= !rows_mask_;
  return rows_mask_ ? *rows_mask_ : own;
}

AttentionMask Call::mask() const {
  return {.keys = mask_of_keys(),
          .query_segments = pass_.segments,
          .key_segments = pass_.segments,
          .blocks = pass_.blocks,
          .block = pass_.block,
          .dense = pass_.mask};
}

Tensor Call::context(int64_t dim) const {
  const Tensor& c = pass_.context;
  if (!c.defined()) fail<ValueError>(layer_, ": needs a context [batch, k, ", dim, "]");
  if (c.rank() == 3 && c.dim(0) != x.dim(0)) fail(layer_, ": got x=", x, ", context=", c, "; need the same batch");
  return checked_input(layer_, c, dim, pass_.context_mask, "context", "context_mask");
}

void Call::check_causal(bool causal, const char* why) const {
  if (streams() && !causal) fail<ValueError>(layer_, ": ", why);
}

std::vector<Tensor> Call::rows(const std::vector<Tensor>& fresh, int64_t window) {
  if (!streams()) return fresh;
  Stream::Kept& k = kept("rows");
  const std::vector<Tensor> all = k.cache.append(fresh, window, pass_.stream->reserved());
  rows_mask_ = kept_mask(k.tensors, all[0].dim(2), k.cache.stored());
  if (asked_early_ && rows_mask_->defined())
    fail<ValueError>(layer_, ": asks for its mask before rows(), which gives more keys than x=", x, "; ask behind it");
  return all;
}

Tensor Call::kept_mask(std::vector<Tensor>& kept, int64_t count, int64_t stored) const {
  const Tensor known = kept.empty() ? Tensor() : kept[0], now = pass_.key_mask.peek();
  if (!known.defined() && !now.defined()) return {};
  const int64_t m = x.dim(1), before = count - m;
  if (known.defined() && (known.dtype() != boolean || known.rank() != 2 || known.dim(1) < before))
    fail(layer_, ": a stream whose mask is ", known.dtype(), known, " does not continue with x=", x);  // of a file
  const auto real = [&](int64_t tokens) { return ones({x.dim(0), tokens}, {boolean, x.device()}); };
  const Tensor all = cat(
      {known.defined() ? narrow(known, 1, known.dim(1) - before, before) : real(before), now.defined() ? now : real(m)},
      1);
  const int64_t least = std::min(count, stored);  // for a call without tokens rows() gives one row less than are stored
  kept = {clone(narrow(all, 1, count - least, least))};
  return all;
}

std::pair<int64_t, int64_t> Call::extent(const Tensor& keys) const {
  if (streams()) return {x.dim(1), keys.dim(2)};
  const int64_t total = sequence_piece(x.dim(1)).total;
  return {total, total};
}

int64_t Call::rows_seen(int64_t window, int64_t dilation, const std::vector<int64_t>& global) {
  int64_t reach = 0;
  const bool all = window == 0 || !global.empty() || __builtin_mul_overflow(window - 1, dilation, &reach);
  return all || reach == INT64_MAX ? 0 : reach + 1;
}

Tensor Call::attend(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions o) {
  check_causal(o.mask.causal);
  asked_early_ = false;  // the keys are set below
  const std::vector<Tensor> all = rows({k, v}, rows_seen(o.mask.window, o.mask.dilation, o.mask.global));
  o.mask.keys = mask_of_keys();
  return sequence_attention(q, all[0], all[1], o, rng());
}

Stream::Kept& Call::kept(const char* what) {
  Stream::Kept& k = pass_.stream->next(layer_, what);
  for (const std::vector<Tensor>* list : {&k.tensors, &k.cache.buffers}) {
    if (list->empty() || !list->front().defined()) continue;
    const Tensor& kept = list->front();
    if (kept.dim(0) != x.dim(0)) fail(layer_, ": a stream of batch ", kept.dim(0), " does not continue with x=", x);
    if (kept.device() != x.device())
      fail<DeviceError>(layer_, ": a stream on ", kept.device(), " does not continue on ", x.device(),
                        "; move it with to(stream, device)");
  }
  return k;
}

Tensor& Call::kept_tensor(const char* what) {
  Stream::Kept& k = kept(what);
  k.tensors.resize(1);
  return k.tensors[0];
}

std::vector<Tensor> Call::of_context(std::size_t count, const std::function<std::vector<Tensor>()>& make) {
  if (!streams()) return make();
  std::vector<Tensor>& known = kept("context").tensors;
  if (known.empty()) {
    known = make();
    for (Tensor& t : known)  // the caller may write the mask
      if (t.defined() && pass_.context_mask.defined() && t.shares_storage(pass_.context_mask.peek())) t = clone(t);
  }
  if (known.size() != count)  // of a file
    fail<ValueError>(layer_, ": a stream that keeps ", known.size(), " tensors of its context does not continue here");
  pass_.context.get(), pass_.context_mask.get();  // brought again: the first step has read it
  return known;
}

Tensor Call::before(const Tensor& y, int64_t count) {
  if (streams()) {
    Tensor& last = kept_tensor("last rows");
    const Shape shape{y.dim(0), count, y.dim(2)};
    if (!last.defined()) last = zeros(shape, y.options());
    if (last.shape() != shape) fail(layer_, ": a stream that keeps ", last, " does not continue with x=", y);
    if (last.dtype() != y.dtype())
      fail<DTypeError>(layer_, ": a stream that keeps ", last.dtype(), " does not continue with ", y.dtype(), " x=", y);
    const Tensor rows = last;
    last = clone(narrow(cat({rows, y}, 1), 1, y.dim(1), count));
    return rows;
  }
  if (!in_sequence()) return {};
  const int64_t begin = std::max<int64_t>(0, first() - count);
  return pad(sequence_rows(y, 1, {begin, first()}), 1, count - (first() - begin), 0);
}

Tensor Call::shift(const Tensor& y) {
  if (!streams()) return sequence_shift(y, 1);
  const int64_t n = y.dim(1);
  const Tensor earlier = before(y, 1);
  return n == 0 ? y : cat({earlier, narrow(y, 1, 0, n - 1)}, 1);
}

Tensor Call::running_sum(const Tensor& y, int64_t dim) {
  if (!streams()) return sequence_cumsum(y, dim);
  Tensor& last = kept_tensor("sum");
  const int64_t n = y.dim(dim);
  const DType wide = is_float(y.dtype()) ? f64 : y.dtype();
  Shape row = y.shape();
  row[wrap_dim(layer_, dim, y.rank())] = 1;
  if (last.defined() && last.shape() != row)
    fail(layer_, ": a stream that keeps the sum ", last, " does not continue with x=", y);
  Tensor sums = cumsum(to(y, wide), dim);
  if (last.defined()) sums = sums + to(last, wide);  // a stream of an older file kept y's dtype
  if (n > 0) last = clone(narrow(sums, dim, n - 1, 1));
  return to(sums, y.dtype());
}

Tensor Call::running_max(const Tensor& y, const Tensor& decay) {
  const int64_t n = y.dim(1);
  const SequencePiece piece = streams() ? SequencePiece{0, n} : sequence_piece(n);
  // t by so many tokens later; `value` stands where nothing precedes.
  const auto later = [&](const Tensor& t, int64_t tokens, double value) {
    const int64_t begin = std::max<int64_t>(0, piece.first - tokens), end = std::max(begin, piece.first + n - tokens);
    const Tensor rows = streams() ? narrow(t, 1, begin, end - begin) : sequence_rows(t, 1, {begin, end});
    return pad(rows, 1, n - (end - begin), 0, value);
  };
  Tensor most = y, sum = decay;  // of the last 1, 2, 4, … tokens: their m from −∞, and the sum of their decays
  for (int64_t tokens = 1; tokens < piece.total; tokens *= 2) {
    most = maximum(most, sum + later(most, tokens, -std::numeric_limits<double>::infinity()));
    sum = sum + later(sum, tokens, 0);
  }
  if (!streams()) return maximum(most, sum);
  Tensor& last = kept_tensor("maximum");
  const Shape shape{y.dim(0), 1, y.dim(2)};
  if (last.defined() && (last.shape() != shape || last.dtype() != y.dtype()))
    fail(layer_, ": a stream that keeps the maximum ", last.dtype(), last, " does not continue with ", y.dtype(), y);
  const Tensor m = maximum(most, last.defined() ? sum + last : sum);
  if (n > 0) last = clone(narrow(m, 1, n - 1, 1));
  return m;
}

Tensor& Call::kept_state(const Shape& shape, DType dtype, const Tensor& rows) {
  Tensor& state = kept_tensor("state");
  if (state.defined() && (state.shape() != shape || state.dtype() != dtype))
    fail(layer_, ": a stream with a state of ", state.dtype(), state, " does not continue with ", rows.dtype(), rows);
  return state;
}

Tensor Call::scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                  const LinearScanOptions& o) {
  check_causal(!o.reverse);
  if (!streams()) return sequence_scan(q, k, v, log_decay, o);
  if (v.dtype() == bf16)  // a running sum in bf16 would soon stand still
    return to(scan(detail::widened(q), detail::widened(k), detail::widened(v), detail::widened(log_decay), o), bf16);
  Tensor& state = kept_state({k.dim(0), v.dim(1), k.dim(3), v.dim(3)}, v.dtype(), v);
  return detail::continued_scan(q, k, v, log_decay, o, state);
}

Tensor Call::delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                        const Tensor& log_decay, const DeltaScanOptions& o) {
  if (!streams()) return sequence_delta_scan(q, k, erase, write, log_decay, o);
  const Shape shape{k.dim(0), write.dim(1), k.dim(3), write.dim(3)};
  Tensor& state = kept_state(shape, detail::widened(k.dtype()), write);
  DeltaScanResult y = sluice::delta_scan(q, k, erase, write, log_decay, state, o);
  state = y.state;
  return y.out;
}

Tensor detail::filled_tokens(const Tensor& t, const Tensor& marked, double value, int64_t dim) {
  if (!t.defined() || !marked.defined()) return t;
  Shape tokens{marked.dim(0)};
  for (int64_t d = 1; d < std::max<int64_t>(t.rank(), dim + 1); ++d) tokens.push_back(d == dim ? marked.dim(1) : 1);
  return masked_fill(t, reshape(marked, tokens), value);
}

Tensor detail::padding_of(const Tensor& keys) { return keys.defined() ? logical_not(keys) : Tensor(); }

Tensor detail::continued_scan(const Tensor& q_in, const Tensor& k_in, const Tensor& v, const Tensor& log_decay,
                              const LinearScanOptions& o, Tensor& state) {
  const Tensor before = state, q = spread_heads(q_in, v.dim(1)), k = spread_heads(k_in, v.dim(1));
  if (log_decay.defined() && log_decay.rank() == 4 && o.decay_on_values) {  // the state's columns decay
    const Tensor g = expand(log_decay, v.shape()), y = linear_scan(q, k, v, g, o);
    state = transpose(linear_scan_state(v, k, g, before.defined() ? transpose(before, -2, -1) : before), -2, -1);
    return before.defined() ? y + map(formula::Decayed{}, matmul(q, before), running_decay(g, 2)) : y;
  }
  if (k.dim(2) != 1 || o.exclusive) {
    const Tensor y = linear_scan(q, k, v, log_decay, o);
    state = linear_scan_state(k, v, log_decay, before);
    return before.defined() ? y + linear_scan_carry(q, before, log_decay) : y;
  }
  state = matmul(transpose(k, -2, -1), v);  // S ← e^g S + kᵀ v, y = q S
  if (before.defined() && log_decay.defined()) {
    const Tensor g = log_decay.rank() == 4 ? squeeze(log_decay, 2) : log_decay;  // [batch, heads, 1 or m]
    state = state + map(formula::Decayed{}, before, unsqueeze(g, -1));
  } else if (before.defined()) {
    state = state + before;
  }
  return matmul(q, state);
}

}  // namespace sluice
