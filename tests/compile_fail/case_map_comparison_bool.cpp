// And no bool.
// message: write select\(x > 0.0, a, b\) instead of if
namespace map_comparison_bool {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) { return map([](auto v) { const bool positive = v > 0.0; return positive * v; }, x); }
#else
Tensor f(const Tensor& x) { return map([](auto v) { const auto positive = v > 0.0; return select(positive, v, 0); }, x); }
#endif
}  // namespace map_comparison_bool
