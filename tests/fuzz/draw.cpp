#include "fuzz/draw.h"

#include "support/approx.h"

#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <limits>

namespace sluice::testing {

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
const std::vector<int64_t> kEdges = {
    INT64_MAX,           INT64_MAX - 1,    INT64_MIN,        INT64_MIN + 1,    int64_t{1} << 62,
    int64_t{1} << 53,    int64_t{1} << 46, int64_t{1} << 40, int64_t{1} << 32, int64_t{1} << 31,
    -(int64_t{1} << 31), INT32_MAX,        67280421310721,   int64_t{1} << 33, -1,
    3037000500};
}  // namespace

Draw::Draw(uint64_t seed) : random_(seed), family_(chance(0.5) ? f32 : f64) {}

int64_t Draw::size() { return chance(0.02) ? below(70) : chance(0.08) ? 0 : 1 + below(5); }
int64_t Draw::hostile() { return kEdges[static_cast<std::size_t>(below(static_cast<int64_t>(kEdges.size())))]; }

DType Draw::dtype() {
  if (chance(0.75)) return family_;
  return one_of({f32, f64, bf16, i64, i32, boolean});
}

Tensor Draw::values(const Shape& shape, DType dtype) {
  Tensor x = empty(shape, {f64});
  double* p = x.mutable_data<double>();
  const int64_t range = 1 + below(6), low = chance(0.1) ? -1 : 0;
  const bool wild = chance(0.08);
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (is_integer(dtype)) p[i] = static_cast<double>(low + below(range));
    else if (dtype == boolean) p[i] = static_cast<double>(below(2));
    else p[i] = real(-2, 2);
    if (wild && chance(0.3)) p[i] = one_of({kInf, -kInf, std::nan(""), 0.0, 1e300, -1e300, 1e-310, 9.3e18, -9.3e18});
  }
  return to(to(x, dtype), test_device());
}

Tensor Draw::tensor(Shape shape, std::optional<DType> wanted) {
  if (chance(0.02)) return note("tensor", "undefined"), Tensor();
  if (shape.rank() > 0 && chance(0.03)) shape[static_cast<int>(below(shape.rank()))] = size();
  if (chance(0.02)) shape.rank() > 0 && chance(0.5) ? shape.erase(0) : shape.insert(0, size());
  for (int64_t& s : shape) s = std::clamp<int64_t>(s, 0, 70);
  while (shape.numel() > 4096) shape.erase(0);
  const DType type = chance(0.02) ? dtype() : wanted.value_or(dtype());
  const bool grad = (type == f32 || type == f64) && chance(0.5);
  auto leaf = [&](const Shape& s) {
    Tensor x = values(s, type);
    return grad ? x.requires_grad_() : x;
  };
  const int rank = shape.rank(), d = rank > 0 ? static_cast<int>(below(rank)) : 0;
  Shape base = shape;
  Tensor x;
  const char* how = "";
  switch (rank == 0 ? 9 : below(12)) {
    case 0: base[d] = 1, x = expand(leaf(base), shape), how = "expanded "; break;
    case 1: base[d] = 2 * base[d] + 1, x = slice(leaf(base), d, 1, std::nullopt, 2), how = "strided "; break;
    case 2: x = flip(leaf(base), {d}), how = "flipped "; break;
    case 3: std::swap(base[d], base[0]), x = transpose(leaf(base), 0, d), how = "transposed "; break;
    case 4:  // overlapping windows
      if (rank < 2 || shape[rank - 1] == 0 || shape[rank - 2] == 0) {
        x = leaf(base);
        break;
      }
      base.erase(rank - 1), base[rank - 2] += shape[rank - 1] - 1;
      x = unfold(leaf(base), rank - 2, shape[rank - 1], 1), how = "overlapping ";
      break;
    case 5: base[d] += 3, x = narrow(leaf(base), d, 2, shape[d]), how = "inner "; break;
    case 6:  // far more elements than memory
      if (!chance(0.2) || shape.numel() == 0) {
        x = leaf(base);
        break;
      }
      base[d] = 1, shape[d] = one_of({int64_t{1} << 31, int64_t{1} << 40});
      x = expand(leaf(base), shape), how = "vast ";
      break;
    default: x = leaf(base);
  }
  log_ += str(log_.empty() ? "" : ", ", how, x.dtype(), x.shape());
  tensors_.push_back(x);
  return x;
}

