// Models of files beside the logits that transformers computed of them.
#pragma once

#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/layers/nn/stream.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::testing {

/// The folders of the tiny models, one of each family.
inline std::vector<std::string> model_folders() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() + "/tests/golden/models"))
    if (entry.is_directory()) out.push_back(entry.path());
  return out;
}

/// max |got − want| at real tokens.
inline double worst(const Tensor& got, const Tensor& want, const Tensor& mask) {
  const Tensor padding = unsqueeze(logical_not(mask), -1);
  return max_abs_diff(masked_fill(to(got, f64), padding, 0), masked_fill(want, padding, 0));
}

/// A model's logits of a padded batch, and of that and a text in pieces of these sizes in turn, are those beside it.
inline void check_logits(const std::string& folder, const std::vector<int64_t>& pieces, bool long_texts = false) {
  const SafeTensors want = load_safetensors(folder + "/expected.safetensors");
  const auto& given = want.tensors;
  NoGrad guard;
  const Decoder model = load_model_files(folder, {.dtype = f64, .long_texts = long_texts});
  const Tensor &padded = given.at("tokens"), &mask = given.at("mask"), &text = given.at("stream");
  CHECK(worst(model(padded, {.key_mask = mask}), given.at("logits"), mask) <= 1e-9);
  const auto in_pieces = [&](const Tensor& tokens, const Tensor& real) {
    Stream stream;
    std::vector<Tensor> logits;
    for (int64_t at = 0, i = 0; at < tokens.dim(1); ++i) {
      const int64_t count = std::min(pieces[static_cast<std::size_t>(i) % pieces.size()], tokens.dim(1) - at);
      const Tensor now = real.defined() ? narrow(real, 1, at, count) : real;
      logits.push_back(step(model, narrow(tokens, 1, at, count), stream, {.key_mask = now}));
      at += count;
    }
    return cat(logits, 1);
  };
  CHECK(max_abs_diff(in_pieces(text, {}), given.at("stream_logits")) <= 1e-9);
  CHECK(worst(in_pieces(padded, mask), given.at("logits"), mask) <= 1e-9);
}

}  // namespace sluice::testing
