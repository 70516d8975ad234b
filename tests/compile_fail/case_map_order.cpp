// The formula stands first.
// message: a formula, then its tensors
namespace map_order {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map(x, [](auto v) { return v * v; });
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return v * v; }, x);
}
#endif
}  // namespace map_order
