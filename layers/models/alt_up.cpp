#include <sluice/layers/models/alt_up.h>

#include <sluice/ops/basic.h>

namespace sluice {

static Linear map_of(const AltUpOptions& o, int64_t in, int64_t out, Rng& rng) {
  return Linear({.in = in, .out = out, .bias = false, .dtype = o.dtype}, rng);
}
static Norm norm_of(const AltUpOptions& o) {
  return Norm({.dim = o.dim, .kind = NormKind::rms, .eps = o.norm_eps, .dtype = o.dtype});
}

AltUpStreams::AltUpStreams(const AltUpOptions& o, Rng& rng) {
  if (o.streams < 1) fail<ValueError>("alt_up: streams must be at least 1 — got ", o.streams);
  for (int64_t j = 1; j < o.streams; ++j)
    in.push_back(map_of(o, o.dim, o.dim, rng)), out.push_back(map_of(o, o.dim, o.dim, rng));
}

/// x with the root mean square of `like`.
static Tensor rescaled(const Tensor& x, const Tensor& like) {
  const auto mean_square = [](const Tensor& t) { return mean(square(t), {-1}, keep); };
  return x * (sqrt(mean_square(like)) / sqrt(clamp(mean_square(x), 1e-5)));
}

Tensor AltUpStreams::enter(const Tensor& h) const {
  ModuleScope scope(this, type);
  std::vector<Tensor> all{h};
  for (const Linear& map : in) all.push_back(rescaled(map(h), h));
  return stack(all, -2);
}

Tensor AltUpStreams::leave(const Tensor& h) const {
  ModuleScope scope(this, type);
  const Tensor first = select(h, -2, 0);
  std::vector<Tensor> all{first};
  for (std::size_t j = 0; j < out.size(); ++j)
    all.push_back(rescaled(out[j](select(h, -2, static_cast<int64_t>(j) + 1)), first));
  return mean(stack(all, -2), {-2});
}

AltUp::AltUp(const AltUpOptions& o, Rng& rng)
    : norm(norm_of(o)), router(map_of(o, o.dim, o.streams, rng)),
      predict(map_of(o, o.streams, o.streams * o.streams, rng)), correct(map_of(o, o.streams, o.streams, rng)) {
  if (o.scale) scale = init_vector(o.dim, 1, o.dtype);
}

Tensor AltUp::modes(const Tensor& x) const {
  return tanh(router(norm(x) * (1 / static_cast<double>(norm.options.dim))));
}

Tensor AltUp::predicted(const Tensor& h) const {
  ModuleScope scope(this, type);
  const int64_t s = h.dim(-2);
  return h + matmul(unflatten(predict(modes(select(h, -2, 0))), -1, {s, s}), h);
}

Tensor AltUp::corrected(const Tensor& p, const Tensor& y) const {
  ModuleScope scope(this, type);
  const Tensor news = unsqueeze(y - select(p, -2, 0), -2);
  return p + unsqueeze(correct(modes(y)) + 1, -1) * news;
}

Laurel::Laurel(const AltUpOptions& o, Rng& rng)
    : down(map_of(o, o.dim, o.laurel, rng)), up(map_of(o, o.laurel, o.dim, rng)), norm(norm_of(o)) {}

Tensor Laurel::operator()(const Tensor& u) const {
  ModuleScope scope(this, type);
  return u + norm(up(down(u)));
}

}  // namespace sluice
