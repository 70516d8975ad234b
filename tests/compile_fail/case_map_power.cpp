// ^ is no power.
// message: write pow\(x, y\), not x \^ y
namespace map_power {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return v ^ 2; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return pow(v, 2); }, x);
}
#endif
}  // namespace map_power
