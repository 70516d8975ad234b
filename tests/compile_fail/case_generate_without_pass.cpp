// A model that takes no pass keeps nothing of earlier tokens.
// message: what generates takes a pass
namespace generate_without_pass {
using namespace sluice;
struct Model {
  Linear head;
#ifdef MISTAKE
  Tensor operator()(const Tensor& x) const { return head(x); }
#else
  Tensor operator()(const Tensor& x, const Pass& = {}) const { return head(x); }
#endif
  static void visit(auto& self, auto&& f) { f("head", self.head); }
};
Tensor f(const Model& model, const Tensor& prompt, Rng& rng) { return generate(model, prompt, {}, rng); }
}  // namespace generate_without_pass
