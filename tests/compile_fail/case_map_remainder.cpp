// No % of numbers that are no integers.
// message: write remainder\(x, y\), not x % y
namespace map_remainder {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return v % 2; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return remainder(v, 2); }, x);
}
#endif
}  // namespace map_remainder
