// Models of files beside the logits that transformers computed of them.
#pragma once

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/layers/nn/stream.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sluice::testing {

/// max |got − want| at real tokens.
inline double worst(const Tensor& got, const Tensor& want, const Tensor& mask) {
  const Tensor padding = unsqueeze(logical_not(mask), -1);
  return max_abs_diff(masked_fill(to(got, f64), padding, 0), masked_fill(want, padding, 0));
}

/// A model's logits of a padded batch, and of a text in pieces of these sizes in turn, are those beside it.
inline void check_logits(const std::string& folder, const std::vector<int64_t>& pieces) {
  const SafeTensors want = load_safetensors(folder + "/expected.safetensors");
  const auto& given = want.tensors;
  NoGrad guard;
  const Decoder model = load_model_files(folder, {.dtype = f64});
  const Tensor y = model(given.at("tokens"), {.key_mask = given.at("mask")});
  CHECK(worst(y, given.at("logits"), given.at("mask")) <= 1e-9);
  const Tensor text = given.at("stream");
  Stream stream;
  for (int64_t at = 0, i = 0; at < text.dim(1); ++i) {
    const int64_t count = std::min(pieces[static_cast<std::size_t>(i) % pieces.size()], text.dim(1) - at);
    const Tensor logits = step(model, narrow(text, 1, at, count), stream);
    CHECK(max_abs_diff(logits, narrow(given.at("stream_logits"), 1, at, count)) <= 1e-9);
    at += count;
  }
}

}  // namespace sluice::testing
