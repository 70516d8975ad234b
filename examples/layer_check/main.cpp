// layer_check CASE.safetensors OUT.safetensors [--dtype f64|f32] [--device cpu|cuda]
//
// Runs any layer of Sluice forward and backward on given tensors, so that it can be compared with another
// implementation, or take over its weights. README.md has the format and an example.
#include "listing.h"
#include "registry.h"
#include "run.h"

#include <cstdio>
#include <exception>
#include <new>

using namespace layer_check;
using sluice::fail;
using sluice::ValueError;

namespace {

constexpr const char* kUsage =
    "usage: layer_check CASE.safetensors OUT.safetensors [--dtype f64|f32] [--device cpu|cuda]\n"
    "       layer_check --list [LAYER]               layers, options, inputs, parameters: JSON\n"
    "       layer_check --parameters LAYER [CONFIG]  names and shapes for these options\n"
    "       layer_check --self-check                 builds every layer with all its samples\n";

void list(const std::vector<std::string>& names) {
  std::vector<const Layer*> chosen;
  for (const std::string& name : names) chosen.push_back(&find_layer(name));
  if (names.empty())
    for (const Layer& l : layers()) chosen.push_back(&l);
  std::fputs(listing(chosen).c_str(), stdout);
}

void print_parameters(const std::string& layer, const std::string& config) {
  for (const NamedTensor& s : prepare(layer, parse_config(config)).state)
    std::printf("%s %s%s\n", s.name.c_str(), sluice::str(s.tensor).c_str(),
                s.tensor.requires_grad() ? "" : " (not trained)");
}

/// Prints a line for each layer; 1 if one cannot be built.
int build_all() {
  int status = 0;
  for (const Layer& layer : layers()) {
    std::string problems;
    const std::vector<Values> samples = samples_of(layer);
    for (const Values& sample : samples) try {
        prepare(layer.name, object(sample));
      } catch (const std::exception& e) {
        problems += sluice::str("  ", to_text(object(sample)), ": ", e.what(), "\n"), status = 1;
      }
    std::printf("%s: %zu option sets, %s\n%s", layer.name.c_str(), samples.size(), problems.empty() ? "ok" : "FAILED",
                problems.c_str());
  }
  return status;
}

int run(std::vector<std::string> args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") return std::fputs(kUsage, stdout), args.empty();
  if (args[0] == "--list") return list({args.begin() + 1, args.end()}), 0;
  if (args[0] == "--self-check" || args[0] == "--smoke") return build_all();
  if (args[0] == "--parameters") {
    if (args.size() < 2 || args.size() > 3) fail<ValueError>("--parameters: needs a layer and perhaps its config");
    return print_parameters(args[1], args.size() > 2 ? args[2] : "{}"), 0;
  }
  std::vector<std::string> files;
  RunSettings settings;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string& a = args[i];
    if (a == "--dtype" || a == "--device") {
      const std::string value = ++i < args.size() ? args[i] : "";
      if (a == "--dtype" && (value == "f64" || value == "f32"))
        settings.dtype = value == "f64" ? sluice::f64 : sluice::f32;
      else if (a == "--device" && (value == "cpu" || value == "cuda")) settings.device = sluice::device_named(value);
      else fail<ValueError>(a, ": must be ", a == "--dtype" ? "f64 or f32" : "cpu or cuda", " — got \"", value, "\"");
    } else if (a.starts_with("--")) {
      fail<ValueError>("unknown argument ", a, "; see layer_check --help");
    } else {
      files.push_back(a);
    }
  }
  if (files.size() != 2)
    fail<ValueError>(
        "needs two files, CASE.safetensors and OUT.safetensors; see layer_check "
        "--help");
  sluice::save_safetensors(files[1], run_case(sluice::load_safetensors(files[0]), settings));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string problem;
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::bad_alloc&) { problem = "out of memory"; } catch (const std::exception& e) {
    problem = e.what();
  }
  for (char& c : problem)
    if (c == '\n') c = ' ';
  std::fprintf(stderr, "layer_check: %s\n", problem.c_str());
  return 1;
}
