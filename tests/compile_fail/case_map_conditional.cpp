// The same with ?:.
// message: write select\(x > 0.0, a, b\) instead of if and \?:
namespace map_conditional {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) { return map([](auto v, auto w) { return v > 0.0 && w > 0.0 ? v : v * 0.1; }, x, y); }
#else
Tensor f(const Tensor& x, const Tensor& y) { return map([](auto v, auto w) { return select((v > 0.0) & (w > 0.0), v, v * 0.1); }, x, y); }
#endif
}  // namespace map_conditional
