// More operands than the function has.
// message: ops/elementwise/map.h lists what a formula may call
namespace map_operands {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return max(v, 0.0, 1.0); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return max(v, 1.0); }, x);
}
#endif
}  // namespace map_operands
