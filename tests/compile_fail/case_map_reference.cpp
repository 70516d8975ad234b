// Parameters are auto or const auto&.
// message: takes one `auto` parameter per tensor, and changes none
namespace map_reference {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) {
  return map([](auto& v) { return v * v; }, x);
}
#else
Tensor f(const Tensor& x) {
  return map([](const auto& v) { return v * v; }, x);
}
#endif
}  // namespace map_reference
