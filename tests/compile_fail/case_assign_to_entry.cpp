// x[0] = … would change a handle that is dropped, and not x.
// message: use of deleted function|overload resolution selected deleted operator
namespace assign_to_entry {
using namespace sluice;
#ifdef MISTAKE
void f(Tensor x, const Tensor& y) { x[0] = y; }
#else
void f(Tensor x, const Tensor& y) {
  Tensor row = x[0];
  copy_(row, y);
}
#endif
}  // namespace assign_to_entry
