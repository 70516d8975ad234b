#include <sluice/layers/models/load_model_files.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/models/families.h>
#include <sluice/layers/port/quantised.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string_view>

namespace sluice {

namespace {

struct Checkpoint {
  std::string path;                           // of the only file, or of the index
  std::map<std::string, std::string> shards;  // the file of each tensor
  DType dtype = f32;                          // of the embedding
};

bool of_embedding(std::string_view name) {
  constexpr const char* ends[] = {
      "embed_tokens.weight",         // Llama and most others
      "backbone.embeddings.weight",  // Mamba
      "word_embeddings.weight",      // Ling, Falcon
      "wte.weight",                  // GPT-2
      "embed_in.weight",             // GPT-NeoX
      "tokens_embed.weight",         // GPT-1
  };
  return name == "embed.weight" ||  // DeepSeek-V4
         std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
}
bool is_head(std::string_view name) {
  return name == "lm_head.weight" || name == "embed_out.weight" ||     // GPT-NeoX
         name == "head.weight" || name == "output_projection.weight";  // DeepSeek-V4, BioGPT
}

Checkpoint look(const char* op, const std::string& folder) {
  Checkpoint out;
  std::string shard = "model.safetensors";  // that of the embedding
  out.path = folder + "/" + shard;
  std::error_code error;
  const auto there = [&] {
    return std::filesystem::exists(out.path, error) || error;
  };  // the file's reader reports the error
  if (!there()) {
    out.path += ".index.json";
    if (!there())
      fail<IOError>(op, ": '", folder, "' has neither model.safetensors nor model.safetensors.index.json",
                    std::filesystem::exists(folder + "/pytorch_model.bin", error)
                        ? "; its pytorch_model.bin is a pickle: write it by safetensors.torch.save_file in Python"
                        : "");
    shard.clear();
    for (const auto& [name, file] : detail::read_index(op, out.path)) {
      out.shards[name] = file;
      if (of_embedding(name)) shard = file;
    }
    if (shard.empty()) fail<IOError>(op, ": '", out.path, "' names no tensor with an embedding");
  }
  const auto chosen = [&](const std::string& name) {
    out.shards.try_emplace(name, shard);
    return of_embedding(name);
  };
  const SafeTensors file = map_safetensors(folder + "/" + shard, chosen, op);
  for (const auto& [name, x] : file.tensors) out.dtype = x.dtype();
  return out;
}

/// Whether the files have a head that is not the embedding. Transformers uses it whatever tie_word_embeddings says.
bool has_own_head(const char* op, const std::string& folder, const Checkpoint& files) {
  const auto head = std::ranges::find_if(files.shards, [](const auto&e) { return is_head(e.first); }),
             embedding = std::ranges::find_if(files.shards, [](const auto&e) { return of_embedding(e.first); });
  if (head == files.shards.end() || embedding == files.shards.end()) return false;
  const auto bytes = [&](const auto& entry) {
    const auto this_one = [&](const std::string& name) { return name == entry.first; };
    const SafeTensors file = map_safetensors(folder + "/" + entry.second, this_one, op);
    if (!file.tensors.contains(entry.first))
      fail<IOError>(op, ": '", files.path, "' names \"", entry.first, "\" in '", entry.second, "', which lacks it");
    return file.tensors.at(entry.first);
  };
  const Tensor a = bytes(*head), b = bytes(*embedding);
  return a.shape() != b.shape() || a.dtype() != b.dtype() ||
         std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.numel() * size_of(a.dtype()))) != 0;
}

ModelPlan plan_of(const char* op, const std::string& folder, const ModelConfig& config, const Checkpoint& files,
                  bool long_texts = false) {
  const auto has = [&](const char* text) {
    return std::ranges::any_of(files.shards,
                               [&](const auto& entry) { return entry.first.find(text) != std::string::npos; });
  };
  ModelPlan plan = sluice::plan_of(config, has, long_texts);
  if (plan.options.tied && has_own_head(op, folder, files)) plan.options.tied = false;
  return plan;
}

/// A model with these options whose tensors are on meta.
Decoder shapes_of(const DecoderOptions& options) {
  MetaInit shapes_only;
  Rng rng(0);
  return Decoder(options, rng);
}

void set_dtype(DecoderOptions& o, DType dtype) {
  o.dtype = dtype;
  for (DecoderBlockOptions& block : o.blocks) {
    const auto set = [&](auto& branch) {
      if constexpr (requires { branch.heads.dtype; }) branch.heads.dtype = dtype;
      else if constexpr (requires { branch.dtype; }) branch.dtype = dtype;
    };
    std::visit(set, block.mixer), std::visit(set, block.beside), std::visit(set, block.feed);
    if (block.ngrams) block.ngrams->dtype = dtype;
    if (block.experts) block.experts->dtype = dtype;
  }
}

/// Sets `dtype` and `torch_dtype` where the fields of a configuration have them. False if they have neither.
bool name_dtype(Json::Object& fields, const char* name) {
  bool named = false;
  for (auto& [field, value] : fields)
    if (field == "dtype" || field == "torch_dtype") value = name, named = true;
  return named;
}

