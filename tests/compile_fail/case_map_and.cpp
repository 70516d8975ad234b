// && asks one after the other; & asks both.
// message: write & and \|, not && and \|\|
namespace map_and {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return select(v > 0.0 && v < 1.0, v, 0.0); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return select((v > 0.0) & (v < 1.0), v, 0.0); }, x);
}
#endif
}  // namespace map_and
