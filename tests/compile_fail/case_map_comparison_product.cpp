// A comparison is no number.
// message: a comparison is for select
namespace map_comparison_product {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return (v > 0.0) * v; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return select(v > 0.0, v, 0); }, x);
}
#endif
}  // namespace map_comparison_product
