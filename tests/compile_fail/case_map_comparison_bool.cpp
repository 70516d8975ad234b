// And no bool.
// message: in_a_formula_write_select_instead_of_if
namespace map_comparison_bool {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map(
      [](auto v) {
        const bool positive = v > 0.0;
        return positive * v;
      },
      x);
}
#else
Tensor f(const Tensor& x) {
  return map(
      [](auto v) {
        const auto positive = v > 0.0;
        return select(positive, v, 0);
      },
      x);
}
#endif
}  // namespace map_comparison_bool
