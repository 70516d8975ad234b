#include <sluice/parallel/reduce.h>

#include <sluice/core/kernel/parallel.h>

#include <algorithm>

namespace sluice::detail {

namespace {

constexpr int64_t kReduceTile = 1024;

template <class T, class Acc>
void reduce_as(ReduceOp how, const std::vector<const std::byte*>& pieces, std::byte* out, int64_t n) {
  T* y = reinterpret_cast<T*>(out);
  parallel_for(n, 64 * kReduceTile, [&](int64_t begin, int64_t end) {
    Acc tile[kReduceTile];  // y may be one of the pieces: a tile of y is written when all pieces of it have been read
    for (int64_t at = begin; at < end; at += kReduceTile) {
      const int64_t count = std::min(kReduceTile, end - at);
      const auto piece = [&](std::size_t r) { return reinterpret_cast<const T*>(pieces[r]) + at; };
      for (int64_t i = 0; i < count; ++i) tile[i] = static_cast<Acc>(piece(0)[i]);
      for (std::size_t r = 1; r < pieces.size(); ++r) {
        const T* x = piece(r);
        if (how == ReduceOp::sum) {
          for (int64_t i = 0; i < count; ++i) {
            if constexpr (std::is_integral_v<Acc>)  // wraps around
              tile[i] = static_cast<Acc>(static_cast<uint64_t>(tile[i]) + static_cast<uint64_t>(x[i]));
            else tile[i] += static_cast<Acc>(x[i]);
          }
        } else {
          for (int64_t i = 0; i < count; ++i) {
            const Acc v = static_cast<Acc>(x[i]);
            if (v != v || (how == ReduceOp::max ? v > tile[i] : v < tile[i])) tile[i] = v;
          }
        }
      }
      for (int64_t i = 0; i < count; ++i) y[at + i] = static_cast<T>(tile[i]);
    }
  });
}

}  // namespace

void check_reducible(const char* op, DType dtype) {
  if (dtype != f32 && dtype != f64 && dtype != bf16 && dtype != i64)
    fail<DTypeError>(op, ": needs f32, f64, bf16 or i64 — got ", dtype);
}

void reduce_pieces(const char* op, ReduceOp how, DType dtype, const std::vector<const std::byte*>& pieces, std::byte* y,
                   int64_t n) {
  check_reducible(op, dtype);
  if (dtype == f32) reduce_as<float, float>(how, pieces, y, n);
  else if (dtype == f64) reduce_as<double, double>(how, pieces, y, n);
  else if (dtype == bf16) reduce_as<BFloat16, float>(how, pieces, y, n);
  else reduce_as<int64_t, int64_t>(how, pieces, y, n);
}

}  // namespace sluice::detail
