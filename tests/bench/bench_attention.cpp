// One measurement of attention per process, so that peak memory is the process's own:
//
//   bench_attention KIND N [--heads 4] [--dim 64] [--runs 1]
//
// KIND: engine (attention(), causal), naive (the same composed of ops, n×n weights in full), window (a causal
// window of 256), flash (a FLASH layer, 256 wide, C = 256), linear (a linear attention layer), gla. Prints
// "forward_s backward_s peak_MiB", where peak is the growth of the resident set during forward + backward.
#include "bench.h"

#include <sluice/sluice.h>

#include <cstring>
#include <fstream>
#include <string>

using namespace sluice;
using bench::now;

namespace {

/// A line of /proc/self/status in MiB.
double status_mib(const char* field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(field, 0) == 0) return std::stod(line.substr(std::strlen(field) + 1)) / 1024;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: bench_attention KIND N [--heads H] [--dim D] [--runs R]\n"), 1;
  const std::string kind = argv[1];
  const int64_t n = std::stoll(argv[2]);
  int64_t heads = 4, d = 64, runs = 1;
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    (name == "--heads" ? heads : name == "--dim" ? d : runs) = std::stoll(argv[i + 1]);
  }
  Rng rng(1);
  std::function<Tensor(const std::vector<Tensor>&)> f;
  std::vector<Tensor> in;
  Flash flash;
  LinearAttention linear;
  Gla gla;
  const bool layer = kind == "flash" || kind == "linear" || kind == "gla";
  if (layer) {
    const int64_t dim = heads * d;
    in.push_back(normal({1, n, dim}, 0, 1, rng).requires_grad_());
    if (kind == "flash") {
      flash = Flash({.dim = dim, .causal = true}, rng);
      f = [&](const std::vector<Tensor>& x) { return flash(x[0]); };
    } else if (kind == "linear") {
      linear = LinearAttention({.dim = dim, .heads = heads, .direction = LinearDirection::causal}, rng);
      f = [&](const std::vector<Tensor>& x) { return linear(x[0]); };
    } else {
      gla = Gla({.dim = dim, .heads = heads}, rng);
      f = [&](const std::vector<Tensor>& x) { return gla(x[0]); };
    }
  } else {
    for (int i = 0; i < 3; ++i) in.push_back(normal({1, heads, n, d}, 0, 1, rng).requires_grad_());
    AttentionOptions o;
    o.mask.causal = true;
    if (kind == "window") o.mask.window = 256;
    if (kind == "naive") f = [o](const std::vector<Tensor>& x) { return attention_reference(x[0], x[1], x[2], o); };
    else if (kind == "engine" || kind == "window") f = [o](const std::vector<Tensor>& x) { return attention(x[0], x[1], x[2], o); };
    else return std::fprintf(stderr, "bench_attention: unknown kind %s\n", kind.c_str()), 1;
  }
  {  // warm up threads and BLAS on a small problem, and touch the seed, before the memory is read
    std::vector<Tensor> small;
    for (const Tensor& x : in) small.push_back(narrow(x.detach(), layer ? 1 : 2, 0, std::min<int64_t>(n, 64)).requires_grad_(false));
    f(small);
  }
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak of the resident set
  const double before = status_mib("VmRSS:");
  double forward = 1e30, backward_s = 1e30;
  Tensor seed = ones(layer ? in[0].shape() : Shape{1, heads, n, d});
  for (int64_t i = 0; i < runs; ++i) {
    double start = now();
    Tensor y = f(in);
    forward = std::min(forward, now() - start);
    start = now();
    backward(y, seed);
    backward_s = std::min(backward_s, now() - start);
    for (Tensor& x : in) x.zero_grad();
  }
  std::printf("%.6f %.6f %.1f\n", forward, backward_s, status_mib("VmHWM:") - before);
}
