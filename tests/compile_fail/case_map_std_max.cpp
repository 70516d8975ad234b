// std::max has no overload for a number with derivatives and a double; compilers would list all it has.
// message: write max\(x, 0.0\), not std::max
namespace map_std_max {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return std::max(v, 0.0); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return max(v, 0.0); }, x);
}
#endif
}  // namespace map_std_max
