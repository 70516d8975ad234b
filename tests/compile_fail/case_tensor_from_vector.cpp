// A list is written in braces; the numbers of a vector are copied by a function that says of which dtype and shape.
// message: the values of a vector become a tensor by Tensor::from\(values\)
// lines: 12
#include <vector>
namespace tensor_from_vector {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const std::vector<float>& values) { return Tensor(values); }
#else
Tensor f(const std::vector<float>& values) { return Tensor::from(values); }
#endif
}  // namespace tensor_from_vector
