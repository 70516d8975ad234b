// A workload is a row: a name "group/kind/sizes" and a function that makes it. compare.py has the same kinds.
#pragma once

#include <sluice/sluice.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace sluice::bench {

/// Where workloads are made: --device.
inline Device device = cpu;
/// Of the weights and activations of models: --dtype.
inline DType model_dtype = f32;

struct Workload {
  std::vector<NamedTensor> inputs;           // all that a peer needs to do the same
  std::function<std::vector<Tensor>()> run;  // once: its results, in the order that a peer gives them
  double items = 1;                          // what time is also told by: tokens, nodes
  DType dtype = f32;                         // of its matrix products
};

struct Row {
  std::string name;
  std::function<Workload()> make;
};
std::vector<Row> op_rows();
std::vector<Row> layer_rows();
std::vector<Row> model_rows();

/// "group/kind/2x2048x512".
inline std::string row_name(const std::string& group, const std::string& kind, const std::vector<int64_t>& sizes) {
  std::string s = group + "/" + kind + "/";
  for (std::size_t i = 0; i < sizes.size(); ++i) s += (i ? "x" : "") + std::to_string(sizes[i]);
  return s;
}

/// Forward only: results are y.
Workload forward(std::vector<NamedTensor> inputs, std::function<Tensor()> f);
/// Forward and backward: results are y and the gradients of all inputs that require one, by name. The gradient of y is
/// a further input, "dy".
Workload differentiated(std::vector<NamedTensor> inputs, std::function<Tensor()> f);

/// What one core and all of them can do, measured: FLOP/s and bytes/s.
struct Limits {
  int threads = 0;
  double f32_one = 0, f32 = 0, f64_one = 0, f64 = 0;  // multiply-adds of the widest registers, counting 2
  double bf16_one = 0, bf16 = 0;                      // AMX tiles or VDPBF16PS; 0 without them
  double copy = 0, large_copy = 0, triad = 0;         // bytes read and written, in arrays of 16, 256 and 256 MiB
};
Limits measure_limits();
/// Tries again what multiply-adds of f32 or f64, or AMX tiles (bf16), reach, and keeps the larger figure: the clock and
/// the neighbours change.
void measure_flops(Limits& m, DType dtype, int rounds);
/// Of a GPU: what the vendor's product of two 4096×4096 matrices reaches, and copies on it.
Limits measure_device(Device device);

/// The processor's clock of this thread: others may use the machine.
double thread_seconds();
/// FLOP/s of multiply-adds alone on this thread, with the instruction set in use.
double multiply_adds(DType dtype);

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

}  // namespace sluice::bench
