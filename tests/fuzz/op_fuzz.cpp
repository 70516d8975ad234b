// Every public op with hostile arguments. A sluice::Error that names the op is a good answer.
#include "fuzz/kinds.h"
#include "fuzz/op_calls.h"
#include "support/approx.h"
#include "support/folders.h"
#include "support/public_ops.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cstdio>
#include <ctime>
#include <set>

namespace sluice::testing {

namespace {

constexpr double kErrorSeconds = 20;  // of the processor: what cannot be done is found before the work, not after it

struct Count {
  long calls = 0, errors = 0;
};
std::map<std::string, Count> by_op;

/// Reads all of x, so that a view that leaves its storage is noticed.
void read(const Tensor& x) {
  if (!x.defined() || x.numel() > 1 << 16) return;
  x.to_vector<double>();
}

void differentiate(const std::vector<Tensor>& ys, Draw& draw) {
  std::vector<Tensor> roots, seeds, inputs;
  for (const Tensor& y : ys)
    if (y.requires_grad())
      roots.push_back(y), seeds.push_back(draw.chance(0.5) ? expand(ones({}, y.options()), y.shape()) : ones_like(y));
  for (const Tensor& x : draw.tensors())
    if (x.requires_grad()) inputs.push_back(x);
  if (roots.empty() || inputs.empty()) return;
  const bool twice = draw.chance(0.4);
  std::vector<Tensor> first = grad(roots, inputs, {.create_graph = twice, .allow_unused = true, .grad_outputs = seeds});
  std::vector<Tensor> again;
  for (const Tensor& g : first) read(g);
  if (!twice) return;
  seeds.clear();
  for (const Tensor& g : first)
    if (g.requires_grad()) again.push_back(g), seeds.push_back(ones_like(g));
  if (!again.empty())
    for (const Tensor& g : grad(again, inputs, {.allow_unused = true, .grad_outputs = seeds})) read(g);
}

/// Whether an error names the op that was called. Of a tensor that is undefined or of rank 9, or when memory or a
/// device is missing, no op knows more; activate() names the activation.
bool names(const std::string& op, const Error& e) {
  const std::string said = e.what();
  if (kernel_failed(e)) return false;
  const std::string by = said.substr(0, said.find(':'));
  return by == op || op == "activate" || dynamic_cast<const DeviceError*>(&e) || by == "tensor" || by == "shape" ||
         dynamic_cast<const MemoryError*>(&e) || said.find("more memory") != said.npos;
}

}  // namespace

bool kernel_failed(const Error& e) {
  const std::string_view said = e.what();
  if (said.find("cuda emulator: block") != said.npos) return true;
  return test_device() != cpu && dynamic_cast<const DeviceError*>(&e) && said.starts_with("cuda: ");
}

/// Every op of ops/ has an entry.
bool ops_are_covered() {
  std::set<std::string> have;
  for (const auto& [name, call] : op_calls()) have.insert(name);
  bool all = true;
  for (const PublicOp& op : public_ops(source_folder()))
    if (!have.count(op.name)) {
      std::fprintf(stderr, "ops/%s: %s has no call in tests/fuzz/op_calls.cpp\n", op.header.c_str(), op.name.c_str());
      all = false;
    }
  return all;
}

void draw_op(Draw& draw, Report& report) {
  const OpCalls& calls = op_calls();
  const auto& [name, call] = calls[static_cast<std::size_t>(draw.below(static_cast<int64_t>(calls.size())))];
  if (!report.op.empty() && name != report.op) return;
  report.at(name);
  Count& count = by_op[name];
  ++count.calls, ++report.counts["calls"];
  std::vector<Tensor> ys;
  const std::clock_t begun = std::clock();
  try {
    ys = call(draw);
  } catch (const Error& e) {
    ++count.errors, ++report.counts["errors"];
    const double took = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    if (took > kErrorSeconds) report.wrong(draw, str("the error came after ", took, " s: ", e.what()));
    if (!names(name, e)) report.wrong(draw, str("the error is not the op's: ", e.what()));
  }
  try {
    for (const Tensor& y : ys) read(y);
    if (draw.chance(0.5)) differentiate(ys, draw);
  } catch (const Error& e) {  // of the gradient's own
    if (kernel_failed(e)) report.wrong(draw, e.what());
  }
}

void finish_ops(Report& report) {
  for (const auto& [name, c] : by_op)
    if (c.calls > 300 && c.errors == c.calls)
      std::fprintf(stderr, "%s: none of %ld calls succeeded\n", name.c_str(), c.calls), ++report.failures;
  report.counts["ops"] = static_cast<long>(by_op.size());
}

}  // namespace sluice::testing
