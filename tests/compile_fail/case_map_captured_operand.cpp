// A captured tensor as the operand of a function.
// message: a captured tensor is one more parameter
namespace map_captured_operand {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) {
  return map([&](auto v) { return max(v, y); }, x);
}
#else
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return max(v, w); }, x, y);
}
#endif
}  // namespace map_captured_operand
