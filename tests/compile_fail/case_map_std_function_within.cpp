// The same where the result has the type of a formula's.
// message: write exp\(x\), not std::exp\(x\)
namespace map_std_function_within {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto v) { return v * std::sqrt(v); }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return v * sqrt(v); }, x);
}
#endif
}  // namespace map_std_function_within
