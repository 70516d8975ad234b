#include <sluice/autograd/profile.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/number/number.h>
#include <sluice/core/text/file.h>
#include <sluice/core/text/print.h>

#include <algorithm>
#include <atomic>
#include <tuple>

namespace sluice {

namespace {

using detail::format, detail::steady_seconds;

std::atomic<bool> active = false;

std::string table_of(const char* heading, const std::vector<ProfileRow>& rows, double total) {
  std::vector<std::vector<std::string>> lines{
      {heading, "pass         calls         ms      %   GFLOP/s      GB/s  allocated MB"}};
  for (const ProfileRow& r : rows) {
    std::string rest = r.backward ? "backward" : "forward ";
    rest += format("%10.0f", static_cast<double>(r.calls)) + format("%11.3f", r.seconds * 1e3);
    rest += format("%7.1f", total > 0 ? 100 * r.seconds / total : 0);
    rest += r.work.flops > 0 ? format("%10.2f", r.gflops()) : "         -";
    rest += format("%10.2f", r.gigabytes_per_second()) + format("%14.3f", static_cast<double>(r.allocated) * 1e-6);
    lines.push_back({r.means.empty() ? r.name : r.name + " (" + r.means + ')', rest});
  }
  return detail::aligned(lines, "ll");
}

std::string in_quotes(std::string_view text) { return '"' + detail::escaped(text) + '"'; }

}  // namespace

Profile::Profile(ProfileOptions options) : options_(std::move(options)), start_(steady_seconds()) {
  if (active.exchange(true)) fail<AutogradError>("profile: another one is on");
}
Profile::~Profile() { active = false; }

void Profile::on_op(const char*, const Tensor&, Node* node) {
  if (node) detail::remember_module(*node);
}

void Profile::on_call(const detail::KernelCall& call) {
  const Place here{detail::running_module(), detail::vjp_of != nullptr};
  auto at = rows_.try_emplace(here).first;
  ProfileRow& row = at->second[{call.op, call.work.means}];
  ++row.calls;
  row.seconds += call.self_seconds;
  row.work += call.work;
  row.allocated += call.allocated;
  kernel_seconds_ += call.self_seconds;
  if (static_cast<int64_t>(calls_.size()) < options_.trace_calls)
    calls_.push_back({call.op, &at->first, call.device, call.start, call.seconds, call.work});
}

std::vector<ProfileRow> Profile::grouped(bool by_op) const {
  std::map<std::tuple<std::string, std::string, bool>, ProfileRow> groups;  // by name: an op may have several addresses
  for (const auto& [place, ops] : rows_)
    for (const auto& [op, r] : ops) {
      const std::string name = by_op ? op.first : place.path, means = by_op && op.second ? op.second : "";
      const ProfileRow none{name, means, place.backward, 0, 0, {}, 0};
      ProfileRow& g = groups.try_emplace({name, means, place.backward}, none).first->second;
      g.calls += r.calls, g.seconds += r.seconds, g.work += r.work, g.allocated += r.allocated;
    }
  std::vector<ProfileRow> rows;
  for (auto& [key, r] : groups) rows.push_back(std::move(r));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}
std::vector<ProfileRow> Profile::by_op() const { return grouped(true); }
std::vector<ProfileRow> Profile::by_module() const { return grouped(false); }

double Profile::wall_seconds() const { return steady_seconds() - start_; }
double Profile::kernel_seconds() const { return kernel_seconds_; }

std::string Profile::table() const {
  return format("%.3f ms in kernels", kernel_seconds_ * 1e3) + format(" of %.3f ms\n\n", wall_seconds() * 1e3) +
         table_of("op", by_op(), kernel_seconds_) + '\n' + table_of("module", by_module(), kernel_seconds_);
}

void Profile::save_trace(const std::string& path) const {
  const auto trace = [&](FileWriter& file) {
    file.write("{\"traceEvents\":[\n");
    const char* separator = "";
    for (const Call& c : calls_) {
      file.write(str(separator, "{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":", in_quotes(c.op), ",\"cat\":\"",
                     c.place->backward ? "backward" : "forward", "\",\"ts\":", format("%.3f", (c.start - start_) * 1e6),
                     ",\"dur\":", format("%.3f", c.seconds * 1e6), ",\"args\":{\"module\":", in_quotes(c.place->path),
                     ",\"means\":", in_quotes(c.work.means ? c.work.means : ""), ",\"device\":\"", c.device,
                     "\",\"flops\":", c.work.flops, ",\"bytes\":", c.work.bytes, "}}"));
      separator = ",\n";
    }
    file.write("\n]}\n");
  };
  write_file_atomically(path, trace, "save_trace");
}

}  // namespace sluice
