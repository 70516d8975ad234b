// Checkpoints that are several files.
#include <sluice/layers/port/pytorch.h>

#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>

namespace sluice::detail {

std::map<std::string, std::string> read_index(const char* op, const std::string& path) {
  std::map<std::string, std::string> files;
  try {
    const Json index = parse_json(read_file(path));
    for (const auto& [name, file] : index.at("weight_map").get<Json::Object>()) files[name] = file.get<std::string>();
  } catch (const ValueError& e) {
    fail<IOError>(op, ": '", path, "': is no index of a sharded checkpoint: ", e.what());
  }
  for (const auto& [name, file] : files)
    if (file.find('/') != std::string::npos || !file.ends_with(".safetensors"))
      fail<IOError>(op, ": '", path, "': the index names \"", file.substr(0, 200),
                    "\"; need safetensors files of the same folder");
  return files;
}

}  // namespace sluice::detail
