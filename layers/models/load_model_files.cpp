#include <sluice/layers/models/load_model_files.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/families.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace sluice {

namespace {

struct Checkpoint {
  std::string path;             // of the only file, or of the index
  std::set<std::string> names;  // of the tensors
  DType dtype = f32;            // of the embedding
};

bool of_embedding(const std::string& name) { return name.find("embed") != std::string::npos; }

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
      out.names.insert(name);
      if (of_embedding(name)) shard = file;
    }
    if (shard.empty()) fail<IOError>("load_model_files: '", out.path, "' names no tensor with an embedding");
  }
  const SafeTensors file = map_safetensors(folder + "/" + shard, [&](const std::string& name) {
    out.names.insert(name);
    return of_embedding(name);
  });
  for (const auto& [name, x] : file.tensors) out.dtype = x.dtype();
  return out;
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
    return std::any_of(files.names.begin(), files.names.end(),
                       [&](const std::string& name) { return name.find(text) != std::string::npos; });
  };
  ModelPlan plan;
  Decoder model;
  try {
    plan = plan_of(config, has);
    config.check_read(options.ignore);
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
