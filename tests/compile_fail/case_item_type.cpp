// item() reads a number.
// message: item<T>\(\) reads a number: T is double, float, bool or an integer type
#include <string>
namespace item_type {
using namespace sluice;
#ifdef MISTAKE
auto f(const Tensor& x) { return x.item<std::string>(); }
#else
auto f(const Tensor& x) { return x.item<int>(); }
#endif
}  // namespace item_type
