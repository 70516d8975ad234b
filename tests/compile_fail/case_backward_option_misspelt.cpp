// A misspelt option of backward() is not taken for a gradient.
// message: no matching function for call to .*backward
namespace backward_option_misspelt {
using namespace sluice;
#ifdef MISTAKE
void f(const Tensor& loss) { backward(loss, {.retain_grap = true}); }
#else
void f(const Tensor& loss) {
  backward(loss, {.retain_graph = true});
  backward(loss, {1, 2}), backward(loss, {{1, 2}, {3, 4}}), backward(loss, {loss}), backward(loss, {});
  backward(loss, {}, {.create_graph = true}), backward(loss, loss, {.create_graph = true}), backward(loss, 2);
}
#endif
}  // namespace backward_option_misspelt
