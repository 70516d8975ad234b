// sluice_bench: what the machine can do, and how near to it Sluice comes. Run by hand, or by compare.py.
//
//   sluice_bench [--only REGEX] [--seconds 1] [--threads N] [--precision f32|bf16] [--dtype f32|f64|bf16] [--device
//   cpu|cuda]
//                [--json FILE]
//   sluice_bench --list | --start | --serve | --profile [--only REGEX]
//
// A line of JSON for the machine and one for each workload. --profile tells where their time goes. --start computes one
// sum and leaves: start-up time. --serve takes commands from stdin, one a line, and answers each with a line of JSON:
//
//   limits                the machine
//   run NAME SECONDS      one workload for so long; it stays ready until another one is named
//   save NAME FILE        the same without timing; its inputs and results go to a file, as safetensors
//   memory NAME FILE      growth of the resident set in its first run, for a process of its own; inputs go to a file
#include "bench.h"

#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/observer.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/options.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/machine.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>

using namespace sluice;
using namespace sluice::bench;

namespace {

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> all = op_rows();
    for (auto more : {layer_rows(), model_rows()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return rows;
}

Workload make(const std::string& name) {
  for (const Row& row : all_rows())
    if (row.name == name) return row.make();
  fail<ValueError>("sluice_bench: no workload is called ", name, "; --list names them");
}

/// Σ of all numbers with weights 1 … 7 in turn, so that neither order nor sign is lost.
double checksum(const std::vector<Tensor>& results) {
  double sum = 0;
  for (const Tensor& r : results) {
    const std::vector<double> x = r.to_vector<double>();
    for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * static_cast<double>(i % 7 + 1);
  }
  return sum;
}

Limits& limits() {
  static Limits m = device == cpu ? measure_limits() : measure_device(device);
  return m;
}

Json machine() {
  const Limits& m = limits();
  return Json::Object{{"machine", device == cpu ? describe_machine() : str(describe_machine(), "; on ", device)},
                      {"isa", isa_name(isa())},
                      {"threads", m.threads},
                      {"fma_f32_gflops_one_thread", m.f32_one * 1e-9},
                      {"fma_f32_gflops", m.f32 * 1e-9},
                      {"fma_f64_gflops_one_thread", m.f64_one * 1e-9},
                      {"fma_f64_gflops", m.f64 * 1e-9},
                      {"bf16_gflops_one_thread", m.bf16_one * 1e-9},
                      {"bf16_gflops", m.bf16 * 1e-9},
                      {"copy_gbs", m.copy * 1e-9},
                      {"large_copy_gbs", m.large_copy * 1e-9},
                      {"triad_gbs", m.triad * 1e-9}};
}

/// What products of f32 tensors compute in.
DType products = f32;

void set_products(const std::string& precision) {
  if (precision == "bf16") set_precision(Precision::bf16), products = bf16;
  else if (precision != "f32") fail<ValueError>("sluice_bench: --precision is f32 or bf16 — got ", precision);
}

/// What the kernels of a run do, by op, beside what the machine could do. Kernels do not overlap, so the sum of their
/// limits is a limit of the run.
class Kernels final : public detail::Observer {
 public:
  struct Part {
    double seconds = 0, limit = 0;
  };
  /// peak: FLOP/s of products. What passes through a kernel that moves more than the caches hold comes from memory.
  Kernels(double peak, const Limits& m) : peak_(peak), m_(m) {}
  void on_call(const detail::KernelCall& call) override {
    if (call.nested) return;
    const double moved = static_cast<double>(call.work.bytes), least = static_cast<double>(call.work.flops) / peak_;
    Part& part = parts_[call.op];
    part.seconds += call.seconds, part.limit += std::max(least, moved / (moved > kInCaches ? m_.large_copy : m_.copy));
  }
  double limit() const {
    double sum = 0;
    for (const auto& [op, part] : parts_) sum += part.limit;
    return sum;
  }
  /// The ops that take most of the time: "matmul 70 % (85 %), attention 21 % (60 %)", in brackets of their limit.
  std::string where() const {
    std::vector<std::pair<std::string, Part>> all(parts_.begin(), parts_.end());
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    double total = 0;
    for (const auto& [op, part] : all) total += part.seconds;
    std::string text;
    const auto percent = [](double share) { return std::to_string(std::lround(100 * share)) + " %"; };
    for (const auto& [op, part] : all) {
      if (part.seconds < 0.08 * total) break;
      text += (text.empty() ? "" : ", ") + op + ' ' + percent(part.seconds / total);
      if (part.limit > 0) text += " (" + percent(part.limit / part.seconds) + ")";
    }
    return text;
  }

 private:
  static constexpr double kInCaches = 0x1p25;  // bytes: those of the arrays of Limits::copy
  double peak_;
  const Limits& m_;
  std::map<std::string, Part> parts_;
};

/// One workload, made and run twice to learn what it does.
class Measured {
 public:
  /// With a path: its inputs and, as "result/0" …, what the second run gave go there. A second step of training tells
  /// more than the first.
  explicit Measured(const std::string& name, const std::string& path = "") : name_(name), workload_(make(name)) {
    SafeTensors file;
    if (!path.empty())
      for (const NamedTensor& x : workload_.inputs) file.tensors[x.name] = clone(x.tensor.detach());
    {
      detail::WorkCounter counter;
      workload_.run();
      work_ = counter.work();
    }
    reset_peak_memory(device);
    const int64_t before = memory_stats(device).live;
    const double start = now();
    const std::vector<Tensor> results = workload_.run();
    synchronize(device);
    second_ = now() - start;
    peak_ = memory_stats(device).peak - before;
    check_ = checksum(results);
    if (path.empty()) return;
    for (std::size_t i = 0; i < results.size(); ++i) file.tensors["result/" + std::to_string(i)] = results[i];
    save_safetensors(path, file);
  }
  const std::string& name() const { return name_; }
  double second() const { return second_; }  // seconds of that run

  Json run(double seconds) const {
    std::vector<double> times;
    for (const double end = now() + seconds; times.empty() || now() < end;) {
      const double start = now();
      workload_.run();
      synchronize(device);
      times.push_back(now() - start);
    }
    const double t = median(times), flops = static_cast<double>(work_.flops), bytes = static_cast<double>(work_.bytes);
    Limits& m = limits();
    if (device == cpu && flops > 0) measure_flops(m, workload_.dtype == f64 ? f64 : products, 5);
    const double peak = workload_.dtype == f64 ? m.f64 : products == bf16 && m.bf16 > 0 ? m.bf16 : m.f32;
    Kernels kernels(peak, m);
    workload_.run();
    synchronize(device);
    return Json::Object{{"name", name_},
                        {"seconds", t},
                        {"runs", static_cast<int64_t>(times.size())},
                        {"gflops", flops / t * 1e-9},
                        {"gbs", bytes / t * 1e-9},
                        {"share_of_limit", std::max(flops / peak, bytes / m.copy) / t},
                        {"share_of_kernels", kernels.limit() / t},
                        {"where", kernels.where()},
                        {"peak_bytes", peak_},
                        {"items", workload_.items},
                        {"checksum", check_}};
  }

 private:
  std::string name_;
  Workload workload_;
  Work work_;
  int64_t peak_ = 0;
  double check_ = 0, second_ = 0;
};

/// Where the time of a workload goes: ten runs after two.
void profile(const std::string& name) {
  const Workload w = make(name);
  w.run(), w.run();
  Profile p;
  for (int i = 0; i < 10; ++i) w.run();
  std::cout << name << "\n" << p.table() << std::endl;
}

/// A line of /proc/self/status in bytes.
double status_bytes(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(field)) return std::stod(line.substr(field.size() + 1)) * 1024;
  return 0;
}

Json memory(const std::string& name, const std::string& path) {
  if (device != cpu) fail<ValueError>("sluice_bench: memory rows are about the host; peak_bytes tells the device's");
  {  // threads and BLAS have memory of their own
    Rng rng(1);
    const Tensor a = normal({512, 512}, 0, 1, rng).requires_grad_();
    backward(sum(matmul(a, a)));
  }
  const Workload w = make(name);
  release_cached_memory();                        // what making it has left
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak of the resident set
  const double before = status_bytes("VmRSS:");
  w.run();
  const double growth = status_bytes("VmHWM:") - before;
  SafeTensors file;
  for (const NamedTensor& x : w.inputs) file.tensors[x.name] = x.tensor.detach();
  save_safetensors(path, file);
  return Json::Object{{"name", name}, {"rss_bytes", growth}};
}

void serve() {
  std::optional<Measured> current;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, name, rest;
    words >> command >> name >> rest;
    Json answer;
    try {
      if (command == "limits") {
        answer = machine();
      } else if (command == "run") {
        if (!current || current->name() != name) current.reset(), current.emplace(name);
        answer = current->run(rest.empty() ? 1 : std::stod(rest));
      } else if (command == "save") {
        current.reset(), current.emplace(name, rest);
        answer = Json::Object{{"name", name}, {"seconds", current->second()}};
      } else if (command == "memory") {
        current.reset();
        answer = memory(name, rest);
      } else {
        fail<ValueError>("sluice_bench: commands are limits, run, save, memory; got ", line);
      }
    } catch (const std::exception& e) { answer = Json::Object{{"error", e.what()}}; }
    std::cout << to_text(answer) << std::endl;
  }
}

