// Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey pictures of 28 × 28 pixels in ten classes.
#pragma once

#include "support/classify.h"

#include <sluice/layers/data/idx.h>

#include <array>

namespace sluice::examples {

inline constexpr std::array<const char*, 10> kFashion = {"t-shirt", "trousers", "pullover", "dress", "coat",
                                                         "sandal",  "shirt",    "sneaker",  "bag",   "ankle boot"};

/// Pictures f32 [count, 28, 28] of about unit variance, and labels. part: "train" or "t10k". IOError when the files are
/// not in `folder`.
inline Labelled read_fashion(const std::string& folder, const std::string& part) {
  const Tensor pixels = read_idx(folder + "/" + part + "-images-idx3-ubyte.gz");
  return {(pixels / 255 - 0.286) / 0.353, read_idx(folder + "/" + part + "-labels-idx1-ubyte.gz", i64)};
}

/// Noise in ten classes, for a run without the files.
inline Labelled made_up_fashion(int64_t count, Rng& rng) {
  const Tensor y = randint(0, 10, {count}, rng);
  return {reshape(to(y, f32), {count, 1, 1}) / 5 + normal({count, 28, 28}, 0, 1, rng), y};
}

/// Overlapping patches of 8 × 8 pixels, four apart: [batch, 28, width] → [batch, 6 · (width/4 − 1), 64], row by row.
inline Tensor patches(const Tensor& pictures) {
  const Tensor p = unfold(unfold(pictures, 1, 8, 4), 2, 8, 4);  // [batch, 6, columns, 8, 8]
  return reshape(p, {p.dim(0), p.dim(1) * p.dim(2), 64});
}

}  // namespace sluice::examples
