// The same of three.
// message: write max\(x, 0.0\), not std::max
namespace map_std_clamp {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return std::clamp(v, 0.0, 1.0); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return clamp(v, 0.0, 1.0); }, x);
}
#endif
}  // namespace map_std_clamp
