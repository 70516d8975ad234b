#include <sluice/layers/models/load_model_files.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/families.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>

namespace sluice {

namespace {

struct Checkpoint {
  std::string path;                           // of the only file, or of the index
  std::map<std::string, std::string> shards;  // the file of each tensor
  DType dtype = f32;                          // of the embedding
};

bool of_embedding(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("backbone.embeddings.weight");  // the latter: Mamba-2
}

Checkpoint look(const std::string& folder) {
  Checkpoint out;
  std::string shard = "model.safetensors";  // that of the embedding
  out.path = folder + "/" + shard;
  if (!std::filesystem::exists(out.path)) {
    out.path += ".index.json";
    if (!std::filesystem::exists(out.path))
      fail<IOError>("load_model_files: '", folder, "' has neither model.safetensors nor model.safetensors.index.json");
    shard.clear();
    for (const auto& [name, file] : detail::read_index("load_model_files", out.path)) {
      out.shards[name] = file;
      if (of_embedding(name)) shard = file;
    }
    if (shard.empty()) fail<IOError>("load_model_files: '", out.path, "' names no tensor with an embedding");
  }
  const SafeTensors file = map_safetensors(folder + "/" + shard, [&](const std::string& name) {
    out.shards.try_emplace(name, shard);
    return of_embedding(name);
  });
  for (const auto& [name, x] : file.tensors) out.dtype = x.dtype();
  return out;
}

/// Whether the files have a head that is not the embedding. Transformers uses it whatever tie_word_embeddings says.
bool has_own_head(const std::string& folder, const Checkpoint& files) {
  const auto head = files.shards.find("lm_head.weight"),
             embedding = std::ranges::find_if(files.shards, [](const auto&e) { return of_embedding(e.first); });
  if (head == files.shards.end() || embedding == files.shards.end()) return false;
  const auto bytes = [&](const auto& entry) {
    const SafeTensors file =
        map_safetensors(folder + "/" + entry.second, [&](const std::string& name) { return name == entry.first; });
    if (!file.tensors.contains(entry.first))
      fail<IOError>("load_model_files: '", files.path, "' names \"", entry.first, "\" in '", entry.second,
                    "', which lacks it");
    return file.tensors.at(entry.first);
  };
  const Tensor a = bytes(*head), b = bytes(*embedding);
  return a.shape() != b.shape() || a.dtype() != b.dtype() ||
         std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.numel() * size_of(a.dtype()))) != 0;
}

void set_dtype(DecoderOptions& o, DType dtype) {
  o.dtype = dtype;
  for (DecoderBlockOptions& block : o.blocks) {
    std::visit(
        [&](auto& m) {
          if constexpr (requires { m.heads.dtype; }) m.heads.dtype = dtype;
          else m.dtype = dtype;
        },
        block.mixer);
    if (GluOptions* f = std::get_if<GluOptions>(&block.feed)) f->dtype = dtype;
    if (MoeOptions* f = std::get_if<MoeOptions>(&block.feed)) f->dtype = dtype;
  }
}

}  // namespace

Decoder load_model_files(const std::string& folder, const ModelFilesOptions& options) {
  const std::string path = folder + "/config.json";
  const ModelConfig config(read_file(path), path);
  const Checkpoint files = look(folder);
  const auto has = [&](const char* text) {
    return std::ranges::any_of(files.shards,
                               [&](const auto& entry) { return entry.first.find(text) != std::string::npos; });
  };
  ModelPlan plan;
  Decoder model;
  try {
    plan = plan_of(config, has);
    config.check_read(options.ignore);
    if (plan.options.tied && has_own_head(folder, files)) plan.options.tied = false;
    set_dtype(plan.options, options.dtype.value_or(files.dtype));
    detail::MetaInit shapes_only;
    Rng rng(0);
    model = Decoder(plan.options, rng);
  } catch (const IOError&) { throw; } catch (const Error& e) {
    fail<IOError>("load_model_files: '", path, "': ", e.what());
  }
  try {
    load_pytorch(model, files.path, plan.rules, {.ignore = plan.ignore, .map = options.map});
  } catch (const ValueError& e) {  // sizes for which the family's rules make no sense
    fail<IOError>("load_model_files: '", path, "': ", e.what());
  }
  return model;
}

}  // namespace sluice
