#include <sluice/layers/models/ngram_injection.h>

#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/index/gather.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice {

NgramInjection::NgramInjection(NgramInjectionOptions given, Rng& rng) : options(std::move(given)) {
  const NgramInjectionOptions& o = options;
  const auto functions = std::ssize(o.sizes);
  if (o.dim < 1 || o.streams < 1 || o.taps < 1 || o.longest() < 2 || functions < 1 || o.width < 1 ||
      functions % (o.longest() - 1) != 0 || o.width % functions != 0)
    fail<ValueError>("ngram_injection: got dim=", o.dim, ", streams=", o.streams, ", taps=", o.taps,
                     ", width=", o.width, ", ", o.longest(), " multipliers, ", functions,
                     " sizes; need positive ones, at least 2 multipliers, "
                     "sizes for each length, and a width that their number divides");
  const bool positive = std::ranges::all_of(o.sizes, [](int64_t size) { return size > 0; });
  int64_t rows = 0;
  for (const int64_t size : o.sizes) rows = checked_add("ngram_injection", rows, std::max<int64_t>(0, size));
  if (!positive || o.rows < rows)
    fail<ValueError>("ngram_injection: sizes must be positive, and rows=", o.rows, " at least their sum, ", rows);
  const int64_t all = checked_mul("ngram_injection", o.streams, o.dim);
  table = Embedding({.count = o.rows, .dim = o.width / functions, .dtype = o.dtype}, rng);
  key = Linear({.in = o.width, .out = all, .bias = false, .dtype = o.dtype}, rng);
  value = Linear({.in = o.width, .out = o.dim, .bias = false, .dtype = o.dtype}, rng);
  for (Norm* norm : {&key_norm, &query_norm, &value_norm})
    *norm = Norm({.dim = all, .kind = NormKind::rms, .eps = o.norm_eps, .dtype = o.dtype, .parts = o.streams});
  conv = init_normal({o.taps, all}, 0, rng, o.dtype);
}

Tensor NgramInjection::hashes(const Tensor& tokens, int64_t before) const {
  const NgramInjectionOptions& o = options;
  const int64_t batch = tokens.dim(0), n = tokens.dim(1) - before, functions = std::ssize(o.sizes),
                heads = functions / (o.longest() - 1);
  if (tokens.device() == meta) return empty({batch, n, functions}, tokens.options());
  const std::vector<int64_t> all = to(tokens, cpu).to_vector<int64_t>();
  std::vector<int64_t> rows;
  rows.reserve(static_cast<std::size_t>(batch * n * functions));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < n; ++t) {
      const int64_t* const last = all.data() + b * (before + n) + before + t;
      uint64_t hash = static_cast<uint64_t>(*last) * static_cast<uint64_t>(o.multipliers[0]);
      bool ended = false;  // a boundary stands between
      int64_t offset = 0;
      for (int64_t back = 1; back < o.longest(); ++back) {
        ended = ended || back > before + t || last[-back] == o.boundary;
        const int64_t token = ended ? o.boundary : last[-back];
        hash ^= static_cast<uint64_t>(token) * static_cast<uint64_t>(o.multipliers[static_cast<std::size_t>(back)]);
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t size = o.sizes[static_cast<std::size_t>((back - 1) * heads + head)];
          rows.push_back(offset + static_cast<int64_t>(hash % static_cast<uint64_t>(size)));
          offset += size;
        }
      }
    }
  return to(Tensor::from(rows, {batch, n, functions}), tokens.device());
}

