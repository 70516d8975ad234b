// ?: with a number on one side is one mistake, not two.
// message: in_a_formula_write_select_instead_of_if
namespace map_conditional_number {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return v > 0.0 ? v : 0.0; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return select(v > 0.0, v, 0.0); }, x);
}
#endif
}  // namespace map_conditional_number
