// A function of the standard library's, of which there are many of one name.
// message: a formula names its parameters
namespace map_std_name {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) { return map(std::exp, x); }
#else
Tensor f(const Tensor& x) {
  return map([](auto v) { return exp(v); }, x);
}
#endif
}  // namespace map_std_name
