// The tensors stand beside the formula, in no list.
// message: a formula, then its tensors
namespace map_braces {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return v * w; }, {x, y});
}
#else
Tensor f(const Tensor& x, const Tensor& y) {
  return map([](auto v, auto w) { return v * w; }, x, y);
}
#endif
}  // namespace map_braces
