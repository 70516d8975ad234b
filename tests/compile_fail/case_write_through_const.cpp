// A constant tensor hands out constant memory.
// message: cannot convert .const sluice::Tensor|discards qualifiers|no matching member function for call to
// .mutable_data
namespace write_through_const {
using namespace sluice;
#ifdef MISTAKE
void f(const Tensor& x) { x.mutable_data<float>()[0] = 1; }
#else
void f(Tensor& x) { x.mutable_data<float>()[0] = 1; }
#endif
}  // namespace write_through_const