void Draw::fill(Tensor& x) { x = tensor(shape()); }

/// The shape of an operand: often that of an earlier one, or one that broadcasts to it.
Shape Draw::shape() {
  Shape s;
  if (!tensors_.empty() && chance(0.75)) {
    s = tensors_[static_cast<std::size_t>(below(static_cast<int64_t>(tensors_.size())))].shape();
    if (s.rank() > 0 && chance(0.2)) s[static_cast<int>(below(s.rank()))] = 1;
    if (s.rank() > 0 && chance(0.15)) s.erase(0);
    if (s.rank() > 1 && chance(0.1)) std::swap(s[0], s[s.rank() - 1]);
    if (s.rank() > 1 && chance(0.1)) s = {s[s.rank() - 1]};
    return s;
  }
  const int64_t rank = chance(0.03) ? 5 + below(4) : below(5);
  for (int64_t i = 0; i < rank; ++i) s.push_back(size());
  return s;
}

void Draw::fill(Shape& x) {
  if (!tensors_.empty() && chance(0.6)) {
    x = tensors_.back().shape();
    const int rank = x.rank();
    const int64_t kind = below(6);
    if (kind == 0 && rank > 0) x[static_cast<int>(below(rank))] = -1;
    if (kind == 1)  // dims instead of sizes
      for (int i = 0; i < rank; ++i) x[i] = rank - 1 - i;
    if (kind == 2 && rank > 0) x = {below(rank) - (chance(0.5) ? rank : 0)};
    if (kind == 3 && rank > 0) x[static_cast<int>(below(rank))] = hostile();
    if (kind == 4) std::shuffle(x.begin(), x.end(), random_);
  } else {
    for (int64_t rank = chance(0.05) ? below(9) : below(5); rank > 0; --rank)
      x.push_back(chance(0.15) ? hostile() : chance(0.1) ? -1 : size());
  }
  note("shape", x);
}

void Draw::fill(int64_t& x) {
  x = below(8) - 3;
  if (chance(0.2)) x = hostile();
  else if (!tensors_.empty() && tensors_.back().rank() > 0 && chance(0.3)) {
    const Shape& s = tensors_.back().shape();
    x = s[static_cast<int>(below(s.rank()))] + below(3) - 1;
  }
  note("int", x);
}

void Draw::fill(double& x) {
  x = real(-3, 3);
  if (chance(0.5)) x = one_of({0.0, 1.0, -1.0, 0.5, 1e-5, 7.0});
  else if (chance(0.4)) x = one_of({kInf, -kInf, std::nan(""), 1e300, -1e300, 1e-310, 9.3e18, -9.3e18, 1e10, -0.0});
  note("double", x);
}

void Draw::fill(std::vector<int64_t>& x) {
  int64_t left = !tensors_.empty() && tensors_.back().rank() > 0 ? tensors_.back().dim(0) : below(6);
  const bool fits = chance(0.6);
  for (int64_t n = below(5); n > 0; --n) {
    x.push_back(fits ? below(std::min<int64_t>(left, 99) + 1) : get<int64_t>());
    if (fits) left -= x.back();
  }
  if (fits) x.push_back(left);
  for (int64_t v : x) note("entry", v);
}

void Draw::fill(std::vector<Tensor>& x) {
  for (int64_t n = chance(0.05) ? 0 : 1 + below(3); n > 0; --n) x.push_back(get<Tensor>());
}

void Draw::fill(TensorOptions& x) {
  x.dtype = get<DType>();
  if (chance(0.01)) x.device.kind = DeviceKind::cuda;
}

void Draw::fill(CrossEntropyOptions& x) {
  if (chance(0.3)) x.ignore_index = get<int64_t>();
  if (chance(0.3)) x.label_smoothing = get<double>();
  x.reduction = get<Reduction>();
  if (chance(0.1)) x.weight = get<Tensor>();
}

