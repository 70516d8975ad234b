// A tensor has no elements of this C++ type.
// message: no dtype for this C\+\+ type: elements are float, double
namespace data_type {
using namespace sluice;
#ifdef MISTAKE
auto f(const Tensor& x) { return x.data<std::string>(); }
#else
auto f(const Tensor& x) { return x.data<float>(); }
#endif
}  // namespace data_type
