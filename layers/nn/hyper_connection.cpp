#include <sluice/layers/nn/hyper_connection.h>

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/softmax.h>

#include <cmath>

namespace sluice {

/// [s·(s + 2)]: of the reads, the writes and the mixing.
static Tensor initial_base(int64_t s, DType dtype) {
  if (const TensorOptions made = detail::initial(dtype); made.device == meta) return empty({s * (s + 2)}, made);
  const Tensor reads = full({s}, s == 1 ? 8 : -std::log(static_cast<double>(s - 1))),  // σ: 1/s
      mixes = flatten(eye(s) * 8.0);
  return to(cat({reads, zeros({s}), mixes}), dtype);
}

HyperConnection::HyperConnection(HyperConnectionOptions given, Rng& rng) : options(given) {
  HyperConnectionOptions& o = options;
  check_options("hyper_connection", o);
  const int64_t s = o.streams, width = checked_mul("hyper_connection", s, o.dim);
  const auto linear = [&](int64_t in, int64_t to) { return Linear({in, to, false, o.init, o.dtype}, rng); };
  if (o.kind == HyperKind::gated) {
    if (o.rank == 0) o.rank = std::max<int64_t>(1, o.dim / 4);
    map = linear(width, s), down = linear(width, o.rank), up = linear(o.rank, width);
    weight = init_vector(width, 1, o.dtype);
    return;
  }
  map = linear(width, checked_mul("hyper_connection", s, s + 2));
  base = initial_base(s, exact(o.dtype)).requires_grad_();
  scale = init_vector(3, 0.01, exact(o.dtype));
}

void HyperConnection::read_only() {
  if (options.kind == HyperKind::gated) {
    map = Linear();
    return;
  }
  const int64_t s = options.streams;
  const auto first = [](const Tensor& t, int64_t dim, int64_t count) {
    return clone(narrow(t.detach(), dim, 0, count)).requires_grad_();
  };
  map.weight = first(map.weight, 1, s), map.options.out = s, base = first(base, 0, s), scale = first(scale, 0, 1);
}

/// Rows and columns of m [..., s, s] sum to 1, columns last.
static Tensor doubly_stochastic(const Tensor& logits, int64_t iterations, double eps) {
  const auto divided = [&](const Tensor& m, int64_t dim) { return m / (sum(m, {dim}, keep) + eps); };
  Tensor m = divided(softmax(logits, -1) + eps, -2);
  for (int64_t i = 1; i < iterations; ++i) m = divided(divided(m, -1), -2);
  return m;
}

HyperConnection::Reading HyperConnection::read(const Tensor& h) const {
  const HyperConnectionOptions& o = options;
  const int64_t s = o.streams;
  if (h.rank() < 1 || h.dim(-1) != s * o.dim)
    fail("hyper_connection: got h=", h, "; need [..., streams*dim = ", s * o.dim, "]");
  const Tensor streams = unflatten(h, -1, {s, o.dim});
  const auto in_h = [&](const Tensor& t) { return to(t, h.dtype()); };
  if (o.kind == HyperKind::gated) {
    const Tensor read = weight.dtype() == f32 ? detail::widened(streams) : streams;
    const Tensor u = rms_norm(read, {}, o.norm_eps) * unflatten(weight, 0, {s, o.dim}), flat = flatten(u, -2, -1);
    const double share = 1 / static_cast<double>(s);
    const Tensor gate = unflatten(sigmoid(up(silu(down(flat) * share))), -1, {s, o.dim});
    const bool writes = map.weight.defined();
    return {in_h(mean(gate * u, {-2})), streams,
            writes ? in_h(unsqueeze(sigmoid(map(flat) * share) * 2.0, -1)) : Tensor()};
  }
  // In f32 for h of bf16, too: M is a product of many small changes.
  const Tensor u = matmul(rms_norm(detail::widened(h), {}, o.norm_eps), detail::widened(map.weight)),
               b = detail::widened(base), a = detail::widened(scale);
  const auto part = [&](int64_t i, int64_t begin, int64_t count) {
    return narrow(u, -1, begin, count) * select(a, 0, i) + narrow(b, 0, begin, count);
  };
  const Tensor pre = sigmoid(part(0, 0, s)) + o.eps, x = squeeze(matmul(in_h(unsqueeze(pre, -2)), streams), -2);
  if (base.dim(0) == s) return {x, streams, {}};  // read_only()
  const Tensor post = sigmoid(part(1, s, s)) * 2.0,
               mixing = doubly_stochastic(unflatten(part(2, 2 * s, s * s), -1, {s, s}), o.iterations, o.eps);
  return {x, matmul(in_h(transpose(mixing, -2, -1)), streams), in_h(unsqueeze(post, -1))};
}

Tensor HyperConnection::write(const Reading& reading, const Tensor& y) const {
  if (!reading.post.defined()) fail<ValueError>("hyper_connection: one that is read_only cannot write");
  if (y.shape() != reading.x.shape())
    fail("hyper_connection: the branch made ", y, " of x=", reading.x, "; need the same shape");
  return flatten(reading.kept + reading.post * unsqueeze(y, -2), -2, -1);
}

}  // namespace sluice
