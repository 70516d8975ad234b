// Functions are called by their bare name, not through std::, which knows no dual numbers.
// message: write exp\(x\), not std::exp\(x\)
namespace map_std_function {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return std::exp(v); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return exp(v); }, x);
}
#endif
}  // namespace map_std_function
