#include <sluice/autograd/anomaly.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/kernel/strided.h>

#include <atomic>
#include <limits>

namespace sluice {

namespace {

constexpr double kLargest = std::numeric_limits<double>::max();
std::atomic<bool> active = false;

struct Count {
  int64_t nan = 0, inf = 0;
};

Count count_bad(const Tensor& x, bool infinity, bool minus_infinity) {
  if (!x.defined() || x.device() == meta || !is_float(x.dtype())) return {};
  std::atomic<int64_t> nan = 0, inf = 0;
  const Tensor here = detail::on_cpu("anomaly", x);
  const detail::StridedRange walk(here.layout());
  parallel_for(x.numel(), 64 * detail::kTile, [&](int64_t begin, int64_t end) {
    int64_t none = 0, plus = 0, minus = 0;
    detail::each_value(walk, here.raw(), here.dtype(), begin, end,
                       [&](double v) { none += v != v, plus += v > kLargest, minus += v < -kLargest; });
    nan += none, inf += (infinity ? plus : 0) + (minus_infinity ? minus : 0);
  });
  return {nan, inf};
}

[[noreturn]] void report(const char* pass, const char* op, const std::string& what, Count c, const Tensor& x,
                         const std::string& path) {
  fail<AutogradError>("anomaly: ", pass, " of ", op, " gave ", c.nan, " NaN and ", c.inf, " infinite of ", x.numel(),
                      " values in ", what, " of shape ", x, path.empty() ? "" : " — in ", path);
}

}  // namespace

AnomalyMode::AnomalyMode(AnomalyOptions options) : Observer(Of::all_threads), options_(std::move(options)) {
  if (active.exchange(true)) fail<AutogradError>("anomaly: the mode is already on");
  begin();
}
AnomalyMode::~AnomalyMode() {
  end();
  active = false;
}

void AnomalyMode::on_op(const char* op, const Tensor& y, Node* node) {
  if (node) detail::remember_module(*node);
  const Count c = count_bad(y, options_.infinity, options_.minus_infinity);
  if (!c.nan && !c.inf) return;
  const std::string path = detail::running_module();
  if (const Node* outer = detail::vjp_of)
    report("backward", outer->name(), str("an intermediate result (", op, ")"), c, y, path);
  report("forward", node ? node->name() : op, "its result", c, y, path);
}

void AnomalyMode::on_vjp(const Node& node, const Tensors& grads) {
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (const Count c = count_bad(grads[i], options_.infinity, options_.infinity); c.nan || c.inf)
      report("backward", node.name(), node.is_leaf() ? "the sum of its gradients" : str("the gradient of input ", i), c,
             grads[i], node.extras_ ? node.extras_->module_path : "");
}

}  // namespace sluice