void Draw::fill(RopeOptions& x) {
  if (chance(0.2)) x.base = get<double>();
  if (chance(0.5)) x.pairing = RopePairing::interleaved;
  if (chance(0.3)) x.rot_dim = get<int64_t>();
  if (chance(0.3)) x.offset = get<int64_t>();
  if (chance(0.2))
    for (int64_t n = 1 + below(3); n > 0; --n) x.frequencies.push_back(get<double>());
  if (chance(0.2)) x.factor = get<double>();
  if (chance(0.2)) x.xpos = get<double>();
}

void Draw::fill(T5BucketOptions& x) {
  x.causal = chance(0.5);
  if (chance(0.3)) x.buckets = chance(0.5) ? 4 * below(5) : get<int64_t>();
  if (chance(0.3)) x.max_distance = get<int64_t>();
}

void Draw::fill(LinearScanOptions& x) {
  x.chunk = chance(0.3) ? get<int64_t>() : 1 + below(4);
  x.reverse = chance(0.3), x.decay_on_values = chance(0.3), x.exclusive = chance(0.3);
}

DrawnAttention::DrawnAttention(Draw& draw) {
  batch = 1 + draw.below(2), kv_heads = 1 + draw.below(2), heads = kv_heads * (1 + draw.below(2));
  m = draw.size(), n = draw.chance(0.5) ? m : draw.size(), d = draw.size(), dv = draw.size();
  if (draw.chance(0.02)) batch = 0;
  const DType type = draw.chance(0.5) ? f32 : f64;
  q = draw.tensor({batch, heads, m, d}, type), k = draw.tensor({batch, kv_heads, n, d}, type);
  v = draw.tensor({batch, kv_heads, n, dv}, type);

  mask.causal = draw.chance(0.5);
  auto rarely = [&] { return draw.chance(0.2); };
  if (rarely()) mask.window = draw.get<int64_t>();
  if (rarely()) mask.dilation = draw.get<int64_t>();
  if (rarely()) mask.global = {draw.get<int64_t>(), draw.below(4)};
  if (rarely()) mask.keys = draw.tensor(draw.chance(0.5) ? Shape{batch, n} : Shape{batch, heads, n}, boolean);
  if (rarely()) mask.query_segments = draw.tensor({batch, m}, i64), mask.key_segments = draw.tensor({1, n}, i64);
  if (rarely()) {
    mask.block = draw.chance(0.5) ? 1 + draw.below(4) : draw.get<int64_t>();
    const int64_t b = std::max<int64_t>(1, mask.block);
    const int64_t cols = n / b + (n % b != 0);
    mask.blocks =
        draw.tensor(draw.chance(0.5) ? Shape{m / b + (m % b != 0), cols} : Shape{batch, kv_heads, m, cols}, boolean);
  }
  if (rarely()) mask.dense = draw.tensor(draw.chance(0.5) ? Shape{m, n} : Shape{batch, 1, m, n}, boolean);

  AttentionOptions& o = options;
  o.weighting = draw.chance(0.6) ? Weighting::softmax : static_cast<Weighting>(draw.below(5));
  if (rarely()) o.scale = draw.get<double>();
  o.mask = mask;
  if (rarely()) o.bias = draw.tensor(draw.chance(0.5) ? Shape{m, n} : Shape{heads, 1, n}, type);
  if (rarely()) o.relative_bias = draw.tensor({draw.chance(0.5) ? heads : 1, std::max<int64_t>(0, n + m - 1)}, type);
  if (o.weighting == Weighting::softmax && rarely()) o.sink = draw.tensor({heads}, type);
  if (rarely()) o.row_scale = draw.tensor({heads, m}, type);
  if (rarely()) o.dropout = draw.chance(0.5) ? 0.5 : draw.get<double>();
  if (rarely()) o.tile_rows = draw.get<int64_t>(), o.tile_cols = draw.get<int64_t>();
}

}  // namespace sluice::testing
