// A function of <cmath> that has no derivative here.
// message: ops/elementwise/map.h lists what it may call
namespace map_unknown_function {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return atan(v); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return tanh(v); }, x);
}
#endif
}  // namespace map_unknown_function
