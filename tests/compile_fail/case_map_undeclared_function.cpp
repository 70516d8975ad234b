// A function that is nowhere.
// message: not declared|undeclared
// says: ops/elementwise/map.h
namespace map_undeclared_function {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return hardswish(v); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return v * clamp(v + 3, 0, 6) / 6; }, x);
}
#endif
}  // namespace map_undeclared_function
