// A module lists its members, otherwise nothing would be trained and nobody would notice.
// message: a module lists its members: SLUICE_PARTS
namespace module_without_visit {
using namespace sluice;
struct Layer {
  Tensor weight;
#ifndef MISTAKE
  static void visit(auto& self, auto&& f) { f("weight", self.weight); }
#endif
};
auto f(const Layer& layer) { return parameters(layer); }
}  // namespace module_without_visit
