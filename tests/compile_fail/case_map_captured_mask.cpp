// A tensor is captured and compared.
// message: a captured tensor is one more parameter
namespace map_captured_mask {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) {
  return map([&](auto v) { return select(y > 0.0, v, 0.0); }, x);
}
#else
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return select(w > 0.0, v, 0.0); }, x, y);
}
#endif
}  // namespace map_captured_mask
