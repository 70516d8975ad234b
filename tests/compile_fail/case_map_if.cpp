// A branch inside a formula cannot depend on a value: on tensors the comparison is a mask.
// message: in_a_formula_write_select_instead_of_if
namespace map_if {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map(
      [](auto v) {
        if (v > 0.0) return v;
        return v * 0.1;
      },
      x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return select(v > 0.0, v, v * 0.1); }, x);
}
#endif
}  // namespace map_if
