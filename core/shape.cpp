#include <sluice/core/shape.h>

#include <algorithm>

namespace sluice {

void append_text(std::string& s, const Shape& shape) {
  s += '[';
  for (int i = 0; i < shape.rank(); ++i) {
    if (i) s += ',';
    s += std::to_string(shape[i]);
  }
  s += ']';
}

[[noreturn]] static void too_large(std::string_view op, int64_t a, const char* sign, int64_t b) {
  fail(op, ": sizes are too large — got ", a, sign, b, "; need at most 2^56");
}

int64_t checked_mul(std::string_view op, int64_t a, int64_t b) {
  int64_t y;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &y) || y > kMaxElements) too_large(op, a, " × ", b);
  return y;
}

int64_t checked_add(std::string_view op, int64_t a, int64_t b) {
  int64_t y;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &y) || y > kMaxElements) too_large(op, a, " + ", b);
  return y;
}

int64_t checked_numel(std::string_view op, const Shape& shape) {
  int64_t bound = 1;
  bool ok = true;
  for (int64_t s : shape) {
    if (s < 0) fail(op, ": negative size in shape ", shape);
    ok = ok && !__builtin_mul_overflow(bound, std::max<int64_t>(s, 1), &bound) && bound <= kMaxElements;
  }
  if (!ok) fail(op, ": shape ", shape, " has too many elements; need at most 2^56, empty dims counted as 1");
  return shape.numel();
}

Shape broadcast(std::string_view op, const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  Shape out = longer;
  int shift_a = out.rank() - a.rank(), shift_b = out.rank() - b.rank();
  for (int i = 0; i < out.rank(); ++i) {
    int64_t x = i < shift_a ? 1 : a[i - shift_a], y = i < shift_b ? 1 : b[i - shift_b];
    if (x != y && x != 1 && y != 1)
      fail(op, ": shapes do not broadcast — got a=", a, ", b=", b, "; sizes ", x, " and ", y, " at dim ",
           i - out.rank(), " differ and neither is 1");
    out[i] = x == 1 ? y : x;
  }
  checked_numel(op, out);
  return out;
}

bool stretches_to(const Shape& shape, const Shape& full) {
  const int shift = full.rank() - shape.rank();
  bool fits = shift >= 0;
  for (int i = 0; fits && i < shape.rank(); ++i) fits = shape[i] == 1 || shape[i] == full[i + shift];
  return fits;
}

int wrap_dim(std::string_view op, int64_t dim, int rank) {
  int64_t n = std::max(rank, 1);  // a scalar accepts dim 0 and -1
  if (dim < -n || dim >= n) fail(op, ": dim ", dim, " is out of range for rank ", rank, "; need ", -n, " <= dim < ", n);
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

Shape wrap_dims(std::string_view op, const Shape& dims, int rank) {
  Shape out;
  if (dims.empty()) {
    for (int i = 0; i < rank; ++i) out.push_back(i);
    return out;
  }
  for (const int64_t d : dims) {  // insertion sort: std::sort is no faster here, and g++ 14 warns of its bounds
    out.push_back(wrap_dim(op, d, rank));
    for (int i = out.rank() - 1; i > 0 && out[i - 1] >= out[i]; --i) {
      if (out[i - 1] == out[i]) fail(op, ": dim ", out[i], " is listed twice in ", dims);
      std::swap(out[i - 1], out[i]);
    }
  }
  if (rank == 0) return {};
  return out;
}

}  // namespace sluice