/// The text of config.json with another dtype of the model, which text_config may name, too, and without
/// `quantization_config`. All other fields stay.
std::string with_dtype(const std::string& config, DType dtype) {
  const char* const name = dtype == bf16 ? "bfloat16" : dtype == f64 ? "float64" : "float32";
  Json json = parse_python_json(config);
  auto& fields = std::get<Json::Object>(json.value);
  std::erase_if(fields, [](const auto& field) { return field.first == "quantization_config"; });
  bool named = name_dtype(fields, name);
  for (auto& [field, value] : fields)
    if (auto* const nested = std::get_if<Json::Object>(&value.value); nested && field == "text_config")
      named |= name_dtype(*nested, name);
  if (!named) fields.emplace(fields.begin(), "dtype", name);
  return to_python_text(json);
}

/// Throws ValueError unless the model has the tensors of `need`.
void check_fits(const char* op, const detail::Members& model, const Decoder& need, const std::string& like) {
  const detail::Members theirs = detail::members(need);
  const auto slot = [](const detail::Members& m, std::size_t i) {
    return i < m.slots.size() ? str("\"", m.slots[i].name, "\" ", m.slots[i].tensor->shape()) : "nothing more";
  };
  for (std::size_t i = 0; i < std::max(model.slots.size(), theirs.slots.size()); ++i)
    if (slot(model, i) != slot(theirs, i))
      fail<ValueError>(op, ": the model has ", slot(model, i), " where '", like, "' has ", slot(theirs, i));
}

/// Gives tensors the shapes that they have in the files, and adds the files' tensors whose names match `others`.
/// Quantised tensors of the files become `dtype`.
void complete(SafeTensors& out, const std::string& folder, const Checkpoint& files,
              const std::vector<std::string>& others, DType dtype) {
  const std::vector<std::regex> patterns(others.begin(), others.end());
  const auto stays = [&](const std::string& name) {  // not a head tied to the embedding: it was trained with it
    return !is_head(name) && name.size() <= 1000 &&
           std::ranges::any_of(patterns, [&](const std::regex& r) { return std::regex_search(name, r); });
  };
  std::set<std::string> shards, names;
  for (const auto& [name, shard] : files.shards) shards.insert(shard);
  std::map<std::string, Tensor> all;
  const auto chosen = [&](const std::string& name) { return out.tensors.contains(name) || stays(name); };
  for (const std::string& shard : shards)
    all.merge(map_safetensors(folder + "/" + shard, chosen, "save_model_files").tensors);
  for (const auto& [name, x] : all) names.insert(name);
  const auto weight = [&](const std::string& name) { return stays(name) && detail::weight_of(name).empty(); };
  detail::dequantise("save_model_files", all, names, weight, [&](const std::string&) { return dtype; });
  for (const auto& [name, x] : all)
    if (const auto [at, fresh] = out.tensors.try_emplace(name, x); !fresh)
      at->second = reshape(at->second, x.shape());  // the model may lack axes of size 1
}

/// Copies what stands beside weights and config.json: the tokenizer, settings of generation.
void copy_other_files(const char* op, const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto check = [&] {
    if (error) fail<IOError>(op, ": cannot copy from '", from, "' to '", to, "': ", error.message());
  };
  for (fs::directory_iterator at(from, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename(), kind = at->path().extension();
    if (kind != ".json" && kind != ".jinja" && kind != ".model" && kind != ".txt") continue;
    if (name == "config.json" || name.ends_with(".index.json")) continue;
    if (std::error_code unknown; at->is_directory(unknown)) continue;
    fs::copy_file(at->path(), to + "/" + name, fs::copy_options::overwrite_existing, error), check();
  }
  check();
}

}  // namespace

Decoder load_model_files(const std::string& folder, const ModelFilesOptions& options) {
  constexpr const char* op = "load_model_files";
  const std::string path = folder + "/config.json";
  const ModelConfig config(read_file(path, op), str(op, ": '", path, "'"));
  const Checkpoint files = look(op, folder);
  ModelPlan plan;
  Decoder model;
  try {
    plan = plan_of(op, folder, config, files, options.long_texts);
    config.check_read(options.ignore);
    set_dtype(plan.options, options.dtype.value_or(files.dtype));
    model = shapes_of(plan.options);
  } catch (const IOError&) { throw; } catch (const Error& e) {
    fail<IOError>(op, ": '", path, "': ", e.what());
  }
  try {
    load_pytorch(model, files.path, plan.rules, {.ignore = plan.ignore, .map = options.map});
  } catch (const ValueError& e) {  // sizes for which the family's rules make no sense
    fail<IOError>(op, ": '", path, "': ", e.what());
  }
  return model;
}

void save_model_files(const Decoder& model, const std::string& to, const std::string& like) {
  constexpr const char* op = "save_model_files";
  std::error_code error;
  if (std::filesystem::equivalent(to, like, error))
    fail<ValueError>(op, ": need another folder than '", like, "' to write to");
  std::filesystem::create_directories(to, error);
  if (error) fail<IOError>(op, ": cannot make '", to, "': ", error.message());
  const std::string path = like + "/config.json", text = read_file(path, op);
  const Checkpoint files = look(op, like);
  const ModelPlan plan = plan_of(op, like, ModelConfig(text, str(op, ": '", path, "'")), files);
  const detail::Members members = detail::members(model);
  check_fits(op, members, shapes_of(plan.options), like);
  SafeTensors out = detail::pytorch_tensors(op, members, plan.rules, "");
  const DType dtype = model.embedding.weight.dtype();
  complete(out, like, files, plan.ignore, dtype);
  save_safetensors(to + "/model.safetensors", out, op);
  copy_other_files(op, like, to);
  const std::string config = with_dtype(text, dtype);
  write_file_atomically(
      to + "/config.json", [&](FileWriter& f) { f.write(config); }, op);
}

}  // namespace sluice
