// A formula must take auto: it is called with floats, with dual numbers and with tensors.
// message: takes one `auto` parameter per tensor
namespace map_concrete_type {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](float v) { return v * v; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return v * v; }, x);
}
#endif
}  // namespace map_concrete_type
