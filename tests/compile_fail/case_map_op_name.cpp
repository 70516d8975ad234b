// An op takes tensors, not the numbers of a formula.
// message: a formula names its parameters
namespace map_op_name {
using namespace sluice;
#ifdef MISTAKE
Tensor f(const Tensor& x) { return map(exp, x); }
#else
Tensor f(const Tensor& x) { return exp(x); }
#endif
}  // namespace map_op_name
