// The same where the result is a tensor.
// message: no softmax\(x, 0\)
namespace map_softmax {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return softmax(v, 0); }, x);
}
#else
Tensor f(const Tensor& x) { return softmax(x, 0); }
#endif
}  // namespace map_softmax
