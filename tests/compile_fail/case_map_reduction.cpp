// A formula sees one number at a time.
// message: no sum\(x\)
namespace map_reduction {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return v / sum(v); }, x);
}
#else
Tensor f(const Tensor& x) { return x / sum(x); }
#endif
}  // namespace map_reduction
