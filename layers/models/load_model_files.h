// A published language model from its folder, and back.
//
//   Decoder model = load_model_files("Qwen3-0.6B");               // config.json, model.safetensors or its index
//   Decoder tuned = load_model_files(folder, {.dtype = f32, .map = false});   // to train it, in f32
//   save_model_files(tuned, "tuned", folder);                     // for transformers, or load_model_files() again
//
// layers/models/README.md lists the families.
#pragma once

#include <sluice/layers/models/decoder.h>

#include <optional>

namespace sluice {

struct ModelFilesOptions {
  std::optional<DType> dtype = std::nullopt;  // default: that of the files' matrices; f32 for F16
  bool map = true;                            // matrices are the files' own memory where they can be; false to train
  std::vector<std::string> ignore = {};       // fields of config.json that change nothing
  /// Of models with a RoPE for short texts and one for long ones (LongRoPE: Phi-3.5, Phi-4-mini): the model has the one
  /// for texts longer than it was first trained on, for all texts, as llama.cpp and vLLM decide by the room for a text.
  /// Transformers decides anew for each call. Without it, longer texts are refused.
  bool long_texts = false;
};

/// Builds the model that config.json describes and reads its weights from model.safetensors, or from the files of
/// model.safetensors.index.json. Mapped weights cost memory as they are touched; in-place edits of them stay in this
/// process. They lie transposed, which an optimiser refuses. The files must not change while the model lives. Throws
/// IOError for a family, a field or a value that is unknown, naming it, and for weights that do not fit, see
/// load_pytorch().
Decoder load_model_files(const std::string& folder, const ModelFilesOptions& options = {});

/// Writes a model that load_model_files(like) made, and that was trained since, to the folder `to`, with the names and
/// layouts of `like`: model.safetensors; config.json with the model's dtype; those of `like`'s other files that end
/// with .json, .jinja, .model or .txt, as tokenizers do. Weights of `like` that are no part of the decoder are copied:
/// what sees images, layers that predict later tokens. Weights that `like` stores in few bits are written as floats.
/// Throws ValueError if the model has other tensors or shapes than `like`, and if both folders are the same;
/// DeviceError on meta; IOError.
void save_model_files(const Decoder& model, const std::string& to, const std::string& like);

}  // namespace sluice
