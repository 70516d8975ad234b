#include <sluice/layers/report/summary.h>

#include <sluice/core/text/print.h>

namespace sluice::detail {

ModuleMeter::ModuleMeter(const Members& m) : names_(names_of(m)) {
  for (const auto& p : m.parts) rows_.push_back({.path = p.name, .type = p.type, .parameters = trained_values(m, p)});
}

void ModuleMeter::each_running(auto f) {
  // The path is "blocks.0.out (Linear) / Inner": the last registered path, then types of modules without a path.
  const std::string running = ModuleScope::path(&names_);
  const std::size_t end = running.find(" (");
  const std::string path = end == std::string::npos ? "" : running.substr(0, end);
  for (ModuleCost& row : rows_)
    if (row.path.empty() || row.path == path || path.starts_with(row.path + ".")) f(row);
}

void ModuleMeter::on_call(const KernelCall& call) {
  each_running([&](ModuleCost& row) { row.work += call.work; });
}
void ModuleMeter::on_op(const char*, const Tensor& y, Node*) {
  each_running([&](ModuleCost& row) { row.output = y.shape(); });
}

std::string summary_of(const std::vector<ModuleCost>& rows) {
  std::vector<std::vector<std::string>> cells{{"path", "type", "output", "parameters", "FLOPs", "bytes"}};
  for (const ModuleCost& r : rows) {
    if (!r.output && r.parameters == 0 && !r.path.empty()) continue;  // an optional layer that this model has not
    cells.push_back({r.path.empty() ? "(model)" : r.path, r.type, r.output ? str(*r.output) : "-", str(r.parameters),
                     str(r.work.flops), str(r.work.bytes)});
  }
  return aligned(cells, "lllrrr");
}

}  // namespace sluice::detail
