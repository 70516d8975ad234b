// The files of a checkpoint: one, or several with an index.
#include <sluice/layers/port/pytorch.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/utf8.h>

namespace sluice::detail {

std::map<std::string, std::string> read_index(const char* op, const std::string& path) {
  std::map<std::string, std::string> files;
  try {
    const Json index = parse_json(read_file(path, op));
    for (const auto& [name, file] : index.at("weight_map").get<Json::Object>()) files[name] = file.get<std::string>();
  } catch (const ValueError& e) {
    fail<IOError>(op, ": '", path, "': is no index of a sharded checkpoint: ", e.what());
  }
  for (const auto& [name, file] : files)
    if (file.find('/') != std::string::npos || !file.ends_with(".safetensors"))
      fail<IOError>(op, ": '", path, "': the index names \"", shortened(file),
                    "\"; need safetensors files of the same folder");
  return files;
}

std::map<std::string, Tensor> read_pytorch(const std::string& path, bool map,
                                           const std::function<bool(const std::string&)>& wanted,
                                           std::set<std::string>& names) {
  if (path.ends_with(".json")) {
    std::set<std::string> shards;
    for (const auto& [name, shard] : read_index("load_pytorch", path)) shards.insert(shard);
    std::map<std::string, Tensor> all;
    for (const std::string& shard : shards)
      all.merge(read_pytorch(path.substr(0, path.rfind('/') + 1) + shard, map, wanted, names));
    return all;
  }
  const auto check = [&](bool good, const auto&... why) {
    if (!good) fail<IOError>("load_pytorch: '", path, "': ", why...);
  };
  std::string twice;
  const auto chosen = [&](const std::string& name) {
    if (!names.insert(name).second) twice = name;
    return wanted(name);
  };
  const SafeTensors loaded = (map ? map_safetensors : load_safetensors)(path, chosen, "load_pytorch");
  check(twice.empty(), "another file, too, holds \"", shortened(twice), "\"");
  check(!loaded.format().starts_with("sluice") && !loaded.metadata.contains("options"),
        "was written by save() or save_checkpoint(), whose linear maps are [in, out]; read it with load()");
  return loaded.tensors;
}

}  // namespace sluice::detail
