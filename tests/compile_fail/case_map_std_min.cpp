// Two numbers with derivatives it could compare, were a comparison a bool.
// message: write max\(x, 0.0\), not std::max
namespace map_std_min {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return std::min(v, w); }, x, y);
}
#else
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return min(v, w); }, x, y);
}
#endif
}  // namespace map_std_min
