// As many parameters as tensors.
// message: takes one `auto` parameter per tensor
namespace map_parameters {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return v * v; }, x, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v, auto w) { return v * w; }, x, x);
}
#endif
}  // namespace map_parameters
