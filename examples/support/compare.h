// What the examples of other packages' layers compare with: numbers that those packages gave (data/make_numbers.py).
#pragma once

#include <sluice/sluice.h>

#include <algorithm>
#include <cstdio>
#include <string>

#ifndef SLUICE_EXAMPLE_DATA
#define SLUICE_EXAMPLE_DATA "examples/data"
#endif

namespace sluice::examples {

/// A file of weights, input, output, cotangent and gradients.
struct Numbers {
  std::string path;
  SafeTensors file = load_safetensors(path);
  double worst = 0;  // of all that was compared

  const Tensor& operator[](const char* name) const { return file.tensors.at(name); }
  /// What load_pytorch() leaves in it: no weights of ours.
  PyTorchOptions but_numbers() const { return {.ignore = {"inv_freq", "^(input|output|cotangent|grad)"}}; }
  void compare(const Tensor& got, const char* name) {
    const double d = max(abs(got.detach() - (*this)[name])).item();
    std::printf("%-21s differs by %.1e\n", name, d);
    worst = std::max(worst, d);
  }
};

}  // namespace sluice::examples
