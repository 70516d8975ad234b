// A parameter is no float.
// message: and auto, not double
namespace map_number {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map(
      [](auto v) {
        const float c = v;
        return c * v;
      },
      x);
}
#else
Tensor f(const Tensor& x) {
  return map(
      [](auto v) {
        const auto c = v;
        return c * v;
      },
      x);
}
#endif
}  // namespace map_number
