// A constant is made like a parameter.
// message: a constant is like\(x, 1\)
namespace map_constant {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) { return map([](auto) { return 1; }, x); }
#else
Tensor f(const Tensor& x) { return map([](auto v) { return like(v, 1); }, x); }
#endif
}  // namespace map_constant
