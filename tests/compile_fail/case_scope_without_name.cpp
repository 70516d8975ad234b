// A scope without a name ends with its line: compilers warn.
// message: ignoring (return value of .*NoGrad|temporary created by a constructor)
namespace scope_without_name {
using namespace sluice;
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wunused-result"
#pragma GCC diagnostic error "-Wunused-value"
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  NoGrad();
  return x * x;
}
#else
Tensor f(const Tensor& x) {
  const NoGrad guard;
  return x * x;
}
#endif
#pragma GCC diagnostic pop
}  // namespace scope_without_name
