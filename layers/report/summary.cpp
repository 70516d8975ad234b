#include <sluice/layers/report/summary.h>

#include <algorithm>
#include <set>

namespace sluice::detail {

ModuleMeter::ModuleMeter(const Members& m) {
  for (const auto& p : m.parts) {
    names_[{p.object, p.type}] = p.name;
    ModuleCost& row = rows_.emplace_back(ModuleCost{p.name, p.type});
    std::set<const TensorImpl*> counted;
    for (std::size_t i = p.first; i < p.last; ++i)
      if (const Tensor& x = *m.slots[i].tensor; x.requires_grad() && counted.insert(x.ref().get()).second)
        row.parameters += x.numel();
  }
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
  for (const ModuleCost& r : rows)
    cells.push_back({r.path.empty() ? "(model)" : r.path, r.type, r.output ? str(*r.output) : "-", str(r.parameters),
                     str(r.work.flops), str(r.work.bytes)});
  std::vector<std::size_t> widths(cells[0].size());
  for (const auto& line : cells)
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  std::string out;
  for (const auto& line : cells) {
    for (std::size_t c = 0; c < line.size(); ++c) {
      const std::string space(widths[c] - line[c].size(), ' ');
      out += (c ? "  " : "") + (c < 3 ? line[c] + space : space + line[c]);  // columns of numbers are right-aligned
    }
    out += '\n';
  }
  return out;
}

}  // namespace sluice::detail
