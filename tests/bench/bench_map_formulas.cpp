// What a user writes. BUILD is plain or native.
#include "bench_map.h"

#include <sluice/ops/elementwise/map.h>

#define NAMED_AS(name, build) name##_##build
#define NAMED(name, build) NAMED_AS(name, build)

namespace sluice::bench {

Tensor NAMED(swiglu, BUILD)(const Tensor& x, const Tensor& g) {
  return map([](auto value, auto gate) { return value * (gate * sigmoid(gate)); }, x, g);
}
Tensor NAMED(geglu, BUILD)(const Tensor& x, const Tensor& g) {
  return map([](auto value, auto gate) { return value * (gate * normal_cdf(gate)); }, x, g);
}
Tensor NAMED(gate_norm, BUILD)(const Tensor& x, const Tensor& g) {
  return map([](auto value, auto gate) { return value * rsqrt(gate * gate + 1.0); }, x, g);
}
Tensor NAMED(clipped, BUILD)(const Tensor& x, const Tensor& g) {
  return map([](auto value, auto limit) { return select(value < limit, value * limit, log1p(abs(value)) + limit); }, x,
             g);
}

}  // namespace sluice::bench
