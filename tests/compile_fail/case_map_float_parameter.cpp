// One parameter is auto, the other is not.
// message: and auto, not double
// lines: 12
namespace map_float_parameter {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, float w) { return v * w; }, x, y);
}
#else
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return v * w; }, x, y);
}
#endif
}  // namespace map_float_parameter
