#include <sluice/autograd/anomaly.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/scope.h>
#include <sluice/core/strided.h>

#include <cmath>

namespace sluice {

namespace {

AnomalyOptions current;
bool active = false;

struct Count {
  int64_t nan = 0, inf = 0;
};

Count count_bad(const Tensor& x, bool minus_inf_is_bad) {
  Count c;
  if (!x.defined() || x.device() == meta || (x.dtype() != f32 && x.dtype() != f64)) return c;
  for (double v : x.to_vector<double>()) {
    if (std::isnan(v)) ++c.nan;
    else if (std::isinf(v) && current.infinity && (v > 0 || minus_inf_is_bad)) ++c.inf;
  }
  return c;
}

void report(const char* pass, const char* op, const std::string& what, Count c, const Tensor& x,
            const std::string& path) {
  fail<AutogradError>("anomaly: ", pass, " of ", op, " gave ", c.nan, " NaN and ", c.inf, " infinite of ",
                      x.numel(), " values in ", what, " of shape ", x, path.empty() ? "" : "; module ", path);
}

void check_forward(const char* op, const Tensor& y, Node* node) {
  const Node* backward_of = detail::vjp_of;
  std::string path = !backward_of ? ModuleScope::path()
                     : backward_of->extras_ ? backward_of->extras_->module_path : "";
  if (node) node->extras().module_path = path;
  Count c = count_bad(y, current.minus_infinity);
  if (backward_of && (c.nan || c.inf))
    report("backward", backward_of->name(), str("an intermediate result (", op, ")"), c, y, path);
  if (c.nan || c.inf) report("forward", node ? node->name() : op, "its result", c, y, path);
}

void check_backward(const Node& node, const Tensors& grads) {
  for (std::size_t i = 0; i < grads.size(); ++i) {
    Count c = count_bad(grads[i], true);
    if (c.nan || c.inf)
      report("backward", node.name(), str("the gradient of input ", i), c, grads[i],
             node.extras_ ? node.extras_->module_path : "");
  }
}

std::string anomaly_name(const void* object, const char* type) { return detail::registered_name(current.modules, object, type); }

}  // namespace

std::string detail::registered_name(const ModuleNames& modules, const void* object, const char* type) {
  auto it = modules.find({object, type});
  // A derived layer is registered under its own type, but its scope has the type of its base.
  if (it == modules.end()) it = modules.lower_bound({object, ""});
  return it == modules.end() || it->first.first != object ? "" : it->second;
}

AnomalyMode::AnomalyMode(AnomalyOptions options) {
  if (active) fail<AutogradError>("anomaly: the mode is already on");
  active = true;
  current = std::move(options);
  detail::after_op = check_forward;
  detail::after_vjp = check_backward;
  detail::module_name = anomaly_name;
}

AnomalyMode::~AnomalyMode() {
  detail::after_op = nullptr;
  detail::after_vjp = nullptr;
  detail::module_name = nullptr;
  current = {};
  active = false;
}

}  // namespace sluice
