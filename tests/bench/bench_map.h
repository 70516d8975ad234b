// bench_map_formulas.cpp, compiled twice: as a user's plain Release build does, and with -march=native.
#pragma once

#include <sluice/core/tensor.h>

namespace sluice::bench {

Tensor swiglu_plain(const Tensor& x, const Tensor& g);
Tensor swiglu_native(const Tensor& x, const Tensor& g);
Tensor geglu_plain(const Tensor& x, const Tensor& g);
Tensor geglu_native(const Tensor& x, const Tensor& g);
Tensor gate_norm_plain(const Tensor& x, const Tensor& g);
Tensor gate_norm_native(const Tensor& x, const Tensor& g);
Tensor clipped_plain(const Tensor& x, const Tensor& g);
Tensor clipped_native(const Tensor& x, const Tensor& g);

}  // namespace sluice::bench
