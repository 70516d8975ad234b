// A tensor is no condition: which of its numbers would decide?
// message: use of deleted function .*operator bool|attempt to use a deleted function
// says: all\(x > 0.0\).item\(\)
namespace tensor_condition {
using namespace sluice;
#ifdef MISTAKE
int f(const Tensor& x) {
  if (x > 0.0) return 1;
  return 0;
}
#else
int f(const Tensor& x) {
  if (all(x > 0.0).item()) return 1;
  return 0;
}
#endif
}  // namespace tensor_condition