int run(const std::vector<std::string>& args) {
  std::string only, json, mode;
  double seconds = 1;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& name = args[i];
    auto value = [&] {
      if (i + 1 == args.size()) fail<ValueError>("sluice_bench: ", name, " needs a value");
      return args[++i];
    };
    if (name == "--only") only = value();
    else if (name == "--seconds") seconds = std::stod(value());
    else if (name == "--threads") set_num_threads(std::stoi(value()));
    else if (name == "--json") json = value();
    else if (name == "--precision") set_products(value());
    else if (name == "--dtype")
      model_dtype = from_name<DType>(value()), products = model_dtype == bf16 ? bf16 : products;
    else if (name == "--device") device = device_named(value());
    else if (name == "--list" || name == "--start" || name == "--serve" || name == "--profile") mode = name;
    else fail<ValueError>("sluice_bench: unknown option ", name);
  }
  if (mode == "--serve") return serve(), 0;
  if (mode == "--start") return std::cout << sum(ones({8})).item() << "\n", 0;

  std::ofstream file;
  if (!json.empty()) file.open(json);
  auto tell = [&](const Json& j) {
    std::cout << to_text(j) << std::endl;
    if (file.is_open()) file << to_text(j) << std::endl;
  };
  if (mode.empty()) tell(machine());
  const std::regex wanted(only);
  for (const Row& row : all_rows()) {
    if (!std::regex_search(row.name, wanted)) continue;
    if (mode == "--list") std::cout << row.name << "\n";
    else if (mode == "--profile") profile(row.name);
    else tell(Measured(row.name).run(seconds));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try { return run({argv + 1, argv + argc}); } catch (const std::exception& e) {
  std::cerr << "error: " << e.what() << "\n";
  return 1;
}
