// The same with ?:.
// message: in_a_formula_write_select_instead_of_if
namespace map_conditional {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return v > w ? v : v * 0.1; }, x, y);
}
#else
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return select(v > w, v, v * 0.1); }, x, y);
}
#endif
}  // namespace map_conditional
