// The same one level down: a member of a module that is not a module.
// message: a module lists its members: SLUICE_PARTS
namespace module_member_without_visit {
using namespace sluice;
struct Layer {
  Tensor weight;
  double factor = 1;
  static void visit(auto& self, auto&& f) {
    f("weight", self.weight);
#ifdef MISTAKE
    f("factor", self.factor);
#endif
  }
};
auto f(const Layer& layer) { return state_dict(layer); }
}  // namespace module_member_without_visit
