// Operands of map are tensors; numbers are captured.
// message: numbers like c are captured
namespace map_number_operand {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v, auto c) { return v * c; }, x, 3.0);
}
#else
Tensor f(const Tensor& x) {
  return map([c = 3.0](auto v) { return v * c; }, x);
}
#endif
}  // namespace map_number_operand
