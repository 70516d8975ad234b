// No silent conversion on the way in either.
// message: no dtype for this C\+\+ type: elements are float, double
namespace from_unsigned {
using namespace sluice;
#ifdef MISTAKE
Tensor f() { return Tensor::from(std::vector<unsigned>{1, 2, 3}); }
#else
Tensor f() { return Tensor::from(std::vector<int64_t>{1, 2, 3}); }
#endif
}  // namespace from_unsigned