Tensor NgramInjection::operator()(const Tensor& h, const Tensor& tokens, const Pass& pass) const {
  const NgramInjectionOptions& o = options;
  Call call(*this, "ngram_injection", h, o.streams * o.dim, pass);
  if (tokens.dtype() != i64 || tokens.rank() != 2 || tokens.dim(0) != h.dim(0) || tokens.dim(1) != h.dim(1))
    fail("ngram_injection: tokens=", tokens, " do not fit h=", h, "; need i64 [batch, n]");
  const auto boundary = static_cast<double>(o.boundary);
  const Tensor padding = call.padding();
  // 0 stands for the boundary: before the text there are zeros.
  const Tensor own = to(detail::filled_tokens(tokens, padding, boundary) - boundary, f64);
  const int64_t before = o.longest() - 1;
  const Tensor earlier = call.before(unsqueeze(own, -1), before),
               line = earlier.defined() ? cat({squeeze(earlier, -1), own}, 1) : pad(own, 1, before, 0);
  const Tensor e = flatten(embedding(table.weight, hashes(to(line + boundary, i64), before)), -2, -1);
  const auto by_stream = [&](const Tensor& t) { return unflatten(t, -1, {o.streams, o.dim}); };
  const Tensor a = sum(by_stream(key_norm(key(e))) * by_stream(query_norm(call.x)), {-1}, keep) *
                   (1 / std::sqrt(static_cast<double>(o.dim)));
  const Tensor gate = sigmoid(sqrt(clamp(abs(a), 1e-6)) * sign(a));
  const Tensor u = flatten(gate * unsqueeze(value(e), -2), -2, -1), added = detail::filled_tokens(u, padding, 0);
  const Tensor rows = detail::filled_tokens(value_norm(u), padding, 0);
  const int64_t reach = (o.taps - 1) * o.longest(), n = h.dim(1);
  const Tensor past = call.before(rows, reach), all = past.defined() ? cat({past, rows}, 1) : pad(rows, 1, reach, 0);
  Tensor y = narrow(all, 1, reach, n) * select(conv, 0, o.taps - 1);
  for (int64_t tap = 0; tap + 1 < o.taps; ++tap)
    y = map(formula::ScaleOffset{}, narrow(all, 1, tap * o.longest(), n), select(conv, 0, tap), y);
  return added + silu(y);
}

static bool is_prime(int64_t n) {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (int64_t d = 3; d <= n / d; d += 2)
    if (n % d == 0) return false;
  return true;
}

/// Steele et al. 2014.
static uint64_t split_mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

void hash_ngrams(NgramInjectionOptions& o, int64_t vocabulary, int64_t longest, int64_t heads, int64_t layer,
                 int64_t least, int64_t divisor, int64_t seed) {
  constexpr int64_t most = int64_t{1} << 31, primes = 1024;  // a hostile file must not let the search go on for hours
  if (vocabulary < 1 || longest < 2 || longest > 64 || heads < 1 || heads > 4096 || layer < 0 || layer > 4096 ||
      (layer + 1) * (longest - 1) * heads > primes || least < 1 || least > most || divisor < 1 || divisor > most)
    fail<ValueError>("hash_ngrams: got vocabulary=", vocabulary, ", longest=", longest, ", heads=", heads,
                     ", layer=", layer, ", least=", least, ", divisor=", divisor, "; these make no table");
  const uint64_t half = std::max<uint64_t>(1, static_cast<uint64_t>(INT64_MAX / vocabulary) / 2),
                 base = static_cast<uint64_t>(seed) + 10007 * static_cast<uint64_t>(layer);
  o.multipliers.clear(), o.sizes.clear();
  for (uint64_t i = 1; i <= static_cast<uint64_t>(longest); ++i)
    o.multipliers.push_back(static_cast<int64_t>(2 * (split_mix(base + i * 0x9E3779B97F4A7C15) % half) + 1));
  const int64_t functions = (longest - 1) * heads;
  int64_t prime = least - 1;
  for (int64_t i = 0; i < (layer + 1) * functions; ++i) {
    do ++prime;
    while (!is_prime(prime));
    if (i >= layer * functions) o.sizes.push_back(prime);
  }
  o.rows = round_up(std::accumulate(o.sizes.begin(), o.sizes.end(), int64_t{0}), divisor);
}

}  // namespace sluice
