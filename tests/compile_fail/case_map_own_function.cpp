// A function of double takes no numbers with derivatives.
// message: and auto, not double
namespace map_own_function {
using namespace sluice;
#ifdef MISTAKE
inline double twice(double v) { return 2 * v; }
Tensor f(const Tensor& x) {
  return map([](auto v) { return twice(v); }, x);
}
#else
auto twice(auto v) { return 2 * v; }
Tensor f(const Tensor& x) {
  return map([](auto v) { return twice(v); }, x);
}
#endif
}  // namespace map_own_function
