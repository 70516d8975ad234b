// A formula has no memory.
// message: takes one `auto` parameter per tensor, and changes none
namespace map_mutable {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([n = 0](auto v) mutable { return v * ++n; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([n = 0](auto v) { return v * (n + 1); }, x);
}
#endif
}  // namespace map_mutable
