#include <sluice/layers/nn/stream_check.h>

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>

namespace sluice {

StreamcheckResult detail::streamcheck(const Tensor& x, const Tensor& full,
                                      const std::function<Tensor(const Tensor& piece, Stream&)>& step,
                                      double tolerance) {
  if (full.rank() < 2 || full.numel() == 0 || full.dim(1) != x.dim(1))
    fail("streamcheck: the model must return rows of tokens, [batch, n, …] — got ", full);
  StreamcheckResult result;
  result.ok = true;
  for (const bool growing : {false, true}) {
    Stream stream;
    for (int64_t first = 0, m = 1; first < full.dim(1); first += m, m += growing) {
      m = std::min(m, full.dim(1) - first);
      const Tensor rows = to(narrow(full, 1, first, m), f64), streamed = to(step(narrow(x, 1, first, m), stream), f64);
      if (streamed.shape() != rows.shape())
        fail("streamcheck: a step of ", m, " tokens returned ", streamed, "; the full pass has ", rows, " for them");
      const double error = max(abs(streamed - rows) / clamp(abs(rows), 1)).item();
      if (std::isnan(error) || error > result.max_error) result.max_error = error;
      if (error <= tolerance || !result.ok) continue;
      result.ok = false;
      result.message = str("tokens ", first, " to ", first + m - 1, " as a step of the stream differ by ", error,
                           " from the full pass; what mixes tokens must ask its Call (layers/CALLS.md)");
    }
  }
  return result;
}

}  // namespace sluice
