// The device seam of linear_scan().
#pragma once

#include <sluice/core/kernel.h>
#include <sluice/ops/scan/linear_scan.h>

namespace sluice::detail {

/// q, k, v of rank 4 whose last dim is contiguous; g contiguous: undefined, [batch, heads, n] or
/// [batch, heads, n, channels]; out [batch, heads, n, e], last dim contiguous.
extern Kernel<void(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const LinearScanOptions& o,
                   Tensor& out)> linear_scan_kernel;

}  // namespace sluice::detail
