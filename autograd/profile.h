// Profiler: times every kernel call by op and by module, forward and backward, as a table and as a trace.
#pragma once

#include <sluice/core/kernel/observer.h>

#include <map>
#include <string>
#include <vector>

namespace sluice {

struct ProfileOptions {
  /// Paths of modules, from name_modules(model). Modules without a path are shown by type.
  ModuleNames modules = {};
  /// Calls kept for save_trace(); the tables count all.
  int64_t trace_calls = 1 << 20;
};

/// What a group of kernel calls did.
struct ProfileRow {
  std::string name;       // op, or module path ("" outside modules)
  std::string means;      // the implementation, where there is a choice: "AVX-512" for a matmul; one row for each
  bool backward = false;  // called by a backward pass
  int64_t calls = 0;      // of kernels
  double seconds = 0;     // inside these kernels, excluding nested calls
  Work work;              // operations, and bytes read and written
  int64_t allocated = 0;  // bytes of storage created for them

  /// 10⁹ operations per second; 10⁹ bytes per second.
  double gflops() const { return seconds > 0 ? static_cast<double>(work.flops) / seconds * 1e-9 : 0; }
  double gigabytes_per_second() const { return seconds > 0 ? static_cast<double>(work.bytes) / seconds * 1e-9 : 0; }
};

/// While it lives, it times each kernel call of this thread and attributes it to its op and to the running module; in a
/// backward pass, to the module in which the op was recorded. A second Profile throws AutogradError. Works together
/// with AnomalyMode and summary(), and on meta, where times mean nothing and work is exact.
///
///     Profile profile({.modules = name_modules(model)});
///     train_step();
///     std::cout << profile.table();
///     profile.save_trace("step.json");     // chrome://tracing, ui.perfetto.dev
class Profile final : detail::Observer {
 public:
  /// Records from here to the end of its scope.
  [[nodiscard]] explicit Profile(ProfileOptions options = {});
  ~Profile();

  /// Rows in descending order of time.
  std::vector<ProfileRow> by_op() const;
  std::vector<ProfileRow> by_module() const;
  /// Seconds since construction; seconds inside kernels.
  double wall_seconds() const;
  double kernel_seconds() const;
  /// Both tables as text.
  std::string table() const;
  /// The calls in order of time, in the trace format of Chrome and Perfetto. Throws IOError if it cannot write.
  void save_trace(const std::string& path) const;

 private:
  struct Place {
    std::string path;
    bool backward;
    auto operator<=>(const Place&) const = default;
  };
  struct Call {
    const char* op;
    const Place* place;
    Device device;
    double start, seconds;
    Work work;
  };
  void on_call(const detail::KernelCall& call) override;
  void on_op(const char* op, const Tensor& y, Node* node) override;
  const ModuleNames* modules() const override { return &options_.modules; }
  std::vector<ProfileRow> grouped(bool by_op) const;

  ProfileOptions options_;
  std::map<Place, std::map<std::pair<const char*, const char*>, ProfileRow>> rows_;  // by op and means
  std::vector<Call> calls_;
  double start_, kernel_seconds_ = 0;
};

}  // namespace sluice
