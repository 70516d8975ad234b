// A tensor beside the parameters is one of them.
// message: a captured tensor is one more parameter
namespace map_captured_tensor {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) {
  return map([&](auto v) { return v * y; }, x);
}
#else
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return v * w; }, x, y);
}
#endif
}  // namespace map_captured_tensor
