// A formula gives a number, which has derivatives: no constant of C++ and no mask.
// message: the formula returns a number, made of its parameters
namespace map_result {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return v > 0.0; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return select(v > 0.0, 1, 0); }, x);
}
#endif
}  // namespace map_result
