// A model without options does not say what its inputs are.
// message: of a model write cost_of\(model
namespace cost_of_model {
using namespace sluice;
struct Model {
  Embedding embed;
  Tensor operator()(const Tensor& tokens, const Pass& = {}) const { return embed(tokens); }
  SLUICE_PARTS(embed);
};
#ifdef MISTAKE
auto f(const Model& model) { return cost(model, 100); }
#else
auto f(const Model& model) {
  return cost_of(model, [](const Model& m) { m(zeros({1, 100}, {i64, meta})); });
}
#endif
}  // namespace cost_of_model
